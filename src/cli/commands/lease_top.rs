//! `leasehold lease top`: which leases are nearest to their end, again and again.
//!
//! A lease is *at risk* while less than a third of its time is left: holders renew when a third has
//! passed, so two renewals in a row have failed, or no holder keeps it. Those come first, the nearest to
//! its end before the others. All leases are gone through for each look, a page at a time; what was
//! renewed, granted and ended in between is counted by comparing with the look before, so several
//! renewals of one lease between two looks count as one.

use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::time::Duration;

use anstyle::Style;
use serde_json::{Value, json};

use super::request::unexpected;
use super::screen::{Screen, TERMINAL, WARNING, until_interrupted, wants_colours};
use crate::api::{
    Consistency, LeaseInfo, LeaseListRequest, LeaseListResponse, Request, ResponseBody,
};
use crate::cli::arguments::Format;
use crate::cli::arguments::lease::TopArgs;
use crate::cli::connection::Connection;
use crate::cli::failure::Failure;
use crate::cli::print::{Align, View, fields, leases as print, line, steady_table, terminal};
use crate::clock::SystemClock;
use crate::time::{Clock, Instant};

/// By so much more than the time that has passed a deadline must have moved to have been renewed:
/// answers are not all equally quick.
const SLACK_MS: u64 = 100;

/// Refreshes as often as requested, or until the reader of our output goes away, or the user types
/// Ctrl-C. `live` says that `out` is a terminal, on which each look covers the one before.
///
/// # Errors
/// What kept it from looking.
pub(super) async fn run(
    arguments: &TopArgs,
    connection: &impl Connection,
    view: View,
    live: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_for_programs = matches!(view.format, Format::Json | Format::Fields);
    // A document is one sample: a program that reads it runs the command again.
    let looks = arguments.count.unwrap_or(u32::MAX);
    let looks = if is_for_programs { 1 } else { looks };
    let redraws = live && looks > 1;
    let screen = Screen::new(out, redraws, wants_colours());
    let work = looks_at(looks, arguments, connection, view, live, screen);
    until_interrupted(redraws, work).await
}

/// Looks so often.
async fn looks_at<W: Write>(
    looks: u32,
    arguments: &TopArgs,
    connection: &impl Connection,
    view: View,
    live: bool,
    mut screen: Screen<'_, W>,
) -> Result<(), Failure> {
    let began = SystemClock.now();
    let mut last = String::new();
    let mut before = None;
    for number in 0..looks {
        if number > 0 {
            tokio::time::sleep(arguments.interval).await;
        }
        let (look, deadlines) = look(arguments, connection, began, before.take()).await?;
        before = Some(deadlines);
        let mut text = Vec::new();
        look.print(&mut text, view, live)?;
        last = String::from_utf8_lossy(&text).into_owned();
        screen.show(&last, terminal().unwrap_or(TERMINAL))?;
    }
    Ok(screen.end(&last)?)
}

/// Print one update and exit at all leases, compared with the one before.
///
/// # Errors
/// What kept it from looking.
pub(super) async fn look(
    arguments: &TopArgs,
    connection: &impl Connection,
    began: Instant,
    before: Option<Deadlines>,
) -> Result<(LeaseSummary, Deadlines), Failure> {
    let mut leases = Vec::new();
    let mut after = Some(0);
    while let Some(from) = after {
        let page = page(connection, arguments, from).await?;
        let at_ms = millis(SystemClock.now().at_least_since(began));
        let seen = page
            .leases
            .into_iter()
            .map(|info| LeaseSample { at_ms, info });
        leases.extend(seen);
        after = page.next;
    }
    Ok(LeaseSummary::new(leases, before, arguments.limit))
}

async fn page(
    connection: &impl Connection,
    arguments: &TopArgs,
    after: i64,
) -> Result<LeaseListResponse, Failure> {
    let request = Request::LeaseList(LeaseListRequest {
        after,
        limit: 0,
        owner: arguments.owner.clone(),
        name_prefix: arguments.name_prefix.clone(),
    });
    // Only a leader knows what is left of a lease.
    match connection
        .call(request, Consistency::Linearizable)
        .await?
        .body
    {
        ResponseBody::LeaseList(page) => Ok(page),
        other => Err(unexpected(&other)),
    }
}

