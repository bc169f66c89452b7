//! `leasehold bench lease-keepalive`: renewals of client leases, as a fleet of holders asks a leader for
//! them.
//!
//! Each connection is granted leases of its own and renews them in turn, some with each request.
//! A renewal enters no log; what is measured is a request, so renewals per second are that many times
//! as many as leases go with one.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::generator::Plan;
use super::mixed;
use super::progress::Progress;
use super::report::{Report, Run};
use super::store::{Answer, Connection, Renewal, Store, Trouble, WatchTarget};
use crate::api::Consistency;
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::RenewalArgs;
use crate::cli::failure::Failure;

/// Long enough that what is not in turn for a while does not end.
const TTL: Duration = Duration::from_secs(120);
/// Grants under way at a time.
const GRANTS: usize = 64;

/// A store whose connections hold leases: a put renews the next of them.
#[derive(Clone, Debug)]
pub struct Renewals<S> {
    store: S,
    leases: usize,
    batch: usize,
}

/// A connection with its leases.
#[derive(Debug)]
pub struct Holder<C> {
    connection: Arc<C>,
    leases: Vec<i64>,
    batch: usize,
    next: AtomicUsize,
}

/// Carries out `leasehold bench lease-keepalive`.
///
/// # Errors
/// No node can be reached, or nothing was answered.
pub fn run(
    arguments: &RenewalArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let plan = mixed::plan(0.0, &arguments.load, global)?;
    let store = mixed::connector(&arguments.load, global)?;
    let store = Renewals::new(store, arguments.leases, arguments.batch);
    let progress = Progress::new(arguments.load.quiet);
    begin(arguments, progress);
    let mut report = Report::begin();
    report
        .runs
        .push(measure(&store, &plan, arguments.batch, progress)?);
    report.end();
    report.show(global, out)
}

/// Says what is renewed.
pub fn begin(arguments: &RenewalArgs, progress: Progress) {
    progress.say(&format!(
        "each connection holds {} leases; a request renews {} of them",
        arguments.leases, arguments.batch
    ));
}

/// Puts this load on one store.
///
/// # Errors
/// A connection could not be made, or a process whose CPU time was asked for is not there.
pub fn measure<S: Store>(
    store: &Renewals<S>,
    plan: &Plan,
    batch: u32,
    progress: Progress,
) -> Result<Run, Failure> {
    let mut run = Run::measure(store, plan, progress)?;
    run.setup.load = "lease-keepalive";
    progress.say(&format!(
        "{:>10} {:.0} renewals per second",
        run.store,
        run.ops_per_second * f64::from(batch)
    ));
    Ok(run)
}

impl<S: Store> Renewals<S> {
    /// Each connection holds `leases` leases; a request renews `batch` of them.
    pub fn new(store: S, leases: u32, batch: u32) -> Self {
        let leases = usize::try_from(leases).unwrap_or(usize::MAX).max(1);
        let batch = usize::try_from(batch)
            .unwrap_or(usize::MAX)
            .clamp(1, leases);
        Self {
            store,
            leases,
            batch,
        }
    }
}

impl<S: Store> Store for Renewals<S> {
    type Connection = Holder<S::Connection>;

    fn name(&self) -> &'static str {
        self.store.name()
    }

    async fn connect(&self, number: usize) -> Result<Self::Connection, Failure> {
        let connection = Arc::new(self.store.connect(number).await?);
        let mut leases = Vec::with_capacity(self.leases);
        while leases.len() < self.leases {
            let some = GRANTS.min(self.leases - leases.len());
            let mut grants = JoinSet::new();
            for _ in 0..some {
                let connection = Arc::clone(&connection);
                grants.spawn(async move { connection.grant(TTL, None).await });
            }
            while let Some(granted) = grants.join_next().await {
                let granted = granted.map_err(|error| Failure::refused(error.to_string()))?;
                leases.push(granted?);
            }
        }
        // A store that renews on a stream opens it here, before anything is measured.
        connection.renew(&leases[..1]).await?;
        Ok(Holder {
            connection,
            leases,
            batch: self.batch,
            next: AtomicUsize::new(0),
        })
    }
}

impl<C> Holder<C> {
    /// The leases that the next request renews.
    fn in_turn(&self) -> Vec<i64> {
        let count = self.leases.len();
        // Wraps at the end of `usize`, where the turn begins elsewhere.
        let first = self.next.fetch_add(self.batch, Ordering::Relaxed) % count;
        (first..first + self.batch)
            .map(|place| self.leases[place % count])
            .collect()
    }
}

impl<C: Connection> Connection for Holder<C> {
    type Watch = C::Watch;

    async fn get(&self, key: &Bytes, consistency: Consistency) -> Result<Answer, Trouble> {
        self.connection.get(key, consistency).await
    }

    async fn put(&self, _: &Bytes, _: &Bytes) -> Result<Answer, Trouble> {
        let leases = self.in_turn();
        let renewed = self.renew(&leases).await?;
        match leases.iter().zip(&renewed.kept).find(|(_, kept)| !**kept) {
            Some((lease, _)) => Err(Trouble {
                code: "lease-not-found",
                detail: format!("lease {lease:x} does not exist"),
            }),
            None => Ok(Answer {
                revision: renewed.revision,
                path: None,
                found: true,
            }),
        }
    }

    async fn grant(&self, ttl: Duration, key: Option<Bytes>) -> Result<i64, Trouble> {
        self.connection.grant(ttl, key).await
    }

    async fn renew(&self, leases: &[i64]) -> Result<Renewal, Trouble> {
        self.connection.renew(leases).await
    }

    async fn revoke(&self, lease: i64) -> Result<(), Trouble> {
        self.connection.revoke(lease).await
    }

    async fn watch(&self, what: WatchTarget) -> Result<C::Watch, Failure> {
        self.connection.watch(what).await
    }

    async fn close(&self) {
        for lease in &self.leases {
            // What is left expires by itself.
            if self.revoke(*lease).await.is_err() {
                break;
            }
        }
        self.connection.close().await;
    }
}
