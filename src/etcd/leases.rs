//! etcd's leases under load: what `leasehold bench lease-keepalive --peer etcd` renews.
//!
//! As etcd's own client does it: all leases of a connection are renewed on one stream, whose
//! answers come in the order of the questions.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::messages::LeaseGrantRequest;
use super::messages::LeaseGrantResponse;
use super::messages::LeaseKeepAliveRequest;
use super::messages::LeaseKeepAliveResponse;
use super::messages::LeaseRevokeRequest;
use super::messages::LeaseRevokeResponse;
use super::rpc::Incoming;
use super::rpc::Outgoing;
use super::rpc::Rpc;
use super::store::EtcdConnection;
use super::store::EtcdConnector;
use crate::api::Consistency;
use crate::bench::renewals::GRANTS;
use crate::bench::renewals::TTL;
use crate::bench::store::Answer;
use crate::bench::store::Connector;
use crate::bench::store::Store;
use crate::bench::store::Trouble;
use crate::cli::failure::Failure;

/// Connects, and has leases granted.
#[derive(Clone, Debug)]
pub struct EtcdRenewals {
    connector: EtcdConnector,
    leases: usize,
    batch: usize,
}

/// A connection with its leases.
#[derive(Debug)]
pub struct EtcdHolder {
    connection: Arc<EtcdConnection>,
    leases: Vec<i64>,
    batch: usize,
    next: Cell<usize>,
    stream: RefCell<Option<Stream>>,
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
    /// Answers until all of it is answered.
    left: usize,
    /// The first that went wrong.
    trouble: Option<Trouble>,
    answer: oneshot::Sender<Result<Answer, Trouble>>,
}

impl EtcdRenewals {
    /// So many leases for each connection, and so many renewed at a time.
    pub(super) fn new(connector: EtcdConnector, leases: u32, batch: u32) -> Self {
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
        let holder = EtcdHolder {
            connection,
            leases,
            batch: self.batch,
            next: Cell::new(0),
            stream: RefCell::new(None),
        };
        let opened = holder.open().await;
        opened.map_err(|trouble| Failure::refused(trouble.detail))?;
        Ok(holder)
    }
}

impl EtcdConnection {
    /// Has a lease granted of so many seconds; returns its id.
    ///
    /// # Errors
    /// It is refused, or nobody answers.
    pub async fn grant(&self, seconds: u64) -> Result<i64, Trouble> {
        let request = LeaseGrantRequest {
            ttl: i64::try_from(seconds).unwrap_or(i64::MAX),
            id: 0,
        };
        let granted: LeaseGrantResponse = self.channel.call(Rpc::LeaseGrant, &request).await?;
        Ok(granted.id)
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// There is no such lease, or nobody answers.
    pub async fn revoke(&self, id: i64) -> Result<(), Trouble> {
        let request = LeaseRevokeRequest { id };
        let _: LeaseRevokeResponse = self.channel.call(Rpc::LeaseRevoke, &request).await?;
        Ok(())
    }
}

impl EtcdHolder {
    /// The next leases in turn.
    fn in_turn(&self) -> impl Iterator<Item = i64> {
        let count = self.leases.len();
        let first = self.next.get();
        self.next.set((first + self.batch) % count);
        (first..first + self.batch).map(move |place| self.leases[place % count])
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

    fn ask(&self) -> Result<oneshot::Receiver<Result<Answer, Trouble>>, Trouble> {
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
                left: self.batch,
                trouble: None,
                answer,
            });
        }
        for id in self.in_turn() {
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
        if renewed.ttl <= 0 {
            first.trouble.get_or_insert_with(|| Trouble {
                code: "lease-not-found",
                detail: format!("there is no lease {:x}", renewed.id),
            });
        }
        first.left = first.left.saturating_sub(1);
        if first.left > 0 {
            return;
        }
        if let Some(question) = self.asked.pop_front() {
            let answer = match question.trouble {
                Some(trouble) => Err(trouble),
                None => Ok(Answer {
                    revision: renewed.header.as_ref().map_or(0, |header| header.revision),
                    path: None,
                    found: true,
                }),
            };
            let _ = question.answer.send(answer);
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
        self.open().await?;
        let answered = self.ask()?;
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

    async fn close(&self) {
        for lease in &self.leases {
            // What is left ends by itself.
            if self.connection.revoke(*lease).await.is_err() {
                break;
            }
        }
        self.connection.close().await;
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
        for left in [2, 1, 2] {
            let (answer, answered) = oneshot::channel();
            answers.push(answered);
            questions.asked.push_back(Question {
                left,
                trouble: None,
                answer,
            });
        }
        questions.answered(&renewed(1, 9));
        assert!(answers[0].try_recv().is_err(), "half of it is not all");
        questions.answered(&renewed(2, 9));
        assert!(answers[0].try_recv().unwrap().is_ok());
        questions.answered(&renewed(3, 9));
        assert!(answers[1].try_recv().unwrap().is_ok());
        questions.answered(&renewed(4, 0));
        questions.answered(&renewed(5, 9));
        let trouble = answers[2].try_recv().unwrap().unwrap_err();
        assert_eq!(trouble.code, "lease-not-found");
        questions.answered(&renewed(6, 9));
        assert!(questions.asked.is_empty(), "nobody asked");
    }
}
