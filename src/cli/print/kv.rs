//! The replies to `put`, `get`, `del`, `txn`, `watch` and `compaction`.

use std::io;
use std::io::Write;

use super::text::{Parts, View, event_kind, quoted, raw_line};
use super::{json, table};
use crate::api::{
    DeleteRangeResponse, Event, KeyValue, PutResponse, RangeResponse, ResponseHeader,
    TxnOpResponse, TxnResponse,
};
use crate::cli::arguments::Format;
use crate::client::WatchEvent;

/// The reply to a `get`.
///
/// # Errors
/// Those of `out`.
pub fn get(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    header: &ResponseHeader,
    range: &RangeResponse,
) -> io::Result<()> {
    match view.format {
        Format::Json => return json::get(out, header, range),
        Format::Fields => header_fields(out, header)?,
        Format::Simple | Format::Table => {}
    }
    get_below(out, view, parts, range)
}

/// The keys that a get returned.
fn get_below(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    range: &RangeResponse,
) -> io::Result<()> {
    match view.format {
        Format::Table if parts == Parts::Count => cell(out, "COUNT", range.count),
        Format::Table => table::key_values(out, view, parts, &range.kvs),
        Format::Fields => get_fields(out, view, parts, range),
        _ => get_simple(out, view, parts, range),
    }
}

/// The reply to a `put`.
///
/// # Errors
/// Those of `out`.
pub fn put(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    put: &PutResponse,
) -> io::Result<()> {
    match view.format {
        Format::Json => return json::put(out, header, put),
        Format::Fields => header_fields(out, header)?,
        Format::Table => {
            cell(out, "REVISION", header.revision)?;
            return previous(out, view, put.prev_kv.as_slice());
        }
        Format::Simple => {}
    }
    put_below(out, view, put)
}

fn put_below(out: &mut impl Write, view: View, put: &PutResponse) -> io::Result<()> {
    match view.format {
        Format::Fields => {}
        Format::Table => cell(out, "PUT", "OK")?,
        _ => writeln!(out, "OK")?,
    }
    previous(out, view, put.prev_kv.as_slice())
}

/// What keys held before.
fn previous(out: &mut impl Write, view: View, kvs: &[KeyValue]) -> io::Result<()> {
    match view.format {
        Format::Fields => kvs
            .iter()
            .try_for_each(|kv| key_value_fields(out, view, "Prev", Parts::All, kv)),
        Format::Table if !kvs.is_empty() => table::key_values(out, view, Parts::All, kvs),
        _ => key_values_simple(out, view, Parts::All, kvs),
    }
}

/// The reply to a `del`.
///
/// # Errors
/// Those of `out`.
pub fn delete(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    delete: &DeleteRangeResponse,
) -> io::Result<()> {
    match view.format {
        Format::Json => return json::delete(out, header, delete),
        Format::Fields => header_fields(out, header)?,
        Format::Table => {
            let deleted = ("DELETED", delete.deleted.to_string());
            let revision = ("REVISION", header.revision.to_string());
            table::table_of_one(out, &[deleted, revision])?;
            return previous(out, view, &delete.prev_kvs);
        }
        Format::Simple => {}
    }
    delete_below(out, view, delete)
}

fn delete_below(out: &mut impl Write, view: View, delete: &DeleteRangeResponse) -> io::Result<()> {
    match view.format {
        Format::Fields => writeln!(out, "\"Deleted\" : {}", delete.deleted)?,
        Format::Table => cell(out, "DELETED", delete.deleted)?,
        _ => writeln!(out, "{}", delete.deleted)?,
    }
    previous(out, view, &delete.prev_kvs)
}

/// The reply to a `txn`. `parts` says of each of its operations what is shown.
///
/// # Errors
/// Those of `out`.
pub fn txn(
    out: &mut impl Write,
    view: View,
    parts: &[Parts],
    header: &ResponseHeader,
    txn: &TxnResponse,
) -> io::Result<()> {
    match view.format {
        Format::Json => json::txn(out, header, txn),
        Format::Fields => {
            header_fields(out, header)?;
            txn_below(out, view, parts, txn)
        }
        Format::Simple | Format::Table => txn_below(out, view, parts, txn),
    }
}

/// Whether it succeeded, and below that what each operation answered.
fn txn_below(
    out: &mut impl Write,
    view: View,
    parts: &[Parts],
    txn: &TxnResponse,
) -> io::Result<()> {
    match (view.format, txn.succeeded) {
        (Format::Fields, succeeded) => writeln!(out, "\"Succeeded\" : {succeeded}")?,
        (Format::Table, succeeded) => cell(out, "SUCCEEDED", succeeded)?,
        (_, true) => writeln!(out, "SUCCESS")?,
        (_, false) => writeln!(out, "FAILURE")?,
    }
    let parts = parts.iter().copied().chain(std::iter::repeat(Parts::All));
    for (response, parts) in txn.responses.iter().zip(parts) {
        writeln!(out)?;
        match response {
            TxnOpResponse::Range(range) => get_below(out, view, parts, range)?,
            TxnOpResponse::Put(put) => put_below(out, view, put)?,
            TxnOpResponse::DeleteRange(delete) => delete_below(out, view, delete)?,
            TxnOpResponse::Txn(inner) => txn_below(out, view, &[], inner)?,
        }
    }
    Ok(())
}

