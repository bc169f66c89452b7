//! A place in a trace, as W3C's Trace Context names it.

use std::fmt;
use std::str::FromStr;

use super::{Error, ErrorKind};

/// Bytes of an id of a trace, and of one of a span.
const TRACE_ID_BYTES: usize = 16;
const SPAN_ID_BYTES: usize = 8;
/// Where the fields of a `traceparent` lie, whose version has two digits before the first dash.
const TRACE_ID_AT: usize = 3;
const SPAN_ID_AT: usize = TRACE_ID_AT + 2 * TRACE_ID_BYTES + 1;
const FLAGS_AT: usize = SPAN_ID_AT + 2 * SPAN_ID_BYTES + 1;
const LENGTH: usize = FLAGS_AT + 2;
/// The flag of a trace that its beginner keeps.
const SAMPLED: u8 = 1;

/// The trace that a request is a part of, and the span of it that makes the request: what W3C's header
/// `traceparent` says. Neither id is zero.
///
/// ```
/// use leasehold::api::TraceParent;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent: TraceParent = text.parse()?;
/// assert!(parent.is_sampled());
/// assert_eq!(parent.to_string(), text);
/// # Ok::<_, leasehold::api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: [u8; TRACE_ID_BYTES],
    span_id: [u8; SPAN_ID_BYTES],
    flags: u8,
}

impl TraceParent {
    /// The span `span_id` of the trace `trace_id`; `flags` are those of W3C, of which the lowest says that
    /// the trace is sampled.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]: an id is zero, which W3C forbids.
    pub fn new(
        trace_id: [u8; TRACE_ID_BYTES],
        span_id: [u8; SPAN_ID_BYTES],
        flags: u8,
    ) -> Result<Self, Error> {
        if trace_id == [0; TRACE_ID_BYTES] || span_id == [0; SPAN_ID_BYTES] {
            return Err(invalid("the id of its trace or of its span is zero"));
        }
        Ok(Self {
            trace_id,
            span_id,
            flags,
        })
    }

    /// The id of the trace.
    pub fn trace_id(&self) -> [u8; TRACE_ID_BYTES] {
        self.trace_id
    }

    /// The id of the caller's span.
    pub fn span_id(&self) -> [u8; SPAN_ID_BYTES] {
        self.span_id
    }

    /// The flags of W3C.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether the trace is kept where it began.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (
            u128::from_be_bytes(self.trace_id),
            u64::from_be_bytes(self.span_id),
        );
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = Error;

    /// Reads the value of a header `traceparent`. What a version after 00 may append is left out, as W3C
    /// asks.
    fn from_str(text: &str) -> Result<Self, Error> {
        let malformed = || {
            invalid(
                "it is not 00-, 32 digits for the trace, -, 16 for the span, -, and 2 for the flags, all of \
                 them hexadecimal and in lower case",
            )
        };
        let bytes = text.as_bytes();
        let has_dashes = [TRACE_ID_AT, SPAN_ID_AT, FLAGS_AT]
            .iter()
            .all(|at| bytes.get(at - 1) == Some(&b'-'));
        let [version] = digits(bytes, 0).ok_or_else(malformed)?;
        let ends = match version {
            0 => bytes.len() == LENGTH,
            0xff => false,
            _ => matches!(bytes.get(LENGTH), None | Some(b'-')),
        };
        if !has_dashes || !ends {
            return Err(malformed());
        }
        let trace_id = digits(bytes, TRACE_ID_AT).ok_or_else(malformed)?;
        let span_id = digits(bytes, SPAN_ID_AT).ok_or_else(malformed)?;
        let [flags] = digits(bytes, FLAGS_AT).ok_or_else(malformed)?;
        Self::new(trace_id, span_id, flags)
    }
}

/// The bytes whose hexadecimal digits begin `at`.
fn digits<const COUNT: usize>(text: &[u8], at: usize) -> Option<[u8; COUNT]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut read = [0; COUNT];
    let pairs = text.get(at..at + 2 * COUNT)?.chunks_exact(2);
    for (byte, pair) in read.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(read)
}

fn invalid(why: &str) -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!("this is no traceparent of W3C's Trace Context: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_w3c_writes_it() {
        let read: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(read.trace_id()[..3], [0x4b, 0xf9, 0x2f]);
        assert_eq!(read.span_id()[6..], [0x02, 0xb7]);
        assert!(read.is_sampled());
        assert_eq!(read.to_string(), EXAMPLE);
        let unsampled: TraceParent = EXAMPLE.replace("-01", "-02").parse().unwrap();
        assert!(!unsampled.is_sampled());
        // A later version may say more behind a dash.
        let later = format!("{}-more", EXAMPLE.replacen("00", "cc", 1));
        assert_eq!(later.parse(), Ok(read));
        assert_eq!(later[..LENGTH].parse(), Ok(read));
    }

    #[test]
    fn what_w3c_does_not_allow_is_refused() {
        let zero_trace = EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16));
        for text in [
            "",
            "00",
            &EXAMPLE[..LENGTH - 1],
            &format!("{EXAMPLE}-more"),
            &format!("{EXAMPLE} "),
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replacen("00", "ff", 1),
            &EXAMPLE.replacen("00-", "cc-", 1).replace("-01", "-01x"),
            &EXAMPLE.replace('-', "_"),
            &EXAMPLE.replace("4bf", "4bg"),
            &EXAMPLE.replace("4bf9", "4b\u{e9}9"),
            &zero_trace,
            &zero_span,
        ] {
            let error = text.parse::<TraceParent>().unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_and_nothing_panics(
            trace_id in any::<[u8; 16]>(), span_id in any::<[u8; 8]>(), flags in any::<u8>(),
            text in ".{0,70}"
        ) {
            let _ = text.parse::<TraceParent>();
            if let Ok(parent) = TraceParent::new(trace_id, span_id, flags) {
                prop_assert_eq!(parent.to_string().parse::<TraceParent>(), Ok(parent));
            }
        }
    }
}
