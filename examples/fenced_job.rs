//! A job that one process at a time works on, however long any of them is suspended.
//!
//! ```sh
//! leasehold dev &
//! cargo run --example fenced_job -- ann &        # kill -STOP it, and look what bob does
//! cargo run --example fenced_job -- bob          # then kill -CONT, and look what becomes of ann
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod connect;

use std::time::Duration;

use leasehold::api::{Error, ErrorKind};
use leasehold::client::recipes::{Guard, Lock};
use leasehold::client::{Client, PutOptions};

const DONE: &str = "examples/steps-done";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "somebody".into());
    let client = connect::connect().await?;
    let session = client
        .lease()
        .session(Duration::from_secs(10), None)
        .await?;
    let held = Lock::new(&session, "examples/job").acquire().await?;
    println!("{name} works with token {}", held.fencing_token());

    loop {
        match step(&client, &held).await {
            Ok(step) => println!("{name} did step {step}"),
            Err(error) if matches!(error.kind, ErrorKind::Fenced { .. }) => {
                println!("{name} was overtaken: {error}");
                return Ok(());
            }
            // What a suspended process was waiting for is overdue when it wakes. To try again does no
            // harm: a step says how far the job is, and not what to add to it.
            Err(error) if error.is_retryable() || error.kind == ErrorKind::DeadlineExceeded => {
                println!("{name} tries again: {error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Does the next step, and says which it was.
async fn step(client: &Client, held: &Guard) -> Result<u64, Error> {
    let done = client.get(DONE, None).await?;
    let done = done
        .value()
        .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    let step: u64 = done.unwrap_or(0) + 1;
    // The step itself would go here. It may take any time, and this process may be suspended in
    // it: that the lock is held was true when it was last asked. So the store has the last word.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mine = PutOptions::new().with_fence(held.key().clone(), held.fencing_token());
    client.put(DONE, step.to_string(), Some(mine)).await?;
    Ok(step)
}
