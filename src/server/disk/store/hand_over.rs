//! Hands the database what lies ahead of it in memory, concurrently with the state thread.

use super::StateStore;
use super::error::StoreError;
use super::reader::Current;
use crate::front::HandedOver;
use crate::types::LogIndex;

/// The most that is handed over in one step, in bytes of memory: as many go into one batch of the database,
/// which the journal takes in one piece. One batch of the state alone may be larger.
pub(super) const STEP_BYTES: usize = 4 << 20;

/// Hands over; see the module. Any number of them may be used at a time: they take turns.
#[derive(Clone)]
pub struct HandOver {
    pub(super) current: Current,
}

impl StateStore {
    /// For use on any thread.
    pub fn hand_over(&self) -> HandOver {
        HandOver {
            current: self.current.clone(),
        }
    }
}

impl HandOver {
    /// Bytes of memory that are ahead of the database.
    pub fn ahead_bytes(&self) -> u64 {
        self.current.load().ahead_bytes()
    }

    /// Hands over the oldest of it. Blocks while the database writes, or another one hands over.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn step(&self) -> Result<HandedOver, StoreError> {
        let front = self.current.get();
        front.database().check_poison()?;
        let result = front.hand_over(STEP_BYTES);
        front.database().poison_on_error(result)
    }

    /// The last entry that is applied, whether the database has it or not.
    pub fn applied(&self) -> LogIndex {
        self.current.load().applied()
    }

    /// Whether the database has everything that was applied up to `index`.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn has(&self, index: LogIndex) -> Result<bool, StoreError> {
        let front = self.current.get();
        front.database().check_poison()?;
        let settled = front.settled();
        let settled = front.database().poison_on_error(settled)?;
        Ok(settled.applied().index >= index)
    }
}
