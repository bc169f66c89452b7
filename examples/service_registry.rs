//! Servers that put themselves on a list, leave it when they die, and know of each other.
//!
//! ```sh
//! leasehold dev &
//! cargo run --example service_registry -- 7 10.0.0.7:80 &
//! cargo run --example service_registry -- 8 10.0.0.8:80
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod connect;

use std::time::Duration;

use leasehold::client::recipes::{Registry, RegistryEvent};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let id = arguments.next().unwrap_or_else(|| "1".into());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:80".into());
    let client = connect::connect().await?;
    let registry = Registry::new(&client, "examples/services");

    // On the list for as long as this process lives, and ten seconds at most after that.
    let session = client
        .lease()
        .session(Duration::from_secs(10), None)
        .await?;
    let registration = registry.register(&session, &id, address).await?;
    let mut changes = registry.watch().await?;
    // Made once: a future that is made anew for each change misses a Ctrl-C that comes between two.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        tokio::select! {
            // The signal first, so that it is listened to from the first change on.
            biased;
            _ = &mut interrupted => return Ok(registration.leave().await?),
            // Cut off for too long: another process may be registered as this server by now.
            cause = session.lost() => return Err(format!("off the list: {cause}").into()),
            change = changes.next() => match change? {
                RegistryEvent::Is(instance) => {
                    let id = String::from_utf8_lossy(&instance.id);
                    println!("{id} is at {}", String::from_utf8_lossy(&instance.value));
                }
                RegistryEvent::Gone { id } => {
                    println!("{} is gone", String::from_utf8_lossy(&id));
                }
                _ => println!("that is all"),
            },
        }
    }
}
