//! Bytes read as choices.
//!
//! One byte is one choice, and a choice reads its operands right behind itself, so that cutting,
//! repeating and joining inputs, which is what a fuzzer does, cuts, repeats and joins steps. When
//! the bytes run out every choice is the first one. (`arbitrary` takes lengths from the end of the
//! input, which moves with every mutation, and its format is its own: seeds could not be written by
//! hand.)

use std::time::Duration;

/// What is left of the input.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    bytes: &'a [u8],
}

impl<'a> Draw<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Nothing is left to choose by.
    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        *first
    }

    pub fn bool(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// True about once in `count` times.
    pub fn one_in(&mut self, count: u8) -> bool {
        self.byte() % count == count - 1
    }

    /// A number below `count`, which is at most 256.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// One of `all`.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A number: near one of `anchors`, small, close to the end of its range, or any.
    pub fn number(&mut self, anchors: &[u64]) -> u64 {
        let how = self.byte();
        let anchor = |place: u8| match anchors {
            [] => 0,
            anchors => anchors[usize::from(place) % anchors.len()],
        };
        match how {
            0..=127 => anchor(how / 4)
                .wrapping_add(u64::from(how % 4))
                .wrapping_sub(1),
            128..=175 => u64::from(how - 128),
            176..=191 => u64::MAX - u64::from(how - 176),
            192..=207 => (1 << 62) + u64::from(how - 192) - 8,
            208..=223 => u64::from(how - 207) << 32,
            _ => u64::from_le_bytes(self.array()),
        }
    }

    /// Up to `most` bytes, which is below 256.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = self.below(most + 1).min(self.bytes.len());
        let (taken, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        taken
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// A step of time: mostly what timeouts are made of, sometimes nothing, sometimes ages.
    pub fn pause(&mut self) -> Duration {
        match self.byte() {
            0..=31 => Duration::ZERO,
            32..=223 => Duration::from_millis(u64::from(self.byte()) * 4),
            224..=247 => Duration::from_secs(u64::from(self.byte())),
            _ => Duration::from_secs(u64::from(self.byte()) << 24),
        }
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
}
