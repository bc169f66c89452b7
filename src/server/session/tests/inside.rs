//! What comes from inside, as the driver is sent it.

use super::*;
use crate::api::LeaseRef;
use crate::kv::access::Author;

#[tokio::test]
async fn a_write_from_inside_is_in_the_nodes_own_name() {
    let world = World::new();
    let shared = world.shared.clone();
    let revoke = Request::LeaseRevoke(LeaseRef::id(5));
    let asked = tokio::spawn(async move {
        let patience = Duration::from_secs(60);
        shared
            .ask(revoke, Consistency::Linearizable, patience)
            .await
    });
    let mut mails = sent_to_the_driver(&world).await;
    let Some(Mail::Request {
        author,
        outbox,
        frame,
        ..
    }) = mails.pop()
    else {
        panic!("a write goes to the driver");
    };
    assert_eq!(author, Some(Author::Node));
    let refused = Error::not_applied(ErrorKind::LeaseNotFound, "none");
    outbox.deliver(frame, Delivery::Reply(Err(refused)));
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
}
