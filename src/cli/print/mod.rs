//! Replies as text. Pure: takes replies, writes lines, knows no connection.
//!
//! `simple` is etcdctl's way: keys and values on lines of their own, raw, for people and pipes.
//! `fields` names each field. `json` is one document whose keys and values are base64, since they
//! are bytes. `table` is for looking at many.

mod json;
mod status;
mod table;

use std::io;
use std::io::Write;

pub use self::json::fields;
pub use self::status::{EndpointStatus, moved, status};
pub use self::table::{Align, table};

use super::arguments::Format;
use crate::api::DeleteRangeResponse;
use crate::api::KeyValue;
use crate::api::PutResponse;
use crate::api::RangeResponse;
use crate::api::ResponseHeader;

/// How keys and values are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// In which format.
    pub format: Format,
    /// As hexadecimal escapes, where they would be raw.
    pub hex: bool,
}

/// Which parts of a range are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// Keys and values.
    #[default]
    All,
    /// Keys only.
    Keys,
    /// Values only.
    Values,
    /// Only how many.
    Count,
}

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
        Format::Json => json::get(out, header, range),
        Format::Table if parts != Parts::Count => table::key_values(out, view, parts, &range.kvs),
        Format::Fields => get_fields(out, view, parts, header, range),
        Format::Simple | Format::Table => get_simple(out, view, parts, range),
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
        Format::Json => json::put(out, header, put),
        Format::Fields => {
            header_fields(out, header)?;
            put.prev_kv.as_ref().map_or(Ok(()), |kv| {
                key_value_fields(out, view, "Prev", Parts::All, kv)
            })
        }
        Format::Simple | Format::Table => {
            writeln!(out, "OK")?;
            let previous: Vec<_> = put.prev_kv.iter().cloned().collect();
            match view.format {
                Format::Table if !previous.is_empty() => {
                    table::key_values(out, view, Parts::All, &previous)
                }
                _ => key_values_simple(out, view, Parts::All, &previous),
            }
        }
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
        Format::Json => json::delete(out, header, delete),
        Format::Fields => {
            header_fields(out, header)?;
            writeln!(out, "\"Deleted\" : {}", delete.deleted)?;
            for kv in &delete.prev_kvs {
                key_value_fields(out, view, "Prev", Parts::All, kv)?;
            }
            Ok(())
        }
        Format::Simple | Format::Table => {
            writeln!(out, "{}", delete.deleted)?;
            match view.format {
                Format::Table if !delete.prev_kvs.is_empty() => {
                    table::key_values(out, view, Parts::All, &delete.prev_kvs)
                }
                _ => key_values_simple(out, view, Parts::All, &delete.prev_kvs),
            }
        }
    }
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
    header: &ResponseHeader,
    range: &RangeResponse,
) -> io::Result<()> {
    header_fields(out, header)?;
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

fn raw_line(out: &mut impl Write, view: View, bytes: &[u8]) -> io::Result<()> {
    match view.hex {
        true => out.write_all(hex(bytes).as_bytes())?,
        false => out.write_all(bytes)?,
    }
    out.write_all(b"\n")
}

/// Bytes as text that fits one line: quotes, backslashes, control characters and what is not UTF-8
/// are escaped.
fn escaped(view: View, bytes: &[u8]) -> String {
    if view.hex {
        return hex(bytes);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                other if other.is_control() => text.extend(other.escape_unicode()),
                other => text.push(other),
            }
        }
        text += &hex(chunk.invalid());
    }
    text
}

fn quoted(view: View, bytes: &[u8]) -> String {
    format!("\"{}\"", escaped(view, bytes))
}

/// As etcdctl's `--hex` shows bytes: `\x66\x6f\x6f`.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(4 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests;
