//! Leases as text: etcdctl's sentences where it has one.

use std::io;
use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::json::{fields, line, row, with_header};
use super::table::{Align, table};
use super::text::{View, escaped};
use crate::api::{LeaseGrantResponse, LeaseInfo, LeaseRef, LeaseRevokeResponse, ResponseHeader};
use crate::cli::arguments::Format;
use crate::client::{LeaseEndCause, LeaseEvent};

/// The reply to a grant.
///
/// # Errors
/// Those of `out`.
pub fn granted(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    granted: &LeaseGrantResponse,
) -> io::Result<()> {
    let mut sentence = format!(
        "lease {:016x} granted with TTL({})",
        granted.id,
        seconds(granted.ttl_ms)
    );
    sentence.push_str(&named(&granted.name));
    if granted.ttl_ms != granted.requested_ttl_ms {
        sentence.push_str(&format!(
            ", asked for {}",
            seconds(granted.requested_ttl_ms)
        ));
    }
    let document = json!({
        "id": granted.id,
        "grant_index": granted.grant_index,
        "ttl_ms": granted.ttl_ms,
        "requested_ttl_ms": granted.requested_ttl_ms,
        "name": granted.name,
    });
    show(out, view, &sentence, header, document)
}

/// The reply to a revocation.
///
/// # Errors
/// Those of `out`.
pub fn revoked(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    id: i64,
    revoked: &LeaseRevokeResponse,
) -> io::Result<()> {
    let sentence = match revoked.is_partial {
        false => format!("lease {id:016x} revoked"),
        true => format!(
            "lease {id:016x} revoked; its {} keys are being deleted",
            revoked.deleted
        ),
    };
    let document = json!({
        "id": id,
        "deleted": revoked.deleted,
        "is_partial": revoked.is_partial,
    });
    show(out, view, &sentence, header, document)
}

/// A lease was renewed.
///
/// # Errors
/// Those of `out`.
pub fn kept(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    id: i64,
    ttl_ms: u64,
) -> io::Result<()> {
    has_ttl(out, view, header, "keepalived with", (id, ttl_ms))
}

/// A lease has another time to live.
///
/// # Errors
/// Those of `out`.
pub fn updated(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    id: i64,
    ttl_ms: u64,
) -> io::Result<()> {
    has_ttl(out, view, header, "has", (id, ttl_ms))
}

fn has_ttl(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    how: &str,
    (id, ttl_ms): (i64, u64),
) -> io::Result<()> {
    let sentence = format!("lease {id:016x} {how} TTL({})", seconds(ttl_ms));
    let document = json!({"id": id, "ttl_ms": ttl_ms});
    show(out, view, &sentence, header, document)
}

/// How a lease is.
///
/// # Errors
/// Those of `out`.
pub fn time_to_live(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    keys: bool,
    info: &LeaseInfo,
) -> io::Result<()> {
    let mut sentence = format!(
        "lease {:016x} granted with TTL({}), remaining({})",
        info.id,
        seconds(info.granted_ttl_ms),
        remaining(info)
    );
    if keys {
        let keys: Vec<String> = info.keys.iter().map(|key| escaped(view, key)).collect();
        sentence.push_str(&format!(", attached keys([{}])", keys.join(" ")));
    }
    if view.format == Format::Table {
        list(out, view, header, std::slice::from_ref(info))?;
        let keys = info.keys.iter().map(|key| vec![escaped(view, key)]);
        return match info.keys.is_empty() {
            true => Ok(()),
            false => table(out, &[("ATTACHED KEY", Align::Left)], keys),
        };
    }
    show(out, view, &sentence, header, document(info))
}

/// What happened to a lease that is watched.
///
/// # Errors
/// Those of `out`.
pub fn watched(out: &mut impl Write, view: View, event: &LeaseEvent) -> io::Result<()> {
    let (what, info) = match event {
        LeaseEvent::Present(info) => ("present", info),
        LeaseEvent::Granted(info) => ("granted", info),
        LeaseEvent::Renewed(info) => ("renewed", info),
        LeaseEvent::Extended(info) => ("extended", info),
        LeaseEvent::TtlChanged(info) => ("ttl_changed", info),
        LeaseEvent::Ended { lease, name, cause } => return ended(out, view, *lease, name, *cause),
    };
    let mut told = document(info);
    told["event"] = what.into();
    let sentence = format!(
        "lease {:016x} {}, TTL({}), remaining({}){}",
        info.id,
        match event {
            LeaseEvent::TtlChanged(_) => "has another TTL",
            _ => what,
        },
        seconds(info.granted_ttl_ms),
        remaining(info),
        named(&info.name),
    );
    show_event(out, view, &sentence, &told)
}

fn ended(
    out: &mut impl Write,
    view: View,
    lease: LeaseRef,
    name: &str,
    cause: LeaseEndCause,
) -> io::Result<()> {
    let told = json!({
        "event": "ended",
        "id": lease.id,
        "grant_index": lease.grant_index,
        "name": name,
        "cause": match cause {
            LeaseEndCause::Expired => "expired",
            LeaseEndCause::Revoked => "revoked",
            LeaseEndCause::Unknown => "unknown",
        },
    });
    let sentence = format!("lease {:016x} ended: {cause}{}", lease.id, named(name));
    show_event(out, view, &sentence, &told)
}

