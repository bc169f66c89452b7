//! The keys that a read, a delete or a watch selects, relative to the key that it is given.

use crate::api::{Error, ErrorKind, KeyRange};

/// The selected keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    pub(super) range: KeyRange,
    /// The given key is ignored.
    pub(super) is_all: bool,
    /// Another range was chosen before this one.
    is_contradictory: bool,
}

impl Selector {
    /// Selects the keys of `range`.
    pub(super) fn choose(&mut self, range: KeyRange) {
        let was_chosen = self.range != KeyRange::Single;
        self.is_contradictory |= was_chosen && self.range != range;
        self.range = range;
    }

    /// The key at which the selected range starts.
    ///
    /// # Errors
    /// Two ranges were chosen.
    pub(super) fn start<'a>(&self, key: &'a [u8]) -> Result<&'a [u8], Error> {
        if self.is_contradictory {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                "the options choose two ranges of keys, such as a prefix and an end: leave one of them out",
            ));
        }
        Ok(match self.is_all {
            true => &[],
            false => key,
        })
    }
}

/// The methods of options that select keys by their field `selector`. They are inherent, so that a
/// caller imports no trait for them.
macro_rules! selects_keys {
    () => {
        /// Every key that starts with the given prefix; an empty prefix means every key.
        #[must_use]
        pub fn with_prefix(self) -> Self {
            self.with_key_range($crate::api::KeyRange::Prefix)
        }
        /// Every key from the given one up to, but excluding, `end`.
        #[must_use]
        pub fn with_range(self, end: impl AsRef<[u8]>) -> Self {
            let end = ::bytes::Bytes::copy_from_slice(end.as_ref());
            self.with_key_range($crate::api::KeyRange::Until(end))
        }
        /// The given key and every key after it.
        #[must_use]
        pub fn with_from_key(self) -> Self {
            self.with_key_range($crate::api::KeyRange::From)
        }
        /// Every key; the given key is ignored.
        #[must_use]
        pub fn with_all_keys(mut self) -> Self {
            self.selector.is_all = true;
            self.with_prefix()
        }
        /// The keys of `range`, which starts at the given key. A request whose options choose two
        /// different ranges is refused.
        #[must_use]
        pub fn with_key_range(mut self, range: $crate::api::KeyRange) -> Self {
            self.selector.choose(range);
            self
        }
    };
}
pub(super) use selects_keys;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::GetOptions;

    #[test]
    fn two_different_ranges_are_refused_and_one_chosen_twice_is_not() {
        let start = |options: GetOptions| options.selector.start(b"k").map(<[u8]>::to_vec);
        let prefix = GetOptions::new().with_prefix();
        assert_eq!(start(prefix.clone()).unwrap(), b"k");
        assert_eq!(start(prefix.clone().with_prefix()).unwrap(), b"k");
        assert_eq!(
            start(GetOptions::new().with_all_keys().with_prefix()).unwrap(),
            b""
        );
        for options in [
            prefix.clone().with_range("z"),
            prefix.with_from_key(),
            GetOptions::new().with_range("y").with_range("z"),
            GetOptions::new().with_range("z").with_all_keys(),
        ] {
            let refused = start(options).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument);
        }
    }
}
