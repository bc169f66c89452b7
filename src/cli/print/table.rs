//! Tables, in etcdctl's look.

use std::io;
use std::io::Write;

use comfy_table::presets::ASCII_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

use super::{Parts, View, escaped};
use crate::api::KeyValue;

const LOOK: TableStyle = ASCII_FULL_CONDENSED.header_separator(LineStyle::new('+', '-', '+', '+'));

/// How the cells of a column are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

pub(super) fn key_values(
    out: &mut impl Write,
    view: View,
    parts: Parts,
    kvs: &[KeyValue],
) -> io::Result<()> {
    let mut columns = Vec::new();
    if parts != Parts::Values {
        columns.push(("KEY", Align::Left));
    }
    if parts != Parts::Keys {
        columns.push(("VALUE", Align::Left));
    }
    columns.extend([
        ("CREATE REVISION", Align::Right),
        ("MOD REVISION", Align::Right),
        ("VERSION", Align::Right),
    ]);
    let rows = kvs.iter().map(|kv| {
        let mut row = Vec::new();
        if parts != Parts::Values {
            row.push(escaped(view, &kv.key));
        }
        if parts != Parts::Keys {
            row.push(escaped(view, &kv.value));
        }
        row.extend([
            kv.create_revision.to_string(),
            kv.mod_revision.to_string(),
            kv.version.to_string(),
        ]);
        row
    });
    table(out, &columns, rows)
}

/// A table of text.
///
/// # Errors
/// Those of `out`.
pub fn table(
    out: &mut impl Write,
    columns: &[(&str, Align)],
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(LOOK);
    let title = |(title, _): &(&str, Align)| Cell::new(title).set_alignment(CellAlignment::Center);
    table.set_header(columns.iter().map(title));
    for row in rows {
        table.add_row(row);
    }
    for (index, (_, align)) in columns.iter().enumerate() {
        let alignment = match align {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        };
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(alignment);
        }
    }
    writeln!(out, "{table}")
}
