//! A program that carries its store with it, and counts its runs.
//!
//! ```sh
//! cargo run --example embedded -- counter
//! cargo run --example embedded -- counter
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use leasehold::embed::EmbeddedNode;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("give the directory of the store")?;
    let node = EmbeddedNode::start(directory, None).await?;
    node.ready().await?;
    let client = node.client(None).await?;
    let found = client.get("runs", None).await?;
    let runs = match found.value() {
        Some(value) => 1 + std::str::from_utf8(value)?.parse::<u64>()?,
        None => 1,
    };
    client.put("runs", runs.to_string(), None).await?;
    println!("run {runs}");
    client.close().await;
    node.shutdown().await;
    Ok(())
}
