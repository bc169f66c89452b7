//! A program that follows its configuration: all of it at the start, then each change once.
//!
//! ```sh
//! leasehold dev &
//! cargo run --example config_watcher &
//! leasehold put examples/config/color blue
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod connect;

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold::api::EventKind;
use leasehold::client::{WatchEvent, WatchOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = connect::connect().await?;
    let options = WatchOptions::new().with_prefix().with_initial_state();
    let mut watcher = client.watch("examples/config/", Some(options)).await?;
    let mut config: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    while let Some(event) = watcher.next().await {
        match event? {
            WatchEvent::State { kvs } => {
                config.extend(kvs.into_iter().map(|kv| (kv.key, kv.value)));
            }
            // The state was interrupted, and begins anew.
            WatchEvent::Restarted { .. } => config.clear(),
            WatchEvent::Synced { revision } => show(revision, &config),
            // What was changed together is used together.
            WatchEvent::Events { revision, events } => {
                for event in events {
                    match event.kind {
                        EventKind::Put => config.insert(event.kv.key, event.kv.value),
                        EventKind::Delete => config.remove(&event.kv.key),
                    };
                }
                show(revision, &config);
            }
            _ => {}
        }
    }
    Ok(())
}

fn show(revision: i64, config: &BTreeMap<Bytes, Bytes>) {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let pairs = config.iter().map(|(key, value)| {
        let name = text(key);
        let name = name.rsplit('/').next().unwrap_or_default();
        format!("{name}={}", text(value))
    });
    println!("at {revision}: {}", pairs.collect::<Vec<_>>().join(" "));
}
