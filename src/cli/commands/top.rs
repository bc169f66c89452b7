//! `leasehold top`: how the cluster stands, again and again.
//!
//! Each look asks every member how it is, at its own address, and the leader which leases there are.
//! What a member does not answer is shown as such, and the others all the same: this is for the moment
//! in which something is wrong. Rates come from comparing two looks by this machine's clock.

use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::time::Duration;

use anstyle::Style;
use serde_json::{Value, json};

use super::lease_top;
use super::lease_top::LeaseSummary;
use super::request::{any_status, status_of};
use super::screen::{BAD, GOOD, Screen, TERMINAL, until_interrupted, wants_colours};
use crate::api::{MemberInfo, ReadCounts, ResponseHeader, StatusResponse};
use crate::cli::arguments::lease::TopArgs;
use crate::cli::arguments::{ClusterTopArgs, Format};
use crate::cli::connection::{Connection, Target};
use crate::cli::failure::Failure;
use crate::cli::print::{Align, View, fields, line, room, steady_table, terminal};
use crate::clock::SystemClock;
use crate::server::status::document::of_node;
use crate::time::{Clock, Instant};
use crate::types::Role;

/// Refreshes as often as requested, or until the reader of our output goes away, or the user types
/// Ctrl-C. `live` says that `out` is a terminal, on which each look covers the one before.
///
/// # Errors
/// No node answers the first time. Later refreshes show that instead.
pub(super) async fn run(
    arguments: &ClusterTopArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    live: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_for_programs = matches!(view.format, Format::Json | Format::Fields);
    let looks = match arguments.once || is_for_programs {
        true => 1,
        false => arguments.count.unwrap_or(u32::MAX),
    };
    let redraws = live && looks > 1;
    let screen = Screen::new(out, redraws, wants_colours());
    let work = look(looks, arguments, connection, target, view, live, screen);
    until_interrupted(redraws, work).await
}

/// Looks so often.
async fn look<W: Write>(
    looks: u32,
    arguments: &ClusterTopArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    live: bool,
    mut screen: Screen<'_, W>,
) -> Result<(), Failure> {
    let leases_asked = TopArgs {
        limit: arguments.limit,
        interval: arguments.interval,
        count: None,
        owner: String::new(),
        name_prefix: String::new(),
    };
    let began = SystemClock.now();
    let mut last = String::new();
    let mut past = None;
    let mut past_leases = None;
    let (_, first) = any_status(connection, target).await?;
    let mut members = first.members;
    for number in 0..looks {
        if number > 0 {
            tokio::time::sleep(arguments.interval).await;
        }
        let mut nodes = Vec::new();
        for member in &members {
            let answer = match member.client_address.is_empty() {
                true => Err("its address is not known yet".to_owned()),
                false => status_of(connection, &member.client_address)
                    .await
                    .map_err(|failure| failure.to_string()),
            };
            nodes.push(Node::of(member, answer));
        }
        // The leader has the newest list of members.
        if let Some(answer) = nodes.iter().find_map(Node::leading) {
            members.clone_from(&answer.members);
        }
        let leases = lease_top::look(&leases_asked, connection, began, past_leases.take()).await;
        let leases = leases.map(|(look, deadlines)| {
            past_leases = Some(deadlines);
            look
        });
        let frame = Frame::new(nodes, leases, SystemClock.now(), past.as_ref());
        let mut text = Vec::new();
        frame.print(&mut text, view, live)?;
        last = String::from_utf8_lossy(&text).into_owned();
        screen.show(&last, terminal().unwrap_or(TERMINAL))?;
        past = Some(frame.past);
    }
    Ok(screen.end(&last)?)
}

/// One member, and what it says of itself.
#[derive(Debug)]
struct Node {
    name: String,
    answer: Result<(ResponseHeader, StatusResponse), String>,
}

impl Node {
    fn of(member: &MemberInfo, answer: Result<(ResponseHeader, StatusResponse), String>) -> Self {
        Self {
            name: member.name.clone(),
            answer,
        }
    }

    fn status(&self) -> Option<&StatusResponse> {
        self.answer.as_ref().ok().map(|(_, status)| status)
    }

    fn leading(&self) -> Option<&StatusResponse> {
        self.status().filter(|status| status.role == Role::Leader)
    }
}

