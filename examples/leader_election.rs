//! Of several processes one leads, and only its writes count.
//!
//! ```sh
//! leasehold dev &
//! cargo run --example leader_election -- ann &
//! cargo run --example leader_election -- bob     # stop ann, and bob leads
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod connect;

use std::time::Duration;

use leasehold::api::Error;
use leasehold::client::recipes::{Election, Leadership};
use leasehold::client::{Client, PutOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "somebody".into());
    let client = connect::connect().await?;
    let election = Election::new(&client, "examples/leader");
    loop {
        // A session for each term of office: one that is lost is of no use any more.
        let session = client
            .lease()
            .session(Duration::from_secs(10), None)
            .await?;
        println!("{name} stands");
        match election.campaign(&session, name.clone()).await {
            Ok(leadership) => {
                println!("{name} leads with token {}", leadership.fencing_token());
                let ended = lead(&client, &name, &leadership).await;
                println!("{name} leads no more: {ended:?}");
            }
            Err(error) => println!("{name} was not elected: {error}"),
        }
    }
}

/// Does what a leader does, for as long as it is one.
async fn lead(client: &Client, name: &str, leadership: &Leadership) -> Result<(), Error> {
    for beat in 1_u64.. {
        // Whoever leads writes with its token: the store refuses what a former leader sends late.
        let mine =
            PutOptions::new().with_fence(leadership.key().clone(), leadership.fencing_token());
        let text = format!("{name} {beat}");
        client.put("examples/heartbeat", text, Some(mine)).await?;
        tokio::select! {
            _ = leadership.lost() => break,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
    Ok(())
}
