//! What a request says, read from its encoding by other code than the product's.

use leasehold::api::KeyRange;

/// A message in which each field stands as it is encoded here: once, unless it is a list.
pub struct Said<'a> {
    fields: Vec<(u64, Value<'a>)>,
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Said<'a> {
    /// Reads what was encoded by the product.
    pub fn read(mut encoded: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !encoded.is_empty() {
            let key = varint(&mut encoded);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut encoded)),
                2 => {
                    let length = varint(&mut encoded) as usize;
                    let (body, rest) = encoded.split_at(length);
                    encoded = rest;
                    Value::Bytes(body)
                }
                kind => panic!("no message of etcd has a field of kind {kind}"),
            };
            fields.push((key >> 3, value));
        }
        Self { fields }
    }

    pub fn number(&self, field: u64) -> i64 {
        let found = self.fields.iter().find(|(number, _)| *number == field);
        match found {
            Some((_, Value::Number(value))) => value.cast_signed(),
            Some(_) => panic!("field {field} is a number"),
            None => 0,
        }
    }

    pub fn flag(&self, field: u64) -> bool {
        self.number(field) != 0
    }

    pub fn bytes(&self, field: u64) -> &'a [u8] {
        self.list(field).next().unwrap_or_default()
    }

    /// The bodies of all fields of that number.
    pub fn list(&self, field: u64) -> impl Iterator<Item = &'a [u8]> {
        let named = self
            .fields
            .iter()
            .filter(move |(number, _)| *number == field);
        named.map(move |(_, value)| match value {
            Value::Bytes(body) => *body,
            Value::Number(_) => panic!("field {field} is no number"),
        })
    }

    /// The number and the body of the only field that there is.
    pub fn only(&self) -> (u64, &'a [u8]) {
        match self.fields.as_slice() {
            [(number, Value::Bytes(body))] => (*number, body),
            fields => panic!("one field is set, and not {}", fields.len()),
        }
    }
}

fn varint(encoded: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = encoded.split_first().expect("a number is whole");
        *encoded = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// That `range` from `key` on selects what etcd selects by `end`, as far as keys near both show it.
pub fn selects_alike(key: &[u8], end: &[u8], range: &KeyRange) {
    let longer = |of: &[u8]| [of, b"\0"].concat();
    let near = [
        key.to_vec(),
        longer(key),
        [key, b"x"].concat(),
        key[..key.len().saturating_sub(1)].to_vec(),
        end.to_vec(),
        longer(end),
        end[..end.len().saturating_sub(1)].to_vec(),
        vec![0xff; 9],
    ];
    for candidate in near.iter().map(Vec::as_slice) {
        let in_etcd = match end {
            b"" => candidate == key,
            b"\0" => candidate >= key,
            end => key <= candidate && candidate < end,
        };
        let here = match range {
            KeyRange::Single => candidate == key,
            KeyRange::Prefix => candidate.starts_with(key),
            KeyRange::From => candidate >= key,
            KeyRange::Until(end) => key <= candidate && candidate < end.as_ref(),
        };
        assert_eq!(here, in_etcd, "{candidate:?} in {key:?} to {end:?}");
    }
}
