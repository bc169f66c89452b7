//! `leasehold bench get`, `put` and `mixed`: reads and writes of single keys.

use std::io::Write;
use std::sync::Arc;

use super::generator;
use super::generator::Plan;
use super::heading::cores;
use super::leasehold::Leasehold;
use super::load::{Choice, Keys, Load, Zipf};
use super::progress::Progress;
use super::report::{Report, Run};
use super::store::Store;
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::{Distribution, LoadArgs};
use crate::cli::connection::{Surroundings, Target};
use crate::cli::failure::Failure;

/// Zipf's law as load generators use it, since YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// Puts a load on a cluster of which `reads` is the share of reads, from 0 to 1.
///
/// # Errors
/// No node can be reached, or nothing was answered.
pub fn run(
    reads: f64,
    arguments: &LoadArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let plan = plan(reads, arguments, global)?;
    let progress = Progress::new(arguments.quiet);
    let store = connector(arguments, global)?;
    if !arguments.no_fill {
        fill(&store, &plan, progress)?;
    }
    let mut report = Report::begin();
    report.runs.push(Run::measure(&store, &plan, progress)?);
    report.end();
    write_histograms(&report.runs, arguments, progress)?;
    report.show(global, out)
}

/// Connects to the cluster that the arguments name.
///
/// # Errors
/// No node can be reached.
pub fn connector(arguments: &LoadArgs, global: &GlobalArgs) -> Result<Leasehold, Failure> {
    let target = Target::find(global, &Surroundings::of_process(global)?)?;
    // What finds the leader has done its work then; each load has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(Leasehold::find(&target, arguments.target))
}

/// Writes the keys of a load.
///
/// # Errors
/// The store cannot be reached, or does not take them.
pub fn fill<C: Store>(connector: &C, plan: &Plan, progress: Progress) -> Result<(), Failure> {
    let keys = &plan.load.keys;
    progress.say(&format!(
        "{:>10} writing {} keys of {} bytes",
        connector.name(),
        keys.names.len(),
        keys.value.len()
    ));
    generator::fill(connector, &plan.load)
}

/// Writes the distribution of the last run, if that was asked for: histograms are looked at one by one.
///
/// # Errors
/// A file cannot be written.
pub fn write_histograms(
    runs: &[Run],
    arguments: &LoadArgs,
    progress: Progress,
) -> Result<(), Failure> {
    if let (Some(name), Some(run)) = (&arguments.histogram, runs.last()) {
        for file in run.write_histograms(name)? {
            progress.say(&format!("wrote {}", file.display()));
        }
    }
    Ok(())
}

/// What the arguments ask for.
///
/// # Errors
/// They contradict each other.
pub fn plan(reads: f64, arguments: &LoadArgs, global: &GlobalArgs) -> Result<Plan, Failure> {
    if arguments.connections > arguments.clients {
        return Err(Failure::usage(format!(
            "{} connections are more than {} clients can use: raise --clients to at least as many",
            arguments.connections, arguments.clients
        )));
    }
    let half = u32::try_from(cores() / 2).unwrap_or(1).max(1);
    Ok(Plan {
        load: Load {
            reads,
            consistency: global.consistency,
            keys: Arc::new(Keys::new(arguments.keys, arguments.value_size)),
            choice: match arguments.distribution {
                Distribution::Uniform => Choice::Uniform,
                Distribution::Zipf => Choice::Zipf(Zipf::new(arguments.keys, ZIPF_EXPONENT)),
            },
        },
        clients: arguments.clients,
        connections: arguments.connections,
        threads: arguments.threads.unwrap_or(half).min(arguments.connections),
        rate: (arguments.rate > 0.0).then_some(arguments.rate),
        warm_up: arguments.warm_up,
        duration: arguments.duration,
        seed: arguments.seed,
        server_pids: arguments.server_pid.clone(),
    })
}