/// What a refresh needs of the one before, to show rates.
#[derive(Debug)]
struct Sample {
    at: Instant,
    /// By the node's name.
    reads: BTreeMap<String, ReadCounts>,
    revision: i64,
}

/// What there is to show.
struct Frame {
    nodes: Vec<Node>,
    leases: Result<LeaseSummary, String>,
    past: Sample,
    /// Since the look before.
    rates: Option<Rates>,
}

/// A second.
struct Rates {
    revisions: f64,
    reads: BTreeMap<String, [f64; 4]>,
}

impl Frame {
    fn new(
        nodes: Vec<Node>,
        leases: Result<LeaseSummary, Failure>,
        now: Instant,
        past: Option<&Sample>,
    ) -> Self {
        let answers = || nodes.iter().filter_map(|node| node.answer.as_ref().ok());
        let reads = answers().map(|(_, status)| (status.name.clone(), status.reads));
        let present = Sample {
            at: now,
            reads: reads.collect(),
            revision: answers()
                .map(|(header, _)| header.revision)
                .max()
                .unwrap_or(0),
        };
        Self {
            rates: past.and_then(|past| Rates::between(past, &present)),
            nodes,
            leases: leases.map_err(|failure| failure.to_string()),
            past: present,
        }
    }

    fn leader(&self) -> Option<&StatusResponse> {
        // Of two who believe to lead, the one of the later term does.
        let leading = self.nodes.iter().filter(|node| node.leading().is_some());
        let leading = leading.filter_map(|node| node.answer.as_ref().ok());
        let latest = leading.max_by_key(|(header, _)| header.raft_term);
        latest.map(|(_, status)| status)
    }

    fn print(&self, out: &mut impl Write, view: View, live: bool) -> io::Result<()> {
        match view.format {
            Format::Json => return line(out, &self.document()),
            Format::Fields => return fields(out, &self.document()),
            Format::Simple | Format::Table => {}
        }
        let style = match self.leader() {
            Some(_) => Style::new(),
            None => BAD,
        };
        writeln!(out, "{style}{}{style:#}", self.headline(room()))?;
        let columns = [
            ("NODE", Align::Left),
            ("ROLE", Align::Left),
            ("LEASE LEFT", Align::Right),
            ("APPLIED", Align::Right),
            ("LEASED/S", Align::Right),
            ("QUORUM/S", Align::Right),
            ("FOLLOWER/S", Align::Right),
            ("LOCAL/S", Align::Right),
            ("SIZE", Align::Right),
        ];
        let dispensable = ["SIZE", "LOCAL/S", "FOLLOWER/S", "QUORUM/S"];
        let rows = self
            .nodes
            .iter()
            .map(|node| (self.style(node), self.row(node)));
        steady_table(out, &columns, &dispensable, rows)?;
        for node in &self.nodes {
            for warning in node
                .status()
                .into_iter()
                .flat_map(|status| &status.warnings)
            {
                writeln!(out, "{}: {warning}", node.name)?;
            }
            if let Err(problem) = &node.answer {
                writeln!(out, "{}: {problem}", node.name)?;
            }
        }
        match &self.leases {
            Ok(look) => look.print(out, view, live),
            Err(problem) => writeln!(out, "leases: {problem}"),
        }
    }

    /// The longest wording that fits into a line of so many columns.
    fn headline(&self, columns: usize) -> String {
        let answered = self.nodes.iter().filter(|node| node.answer.is_ok()).count();
        let nodes = self.nodes.len();
        let revision = self.past.revision;
        let rate = match &self.rates {
            Some(rates) => format!(" (+{:.0}/s)", rates.revisions),
            None => String::new(),
        };
        let wordings = [
            format!(
                "{}; {answered} of {nodes} nodes answer; revision {revision}{rate}",
                self.lead(true)
            ),
            format!(
                "{}; {answered} of {nodes} nodes answer; revision {revision}{rate}",
                self.lead(false)
            ),
            format!(
                "{}; {answered}/{nodes} nodes; rev {revision}{rate}",
                self.lead(false)
            ),
        ];
        let fits = |wording: &&String| wording.chars().count() <= columns;
        let fitting = wordings.iter().find(fits);
        fitting.unwrap_or(&wordings[2]).clone()
    }

