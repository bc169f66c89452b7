//! What will happen, by time and then by number: a heap of small keys beside a table of events.
//!
//! The heap moves only keys, so an event is written once and read once, however many others are
//! scheduled between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Nanos;

/// The place of an event in the table takes the lower bits of its number.
const PLACE_BITS: u32 = 20;
/// Number and place take the lower bits of a key, time those above.
const NUMBER_BITS: u32 = 64;

/// See the module.
pub(crate) struct Queue<E> {
    /// Time, then number, then place, as one: a pair takes twice as long to compare, and a heap does little else.
    keys: BinaryHeap<Reverse<u128>>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    scheduled: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self {
            keys: BinaryHeap::with_capacity(1024),
            events: Vec::with_capacity(1024),
            free: Vec::with_capacity(1024),
            scheduled: 0,
        }
    }

    /// Adds an event; of two at one time, the one that was added first happens first.
    pub(crate) fn push(&mut self, at: Nanos, event: E) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                u64::from(place)
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u64 - 1
            }
        };
        assert!(place < 1 << PLACE_BITS, "a million events wait");
        self.scheduled += 1;
        let number = self.scheduled << PLACE_BITS | place;
        let key = u128::from(at) << NUMBER_BITS | u128::from(number);
        self.keys.push(Reverse(key));
    }

    /// Takes the next event out, if it is due by `until`.
    pub(crate) fn pop_due(&mut self, until: Nanos) -> Option<(Nanos, E)> {
        let Reverse(key) = *self.keys.peek()?;
        let at = (key >> NUMBER_BITS) as Nanos;
        if at > until {
            return None;
        }
        self.keys.pop();
        let place = (key & ((1 << PLACE_BITS) - 1)) as u32;
        self.free.push(place);
        let event = self.events[place as usize].take();
        Some((at, event.expect("a key stands for an event")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_they_were_added() {
        let mut queue = Queue::new();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (3, "b")] {
            queue.push(at, name);
        }
        assert_eq!(queue.pop_due(4), Some((1, "a")));
        queue.push(5, "e");
        assert_eq!(queue.pop_due(4), Some((3, "b")));
        assert_eq!(queue.pop_due(4), None);
        let rest = std::iter::from_fn(|| queue.pop_due(5)).map(|(_, name)| name);
        assert_eq!(rest.collect::<String>(), "cde");
    }
}
