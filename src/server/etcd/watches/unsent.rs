//! What a stream of watches sends next: small messages behind each other in one frame, so that many watches of one key
//! cost few writes.

use bytes::BytesMut;

use crate::server::etcd::arriving::SMALL_BYTES;
use crate::server::etcd::grpc::StreamFrame;

/// So much is gathered, and one message more.
const GATHERED_BYTES: usize = SMALL_BYTES;

/// See the module.
#[derive(Default)]
pub(super) struct Unsent {
    frames: Vec<StreamFrame>,
    /// Behind those.
    small: BytesMut,
    bytes: usize,
}

impl Unsent {
    /// Appends a frame.
    pub(super) fn push(&mut self, frame: StreamFrame) {
        self.bytes += frame.len();
        match frame.uncounted() {
            Ok(bytes) => self.small.extend_from_slice(&bytes),
            Err(counted) => {
                self.close();
                self.frames.push(counted);
            }
        }
    }

    /// Whether more may be gathered before this is sent.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < GATHERED_BYTES
    }

    /// Everything, in the order in which it was appended.
    pub(super) fn take(&mut self) -> Vec<StreamFrame> {
        self.close();
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    fn close(&mut self) {
        if !self.small.is_empty() {
            let small = self.small.split().freeze();
            self.frames.push(small.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn small_messages_share_a_frame_and_everything_stays_in_order() {
        let mut unsent = Unsent::default();
        assert!(unsent.take().is_empty());
        let small = |text: &'static str| StreamFrame::from(Bytes::from_static(text.as_bytes()));
        for frame in [
            small("a"),
            small("b"),
            small("c").held_with(Arc::new(())),
            small("d"),
            small("e"),
        ] {
            unsent.push(frame);
        }
        let frames = unsent.take().into_iter();
        let frames: Vec<_> = frames
            .map(|frame| frame.into_parts().0.into_data().unwrap())
            .collect();
        assert_eq!(frames, ["ab", "c", "de"]);
        assert!(unsent.has_room());
        unsent.push(Bytes::from(vec![b'x'; GATHERED_BYTES]).into());
        assert!(!unsent.has_room());
        assert_eq!(unsent.take().len(), 1);
        assert!(unsent.has_room() && unsent.take().is_empty());
    }
}
