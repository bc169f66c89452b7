//! A frame of an answer that comes by and by.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Frame;

use crate::watch::CountedBytes;

/// A frame of a stream, and what counts its bytes until it is handed over, if they are counted.
pub(super) struct StreamFrame {
    frame: Frame<Bytes>,
    counted: Option<Arc<dyn Send + Sync>>,
}

impl StreamFrame {
    /// Bytes that count until they are handed over.
    pub(super) fn counted(bytes: Bytes, counted: Arc<CountedBytes>) -> Self {
        Self {
            frame: Frame::data(bytes),
            counted: Some(counted),
        }
    }

    /// The same, which holds something of the node's memory.
    pub(super) fn held_with(self, held: Arc<dyn Send + Sync>) -> Self {
        Self {
            counted: Some(held),
            ..self
        }
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.frame.data_ref().map_or(0, Bytes::len)
    }

    /// Its bytes, if they count for nothing.
    ///
    /// # Errors
    /// The frame, if they do, or if it has none.
    pub(super) fn uncounted(self) -> Result<Bytes, Self> {
        match (self.frame.into_data(), self.counted) {
            (Ok(bytes), None) => Ok(bytes),
            (Ok(bytes), counted) => Err(Self {
                frame: Frame::data(bytes),
                counted,
            }),
            (Err(frame), counted) => Err(Self { frame, counted }),
        }
    }

    /// The frame, and what it counts for.
    pub(super) fn into_parts(self) -> (Frame<Bytes>, Option<Arc<dyn Send + Sync>>) {
        (self.frame, self.counted)
    }
}

impl From<Bytes> for StreamFrame {
    fn from(bytes: Bytes) -> Self {
        Frame::data(bytes).into()
    }
}

impl From<Frame<Bytes>> for StreamFrame {
    fn from(frame: Frame<Bytes>) -> Self {
        Self {
            frame,
            counted: None,
        }
    }
}
