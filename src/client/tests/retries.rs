//! The published rules of retries are those that the client keeps.

use super::*;
use crate::api::fixtures::every_error_kind;
use crate::client::RetryRule;

/// A node that refuses the next request with what it was given, and is healthy after that.
struct Refusing {
    node: Fake,
    next: Arc<Mutex<Option<Error>>>,
}

impl Refusing {
    fn new(authority: &Authority) -> Self {
        let next: Arc<Mutex<Option<Error>>> = Arc::default();
        let refusal = Arc::clone(&next);
        let node = fake(authority, "n1", move |_, frame| {
            let is_asked = matches!(frame.call.request, Request::Range(_) | Request::Put(_));
            match refusal.lock().unwrap().take_if(|_| is_asked) {
                Some(error) => reply(Err(error)),
                None => reply(answer("n1", frame)),
            }
        });
        Self { node, next }
    }

    /// Has the next request refused; counts what arrives from then on.
    fn refuse(&self, kind: &ErrorKind, outcome: Outcome) -> usize {
        let error = Error {
            outcome,
            ..Error::not_applied(kind.clone(), "the fake says no")
        };
        *self.next.lock().unwrap() = Some(error);
        self.asked()
    }

    fn asked(&self) -> usize {
        let asked = self.node.methods();
        asked
            .iter()
            .filter(|of| ["range", "put"].contains(of))
            .count()
    }
}

fn quick(authority: &Authority) -> ConnectOptions {
    let wait = Duration::from_millis(1);
    options(authority).with_retry(RetryPolicy::new().with_back_off(wait, wait))
}

/// Whether a client without a user sends again what was refused.
fn is_sent_again(kind: &ErrorKind) -> bool {
    match RetryRule::of(kind) {
        RetryRule::AtLeader | RetryRule::AfterWait(_) | RetryRule::Elsewhere => true,
        RetryRule::AfterLogin | RetryRule::NextElsewhere | RetryRule::Never => false,
    }
}

#[test]
fn a_read_is_sent_again_after_just_the_errors_whose_rule_says_so() {
    run(async {
        let authority = Authority::new();
        let refusing = Refusing::new(&authority);
        let client = connect_with(&[&refusing.node], quick(&authority)).await;
        for kind in every_error_kind() {
            for outcome in [Outcome::NotApplied, Outcome::Unknown] {
                let before = refusing.refuse(&kind, outcome);
                let got = client.get("k", None).await.map(|_| ());
                let sent = refusing.asked() - before;
                match is_sent_again(&kind) {
                    true => assert_eq!((sent, got), (2, Ok(())), "{kind:?}"),
                    false => {
                        let error = got.unwrap_err();
                        assert_eq!((sent, &error.kind), (1, &kind));
                        assert_eq!(error.outcome, Outcome::NotApplied, "{kind:?}: a read");
                    }
                }
            }
        }
    });
}

#[test]
fn a_write_is_sent_again_after_the_same_errors_if_that_is_safe() {
    run(async {
        let authority = Authority::new();
        for (in_session, outcome) in [
            (true, Outcome::NotApplied),
            (true, Outcome::Unknown),
            (false, Outcome::NotApplied),
            (false, Outcome::Unknown),
        ] {
            let refusing = Refusing::new(&authority);
            let options = quick(&authority).with_exactly_once(in_session);
            let client = connect_with(&[&refusing.node], options).await;
            client.put("k", "v", None).await.unwrap();
            let kinds = every_error_kind().filter(is_sent_again);
            for kind in kinds {
                let before = refusing.refuse(&kind, outcome);
                let put = client.put("k", "v", None).await.map(|_| ());
                let sent = refusing.asked() - before;
                let is_safe = in_session || outcome == Outcome::NotApplied;
                match is_safe {
                    true => assert_eq!((sent, put), (2, Ok(())), "{kind:?}"),
                    false => {
                        let error = put.unwrap_err();
                        assert_eq!((sent, error.outcome), (1, Outcome::Unknown), "{kind:?}");
                    }
                }
            }
        }
    });
}
