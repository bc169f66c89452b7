//! The keys that a read, a delete or a watch selects, relative to the key that it is given.

use crate::api::KeyRange;

/// The selected keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    pub(super) range: KeyRange,
    /// The given key is ignored.
    pub(super) is_all: bool,
}

impl Selector {
    /// The key at which the selected range starts.
    pub(super) fn start<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        match self.is_all {
            true => &[],
            false => key,
        }
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
        /// The keys of `range`, which starts at the given key.
        #[must_use]
        pub fn with_key_range(mut self, range: $crate::api::KeyRange) -> Self {
            self.selector.range = range;
            self
        }
    };
}
pub(super) use selects_keys;
