//! From the encoding of a message to JSON, field by field as they come.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::schema::{Field, Type};
use crate::etcd::proto::{FieldValue, Fields};

/// Writes one message, of which parts may come one after the other. Fields are in the order of their
/// numbers, as they are encoded here.
pub(crate) struct Writer {
    fields: &'static [Field],
    /// The list that has begun and not ended.
    open: Option<&'static Field>,
    is_empty: bool,
}

impl Writer {
    /// Begins a message of type `of`.
    pub(crate) fn begin(of: &'static Type, text: &mut String) -> Self {
        text.push('{');
        Self {
            fields: of.fields(),
            open: None,
            is_empty: true,
        }
    }

    /// Writes the fields that `encoded` has as a whole. Returns how many of its bytes that were.
    pub(crate) fn add(&mut self, encoded: &[u8], text: &mut String) -> usize {
        let mut fields = Fields(encoded);
        for (number, value) in fields.by_ref() {
            let field = self.fields.iter();
            let mut field = field.filter(|field| u64::from(field.number) == number);
            match (field.next(), value) {
                (None, _) => {}
                // Numbers of a list are encoded together.
                (Some(field), FieldValue::Bytes(packed)) if field.is_packed() => {
                    let mut numbers = Fields(packed);
                    while let Some(number) = numbers.varint() {
                        self.field(field, FieldValue::Number(number), text);
                    }
                }
                (Some(field), value) => self.field(field, value, text),
            }
        }
        encoded.len() - fields.rest().len()
    }

    /// Ends the message.
    pub(crate) fn end(mut self, text: &mut String) {
        self.close(text);
        text.push('}');
    }

    fn field(&mut self, field: &'static Field, value: FieldValue<'_>, text: &mut String) {
        let is_continued = self.open.is_some_and(|open| open.number == field.number);
        if !is_continued {
            self.close(text);
        }
        if !self.is_empty {
            text.push(',');
        }
        self.is_empty = false;
        if !is_continued {
            text.push('"');
            text.push_str(field.name);
            text.push_str("\":");
            if field.is_list {
                text.push('[');
                self.open = Some(field);
            }
        }
        write(field.of, value, text);
    }

    fn close(&mut self, text: &mut String) {
        if self.open.take().is_some() {
            text.push(']');
        }
    }
}

/// Writes a value.
fn write(of: &'static Type, value: FieldValue<'_>, text: &mut String) {
    match (of, value) {
        (Type::Bool, FieldValue::Number(value)) => {
            text.push_str(if value == 0 { "false" } else { "true" });
        }
        (Type::Int64, FieldValue::Number(value)) => {
            text.push_str(&format!("\"{}\"", value.cast_signed()));
        }
        (Type::Uint64, FieldValue::Number(value)) => text.push_str(&format!("\"{value}\"")),
        (Type::Uint32, FieldValue::Number(value)) => text.push_str(&value.to_string()),
        (Type::Enum(names), FieldValue::Number(value)) => {
            let name = usize::try_from(value).ok().and_then(|at| names.get(at));
            match name {
                Some(name) => text.push_str(&format!("\"{name}\"")),
                None => text.push_str(&value.cast_signed().to_string()),
            }
        }
        (Type::Bytes, FieldValue::Bytes(value)) => {
            text.push('"');
            STANDARD.encode_string(value, text);
            text.push('"');
        }
        (Type::Text, FieldValue::Bytes(value)) => {
            text.push_str(&quoted(&String::from_utf8_lossy(value)));
        }
        (Type::Message { .. }, FieldValue::Bytes(value)) => {
            let mut message = Writer::begin(of, text);
            message.add(value, text);
            message.end(text);
        }
        // Answers are encoded here, with these types.
        _ => text.push_str("null"),
    }
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