    /// Who leads, and how its lease is; in `full` also how it was.
    fn lead(&self, full: bool) -> String {
        let Some(status) = self.leader() else {
            return "no leader".to_owned();
        };
        let (name, lease) = (&status.name, &status.leader_lease);
        let trusted = lease.lease_duration.saturating_sub(lease.max_clock_skew);
        let (left, trusted) = (lease.remaining.as_millis(), trusted.as_millis());
        match (lease.is_valid, full) {
            (true, true) => format!(
                "{name} is leader, its lease has {left}ms left of {trusted}ms, renewed {} times, expired {}",
                lease.renewals, lease.expirations
            ),
            (true, false) => format!("{name} is leader, lease {left}/{trusted}ms"),
            (false, true) => format!(
                "{name} is leader, without a lease, renewed {} times, expired {}",
                lease.renewals, lease.expirations
            ),
            (false, false) => format!("{name} is leader, no lease"),
        }
    }

    fn style(&self, node: &Node) -> Style {
        let leader = self.leader().map(|leader| &leader.name);
        match node.status() {
            None => BAD,
            Some(status) if leader == Some(&status.name) => GOOD,
            Some(_) => Style::new(),
        }
    }

    fn row(&self, node: &Node) -> Vec<String> {
        let Some(status) = node.status() else {
            let mut row = vec![node.name.clone(), "silent".to_owned()];
            row.resize(9, String::new());
            return row;
        };
        let lease = &status.leader_lease;
        let left = match lease.is_valid {
            true => format!("{}ms", lease.remaining.as_millis()),
            false => String::new(),
        };
        let rates = self.rates.as_ref();
        let rates = rates.and_then(|rates| rates.reads.get(&status.name));
        let mut row = vec![
            node.name.clone(),
            status.role.to_string(),
            left,
            status.applied_index.to_string(),
        ];
        row.extend((0..4).map(|path| match rates {
            Some(rates) => format!("{:.0}", rates[path]),
            None => "-".to_owned(),
        }));
        row.push(crate::cli::print::size(status.storage_bytes));
        row
    }

    fn document(&self) -> Value {
        let nodes = self.nodes.iter().map(|node| match &node.answer {
            Err(problem) => json!({"name": node.name, "problem": problem}),
            Ok((header, status)) => of_node(header, status),
        });
        json!({
            "leader": self.leader().map(|status| &status.name),
            "revision": self.past.revision,
            "nodes": nodes.collect::<Vec<_>>(),
            "leases": match &self.leases {
                Ok(look) => look.document(),
                Err(problem) => json!({"problem": problem}),
            },
        })
    }
}