/// An event of a `watch`.
///
/// # Errors
/// Those of `out`.
pub fn watched(out: &mut impl Write, view: View, event: &WatchEvent) -> io::Result<()> {
    match (view.format, event) {
        (Format::Json, _) => json::watched(out, event),
        (_, WatchEvent::Events { events, .. }) => events
            .iter()
            .try_for_each(|event| watched_event(out, view, event)),
        (Format::Fields, WatchEvent::State { kvs }) => kvs
            .iter()
            .try_for_each(|kv| key_value_fields(out, view, "", Parts::All, kv)),
        (_, WatchEvent::State { kvs }) => key_values_simple(out, view, Parts::All, kvs),
        (Format::Fields, WatchEvent::Progress { revision }) => {
            writeln!(out, "\"ProgressRevision\" : {revision}")
        }
        (_, WatchEvent::Progress { revision }) => writeln!(out, "progress notify: {revision}"),
        (Format::Fields, WatchEvent::Synced { revision }) => {
            writeln!(out, "\"SyncedRevision\" : {revision}")
        }
        (_, WatchEvent::Synced { revision }) => writeln!(out, "synced: {revision}"),
        (
            _,
            WatchEvent::Created { .. } | WatchEvent::Resumed { .. } | WatchEvent::Restarted { .. },
        ) => Ok(()),
    }
}

fn watched_event(out: &mut impl Write, view: View, event: &Event) -> io::Result<()> {
    let kind = event_kind(event.kind);
    if view.format == Format::Fields {
        writeln!(out, "\"Type\" : \"{kind}\"")?;
        if let Some(previous) = &event.prev_kv {
            key_value_fields(out, view, "Prev", Parts::All, previous)?;
        }
        return key_value_fields(out, view, "", Parts::All, &event.kv);
    }
    writeln!(out, "{kind}")?;
    key_values_simple(out, view, Parts::All, event.prev_kv.as_slice())?;
    key_values_simple(out, view, Parts::All, std::slice::from_ref(&event.kv))
}

/// The reply to a `compaction`.
///
/// # Errors
/// Those of `out`.
pub fn compacted(
    out: &mut impl Write,
    view: View,
    header: &ResponseHeader,
    revision: i64,
) -> io::Result<()> {
    match view.format {
        Format::Json => json::compacted(out, header),
        Format::Fields => header_fields(out, header),
        Format::Table => cell(out, "COMPACTED REVISION", revision),
        Format::Simple => writeln!(out, "compacted revision {revision}"),
    }
}

/// A table of one cell.
fn cell(out: &mut impl Write, title: &str, told: impl ToString) -> io::Result<()> {
    table::table_of_one(out, &[(title, told.to_string())])
}

fn get_simple(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    range: &RangeResponse,
) -> io::Result<()> {
    match parts {
        Parts::Count => writeln!(out, "{}", range.count),
        _ => key_values_simple(out, view, parts, &range.kvs),
    }
}

fn key_values_simple(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    kvs: &[KeyValue],
) -> io::Result<()> {
    for kv in kvs {
        if parts != Parts::Values {
            raw_line(out, view, &kv.key)?;
        }
        if parts != Parts::Keys {
            raw_line(out, view, &kv.value)?;
        }
    }
    Ok(())
}

fn get_fields(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    range: &RangeResponse,
) -> io::Result<()> {
    if parts == Parts::Count {
        return writeln!(out, "\"Count\" : {}", range.count);
    }
    for kv in &range.kvs {
        key_value_fields(out, view, "", parts, kv)?;
    }
    if range.more {
        writeln!(out, "\"More\" : true")?;
    }
    Ok(())
}

fn header_fields(out: &mut impl Write, header: &ResponseHeader) -> io::Result<()> {
    writeln!(out, "\"ClusterID\" : {}", header.cluster_id)?;
    writeln!(out, "\"Revision\" : {}", header.revision)?;
    if let Some(read) = header.read {
        writeln!(out, "\"ReadPath\" : \"{}\"", read.path.name())?;
        if !read.lease_remaining.is_zero() {
            let left = read.lease_remaining.as_millis();
            writeln!(out, "\"LeaseRemainingMs\" : {left}")?;
        }
        if let Some(staleness) = read.staleness {
            writeln!(out, "\"StalenessMs\" : {}", staleness.as_millis())?;
        }
    }
    Ok(())
}

fn key_value_fields(
    out: &mut impl Write,
    view: View,
    prefix: &str,
    parts: Parts,
    kv: &KeyValue,
) -> io::Result<()> {
    if parts != Parts::Values {
        writeln!(out, "\"{prefix}Key\" : {}", quoted(view, &kv.key))?;
    }
    writeln!(out, "\"{prefix}CreateRevision\" : {}", kv.create_revision)?;
    writeln!(out, "\"{prefix}ModRevision\" : {}", kv.mod_revision)?;
    writeln!(out, "\"{prefix}Version\" : {}", kv.version)?;
    if parts != Parts::Keys {
        writeln!(out, "\"{prefix}Value\" : {}", quoted(view, &kv.value))?;
    }
    writeln!(out, "\"{prefix}Lease\" : {}", kv.lease)
}
