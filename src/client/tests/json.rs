//! Values that are JSON.

use std::collections::BTreeMap;

use super::*;

/// A node that stores nothing: every key has the same value.
fn valued(authority: &Authority, value: &'static str) -> Fake {
    fake(authority, "n1", move |_, frame| {
        let mut answer = answer("n1", frame);
        if let Ok(response) = &mut answer
            && let ResponseBody::Range(range) = &mut response.body
        {
            match value {
                "" => range.kvs.clear(),
                _ => range.kvs[0].value = value.into(),
            }
        }
        reply(answer)
    })
}

#[test]
fn a_value_is_read_as_the_type_that_is_asked_for_or_the_error_names_key_and_type() {
    run(async {
        let authority = Authority::new();
        let node = valued(&authority, "{\"a\":1}");
        let client = connect(&authority, &[&node]).await;
        let found: Option<BTreeMap<String, u8>> = client.get_json("k", None).await.unwrap();
        assert_eq!(found, Some(BTreeMap::from([("a".to_owned(), 1)])));
        let error = client.get_json::<Vec<u8>>("k", None).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.detail.contains("\"k\"") && error.detail.contains("Vec<u8>"),
            "{error}"
        );
        let empty = valued(&authority, "");
        let client = connect(&authority, &[&empty]).await;
        assert_eq!(client.get_json::<u8>("k", None).await.unwrap(), None);
    });
}

#[test]
fn what_cannot_be_json_is_not_sent() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let unfit = BTreeMap::from([((1, 2), 3)]);
        let error = client.put_json("k", &unfit, None).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(node.calls().is_empty());
        client.put_json("k", &[1, 2], None).await.unwrap();
        let Request::Put(put) = &node.calls()[1].call.request else {
            panic!("{:?}", node.methods());
        };
        assert_eq!(put.value.as_ref(), b"[1,2]");
    });
}