impl Rates {
    /// `None` if no time has passed.
    fn between(past: &Sample, now: &Sample) -> Option<Self> {
        let over = now.at.at_least_since(past.at).as_secs_f64();
        if over < Duration::from_millis(1).as_secs_f64() {
            return None;
        }
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / over;
        let reads = now.reads.iter().filter_map(|(name, now)| {
            let before = past.reads.get(name)?;
            let rates = [
                rate(before.lease + before.read_lease, now.lease + now.read_lease),
                rate(before.read_index, now.read_index),
                rate(before.follower, now.follower),
                rate(before.serializable, now.serializable),
            ];
            Some((name.clone(), rates))
        });
        Some(Self {
            revisions: (now.revision - past.revision).max(0) as f64 / over,
            reads: reads.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::api::LeaderLeaseStatus;
    use crate::types::Term;

    fn node(name: &str, role: Role, term: u64, lease: u64, old: u64) -> Node {
        let header = ResponseHeader {
            revision: 40 + i64::try_from(lease).unwrap(),
            raft_term: Term(term),
            ..ResponseHeader::default()
        };
        let status = StatusResponse {
            name: name.to_owned(),
            role,
            leader_lease: LeaderLeaseStatus {
                is_valid: role == Role::Leader,
                remaining: Duration::from_millis(412),
                lease_duration: Duration::from_millis(500),
                max_clock_skew: Duration::from_millis(50),
                ..LeaderLeaseStatus::default()
            },
            reads: ReadCounts {
                lease,
                serializable: old,
                ..ReadCounts::default()
            },
            ..StatusResponse::default()
        };
        let member = MemberInfo {
            name: name.to_owned(),
            ..MemberInfo::default()
        };
        Node::of(&member, Ok((header, status)))
    }

    fn silent(name: &str) -> Node {
        let member = MemberInfo {
            name: name.to_owned(),
            ..MemberInfo::default()
        };
        Node::of(&member, Err("nobody answers".to_owned()))
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn shown(frame: &Frame, format: Format) -> String {
        let view = View {
            format,
            ..View::default()
        };
        let mut out = Vec::new();
        frame.print(&mut out, view, false).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let first = [
            node("n1", Role::Leader, 4, 0, 0),
            node("n2", Role::Follower, 4, 0, 10),
        ];
        let first = Frame::new(first.into(), Ok(LeaseSummary::default()), at(10), None);
        assert!(first.rates.is_none());
        assert!(
            shown(&first, Format::Simple).contains(" - |"),
            "no rate yet"
        );
        let second = vec![
            node("n1", Role::Leader, 4, 600, 0),
            node("n2", Role::Follower, 4, 0, 4),
        ];
        let second = Frame::new(
            second,
            Ok(LeaseSummary::default()),
            at(12),
            Some(&first.past),
        );
        let rates = second.rates.as_ref().unwrap();
        assert_eq!(rates.revisions, 300.0);
        assert_eq!(rates.reads["n1"], [300.0, 0.0, 0.0, 0.0]);
        assert_eq!(
            rates.reads["n2"], [0.0; 4],
            "it was started anew in between, and counts from nothing"
        );
        assert_eq!(
            second.headline(usize::MAX),
            "n1 is leader, its lease has 412ms left of 450ms, renewed 0 times, expired 0; 2 of 2 nodes \
             answer; revision 640 (+300/s)"
        );
        let table = shown(&second, Format::Table);
        let mut rows = table.lines().filter(|line| line.starts_with('|'));
        assert!(rows.all(|row| row.len() <= 100), "{table}");
        assert_eq!(
            second.headline(80),
            "n1 is leader, lease 412/450ms; 2 of 2 nodes answer; revision 640 (+300/s)"
        );
        assert_eq!(
            second.headline(60),
            "n1 is leader, lease 412/450ms; 2/2 nodes; rev 640 (+300/s)"
        );
        let same = Frame::new(
            Vec::new(),
            Ok(LeaseSummary::default()),
            at(12),
            Some(&second.past),
        );
        assert!(same.rates.is_none(), "no time has passed");
    }

    #[test]
    fn of_two_who_believe_to_lead_the_later_does_and_who_is_silent_is_shown() {
        let nodes = vec![
            node("n1", Role::Leader, 4, 0, 0),
            node("n2", Role::Leader, 5, 0, 0),
            silent("n3"),
        ];
        let refused = Err(Failure::refused("no leader answers"));
        let frame = Frame::new(nodes, refused, at(1), None);
        let coloured = shown(&frame, Format::Simple);
        let of = |start: &str| {
            let mut lines = coloured.lines();
            lines.any(|line| line.starts_with(start) && line.ends_with("\x1b[0m"))
        };
        assert!(of("\x1b[32m| n2 "), "{coloured}");
        assert!(of("\x1b[31m| n3 "), "{coloured}");
        assert_eq!(coloured.matches('\x1b').count(), 4, "{coloured}");
        let text = strip_str(&coloured).to_string();
        assert!(text.starts_with("n2 is leader, "), "{text}");
        assert!(text.contains("2 of 3 nodes answer"), "{text}");
        assert!(text.contains("| n3   | silent "), "{text}");
        assert!(text.contains("n3: nobody answers"), "{text}");
        assert!(text.ends_with("leases: no leader answers\n"), "{text}");
        let document: Value = serde_json::from_str(&shown(&frame, Format::Json)).unwrap();
        assert_eq!(document["leader"], "n2");
        assert_eq!(document["nodes"][2]["problem"], "nobody answers");
        assert_eq!(document["leases"]["problem"], "no leader answers");
        let nobody = Frame::new(vec![silent("n3")], Ok(LeaseSummary::default()), at(1), None);
        let text = shown(&nobody, Format::Simple);
        assert!(
            text.starts_with("\x1b[31mno leader; 0 of 1 nodes"),
            "{text}"
        );
    }
}
