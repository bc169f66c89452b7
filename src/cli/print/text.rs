//! How bytes are shown, and which parts of an answer.

use std::io;
use std::io::Write;

use crate::api::EventKind;
use crate::cli::arguments::Format;

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

/// As etcdctl calls them.
pub(in crate::cli) fn event_kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Put => "PUT",
        EventKind::Delete => "DELETE",
    }
}

pub(super) fn raw_line(out: &mut impl Write, view: View, bytes: &[u8]) -> io::Result<()> {
    match view.hex {
        true => out.write_all(hex(bytes).as_bytes())?,
        false => out.write_all(bytes)?,
    }
    out.write_all(b"\n")
}

/// Bytes as text that fits one line: quotes, backslashes, control characters and what is not UTF-8
/// are escaped.
pub(in crate::cli) fn escaped(view: View, bytes: &[u8]) -> String {
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
                // Byte by byte, as `txn` reads it.
                other if other.is_control() => {
                    text += &hex(other.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => text.push(other),
            }
        }
        text += &hex(chunk.invalid());
    }
    text
}

pub(super) fn quoted(view: View, bytes: &[u8]) -> String {
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