/// A lease, and when that was known: in milliseconds since the beginning.
struct LeaseSample {
    at_ms: u64,
    info: LeaseInfo,
}

/// When each lease was due, by its id and the index of its grant, and when that was known.
pub(super) struct Deadlines {
    at_ms: u64,
    due_ms: BTreeMap<(i64, u64), u64>,
}

/// What there is to show.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LeaseSummary {
    leases: usize,
    at_risk: usize,
    revoking: usize,
    /// Since the look before, if there was one.
    changes: Option<Changes>,
    top: Vec<LeaseInfo>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Changes {
    over: Duration,
    renewed: usize,
    granted: usize,
    ended: usize,
}

impl LeaseSummary {
    fn new(seen: Vec<LeaseSample>, before: Option<Deadlines>, limit: usize) -> (Self, Deadlines) {
        let mut now = Deadlines {
            at_ms: seen.last().map_or(0, |last| last.at_ms),
            due_ms: BTreeMap::new(),
        };
        for LeaseSample { at_ms, info } in &seen {
            let due = at_ms + info.remaining_ms.unwrap_or(0);
            now.due_ms.insert((info.id, info.grant_index), due);
        }
        let changes = before.map(|before| {
            let mut changes = Changes {
                over: Duration::from_millis(now.at_ms.saturating_sub(before.at_ms)),
                ended: before.due_ms.len(),
                ..Changes::default()
            };
            for (lease, due) in &now.due_ms {
                match before.due_ms.get(lease) {
                    Some(before) => {
                        changes.ended -= 1;
                        changes.renewed += usize::from(*due > before + SLACK_MS);
                    }
                    None => changes.granted += 1,
                }
            }
            changes
        });
        let mut top: Vec<LeaseInfo> = seen.into_iter().map(|seen| seen.info).collect();
        let look = Self {
            leases: top.len(),
            at_risk: top.iter().filter(|info| is_at_risk(info)).count(),
            revoking: top.iter().filter(|info| info.is_revoking).count(),
            changes,
            top: Vec::new(),
        };
        top.sort_by_key(|info| (!is_at_risk(info), info.remaining_ms, info.id));
        top.truncate(limit);
        (Self { top, ..look }, now)
    }

    /// Shows it; `live` as a table where lines would do elsewhere.
    pub(super) fn print(&self, out: &mut impl Write, view: View, live: bool) -> io::Result<()> {
        match view.format {
            Format::Json => line(out, &self.document()),
            Format::Fields => fields(out, &self.document()),
            Format::Simple if !live => {
                writeln!(out, "{}", self.headline())?;
                for info in &self.top {
                    writeln!(out, "{}", row(info).join("  ").trim_end())?;
                }
                Ok(())
            }
            Format::Simple | Format::Table => {
                writeln!(out, "{}", self.headline())?;
                let columns = [
                    ("ID", Align::Left),
                    ("NAME", Align::Left),
                    ("OWNER", Align::Left),
                    ("TTL", Align::Right),
                    ("REMAINING", Align::Right),
                    ("KEYS", Align::Right),
                    ("STATE", Align::Left),
                ];
                let style = |info| match is_at_risk(info) {
                    true => WARNING,
                    false => Style::new(),
                };
                let rows = self.top.iter().map(|info| (style(info), row(info)));
                steady_table(out, &columns, &["KEYS", "TTL", "OWNER"], rows)
            }
        }
    }

    fn headline(&self) -> String {
        let leases = match self.leases {
            1 => "1 lease".to_owned(),
            leases => format!("{leases} leases"),
        };
        let mut text = format!(
            "{leases}, {} at risk, {} being revoked",
            self.at_risk, self.revoking
        );
        if let Some(changes) = &self.changes {
            text.push_str(&format!(
                "; in the last {:.1}s {} renewed, {} granted, {} ended",
                changes.over.as_secs_f64(),
                changes.renewed,
                changes.granted,
                changes.ended
            ));
        }
        text
    }

    pub(super) fn document(&self) -> Value {
        let leases = self.top.iter().map(|info| {
            let mut document = print::document(info);
            document["is_at_risk"] = is_at_risk(info).into();
            document
        });
        json!({
            "leases": self.leases,
            "at_risk": self.at_risk,
            "revoking": self.revoking,
            "top": leases.collect::<Vec<_>>(),
        })
    }
}

