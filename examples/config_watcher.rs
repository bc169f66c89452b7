//! A program that follows its configuration: all of it at the start, and again whenever it changes.
//!
//! ```sh
//! leasehold dev &
//! cargo run --example config_watcher &
//! leasehold put examples/config/color blue
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod connect;

use bytes::Bytes;
use leasehold::client::recipes::{CacheView, CachedKv};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = connect::connect().await?;
    let config = CachedKv::open(&client, "examples/config/", None).await?;
    let mut view = config.view();
    loop {
        // What was changed together is used together.
        show(&view);
        view = config.changed(&view).await?;
    }
}

fn show(config: &CacheView) {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let pairs = config.iter().map(|kv| {
        let name = text(&kv.key);
        let name = name.rsplit('/').next().unwrap_or_default();
        format!("{name}={}", text(&kv.value))
    });
    let pairs = pairs.collect::<Vec<_>>().join(" ");
    println!("at {}: {pairs}", config.revision());
}
