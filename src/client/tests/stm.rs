//! Transactions that run again: what counts as a conflict, what is sent, and what is told.

use std::collections::BTreeMap;

use super::store::{Store, storing};
use super::*;
use crate::api::TxnOp;
use crate::client::recipes::{Isolation, Stm};

/// As often as these tests may meet a conflict, without waits.
fn at_most(attempts: u32) -> RetryPolicy {
    let none = Duration::ZERO;
    RetryPolicy::new()
        .with_back_off(none, none)
        .with_attempts_max(attempts)
}

fn text(value: Option<Bytes>) -> String {
    value.map_or_else(String::new, |value| {
        String::from_utf8(value.to_vec()).unwrap()
    })
}

/// The transactions that were sent to change something.
fn commits(node: &Fake) -> Vec<TxnRequest> {
    let calls = node.calls().into_iter();
    let txn = calls.filter_map(|frame| match frame.call.request {
        Request::Txn(txn) if !txn.is_read_only() => Some(txn),
        _ => None,
    });
    txn.collect()
}

#[test]
fn reads_are_of_one_revision_and_see_what_the_transaction_wrote() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        store.lock().unwrap().put("a", "1");
        store.lock().unwrap().put("b", "1");
        let node = fake(&authority, "n1", storing(&store));
        let stale = options(&authority).with_consistency(Consistency::Serializable);
        let client = connect_with(&[&node], stale).await;
        let behind = &store;
        let commit = Stm::new(&client)
            .run(|t| async move {
                assert_eq!((t.revision(), text(t.get("a").await?)), (0, "1".into()));
                // Behind its back.
                behind.lock().unwrap().put("b", "2");
                behind.lock().unwrap().put("c", "2");
                assert_eq!((text(t.get("b").await?), t.revision()), ("1".into(), 3));
                assert_eq!(t.get("c").await?, None);
                t.put("c", "own");
                t.delete("a");
                assert_eq!(text(t.get("c").await?), "own");
                assert_eq!(t.get("a").await?, None);
                let all = t.range("", KeyRange::Prefix).await?;
                let expected = [("b", "1"), ("c", "own")].map(|(k, v)| (k.into(), v.into()));
                assert_eq!(all, BTreeMap::from(expected));
                assert!(t.range("c0", KeyRange::From).await?.is_empty());
                t.discard_writes();
                assert_eq!(text(t.get("a").await?), "1");
                Ok("done")
            })
            .await
            .unwrap();
        assert_eq!(
            (commit.value, commit.revision, commit.attempts),
            ("done", 3, 1)
        );
        assert_eq!(commits(&node), [], "it wrote nothing");
        // What is known is not asked again, and nothing is asked of a state that may be old.
        let calls = node.calls();
        let asked: Vec<_> = calls.iter().map(|frame| frame.call.consistency).collect();
        assert_eq!(
            asked,
            [Consistency::Linearizable; 5],
            "{:?}",
            node.methods()
        );
    });
}

/// What another client does between the reads of a transaction and its commit, and whether that is
/// a conflict for a serializable one and for one of a snapshot.
#[test]
fn a_change_of_what_was_read_is_a_conflict_and_no_other() {
    type Change = fn(&mut Store) -> i64;
    let changes: [(&str, Change, bool, bool); 7] = [
        (
            "nothing of it",
            |store| store.put("other", "x"),
            false,
            false,
        ),
        ("what it read", |store| store.put("read", "x"), true, false),
        (
            "what it found missing",
            |store| store.put("missing", "x"),
            true,
            false,
        ),
        (
            "a key of the range is gone",
            |store| store.delete("r/1"),
            true,
            false,
        ),
        (
            "a key of the range is new",
            |store| store.put("r/2", "x"),
            true,
            false,
        ),
        (
            "what it read and writes",
            |store| store.put("both", "x"),
            true,
            true,
        ),
        (
            "what it only writes",
            |store| store.delete("blind"),
            false,
            true,
        ),
    ];
    run(async {
        let authority = Authority::new();
        for (what, change, is_serial_conflict, is_snapshot_conflict) in changes {
            for (isolation, is_conflict) in [
                (Isolation::Serializable, is_serial_conflict),
                (Isolation::Snapshot, is_snapshot_conflict),
            ] {
                let store = Store::shared();
                for key in ["read", "r/1", "both", "blind"] {
                    store.lock().unwrap().put(key, "0");
                }
                let node = fake(&authority, "n1", storing(&store));
                let client = connect(&authority, &[&node]).await;
                let stm = Stm::new(&client)
                    .with_isolation(isolation)
                    .with_retry(at_most(3));
                let (behind, mut times) = (&store, 0);
                let commit = stm
                    .run(|t| {
                        times += 1;
                        async move {
                            t.get("read").await?;
                            t.get("missing").await?;
                            t.range("r/", KeyRange::Prefix).await?;
                            let both = text(t.get("both").await?);
                            t.put("both", format!("{both}+"));
                            t.put("blind", "1");
                            if times == 1 {
                                change(&mut behind.lock().unwrap());
                            }
                            Ok(())
                        }
                    })
                    .await
                    .unwrap();
                let attempts = if is_conflict { 2 } else { 1 };
                assert_eq!(commit.attempts, attempts, "{what}, {isolation:?}");
                let store = store.lock().unwrap();
                assert_eq!(commit.revision, store.revision());
                let expected = if what == "what it read and writes" {
                    "x+"
                } else {
                    "0+"
                };
                assert_eq!(store.value("both").unwrap(), expected, "{what}");
                assert_eq!(store.value("blind").unwrap(), "1");
            }
        }
    });
}

