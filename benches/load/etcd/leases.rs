//! etcd's leases under load: what `lease-keepalive --peer etcd` renews.
//!
//! As etcd's own client does it: all leases of a connection are renewed on one stream, whose
//! answers come in the order of the questions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse,
};
use super::rpc::{Incoming, Outgoing, Rpc};
use super::store::{EtcdConnection, EtcdConnector};
use leasehold::api::Consistency;
use leasehold::bench::keep_alive::{GRANTS, TTL};
use leasehold::bench::store::{Answer, Connector, Store, Trouble};
use leasehold::cli::failure::Failure;

/// Connects, and has leases granted.
#[derive(Clone, Debug)]
pub(crate) struct EtcdRenewals {
    connector: EtcdConnector,
    leases: usize,
    batch: usize,
}

/// A connection with its leases.
#[derive(Debug)]
pub(crate) struct EtcdHolder {
    renewer: Renewer,
    leases: Vec<i64>,
    batch: usize,
    next: Cell<usize>,
}

/// Renews leases on one stream of a connection.
#[derive(Debug)]
pub(crate) struct Renewer {
    pub(crate) connection: Arc<EtcdConnection>,
    stream: RefCell<Option<Stream>>,
}

/// What came of one question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Renewed {
    /// The store's, when the last of them was renewed.
    pub(crate) revision: i64,
    /// Of each lease, in the order in which they were asked: whether it was there.
    pub(crate) kept: Vec<bool>,
}

#[derive(Debug)]
struct Stream {
    outgoing: Outgoing,
    questions: Arc<Mutex<Questions>>,
}

/// What was asked on a stream and is not answered.
#[derive(Debug, Default)]
struct Questions {
    asked: VecDeque<Question>,
    /// Why nothing more is answered.
    ended: Option<Trouble>,
}

#[derive(Debug)]
struct Question {
    /// Of how many leases.
    count: usize,
    renewed: Renewed,
    answer: oneshot::Sender<Result<Renewed, Trouble>>,
}

impl EtcdRenewals {
    /// So many leases for each connection, and so many renewed at a time.
    pub(crate) fn new(connector: EtcdConnector, leases: u32, batch: u32) -> Self {
        let leases = usize::try_from(leases).unwrap_or(usize::MAX).max(1);
        let batch = usize::try_from(batch).unwrap_or(usize::MAX);
        Self {
            connector,
            leases,
            batch: batch.clamp(1, leases),
        }
    }
}

impl Connector for EtcdRenewals {
    type Store = EtcdHolder;

    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn connect(&self, number: usize) -> Result<EtcdHolder, Failure> {
        let connection = Arc::new(self.connector.dial(number).await?);
        let mut leases = Vec::with_capacity(self.leases);
        while leases.len() < self.leases {
            let some = GRANTS.min(self.leases - leases.len());
            let mut grants = JoinSet::new();
            for _ in 0..some {
                let connection = Arc::clone(&connection);
                grants.spawn(async move { connection.grant(TTL.as_secs()).await });
            }
            while let Some(granted) = grants.join_next().await {
                let granted = granted.map_err(|error| Failure::refused(error.to_string()))?;
                leases.push(granted.map_err(|trouble| Failure::refused(trouble.detail))?);
            }
        }
        let renewer = Renewer::new(connection);
        let opened = renewer.open().await;
        opened.map_err(|trouble| Failure::refused(trouble.detail))?;
        Ok(EtcdHolder {
            renewer,
            leases,
            batch: self.batch,
            next: Cell::new(0),
        })
    }
}

impl EtcdConnection {
    /// Has a lease granted of so many seconds; returns its id.
    ///
    /// # Errors
    /// It is refused, or nobody answers.
    pub(crate) async fn grant(&self, seconds: u64) -> Result<i64, Trouble> {
        let asked = i64::try_from(seconds).unwrap_or(i64::MAX);
        let request = LeaseGrantRequest { ttl: asked, id: 0 };
        let granted: LeaseGrantResponse = self.channel.call(Rpc::LeaseGrant, &request).await?;
        // Whoever counts from what was asked would take a lease that etcd made longer for late.
        if granted.ttl != asked {
            return Err(Trouble {
                code: "other-ttl",
                detail: format!(
                    "etcd makes a lease of {asked}s one of {}s: ask for a longer one",
                    granted.ttl
                ),
            });
        }
        Ok(granted.id)
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// There is no such lease, or nobody answers.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Trouble> {
        let request = LeaseRevokeRequest { id };
        let _: LeaseRevokeResponse = self.channel.call(Rpc::LeaseRevoke, &request).await?;
        Ok(())
    }
}

impl EtcdHolder {
    /// The next leases in turn.
    fn in_turn(&self) -> Vec<i64> {
        let count = self.leases.len();
        let first = self.next.get();
        self.next.set((first + self.batch) % count);
        let places = first..first + self.batch;
        places.map(|place| self.leases[place % count]).collect()
    }
}

impl Renewer {
    /// Opens its stream when it is needed.
    pub(crate) fn new(connection: Arc<EtcdConnection>) -> Self {
        Self {
            connection,
            stream: RefCell::new(None),
        }
    }

