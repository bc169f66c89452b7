//! Sessions: writes that have numbers, and what becomes of them when the node has forgotten.

use super::*;

#[test]
fn a_forgotten_session_is_replaced_if_the_write_cannot_have_been_applied() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| match number {
            // open_session, put: then the session is forgotten, and a new one is opened.
            2 => reply(Err(Error::unknown(ErrorKind::SessionExpired, "forgotten"))),
            3 => {
                let mut response = answer("n1", frame).unwrap();
                response.body = ResponseBody::OpenSession { id: SessionId(41) };
                reply(Ok(response))
            }
            _ => reply(answer("n1", frame)),
        });
        let client = connect(&authority, &[&node]).await;
        client.put("k", "1", None).await.unwrap();
        client.put("k", "2", None).await.unwrap();
        assert_eq!(
            node.methods(),
            ["open_session", "put", "put", "open_session", "put"]
        );
        let last = node.calls()[4].call.session.unwrap();
        assert_eq!(
            (last.id, last.sequence, last.acknowledged),
            (SessionId(41), 1, 0)
        );
    });
}

#[test]
fn a_session_forgotten_after_an_unknown_attempt_makes_the_write_unknown() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| match number {
            1 => Reaction::Cut,
            2 => reply(Err(Error::unknown(ErrorKind::SessionExpired, "forgotten"))),
            _ => reply(answer("n1", frame)),
        });
        let client = connect(&authority, &[&node]).await;
        let error = client.put("k", "1", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::SessionExpired);
        assert_eq!(error.outcome, Outcome::Unknown);
        assert_eq!(node.methods(), ["open_session", "put", "put"]);
        // The next write opens a new session all the same.
        client.put("k", "2", None).await.unwrap();
        assert_eq!(node.methods()[3..], ["open_session", "put"]);
    });
}

#[test]
fn many_writers_open_one_session_and_share_no_number() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move { client.put(format!("k{n}"), "v", None).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let calls = node.calls();
        let opened = calls
            .iter()
            .filter(|frame| frame.call.request == Request::OpenSession)
            .count();
        assert_eq!(opened, 1);
        let mut numbers: Vec<u64> = calls
            .iter()
            .filter_map(|frame| frame.call.session)
            .map(|session| session.sequence)
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=50).collect::<Vec<u64>>());
    });
}

#[test]
fn a_session_that_cannot_be_opened_leaves_the_write_certainly_undone() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, _| {
            refuse(ErrorKind::NoSpace { used: 2, quota: 1 })
        });
        let client = connect(&authority, &[&node]).await;
        let error = client.put("k", "v", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoSpace { used: 2, quota: 1 });
        assert_eq!(error.outcome, Outcome::NotApplied);
        assert_eq!(node.methods(), ["open_session"]);
    });
}

// ---- a wire that can be cut ------------------------------------------------------------------
