//! What is known of a message: the fields that it has, by number, name and type.

/// The type of a field, or of a message as a whole.
#[derive(Debug)]
pub(crate) enum Type {
    Bool,
    Int64,
    Uint64,
    Uint32,
    Bytes,
    Text,
    /// Names by number, from 0 on.
    Enum(&'static [&'static str]),
    Message {
        name: &'static str,
        fields: &'static [Field],
    },
}

/// A field of a message.
#[derive(Debug)]
pub(crate) struct Field {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) of: &'static Type,
    pub(super) is_list: bool,
}

impl Type {
    /// The fields of a message; none of what is no message.
    pub(super) fn fields(&self) -> &'static [Field] {
        match self {
            Self::Message { fields, .. } => fields,
            _ => &[],
        }
    }

    /// What a value of this type is, for who wrote something else.
    pub(super) fn expected(&self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int64 => "a 64-bit integer, as a number or a string",
            Self::Uint64 => "a 64-bit integer from 0 on, as a number or a string",
            Self::Uint32 => "a 32-bit integer from 0 on, as a number or a string",
            Self::Bytes => "bytes, as a base64 string",
            Self::Text => "a string",
            Self::Enum(_) => "one of its names, or the number of one",
            Self::Message { name, .. } => name,
        }
    }
}

impl Field {
    /// Whether its values are encoded together.
    pub(super) fn is_packed(&self) -> bool {
        self.is_list && matches!(self.of, Type::Enum(_))
    }

    /// Whether it is called so: as in the `.proto` files, or the lowerCamel form of that.
    pub(super) fn is_called(&self, name: &str) -> bool {
        if self.name == name {
            return true;
        }
        let mut is_after_underscore = false;
        let camel = self.name.chars().filter_map(|letter| {
            let is_first = std::mem::replace(&mut is_after_underscore, letter == '_');
            match letter {
                '_' => None,
                letter if is_first => Some(letter.to_ascii_uppercase()),
                letter => Some(letter),
            }
        });
        camel.eq(name.chars())
    }
}
