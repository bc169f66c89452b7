//! How nodes are, as text.

use std::io;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use super::json;
use super::table::{Align, table, table_of_most, table_of_one};
use crate::api::{LeaderLeaseStatus, ResponseHeader, StatusResponse};
use crate::cli::arguments::Format;
use crate::types::NodeId;

/// What one endpoint said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Where it was asked.
    pub endpoint: String,
    /// The reply's header.
    pub header: ResponseHeader,
    /// The reply.
    pub status: StatusResponse,
}

/// Whether an endpoint serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointHealth {
    /// Where it was asked.
    pub endpoint: String,
    /// How long the answer took.
    pub took: Duration,
    /// The header of its answer, if it answered.
    pub header: Option<ResponseHeader>,
    /// Why it does not serve; `None` if it does.
    pub problem: Option<String>,
}

/// What `endpoint health` found.
///
/// # Errors
/// Those of `out`.
pub fn health(out: &mut impl Write, format: Format, all: &[EndpointHealth]) -> io::Result<()> {
    match format {
        Format::Simple => all.iter().try_for_each(|one| {
            let (endpoint, took) = (&one.endpoint, short(one.took));
            match &one.problem {
                None => writeln!(out, "{endpoint} is healthy: took {took}"),
                Some(problem) => writeln!(out, "{endpoint} is unhealthy: {problem}"),
            }
        }),
        Format::Table => {
            let columns = [
                ("ENDPOINT", Align::Left),
                ("HEALTH", Align::Left),
                ("TOOK", Align::Right),
                ("ERROR", Align::Left),
            ];
            let rows = all.iter().map(|one| {
                vec![
                    one.endpoint.clone(),
                    one.problem.is_none().to_string(),
                    short(one.took),
                    one.problem.clone().unwrap_or_default(),
                ]
            });
            table(out, &columns, rows)
        }
        Format::Json | Format::Fields => {
            let documents = all.iter().map(|one| {
                let document = serde_json::json!({
                    "endpoint": one.endpoint,
                    "health": one.problem.is_none(),
                    "took_ms": json::milliseconds(one.took),
                    "error": one.problem.clone().unwrap_or_default(),
                });
                match &one.header {
                    Some(header) => json::with_header(header, document),
                    None => document,
                }
            });
            match format {
                Format::Json => json::line(out, &documents.collect::<Vec<_>>()),
                _ => documents
                    .into_iter()
                    .try_for_each(|one| json::fields(out, &one)),
            }
        }
    }
}

/// Its role, and whether it is out of service.
fn role(status: &StatusResponse) -> String {
    match status.is_drained() {
        true => format!("{} (drained)", status.role),
        false => status.role.to_string(),
    }
}

/// The replies of `endpoint status`.
///
/// # Errors
/// Those of `out`.
pub fn status(out: &mut impl Write, format: Format, all: &[EndpointStatus]) -> io::Result<()> {
    match format {
        Format::Simple => all.iter().try_for_each(|one| simple(out, one)),
        Format::Fields => all.iter().try_for_each(|one| fields(out, one)),
        Format::Table => as_table(out, all),
        Format::Json => {
            let documents: Vec<_> = all.iter().map(Document::new).collect();
            json::line(out, &documents)
        }
    }
}

/// That leadership was transferred by the node whose reply has this header.
///
/// # Errors
/// Those of `out`.
pub fn moved(
    out: &mut impl Write,
    format: Format,
    header: &ResponseHeader,
    to: Option<NodeId>,
) -> io::Result<()> {
    let from = header.member_id;
    match (format, to) {
        (Format::Json, to) => {
            let document = serde_json::json!({ "from": from.0, "to": to.map(|to| to.0) });
            json::line(out, &json::with_header(header, document))
        }
        (Format::Fields, to) => {
            writeln!(out, "\"From\" : {}", from.0)?;
            to.map_or(Ok(()), |to| writeln!(out, "\"To\" : {}", to.0))
        }
        (Format::Table, to) => table_of_one(
            out,
            &[("FROM", id(from)), ("TO", to.map(id).unwrap_or_default())],
        ),
        (Format::Simple, Some(to)) => writeln!(
            out,
            "Leadership transferred from {} to {}",
            id(from),
            id(to)
        ),
        (Format::Simple, None) => writeln!(out, "Leadership given up by {}", id(from)),
    }
}