fn is_at_risk(info: &LeaseInfo) -> bool {
    info.remaining_ms
        .is_some_and(|left| left < info.granted_ttl_ms / 3)
}

fn row(info: &LeaseInfo) -> Vec<String> {
    vec![
        format!("{:016x}", info.id),
        info.name.clone(),
        info.owner.clone(),
        print::seconds(info.granted_ttl_ms),
        print::remaining(info),
        info.key_count.to_string(),
        if is_at_risk(info) { "at-risk" } else { "" }.to_owned(),
    ]
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    fn seen(at_ms: u64, id: i64, ttl_ms: u64, remaining_ms: u64) -> LeaseSample {
        LeaseSample {
            at_ms,
            info: LeaseInfo {
                id,
                grant_index: 1,
                granted_ttl_ms: ttl_ms,
                remaining_ms: Some(remaining_ms),
                name: format!("lease-{id}"),
                ..LeaseInfo::default()
            },
        }
    }

    fn shown(look: &LeaseSummary, format: Format, live: bool) -> String {
        let view = View {
            format,
            ..View::default()
        };
        let mut out = Vec::new();
        look.print(&mut out, view, live).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn those_at_risk_come_first_and_then_those_that_end_soonest() {
        let leases = vec![
            seen(0, 1, 60_000, 59_000),
            seen(0, 2, 60_000, 19_000),
            seen(0, 3, 500, 400),
            seen(0, 4, 900, 100),
            seen(0, 5, 3_000, 1_000),
        ];
        let (look, _) = LeaseSummary::new(leases, None, 4);
        let ids: Vec<i64> = look.top.iter().map(|info| info.id).collect();
        assert_eq!(ids, [4, 2, 3, 5], "a third is not less than a third");
        assert_eq!((look.leases, look.at_risk), (5, 2));
        assert_eq!(look.changes, None);
    }

    #[test]
    fn what_changed_is_seen_by_comparing_two_looks() {
        let first = vec![
            seen(0, 1, 1_000, 900),
            seen(0, 2, 9_000, 8_000),
            seen(5, 3, 9_000, 50),
        ];
        let (_, before) = LeaseSummary::new(first, None, 9);
        // 1 was renewed, 2 was not, 3 is gone, 4 is new.
        let second = vec![
            seen(2_000, 1, 1_000, 950),
            seen(2_000, 2, 9_000, 6_001),
            seen(2_005, 4, 9_000, 9_000),
        ];
        let (look, _) = LeaseSummary::new(second, Some(before), 9);
        let changes = look.changes.unwrap();
        assert_eq!(
            (changes.renewed, changes.granted, changes.ended),
            (1, 1, 1),
            "{changes:?}"
        );
        assert_eq!(changes.over, Duration::from_secs(2));
    }

    #[test]
    fn a_terminal_gets_a_table_a_pipe_gets_lines_and_a_program_a_document() {
        let (look, _) = LeaseSummary::new(vec![seen(0, 31, 1_500, 300)], None, 9);
        assert_eq!(
            shown(&look, Format::Simple, false),
            "1 lease, 1 at risk, 0 being revoked\n\
             000000000000001f  lease-31    1.5s  0.3s  0  at-risk\n"
        );
        let coloured = shown(&look, Format::Simple, true);
        let at_risk = coloured
            .lines()
            .find(|line| line.contains("lease-31"))
            .unwrap();
        assert!(at_risk.starts_with("\x1b[33m| ") && at_risk.ends_with(" |\x1b[0m"));
        let live = strip_str(&coloured).to_string();
        assert_eq!(coloured.matches('\x1b').count(), 2, "the rest has none");
        assert!(live.contains("| 000000000000001f | lease-31 |"), "{live}");
        assert!(
            live.contains(" STATE "),
            "each column says what it is: {live}"
        );
        let json = shown(&look, Format::Json, true);
        let document: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(document["top"][0]["is_at_risk"], true);
        assert_eq!(document["top"][0]["remaining_ms"], 300);
        assert_eq!(document["at_risk"], 1);
    }
}
