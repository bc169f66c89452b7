//! Renewals of etcd's leases.
//!
//! As etcd's own client does it: all leases of a connection are renewed on one stream, whose
//! answers come in the order of the questions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::messages::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use super::rpc::{Channel, Incoming, Outgoing, Rpc};
use leasehold::bench::store::{Renewal, Trouble};

/// Renews leases on one stream of a connection.
#[derive(Debug, Default)]
pub(crate) struct Renewer {
    stream: Mutex<Option<Stream>>,
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
    renewed: Renewal,
    answer: oneshot::Sender<Result<Renewal, Trouble>>,
}

impl Renewer {
    /// Renews these leases, and waits for all the answers. The first renewal opens the stream.
    pub(crate) async fn renew(
        &self,
        channel: &Channel,
        leases: &[i64],
    ) -> Result<Renewal, Trouble> {
        if leases.is_empty() {
            return Ok(Renewal::default());
        }
        self.open(channel).await?;
        let answered = self.ask(leases)?;
        let timeout = channel.timeout();
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
        let stream = held(&self.stream);
        stream
            .as_ref()
            .is_some_and(|stream| held(&stream.questions).ended.is_none())
    }

    /// Sees to it that there is a stream.
    async fn open(&self, channel: &Channel) -> Result<(), Trouble> {
        if self.is_open() {
            return Ok(());
        }
        let (outgoing, incoming) = channel.open(Rpc::LeaseKeepAlive).await?;
        if self.is_open() {
            // Another task was quicker, and may have sent the request already.
            return Ok(());
        }
        let questions = Arc::new(Mutex::new(Questions::default()));
        // Ends with the connection, at the latest with the runtime.
        tokio::spawn(hear(incoming, Arc::clone(&questions)));
        *held(&self.stream) = Some(Stream {
            outgoing,
            questions,
        });
        Ok(())
    }

    fn ask(&self, leases: &[i64]) -> Result<oneshot::Receiver<Result<Renewal, Trouble>>, Trouble> {
        let mut stream = held(&self.stream);
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
                renewed: Renewal::default(),
                answer,
            });
        }
        for &id in leases {
            stream.outgoing.say(&LeaseKeepAliveRequest { id })?;
        }
        Ok(answered)
    }
}

/// A lock that a panic elsewhere does not poison.
pub(crate) fn held<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        // The receiver may have gone.
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
            // The receiver may have gone.
            let _ = question.answer.send(Ok(question.renewed));
        }
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
                renewed: Renewal::default(),
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