fn simple(out: &mut impl Write, one: &EndpointStatus) -> io::Result<()> {
    let EndpointStatus {
        endpoint,
        header,
        status,
    } = one;
    let lease = match status.leader_lease.is_valid {
        true => format!("lease valid for {}", short(status.leader_lease.remaining)),
        false => "no lease".to_owned(),
    };
    writeln!(
        out,
        "{endpoint}, {}, {}, {}, {}, {}, term {}, commit {}, applied {}, {lease}",
        id(header.member_id),
        status.name,
        status.version,
        size(status.storage_bytes),
        role(status),
        header.raft_term.0,
        status.commit_index,
        status.applied_index,
    )
}

fn fields(out: &mut impl Write, one: &EndpointStatus) -> io::Result<()> {
    let EndpointStatus {
        endpoint,
        header,
        status,
    } = one;
    writeln!(out, "\"Endpoint\" : \"{endpoint}\"")?;
    writeln!(out, "\"ClusterID\" : {}", header.cluster_id)?;
    writeln!(out, "\"MemberID\" : {}", header.member_id.0)?;
    writeln!(out, "\"Name\" : \"{}\"", status.name)?;
    writeln!(out, "\"Version\" : \"{}\"", status.version)?;
    writeln!(out, "\"Role\" : \"{}\"", status.role)?;
    if let Some(leader) = header.leader_id {
        writeln!(out, "\"Leader\" : {}", leader.0)?;
    }
    writeln!(out, "\"RaftTerm\" : {}", header.raft_term.0)?;
    writeln!(out, "\"Revision\" : {}", header.revision)?;
    writeln!(out, "\"LastIndex\" : {}", status.last_index)?;
    writeln!(out, "\"CommitIndex\" : {}", status.commit_index)?;
    writeln!(out, "\"AppliedIndex\" : {}", status.applied_index)?;
    writeln!(out, "\"StorageBytes\" : {}", status.storage_bytes)?;
    writeln!(out, "\"QuotaBytes\" : {}", status.quota.bytes)?;
    writeln!(out, "\"NoSpace\" : {}", status.quota.no_space)?;
    let lease = &status.leader_lease;
    writeln!(out, "\"LeaseValid\" : {}", lease.is_valid)?;
    writeln!(
        out,
        "\"LeaseRemainingMs\" : {}",
        lease.remaining.as_millis()
    )?;
    writeln!(
        out,
        "\"LeaseDurationMs\" : {}",
        lease.lease_duration.as_millis()
    )?;
    writeln!(
        out,
        "\"LeaseMarginMs\" : {}",
        lease.max_clock_skew.as_millis()
    )?;
    writeln!(out, "\"LeaseRenewals\" : {}", lease.renewals)?;
    writeln!(out, "\"LeaseExpirations\" : {}", lease.expirations)?;
    writeln!(out, "\"LeaseRejections\" : {}", lease.rejections)
}

fn as_table(out: &mut impl Write, all: &[EndpointStatus]) -> io::Result<()> {
    let columns = [
        ("ENDPOINT", Align::Left),
        ("ID", Align::Left),
        ("NAME", Align::Left),
        ("VERSION", Align::Left),
        ("ROLE", Align::Left),
        ("TERM", Align::Right),
        ("COMMIT", Align::Right),
        ("APPLIED", Align::Right),
        ("USED/QUOTA", Align::Right),
        ("LEASE LEFT", Align::Right),
        ("LEASE MARGIN", Align::Right),
    ];
    let rows = all.iter().map(|one| {
        let (header, status) = (&one.header, &one.status);
        let LeaderLeaseStatus {
            is_valid,
            remaining,
            max_clock_skew,
            ..
        } = status.leader_lease;
        vec![
            one.endpoint.clone(),
            id(header.member_id),
            status.name.clone(),
            status.version.clone(),
            role(status).replace(' ', ""),
            header.raft_term.0.to_string(),
            status.commit_index.to_string(),
            status.applied_index.to_string(),
            room(status),
            if is_valid {
                short(remaining)
            } else {
                String::new()
            },
            short(max_clock_skew),
        ]
    });
    // What is applied is what reads see.
    table_of_most(out, &columns, &["COMMIT"], rows)
}

