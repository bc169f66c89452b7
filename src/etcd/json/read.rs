//! From JSON to the encoding of a message, in one pass and without a tree between them.

use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::encode_varint;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::schema::{Field, Type};

/// As lenient as clients are careless.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// What is read as protobuf: a number, or what has a length.
const NUMBER: u64 = 0;
const LENGTH: u64 = 2;

/// The encoding of the message of type `of` that `text` means. `null` and nothing mean an empty one.
///
/// # Errors
/// It is malformed, nested too deeply, or a value is not of the type of its field: what was found, and
/// where.
pub(crate) fn to_protobuf(text: &[u8], of: &'static Type) -> Result<Vec<u8>, String> {
    let mut encoded = Vec::new();
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(encoded);
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let message = Value {
        of,
        number: None,
        may_be_null: true,
        encoded: &mut encoded,
    };
    let read = message.deserialize(&mut json).and_then(|()| json.end());
    match read {
        Ok(()) => Ok(encoded),
        Err(error) => Err(error.to_string()),
    }
}

/// A value, and where its encoding goes.
struct Value<'a> {
    of: &'static Type,
    /// Of the field that it is of; none for a message as a whole.
    number: Option<u32>,
    may_be_null: bool,
    encoded: &'a mut Vec<u8>,
}

impl Value<'_> {
    fn number<E>(&mut self, value: u64) -> Result<(), E> {
        self.key(NUMBER);
        encode_varint(value, self.encoded);
        Ok(())
    }

    fn bytes<E>(&mut self, value: &[u8]) -> Result<(), E> {
        self.key(LENGTH);
        encode_varint(value.len() as u64, self.encoded);
        self.encoded.extend_from_slice(value);
        Ok(())
    }

    fn key(&mut self, kind: u64) {
        if let Some(number) = self.number {
            encode_varint(u64::from(number) << 3 | kind, self.encoded);
        }
    }

    fn refusal<E: Error>(&self, found: impl fmt::Display) -> E {
        E::custom(format_args!(
            "found {found}, expected {}",
            self.of.expected()
        ))
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of.expected())
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        match self.of {
            _ if self.may_be_null => Ok(()),
            // As etcd has it.
            Type::Message { .. } => self.bytes(&[]),
            _ => Err(self.refusal("null")),
        }
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<(), E> {
        match self.of {
            Type::Bool => self.number(u64::from(value)),
            _ => Err(self.refusal(value)),
        }
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<(), E> {
        match self.of {
            Type::Int64 => self.number(value.cast_unsigned()),
            // Negative numbers take ten bytes, whatever their type.
            Type::Enum(_) if i32::try_from(value).is_ok() => self.number(value.cast_unsigned()),
            _ => match u64::try_from(value) {
                Ok(value) => self.visit_u64(value),
                Err(_) => Err(self.refusal(value)),
            },
        }
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<(), E> {
        let is_fit = match self.of {
            Type::Int64 => i64::try_from(value).is_ok(),
            Type::Uint64 => true,
            Type::Uint32 => u32::try_from(value).is_ok(),
            Type::Enum(_) => i32::try_from(value).is_ok(),
            Type::Bool | Type::Bytes | Type::Text | Type::Message { .. } => false,
        };
        match is_fit {
            true => self.number(value),
            false => Err(self.refusal(value)),
        }
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<(), E> {
        match self.of {
            Type::Text => self.bytes(value.as_bytes()),
            Type::Bytes => match decoded(value) {
                Some(value) => self.bytes(&value),
                None => Err(self.refusal("another string")),
            },
            Type::Int64 => match value.parse() {
                Ok(number) => self.visit_i64(number),
                Err(_) => Err(self.refusal("another string")),
            },
            Type::Uint64 | Type::Uint32 => match value.parse() {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(self.refusal("another string")),
            },
            Type::Enum(names) => match names.iter().position(|name| *name == value) {
                Some(at) => self.number(at as u64),
                None => Err(self.refusal("another name")),
            },
            Type::Bool | Type::Message { .. } => Err(self.refusal("a string")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let Type::Message { fields, .. } = self.of else {
            return Err(self.refusal("an object"));
        };
        self.key(LENGTH);
        let begin = self.encoded.len();
        while let Some(field) = map.next_key_seed(Name(fields))? {
            let Some(field) = field else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let encoded = &mut *self.encoded;
            match field.is_list {
                true => map.next_value_seed(List { field, encoded })?,
                false => map.next_value_seed(Value {
                    of: field.of,
                    number: Some(field.number),
                    may_be_null: true,
                    encoded,
                })?,
            }
        }
        if self.number.is_some() {
            let mut length = Vec::new();
            encode_varint((self.encoded.len() - begin) as u64, &mut length);
            self.encoded.splice(begin..begin, length);
        }
        Ok(())
    }
}

/// The elements of a list.
struct List<'a> {
    field: &'static Field,
    encoded: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list for {}", self.field.name)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        let name = self.field.name;
        Err(E::custom(format_args!(
            "found a string, expected a list for {name}"
        )))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { field, encoded } = self;
        loop {
            let element = Value {
                of: field.of,
                number: Some(field.number),
                may_be_null: false,
                encoded: &mut *encoded,
            };
            if list.next_element_seed(element)?.is_none() {
                return Ok(());
            }
        }
    }
}

/// The name of a field; none of these if it is not known.
struct Name(&'static [Field]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<&'static Field>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<&'static Field>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|field| field.is_called(name)))
    }
}

/// What base64 means: of either alphabet, padded or not, on one line or several.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let standard = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n'));
    let standard: Vec<u8> = standard
        .map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            byte => byte,
        })
        .collect();
    BASE64.decode(standard).ok()
}
