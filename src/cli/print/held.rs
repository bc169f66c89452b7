//! What is held, and who leads, as text: etcdctl's lines, the token beside them.

use std::io;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::json::{fields, line};
use super::table::table_of_one;
use super::text::{View, escaped, raw_line};
use crate::cli::arguments::Format;

/// A lock that is held: its key, and its fencing token.
///
/// # Errors
/// Those of `out`.
pub fn locked(
    out: &mut impl Write,
    view: View,
    key: &[u8],
    token: i64,
    lease: i64,
) -> io::Result<()> {
    let document = json!({
        "key": STANDARD.encode(key),
        "fencing_token": token,
        "lease": lease,
    });
    let cells = [
        ("KEY", escaped(view, key)),
        ("FENCING TOKEN", token.to_string()),
        ("LEASE", format!("{lease:016x}")),
    ];
    show(out, view, &document, &cells, |out| {
        raw_line(out, view, key)?;
        writeln!(out, "{token}")
    })
}

/// Who leads: the key, and what is proclaimed.
///
/// # Errors
/// Those of `out`.
pub fn leads(
    out: &mut impl Write,
    view: View,
    key: &[u8],
    value: &[u8],
    token: i64,
) -> io::Result<()> {
    let document = json!({
        "key": STANDARD.encode(key),
        "value": STANDARD.encode(value),
        "fencing_token": token,
    });
    let cells = [
        ("KEY", escaped(view, key)),
        ("VALUE", escaped(view, value)),
        ("FENCING TOKEN", token.to_string()),
    ];
    show(out, view, &document, &cells, |out| {
        raw_line(out, view, key)?;
        raw_line(out, view, value)
    })
}

fn show<W: Write>(
    out: &mut W,
    view: View,
    document: &Value,
    cells: &[(&str, String)],
    simple: impl FnOnce(&mut W) -> io::Result<()>,
) -> io::Result<()> {
    match view.format {
        Format::Json => line(out, document),
        Format::Fields => fields(out, document),
        Format::Table => table_of_one(out, cells),
        Format::Simple => simple(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_by_key_and_token_and_who_leads_by_key_and_value() {
        let shown = |format, is_lock| {
            let (view, mut out) = (View { format, hex: false }, Vec::new());
            match is_lock {
                true => locked(&mut out, view, b"l/1f", 7, 31).unwrap(),
                false => leads(&mut out, view, b"e/1f", b"host-7", 7).unwrap(),
            }
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(Format::Simple, true), "l/1f\n7\n");
        assert_eq!(shown(Format::Simple, false), "e/1f\nhost-7\n");
        let document: Value = serde_json::from_str(&shown(Format::Json, true)).unwrap();
        let expected = json!({"key": "bC8xZg==", "fencing_token": 7, "lease": 31});
        assert_eq!(document, expected);
        let table = shown(Format::Table, true);
        assert!(
            table.contains("| l/1f |             7 | 000000000000001f |"),
            "{table}"
        );
        assert!(shown(Format::Fields, false).contains("\"fencing_token\" : 7\n"));
    }
}