/// As JSON shows it.
#[derive(Serialize)]
struct Document<'a> {
    endpoint: &'a str,
    header: json::Header,
    name: &'a str,
    version: &'a str,
    role: String,
    last_index: u64,
    commit_index: u64,
    applied_index: u64,
    storage_bytes: u64,
    quota: Quota,
    leader_lease: Lease,
    members: Vec<Member<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Quota {
    bytes: u64,
    no_space: bool,
}

#[derive(Serialize)]
struct Lease {
    is_valid: bool,
    remaining_ms: f64,
    lease_duration_ms: f64,
    max_clock_skew_ms: f64,
    renewals: u64,
    expirations: u64,
    rejections: u64,
}

#[derive(Serialize)]
struct Member<'a> {
    id: u64,
    name: &'a str,
    peer_address: &'a str,
    client_address: &'a str,
}

impl<'a> Document<'a> {
    fn new(one: &'a EndpointStatus) -> Self {
        let status = &one.status;
        let lease = &status.leader_lease;
        let member = |member: &'a crate::api::MemberInfo| Member {
            id: member.id.0,
            name: &member.name,
            peer_address: &member.peer_address,
            client_address: &member.client_address,
        };
        Self {
            endpoint: &one.endpoint,
            header: json::header(&one.header),
            name: &status.name,
            version: &status.version,
            role: status.role.to_string(),
            last_index: status.last_index.0,
            commit_index: status.commit_index.0,
            applied_index: status.applied_index.0,
            storage_bytes: status.storage_bytes,
            quota: Quota {
                bytes: status.quota.bytes,
                no_space: status.quota.no_space,
            },
            leader_lease: Lease {
                is_valid: lease.is_valid,
                remaining_ms: json::milliseconds(lease.remaining),
                lease_duration_ms: json::milliseconds(lease.lease_duration),
                max_clock_skew_ms: json::milliseconds(lease.max_clock_skew),
                renewals: lease.renewals,
                expirations: lease.expirations,
                rejections: lease.rejections,
            },
            members: status.members.iter().map(member).collect(),
            warnings: &status.warnings,
        }
    }
}

/// A member's id as people see and type it.
fn id(id: NodeId) -> String {
    format!("{:016x}", id.0)
}

/// How large the state is, how large it may be, and whether it is too large.
fn room(status: &StatusResponse) -> String {
    let alarm = match status.quota.no_space {
        true => "(NOSPACE)",
        false => "",
    };
    let (used, quota) = (size(status.storage_bytes), size(status.quota.bytes));
    format!("{used}/{quota}{alarm}")
}

/// To the millisecond, or the microsecond below one.
fn short(duration: Duration) -> String {
    let whole = match duration.as_millis() {
        0 => Duration::from_micros(duration.as_micros() as u64),
        millis => Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)),
    };
    humantime::format_duration(whole)
        .to_string()
        .replace(' ', "")
}

/// A number of bytes, as etcdctl shows sizes but for the blank, which would end a word: `25kB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut scaled = bytes as f64;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1_000.0;
        unit += 1;
    }
    match unit > 0 && scaled < 9.95 {
        true => format!("{scaled:.1}{}", UNITS[unit]),
        false => format!("{scaled:.0}{}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_short() {
        for (bytes, expected) in [
            (0, "0B"),
            (999, "999B"),
            (1_000, "1.0kB"),
            (25_300, "25kB"),
            (999_600, "1.0MB"),
            (u64::MAX, "18446744TB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
        assert_eq!(short(Duration::from_micros(431_700)), "431ms");
        assert_eq!(short(Duration::from_nanos(212_400)), "212us");
        assert_eq!(short(Duration::from_millis(1_500)), "1s500ms");
        assert_eq!(short(Duration::ZERO), "0s");
    }
}
