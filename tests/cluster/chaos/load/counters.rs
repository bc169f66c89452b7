//! Counters that are read and then swapped: a swap that was acknowledged counts once, one whose
//! outcome is unknown once or not at all, whatever was sent again underneath.

use std::sync::Arc;

use leasehold::api::{Error, Outcome};
use leasehold::client::Client;

use super::{AFTER_FAILURE, Book, REST, insist, open};

const COUNTER: &str = "counter";

/// What the counter has to show.
#[derive(Default)]
pub(super) struct Account {
    acknowledged: u64,
    unknown: u64,
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("it is written by this module");
    text.parse().expect("it is written by this module")
}

async fn read(client: &Client) -> Result<(u64, i64), Error> {
    let got = client.get(COUNTER, None).await?;
    Ok(got
        .kv()
        .map_or((0, 0), |kv| (number(&kv.value), kv.mod_revision)))
}

/// One client.
pub(super) async fn act(book: Arc<Book>, client: Client) {
    while !book.is_over() {
        let swapped = match read(&client).await {
            Ok((count, revision)) => {
                let next = (count + 1).to_string();
                client.compare_and_swap(COUNTER, revision, next).await
            }
            Err(error) => {
                book.failed(&error);
                book.rest(AFTER_FAILURE).await;
                continue;
            }
        };
        match swapped {
            Ok(swapped) if swapped.succeeded => {
                open(&book.counters).acknowledged += 1;
                book.count("swaps acknowledged");
            }
            Ok(_) => book.count("swaps refused: somebody was faster"),
            Err(error) => {
                book.failed(&error);
                if error.outcome != Outcome::NotApplied {
                    open(&book.counters).unknown += 1;
                }
            }
        }
        book.rest(REST).await;
    }
}

/// Compares.
pub(super) async fn settle(book: &Book, client: &Client) {
    let (shown, _) = insist(|| read(client)).await;
    let Account {
        acknowledged,
        unknown,
    } = *open(&book.counters);
    if shown < acknowledged || shown > acknowledged + unknown {
        book.violation(format!(
            "the counter shows {shown}: {acknowledged} swaps were acknowledged, and of {unknown} \
             the outcome is unknown"
        ));
    }
}
