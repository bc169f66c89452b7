//! What is done to the leader of a cluster of our own while the load runs.

use std::time::Duration;

use serde::Serialize;

use super::proxy::Wires;
use super::workload::Workload;
use crate::bench::cluster::OwnCluster;
use crate::bench::process::StopSignal;
use crate::bench::{Stopwatch, Wall};
use crate::cli::arguments::bench::FaultKind;
use crate::cli::failure::Failure;

/// Before a fault and after it is over.
const CALM: Duration = Duration::from_millis(500);

/// What one fault came to.
#[derive(Clone, Debug, Serialize)]
pub struct FaultReport {
    /// What was done: `pause`, `kill` or `cut`.
    pub fault: &'static str,
    /// To which node.
    pub node: String,
    /// For how long, in milliseconds.
    pub lasted_ms: f64,
    /// The longest time in which no client was answered a read, in milliseconds.
    pub reads_silent_ms: f64,
    /// Datagrams that were dropped, of a node that was cut off.
    pub dropped: u64,
}

/// Injects it at the leader, waits until another node leads, removes it, and waits until all is
/// well. `election_max` is the longest that followers wait for a silent leader.
///
/// # Errors
/// The cluster does not come back to life.
pub async fn inflict(
    fault: FaultKind,
    cluster: &mut OwnCluster,
    wires: &Wires,
    workload: &Workload,
    election_max: Duration,
) -> Result<FaultReport, Failure> {
    cluster.wait_until_whole().await?;
    tokio::time::sleep(CALM).await;
    let leader = cluster.wait_until_whole().await?;
    let dropped = wires.dropped();
    workload.forget_gaps();
    let watch = Wall::start();
    match fault {
        FaultKind::Pause => cluster.pause(leader)?,
        FaultKind::Kill => cluster.begin_to_end(leader, StopSignal::Kill)?,
        FaultKind::Cut => wires.cut(leader, true),
    }
    // Long enough for others to have elected and written, whatever the leader still believes.
    tokio::time::sleep(election_max * 2).await;
    cluster.wait_for_leader(Some(leader)).await?;
    tokio::time::sleep(CALM).await;
    match fault {
        FaultKind::Pause => cluster.resume(leader)?,
        FaultKind::Kill => cluster.restart(leader)?,
        FaultKind::Cut => wires.cut(leader, false),
    }
    let lasted = watch.elapsed();
    cluster.wait_until_whole().await?;
    tokio::time::sleep(CALM).await;
    let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    Ok(FaultReport {
        fault: fault.name(),
        node: format!("n{}", leader + 1),
        lasted_ms: millis(lasted),
        reads_silent_ms: millis(workload.counts().longest_silence),
        dropped: wires.dropped() - dropped,
    })
}
