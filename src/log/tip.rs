//! Where the log stands, in memory: its first and last entry, and the term of each in between.

use std::collections::BTreeMap;

use crate::types::{LogId, LogIndex, Term};

/// The end of the log, moved by records as they are written or read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tip {
    /// The hash of the last record.
    pub(super) chain: u128,
    /// The last entry that the log no longer holds.
    pub(super) base: LogId,
    /// The last entry; `base` when there is none.
    pub(super) last: LogId,
    /// The first index of each run of entries of one term.
    terms: BTreeMap<LogIndex, Term>,
}

impl Tip {
    /// A log that holds nothing after `last`.
    pub(super) fn new(chain: u128, last: LogId) -> Self {
        Self {
            chain,
            base: last,
            last,
            terms: BTreeMap::new(),
        }
    }

    /// The entry at `index`, from `base` to `last`.
    pub(super) fn id_at(&self, index: LogIndex) -> Option<LogId> {
        if index == self.base.index {
            return Some(self.base);
        }
        if index < self.base.index || index > self.last.index {
            return None;
        }
        let (_, term) = self.terms.range(..=index).next_back()?;
        Some(LogId::new(index, *term))
    }

    /// Takes in the entry after `last`.
    pub(super) fn push(&mut self, id: LogId) {
        let newest = self.terms.last_key_value().map(|(_, term)| *term);
        if newest != Some(id.term) {
            self.terms.insert(id.index, id.term);
        }
        self.last = id;
    }

    /// Forgets everything after `keep`. The cut may reach below `base` when the entries before it
    /// were deleted with their segment: then `keep` is the new base.
    pub(super) fn cut(&mut self, keep: LogId) {
        self.terms.split_off(&keep.index.next());
        if keep.index <= self.base.index {
            self.base = keep;
            self.terms.clear();
        }
        self.last = keep;
    }

    /// Takes in an entry, after a cut if one of its index is there.
    pub(super) fn take_in(&mut self, id: LogId) {
        if id.index <= self.last.index
            && let Some(keep) = self.id_at(id.index.previous())
        {
            self.cut(keep);
        }
        self.push(id);
    }

    /// The log begins after `base`; what follows it stays if it is held.
    pub(super) fn begin_after(&mut self, base: LogId) {
        if self.holds(base) {
            self.rebase(base);
        } else {
            self.reset(base);
        }
    }

    /// Whether this very entry is here, or the last one before.
    pub(super) fn holds(&self, id: LogId) -> bool {
        self.id_at(id.index) == Some(id)
    }

    /// The log begins after `base`, and nothing that was here counts.
    pub(super) fn reset(&mut self, base: LogId) {
        self.terms.clear();
        self.base = base;
        self.last = base;
    }

    /// The entries up to `base`, which is held, count no more.
    pub(super) fn rebase(&mut self, base: LogId) {
        let first = base.index.next();
        let term = self.id_at(first).map(|id| id.term);
        self.terms = self.terms.split_off(&first);
        if let Some(term) = term {
            self.terms.insert(first, term);
        }
        self.base = base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64, term: u64) -> LogId {
        LogId::new(LogIndex(index), Term(term))
    }

    #[test]
    fn terms_are_known_from_base_to_last_through_cuts_and_rebasing() {
        let mut tip = Tip::new(0, id(0, 0));
        for entry in [id(1, 1), id(2, 1), id(3, 2), id(4, 2)] {
            tip.push(entry);
        }
        assert_eq!(tip.id_at(LogIndex(2)), Some(id(2, 1)));
        tip.cut(id(3, 2));
        tip.push(id(4, 5));
        assert_eq!(tip.id_at(LogIndex(3)), Some(id(3, 2)));
        assert_eq!(tip.id_at(LogIndex(4)), Some(id(4, 5)));
        assert_eq!(tip.id_at(LogIndex(5)), None);
        tip.rebase(id(2, 1));
        assert_eq!(tip.id_at(LogIndex(1)), None);
        assert_eq!(tip.id_at(LogIndex(2)), Some(id(2, 1)));
        assert_eq!(tip.id_at(LogIndex(3)), Some(id(3, 2)));
        tip.cut(id(1, 1));
        assert_eq!((tip.base, tip.last), (id(1, 1), id(1, 1)));
        tip.push(id(2, 6));
        assert_eq!(tip.id_at(LogIndex(2)), Some(id(2, 6)));
        tip.reset(id(9, 7));
        assert_eq!((tip.base, tip.last), (id(9, 7), id(9, 7)));
        assert!(tip.holds(id(9, 7)) && !tip.holds(id(9, 6)));
        assert_eq!(tip.id_at(LogIndex(2)), None);
    }
}
