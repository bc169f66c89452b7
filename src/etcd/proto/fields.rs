//! The fields of an encoded message, for who does not know its type.

/// The fields of a message one after the other; ends at the first that is not well formed, or not there
/// as a whole.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValue<'a> {
    /// A number, as a varint.
    Number(u64),
    /// A number of a fixed size or a group, which etcd's messages do not have: decoders pass over it.
    Other,
    /// A message, a text, bytes, or several numbers.
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    /// What has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn field(&mut self) -> Option<(u64, FieldValue<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => self.take(8).map(|_| FieldValue::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                FieldValue::Bytes(self.take(length)?)
            }
            3 => self.skip_group().map(|()| FieldValue::Other)?,
            5 => self.take(4).map(|_| FieldValue::Other)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }

    /// Passes over what is left of a group, with those in it.
    fn skip_group(&mut self) -> Option<()> {
        let mut open = 1;
        while open > 0 {
            match self.varint()? & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.take(8)?),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    self.take(length)?;
                }
                3 => open += 1,
                4 => open -= 1,
                5 => drop(self.take(4)?),
                _ => return None,
            }
        }
        Some(())
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    /// The number that comes next.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let before = self.0;
        let field = self.field();
        if field.is_none() {
            self.0 = before;
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_up_to_the_first_that_is_not_whole() {
        let encoded = [
            0x08, 0x96, 0x01, 0x12, 2, b'o', b'k', 0x1d, 0, 0, 0, 0, 0x22, 5, b'x',
        ];
        let mut fields = Fields(&encoded);
        assert_eq!(fields.next(), Some((1, FieldValue::Number(150))));
        assert_eq!(fields.next(), Some((2, FieldValue::Bytes(b"ok"))));
        assert_eq!(fields.next(), Some((3, FieldValue::Other)));
        assert_eq!(fields.next(), None);
        assert_eq!(fields.rest(), &encoded[12..]);
    }

    #[test]
    fn a_group_is_passed_over_as_a_whole_or_not_at_all() {
        let encoded = [0x0b, 0x13, 0x08, 1, 0x14, 0x12, 1, b'x', 0x0c, 0x18, 5];
        let mut fields = Fields(&encoded);
        assert_eq!(fields.next(), Some((1, FieldValue::Other)));
        assert_eq!(fields.next(), Some((3, FieldValue::Number(5))));
        for end in 1..9 {
            assert_eq!(Fields(&encoded[..end]).next(), None);
        }
    }
}
