//! `leasehold bench lease-keepalive`: renewals of client leases, as a fleet of holders asks a leader for
//! them.
//!
//! Each connection is granted leases of its own and renews them in turn, some with each request.
//! A renewal enters no log; what is measured is a request, so renewals per second are that many times
//! as many as leases go with one.

use std::cell::Cell;
use std::io::Write;
use std::time::Duration;

use bytes::Bytes;

use super::generator::Plan;
use super::leasehold::Leasehold;
use super::mixed;
use super::progress::Progress;
use super::report::{Report, Run};
use super::store::{Answer, Connector, Store, Trouble};
use crate::api::{Consistency, Error, ErrorKind, LeaseKept, LeaseRef, Request, ResponseBody};
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::RenewalArgs;
use crate::cli::failure::Failure;
use crate::client::Client;

/// Long enough that what is not in turn for a while does not end.
pub const TTL: Duration = Duration::from_secs(120);
/// Grants under way at a time.
pub const GRANTS: usize = 64;

/// Connects, and has leases granted.
#[derive(Clone, Debug)]
pub struct Renewals {
    leasehold: Leasehold,
    leases: usize,
    batch: usize,
}

/// A connection with its leases.
#[derive(Debug)]
pub struct Holder {
    client: Client,
    leases: Vec<LeaseRef>,
    batch: usize,
    next: Cell<usize>,
}

/// Carries out `leasehold bench lease-keepalive`.
///
/// # Errors
/// Nobody can be reached, or nothing was answered.
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
pub fn measure<C: Connector>(
    store: &C,
    plan: &Plan,
    batch: u32,
    progress: Progress,
) -> Result<Run, Failure> {
    let mut run = Run::measure(store, plan, progress)?;
    run.load = "lease-keepalive";
    progress.say(&format!(
        "{:>10} {:.0} renewals per second",
        run.store,
        run.ops_per_second * f64::from(batch)
    ));
    Ok(run)
}

impl Renewals {
    /// So many leases for each connection, and so many renewed with each request.
    pub fn new(leasehold: Leasehold, leases: u32, batch: u32) -> Self {
        let leases = usize::try_from(leases).unwrap_or(usize::MAX).max(1);
        let batch = usize::try_from(batch)
            .unwrap_or(usize::MAX)
            .clamp(1, leases);
        Self {
            leasehold,
            leases,
            batch,
        }
    }
}

impl Connector for Renewals {
    type Store = Holder;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn connect(&self, number: usize) -> Result<Holder, Failure> {
        let client = self.leasehold.connect(number).await?;
        let mut leases = Vec::with_capacity(self.leases);
        while leases.len() < self.leases {
            let some = GRANTS.min(self.leases - leases.len());
            let mut grants = tokio::task::JoinSet::new();
            for _ in 0..some {
                let lease = client.lease();
                grants.spawn(async move { lease.grant(TTL, None).await });
            }
            while let Some(granted) = grants.join_next().await {
                let granted = granted.map_err(|error| Failure::refused(error.to_string()))?;
                leases.push(granted?.lease());
            }
        }
        Ok(Holder {
            client,
            leases,
            batch: self.batch,
            next: Cell::new(0),
        })
    }
}

impl Holder {
    fn in_turn(&self) -> Vec<LeaseRef> {
        let count = self.leases.len();
        let first = self.next.get();
        self.next.set((first + self.batch) % count);
        (first..first + self.batch)
            .map(|place| self.leases[place % count])
            .collect()
    }
}

impl Store for Holder {
    async fn get(&self, _: &Bytes, _: Consistency) -> Result<Answer, Trouble> {
        let unsupported = Error::not_applied(ErrorKind::Unsupported, "this load only renews");
        Err(unsupported.into())
    }

    async fn put(&self, _: &Bytes, _: &Bytes) -> Result<Answer, Trouble> {
        let request = Request::LeaseKeepAlive(self.in_turn());
        let response = self.client.call(request, Consistency::Linearizable).await?;
        let ResponseBody::LeaseKeepAlive(kept) = response.body else {
            let strange = Error::not_applied(ErrorKind::Internal, "not an answer to a renewal");
            return Err(strange.into());
        };
        let renewed = |kept: &LeaseKept| matches!(kept, LeaseKept::Renewed { .. });
        match kept.iter().find(|kept| !renewed(kept)) {
            None => Ok(Answer {
                revision: response.header.revision,
                path: None,
                found: true,
            }),
            Some(kept) => {
                let detail = format!("a lease was not renewed: {kept:?}");
                Err(Error::not_applied(ErrorKind::LeaseNotFound, detail).into())
            }
        }
    }

    async fn close(&self) {
        for lease in &self.leases {
            // What is left ends by itself.
            if self.client.lease().revoke(*lease).await.is_err() {
                break;
            }
        }
        self.client.close().await;
    }
}