#[test]
fn who_never_wins_is_told_so_and_an_error_of_the_code_writes_nothing() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        let node = fake(&authority, "n1", storing(&store));
        let client = connect(&authority, &[&node]).await;
        let stm = Stm::new(&client).with_retry(at_most(3));
        let (behind, mut times) = (&store, 0);
        let error = stm
            .run(|t| {
                times += 1;
                async move {
                    t.get("k").await?;
                    t.put("k", "late");
                    behind.lock().unwrap().put("k", &times.to_string());
                    Ok(())
                }
            })
            .await
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict { attempts: 3 });
        assert_eq!((error.outcome, times), (Outcome::NotApplied, 3));
        assert_eq!(commits(&node).len(), 3);

        let refused = || Error::not_applied(ErrorKind::InvalidArgument, "by the code");
        let error = stm
            .run(|t| async move {
                t.put("k", "never");
                Err::<(), _>(refused())
            })
            .await
            .unwrap_err();
        assert_eq!(error, refused());
        assert_eq!(commits(&node).len(), 3);
        assert_eq!(store.lock().unwrap().value("k").unwrap(), "3");
    });
}

/// A transaction whose revision is compacted under it has seen a part of the store: what its code makes
/// of that is not believed.
#[test]
fn an_attempt_whose_revision_is_compacted_is_made_again() {
    run(async {
        let authority = Authority::new();
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let store = Store::shared();
            let node = fake(&authority, "n1", storing(&store));
            let client = connect(&authority, &[&node]).await;
            let stm = Stm::new(&client)
                .with_isolation(isolation)
                .with_retry(at_most(2));
            let (behind, mut times) = (&store, 0);
            let commit = stm
                .run(|t| {
                    times += 1;
                    async move {
                        t.get("a").await?;
                        if times == 1 {
                            let mut store = behind.lock().unwrap();
                            let now = store.put("b", "new");
                            store.compact(now);
                        }
                        // The snapshot alone asks for it, when the code is done.
                        if isolation == Isolation::Snapshot {
                            t.put("b", "own");
                            return Ok(None);
                        }
                        Ok(t.get("b").await.ok().flatten())
                    }
                })
                .await
                .unwrap();
            assert_eq!((commit.attempts, times), (2, 2));
            let expected = match isolation {
                Isolation::Serializable => (Some("new".into()), "new"),
                Isolation::Snapshot => (None, "own"),
            };
            assert_eq!(commit.value, expected.0);
            assert_eq!(store.lock().unwrap().value("b").unwrap(), expected.1);
        }
    });
}

/// A commit that may have been applied is not made again, or it would be made twice.
#[test]
fn a_commit_of_unknown_outcome_is_told_and_not_repeated() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        let applied = Arc::clone(&store);
        let node = fake(&authority, "n1", move |_, frame| match frame.call.request {
            Request::Txn(_) => {
                let _ = applied.lock().unwrap().answer("n1", frame);
                Reaction::Cut
            }
            _ => reply(applied.lock().unwrap().answer("n1", frame)),
        });
        let once = options(&authority).with_exactly_once(false);
        let client = connect_with(&[&node], once).await;
        let mut times = 0;
        let error = Stm::new(&client)
            .run(|t| {
                times += 1;
                async move {
                    let n: u64 = text(t.get("n").await?).parse().unwrap_or(0);
                    t.put("n", (n + 1).to_string());
                    Ok(())
                }
            })
            .await
            .unwrap_err();
        assert_eq!((error.outcome, times), (Outcome::Unknown, 1));
        assert_eq!(store.lock().unwrap().value("n").unwrap(), "1");
    });
}

#[test]
fn a_transaction_runs_in_a_task_and_behind_a_fence() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        let held = store.lock().unwrap().put("lock/1", "");
        let node = fake(&authority, "n1", storing(&store));
        let client = connect(&authority, &[&node]).await;
        let stm = Stm::new(&client).with_fence("lock/1", held);
        let of_task = stm.clone();
        let task = tokio::spawn(async move {
            let key = &String::from("k");
            let code = of_task.run(|t| async move {
                let (one, two) = tokio::join!(t.get(key), t.get("l"));
                assert_eq!((one?, two?), (None, None));
                t.put(key.clone(), "v");
                Ok(())
            });
            code.await
        });
        assert_eq!(task.await.unwrap().unwrap().revision, held + 1);
        assert!(matches!(commits(&node)[0].success[0], TxnOp::Txn(_)));
        store.lock().unwrap().delete("lock/1");
        let late = stm.run(|t| async move {
            t.put("k", "late");
            Ok(())
        });
        let error = late.await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Fenced { current: 0 });
    });
}