    /// Renews these leases, and waits for all the answers.
    pub(crate) async fn renew(&self, leases: &[i64]) -> Result<Renewed, Trouble> {
        if leases.is_empty() {
            return Ok(Renewed::default());
        }
        self.open().await?;
        let answered = self.ask(leases)?;
        let timeout = self.connection.channel.timeout();
        match tokio::time::timeout(timeout, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ended()),
            Err(_) => Err(Trouble {
                code: "DEADLINE_EXCEEDED",
                detail: format!("a renewal was not answered within {timeout:?}"),
            }),
        }
    }

    fn is_open(&self) -> bool {
        let stream = self.stream.borrow();
        stream
            .as_ref()
            .is_some_and(|stream| held(&stream.questions).ended.is_none())
    }

    /// Sees to it that there is a stream.
    async fn open(&self) -> Result<(), Trouble> {
        if self.is_open() {
            return Ok(());
        }
        let channel = &self.connection.channel;
        let (outgoing, incoming) = channel.open(Rpc::LeaseKeepAlive).await?;
        if self.is_open() {
            // Somebody else was quicker, and may have asked already.
            return Ok(());
        }
        let questions = Arc::new(Mutex::new(Questions::default()));
        // Ends with the connection, at the latest with the runtime.
        tokio::spawn(hear(incoming, Arc::clone(&questions)));
        self.stream.replace(Some(Stream {
            outgoing,
            questions,
        }));
        Ok(())
    }

    fn ask(&self, leases: &[i64]) -> Result<oneshot::Receiver<Result<Renewed, Trouble>>, Trouble> {
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = stream.as_mut() else {
            return Err(ended());
        };
        let (answer, answered) = oneshot::channel();
        {
            let mut questions = held(&stream.questions);
            if let Some(trouble) = &questions.ended {
                return Err(trouble.clone());
            }
            // Before it is asked: the answer may be quick.
            questions.asked.push_back(Question {
                count: leases.len(),
                renewed: Renewed::default(),
                answer,
            });
        }
        for &id in leases {
            stream.outgoing.say(&LeaseKeepAliveRequest { id })?;
        }
        Ok(answered)
    }
}

fn held(questions: &Mutex<Questions>) -> MutexGuard<'_, Questions> {
    questions.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ended() -> Trouble {
    Trouble {
        code: "stream-ended",
        detail: "the server ended the stream of renewals".to_owned(),
    }
}

async fn hear(mut incoming: Incoming, questions: Arc<Mutex<Questions>>) {
    let trouble = loop {
        match incoming.hear::<LeaseKeepAliveResponse>().await {
            Ok(Some(renewed)) => held(&questions).answered(&renewed),
            Ok(None) => break ended(),
            Err(trouble) => break trouble,
        }
    };
    let mut questions = held(&questions);
    for question in questions.asked.drain(..) {
        // Whoever waited no longer is not told.
        let _ = question.answer.send(Err(trouble.clone()));
    }
    questions.ended = Some(trouble);
}

impl Questions {
    fn answered(&mut self, renewed: &LeaseKeepAliveResponse) {
        let Some(first) = self.asked.front_mut() else {
            return;
        };
        first.renewed.kept.push(renewed.ttl > 0);
        if first.renewed.kept.len() < first.count {
            return;
        }
        if let Some(mut question) = self.asked.pop_front() {
            let header = renewed.header.as_ref();
            question.renewed.revision = header.map_or(0, |header| header.revision);
            // Whoever waited no longer is not told.
            let _ = question.answer.send(Ok(question.renewed));
        }
    }
}

impl Store for EtcdHolder {
    async fn get(&self, _: &Bytes, _: Consistency) -> Result<Answer, Trouble> {
        Err(Trouble {
            code: "unsupported",
            detail: "this load only renews".to_owned(),
        })
    }

    async fn put(&self, _: &Bytes, _: &Bytes) -> Result<Answer, Trouble> {
        let leases = self.in_turn();
        let renewed = self.renewer.renew(&leases).await?;
        match leases.iter().zip(&renewed.kept).find(|(_, kept)| !**kept) {
            Some((id, _)) => Err(Trouble {
                code: "lease-not-found",
                detail: format!("there is no lease {id:x}"),
            }),
            None => Ok(Answer {
                revision: renewed.revision,
                path: None,
                found: true,
            }),
        }
    }

    async fn close(&self) {
        for lease in &self.leases {
            // What is left ends by itself.
            if self.renewer.connection.revoke(*lease).await.is_err() {
                break;
            }
        }
        self.renewer.connection.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewed(id: i64, ttl: i64) -> LeaseKeepAliveResponse {
        LeaseKeepAliveResponse {
            header: None,
            id,
            ttl,
        }
    }

    #[test]
    fn a_question_is_answered_once_all_its_leases_are_and_says_which_was_not_there() {
        let mut questions = Questions::default();
        let mut answers = Vec::new();
        for count in [2, 1, 2] {
            let (answer, answered) = oneshot::channel();
            answers.push(answered);
            questions.asked.push_back(Question {
                count,
                renewed: Renewed::default(),
                answer,
            });
        }
        questions.answered(&renewed(1, 9));
        assert!(answers[0].try_recv().is_err(), "half of it is not all");
        questions.answered(&renewed(2, 9));
        assert_eq!(answers[0].try_recv().unwrap().unwrap().kept, [true, true]);
        questions.answered(&renewed(3, 9));
        assert_eq!(answers[1].try_recv().unwrap().unwrap().kept, [true]);
        questions.answered(&renewed(4, 0));
        questions.answered(&renewed(5, 9));
        assert_eq!(answers[2].try_recv().unwrap().unwrap().kept, [false, true]);
        questions.answered(&renewed(6, 9));
        assert!(questions.asked.is_empty(), "nobody asked");
    }
}