/// How a sentence ends about a lease that has a name.
fn named(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" name({name})"),
    }
}

fn show_event(out: &mut impl Write, view: View, sentence: &str, told: &Value) -> io::Result<()> {
    match view.format {
        Format::Json => line(out, told),
        Format::Fields => fields(out, told),
        Format::Table | Format::Simple => writeln!(out, "{sentence}"),
    }
}

/// Many leases.
///
/// # Errors
/// Those of `out`.
pub fn list(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    leases: &[LeaseInfo],
) -> io::Result<()> {
    match view.format {
        Format::Simple => leases
            .iter()
            .try_for_each(|lease| writeln!(out, "{:016x}", lease.id)),
        Format::Json | Format::Fields => {
            let leases: Vec<Value> = leases.iter().map(document).collect();
            show(out, view, "", header, json!({"leases": leases}))
        }
        Format::Table => {
            let columns = [
                ("ID", Align::Left),
                ("NAME", Align::Left),
                ("OWNER", Align::Left),
                ("TTL", Align::Right),
                ("REMAINING", Align::Right),
                ("KEYS", Align::Right),
                ("GRANTED AT", Align::Left),
            ];
            let rows = leases.iter().map(|lease| {
                vec![
                    format!("{:016x}", lease.id),
                    lease.name.clone(),
                    lease.owner.clone(),
                    seconds(lease.granted_ttl_ms),
                    remaining(lease),
                    lease.key_count.to_string(),
                    granted_at(lease),
                ]
            });
            table(out, &columns, rows)
        }
    }
}

fn show(
    out: &mut impl Write,
    view: View,
    sentence: &str,
    header: &ResponseHeader,
    document: Value,
) -> io::Result<()> {
    match view.format {
        Format::Json => line(out, &with_header(header, document)),
        Format::Fields => fields(out, &with_header(header, document)),
        Format::Table => row(out, &document),
        Format::Simple => writeln!(out, "{sentence}"),
    }
}

pub(in crate::cli) fn document(info: &LeaseInfo) -> Value {
    use base64::Engine;
    let keys = info.keys.iter();
    let keys: Vec<String> = keys
        .map(|key| base64::engine::general_purpose::STANDARD.encode(key))
        .collect();
    json!({
        "id": info.id,
        "grant_index": info.grant_index,
        "name": info.name,
        "owner": info.owner,
        "granted_ttl_ms": info.granted_ttl_ms,
        "remaining_ms": info.remaining_ms,
        "granted_at": granted_at(info),
        "key_count": info.key_count,
        "keys": keys,
        "is_revoking": info.is_revoking,
        "renewals": info.renewals,
        "is_extended": info.is_extended,
    })
}

pub(in crate::cli) fn remaining(info: &LeaseInfo) -> String {
    match info.remaining_ms {
        _ if info.is_revoking => "revoking".to_owned(),
        Some(ms) => seconds(ms),
        None => "unknown here".to_owned(),
    }
}

fn granted_at(info: &LeaseInfo) -> String {
    let since = Duration::from_millis(u64::try_from(info.granted_at_ms).unwrap_or(0));
    match SystemTime::UNIX_EPOCH.checked_add(since) {
        Some(at) => humantime::format_rfc3339_seconds(at).to_string(),
        None => "never".to_owned(),
    }
}

/// Milliseconds as seconds, without zeros that say nothing.
pub(in crate::cli) fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(print: impl Fn(&mut Vec<u8>, View) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out, View::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn leases_are_told_in_etcdctls_sentences() {
        let header = ResponseHeader::default();
        let info = LeaseInfo {
            id: 0x3269_5410_dcc0_ca06,
            granted_ttl_ms: 60_000,
            remaining_ms: Some(47_212),
            keys: vec!["foo1".into(), "foo2".into()],
            ..LeaseInfo::default()
        };
        let told = shown(|out, view| time_to_live(out, view, &header, true, &info));
        let expected = "lease 32695410dcc0ca06 granted with TTL(60s), remaining(47.212s), \
                        attached keys([foo1 foo2])\n";
        assert_eq!(told, expected);
        let view = View {
            format: Format::Table,
            hex: false,
        };
        let told = shown(|out, _| time_to_live(out, view, &header, true, &info));
        assert!(told.contains("| 32695410dcc0ca06 |"), "{told}");
        assert!(told.contains("\n| foo2         |\n"), "{told}");
        let grant = LeaseGrantResponse {
            id: 31,
            ttl_ms: 1_500,
            requested_ttl_ms: 1_500,
            name: "server1Lease".to_owned(),
            ..LeaseGrantResponse::default()
        };
        let told = shown(|out, view| granted(out, view, &header, &grant));
        let expected = "lease 000000000000001f granted with TTL(1.5s) name(server1Lease)\n";
        assert_eq!(told, expected);
        let told = shown(|out, _| granted(out, view, &header, &grant));
        assert!(
            told.contains("| 000000000000001f | server1Lease |"),
            "{told}"
        );
        let clamped = LeaseGrantResponse {
            ttl_ms: 500,
            requested_ttl_ms: 1,
            name: String::new(),
            ..grant
        };
        let told = shown(|out, view| granted(out, view, &header, &clamped));
        assert!(told.ends_with("TTL(0.5s), asked for 0.001s\n"), "{told}");
    }
}
