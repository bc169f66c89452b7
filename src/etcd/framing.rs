//! How gRPC frames a message: a flag for compression, a length of four bytes, and the message.

use bytes::Buf;

use super::status::{Code, Status};

/// The flag of compression, and the length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The length of the message whose frame begins with `read`; `None` before its prefix is there.
///
/// # Errors
/// It is longer than `bytes_max`, or compressed.
pub(crate) fn message_bytes(read: &[u8], bytes_max: usize) -> Result<Option<usize>, Status> {
    let Some(mut prefix) = read.get(..PREFIX_BYTES) else {
        return Ok(None);
    };
    let is_compressed = prefix.get_u8() != 0;
    let bytes = prefix.get_u32() as usize;
    if bytes > bytes_max {
        return Err(message_too_large(bytes, bytes_max));
    }
    if is_compressed {
        return Err(Status::new(
            Code::Unimplemented,
            "grpc: compression is not supported",
        ));
    }
    Ok(Some(bytes))
}

fn message_too_large(bytes: usize, bytes_max: usize) -> Status {
    Status::with(
        Code::ResourceExhausted,
        format!("grpc: received message larger than max ({bytes} vs. {bytes_max})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_read_once_it_is_there() {
        let frame = [0, 0, 0, 1, 2, b'x'];
        assert_eq!(message_bytes(&frame, 258), Ok(Some(258)));
        for end in 0..PREFIX_BYTES {
            assert_eq!(message_bytes(&frame[..end], 258), Ok(None));
        }
        let compressed = message_bytes(&[1, 0, 0, 0, 2], 258).unwrap_err();
        assert_eq!(compressed.code, Code::Unimplemented);
    }

    #[test]
    fn a_long_message_is_refused_with_both_lengths() {
        let status = message_bytes(&[0, 0, 0x20, 0, 1], 2_097_152).unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted);
        assert_eq!(
            status.message,
            "grpc: received message larger than max (2097153 vs. 2097152)"
        );
    }
}
