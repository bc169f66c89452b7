//! What requests say of themselves arrives with them, and with no others.

use super::*;
use crate::api::TraceParent;

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
