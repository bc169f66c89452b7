//! What several attempts at one request have come to, taken together.

use super::error::Outcome;
use super::spec::Safety;

/// The attempts at one request that have failed. What one of them may have done stays possible, whatever
/// becomes of those after it (A18).
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    safety: Safety,
    /// One of them may have been applied.
    in_doubt: bool,
}

impl Attempts {
    /// None was made yet.
    pub fn new(safety: Safety) -> Self {
        Self {
            safety,
            in_doubt: false,
        }
    }

    /// How often the request may be sent.
    pub fn safety(&self) -> Safety {
        self.safety
    }

    /// Whether the request may be sent again after an attempt that failed with `outcome`.
    pub fn may_repeat_after(&self, outcome: Outcome) -> bool {
        outcome == Outcome::NotApplied || self.safety != Safety::Once
    }

    /// Takes note of an attempt that failed with `outcome`.
    pub fn failed(&mut self, outcome: Outcome) {
        // What changes nothing leaves nothing in doubt.
        self.in_doubt |= outcome != Outcome::NotApplied && self.safety != Safety::Repeatable;
    }

    /// Whether one of those that were noted may have been applied.
    pub fn are_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// The outcome of the request, if its last attempt failed with `last`.
    pub fn outcome(&self, last: Outcome) -> Outcome {
        match last {
            Outcome::NotApplied if self.in_doubt && !planted!(UnknownForgotten) => Outcome::Unknown,
            // A server's cautious outcome for a read.
            Outcome::Unknown if self.safety == Safety::Repeatable => Outcome::NotApplied,
            last => last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_attempt_may_have_done_no_later_one_takes_back() {
        let mut attempts = Attempts::new(Safety::Numbered);
        attempts.failed(Outcome::NotApplied);
        assert!(!attempts.are_in_doubt());
        assert_eq!(attempts.outcome(Outcome::NotApplied), Outcome::NotApplied);
        attempts.failed(Outcome::Unknown);
        attempts.failed(Outcome::NotApplied);
        assert!(attempts.are_in_doubt());
        assert_eq!(attempts.outcome(Outcome::NotApplied), Outcome::Unknown);
    }

    #[test]
    fn a_read_leaves_nothing_in_doubt() {
        let mut attempts = Attempts::new(Safety::Repeatable);
        assert!(attempts.may_repeat_after(Outcome::Unknown));
        attempts.failed(Outcome::Unknown);
        assert!(!attempts.are_in_doubt());
        assert_eq!(attempts.outcome(Outcome::Unknown), Outcome::NotApplied);
    }

    #[test]
    fn what_nobody_recognises_is_sent_again_only_if_it_was_not_applied() {
        let attempts = Attempts::new(Safety::Once);
        assert!(attempts.may_repeat_after(Outcome::NotApplied));
        assert!(!attempts.may_repeat_after(Outcome::Unknown));
        assert!(Attempts::new(Safety::Numbered).may_repeat_after(Outcome::Unknown));
    }
}
