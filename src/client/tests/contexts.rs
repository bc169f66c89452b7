//! What requests say of themselves arrives with them, and with no others.

use super::*;
use crate::api::{Priority, TraceParent};

const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn the_requests_of_a_traced_client_name_its_trace_and_those_of_its_original_do_not() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let parent: TraceParent = TEXT.parse().unwrap();
        let traced = client.with_namespace("n/").with_traceparent(parent);
        assert_eq!(
            (client.traceparent(), traced.traceparent()),
            (None, Some(parent))
        );
        assert_eq!(traced.namespace(), b"n/");
        client.put("k", "v", None).await.unwrap();
        client.get("k", None).await.unwrap();
        let before = node.heard().len();
        assert!(node.heard().iter().all(|heard| heard.context.is_empty()));

        traced.put("k", "v", None).await.unwrap();
        traced.get("k", None).await.unwrap();
        // One within a namespace goes on in its trace.
        let inner = traced.with_namespace("m/");
        inner.delete("k", None).await.unwrap();
        let heard = node.heard().split_off(before);
        let methods: Vec<_> = heard
            .iter()
            .map(|heard| heard.frame.call.request.method())
            .collect();
        assert_eq!(methods, ["put", "range", "delete_range"]);
        assert!(
            heard
                .iter()
                .all(|heard| heard.context.trace_parent == Some(parent)),
            "{heard:?}"
        );
        client.get("k", None).await.unwrap();
        assert!(node.heard().pop().unwrap().context.is_empty());
    });
}

#[test]
fn a_priority_arrives_with_each_request_and_what_is_refused_for_it_holds_no_others_up() {
    run(async {
        let authority = Authority::new();
        // Refuses what is put under `low`, for ever.
        let answers = healthy("n1");
        let node = fake(&authority, "n1", move |number, frame| {
            match &frame.call.request {
                Request::Put(put) if put.key == "low" => {
                    refuse(ErrorKind::SlowDown { retry_after_ms: 1 })
                }
                _ => answers(number, frame),
            }
        });
        let retry = RetryPolicy {
            attempts_max: 3,
            ..RetryPolicy::default()
        };
        let client = connect_with(&[&node], options(&authority).with_retry(retry)).await;
        let low = client.with_priority(Priority::Low);
        let parent: TraceParent = TEXT.parse().unwrap();
        let both = low.with_traceparent(parent).with_priority(Priority::Low);
        assert_eq!(
            (client.priority(), both.priority()),
            (Priority::Normal, Priority::Low)
        );
        both.put("k", "v", None).await.unwrap();
        let heard = node.heard().pop().unwrap().context;
        assert_eq!(
            (heard.priority, heard.trace_parent),
            (Priority::Low, Some(parent))
        );
        for _ in 0..100 {
            let refused = low.put("low", "v", None).await.unwrap_err();
            assert!(
                matches!(refused.kind, ErrorKind::SlowDown { .. }),
                "{refused}"
            );
        }
        for _ in 0..50 {
            client.put("k", "v", None).await.unwrap();
        }
        let heard = node.heard();
        assert_eq!(heard.last().unwrap().context.priority, Priority::Normal);
        assert!(heard.iter().all(|heard| match &heard.frame.call.request {
            Request::Put(put) if put.key == "low" => heard.context.priority == Priority::Low,
            _ => true,
        }));
    });
}

#[test]
fn a_request_that_is_made_again_elsewhere_names_its_trace_there() {
    run(async {
        let authority = Authority::new();
        let leader = fake(&authority, "n2", healthy("n2"));
        let there = (leader.id, leader.address.clone());
        let follower = fake(&authority, "n1", move |_, _| {
            not_leader(Some((there.0, &there.1)))
        });
        let client = connect(&authority, &[&follower]).await;
        let parent: TraceParent = TEXT.parse().unwrap();
        client
            .with_traceparent(parent)
            .put("k", "v", None)
            .await
            .unwrap();
        for node in [&follower, &leader] {
            let heard = node.heard();
            let puts: Vec<_> = heard
                .iter()
                .filter(|heard| matches!(heard.frame.call.request, Request::Put(_)))
                .collect();
            assert!(
                puts.iter()
                    .all(|put| put.context.trace_parent == Some(parent))
            );
        }
        assert!(leader.methods().contains(&"put"));
    });
}
