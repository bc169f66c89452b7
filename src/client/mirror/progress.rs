//! What the progress key of a mirror holds: what is copied from where, by which mirror, and how far it is.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::api::{Error, ErrorKind};
use crate::types::BootstrapId;

/// The first line of the progress.
const HEADING: &str = "leasehold mirror 1";

/// What is copied from where. Each mirror has its own. The prefixes are those of the clusters, with the
/// namespaces of the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) cluster: u64,
    pub(super) bootstrap: Option<BootstrapId>,
    pub(super) prefix: Bytes,
    pub(super) destination_prefix: Bytes,
}

/// What the progress key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) origin: Origin,
    pub(super) writer: u64,
    pub(super) reached: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// A mixture of revisions.
    Copying,
    /// All of this revision, and so many changes of the next.
    At { revision: i64, part: usize },
}

impl Origin {
    /// Whether the source is this cluster. One that was restored beside it has its id, but not its bootstrap.
    pub(super) fn is_in(&self, cluster: u64, bootstrap: Option<BootstrapId>) -> bool {
        self.cluster == cluster && BootstrapId::agree(self.bootstrap, bootstrap)
    }

    /// Refuses a mirror within one cluster that would copy what it writes, for ever.
    pub(super) fn check_that_it_ends(&self, progress_key: &[u8]) -> Result<(), Error> {
        let (from, to) = (&self.prefix[..], &self.destination_prefix[..]);
        let why = if from.starts_with(to) || to.starts_with(from) {
            format!(
                "the prefixes {} and {} overlap: choose a prefix and a destination prefix of which neither \
                 begins with the other",
                shown(from),
                shown(to)
            )
        } else if progress_key.starts_with(from) {
            format!(
                "the progress key {} lies below the prefix {}, which is copied: choose another progress key",
                shown(progress_key),
                shown(from)
            )
        } else {
            return Ok(());
        };
        Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            format!(
                "source and destination are one cluster, so this mirror would copy its own copies: {why}"
            ),
        ))
    }
}

impl Progress {
    /// As text, which an operator can read.
    pub(super) fn to_text(&self) -> String {
        let Origin {
            cluster,
            bootstrap,
            prefix,
            destination_prefix,
        } = &self.origin;
        let mut text = format!("{HEADING}\ncluster {cluster:016x}\n");
        if let Some(bootstrap) = bootstrap {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "bootstrap {:032x}", bootstrap.0);
        }
        let _ = writeln!(text, "prefix {}", prefix.escape_ascii());
        let _ = writeln!(text, "to {}", destination_prefix.escape_ascii());
        let _ = writeln!(text, "writer {:016x}", self.writer);
        let _ = match self.reached {
            Position::Copying => writeln!(text, "copying"),
            Position::At { revision, part: 0 } => writeln!(text, "at {revision}"),
            Position::At { revision, part } => writeln!(text, "at {revision} and {part}"),
        };
        text
    }

    /// `None` if it is something else.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut lines = text.lines().peekable();
        (lines.next()? == HEADING).then_some(())?;
        let cluster = u64::from_str_radix(lines.next()?.strip_prefix("cluster ")?, 16).ok()?;
        let bootstrap = lines.next_if(|line| line.starts_with("bootstrap "));
        let bootstrap = bootstrap.and_then(|line| line.strip_prefix("bootstrap "));
        let bootstrap = match bootstrap {
            Some(id) => Some(BootstrapId(u128::from_str_radix(id, 16).ok()?)),
            None => None,
        };
        let prefix = unescaped(lines.next()?.strip_prefix("prefix ")?)?;
        let destination_prefix = unescaped(lines.next()?.strip_prefix("to ")?)?;
        let writer = u64::from_str_radix(lines.next()?.strip_prefix("writer ")?, 16).ok()?;
        let reached = match lines.next()? {
            "copying" => Position::Copying,
            at => {
                let at = at.strip_prefix("at ")?;
                let (revision, part) = at.split_once(" and ").unwrap_or((at, "0"));
                Position::At {
                    revision: revision.parse().ok().filter(|revision| *revision > 0)?,
                    part: part.parse().ok()?,
                }
            }
        };
        let origin = Origin {
            cluster,
            bootstrap,
            prefix,
            destination_prefix,
        };
        let progress = Self {
            origin,
            writer,
            reached,
        };
        lines.next().is_none().then_some(progress)
    }

    /// Whether it is that of a mirror of this, whichever bootstrap it came from.
    pub(super) fn is_of(&self, origin: &Origin) -> bool {
        let bootstrap = origin.bootstrap;
        let known = Origin {
            bootstrap,
            ..self.origin.clone()
        };
        known == *origin
    }
}

/// The reverse of `escape_ascii`.
fn unescaped(text: &str) -> Option<Bytes> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let mut digit = || (rest.next()? as char).to_digit(16);
                    u8::try_from(digit()? * 16 + digit()?).ok()?
                }
                plain @ (b'\\' | b'\'' | b'"') => plain,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(bytes.into())
}

/// Where the progress is kept unless another key is given.
pub(super) fn default_key(origin: &Origin) -> Bytes {
    let mut key = BytesMut::from(format!("leasehold-mirror/{:016x}/", origin.cluster).as_bytes());
    key.extend_from_slice(&origin.prefix);
    key.freeze()
}

/// A key, for people.
pub(super) fn shown(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(prefix: &'static [u8], bootstrap: Option<u128>, reached: Position) -> Progress {
        Progress {
            origin: Origin {
                cluster: 7,
                bootstrap: bootstrap.map(BootstrapId),
                prefix: Bytes::from_static(prefix),
                destination_prefix: Bytes::from_static(b"to\n'\"\\/\xff"),
            },
            writer: 9,
            reached,
        }
    }

    #[test]
    fn progress_reads_as_it_was_written() {
        let at = |revision, part| Position::At { revision, part };
        for prefix in [&b""[..], b"config/", b"\0\t\r\nat 7\n\\x00\xfe"] {
            for bootstrap in [None, Some(0), Some(u128::MAX)] {
                for reached in [Position::Copying, at(1, 0), at(i64::MAX, 5)] {
                    let written = progress(prefix, bootstrap, reached);
                    let text = written.to_text();
                    assert_eq!(Progress::read(text.as_bytes()), Some(written), "{text}");
                    for end in 0..text.len() - 1 {
                        let cut = Progress::read(&text.as_bytes()[..end]);
                        assert!(
                            cut.is_none_or(|cut| cut.reached != reached),
                            "{end} of {text}"
                        );
                    }
                }
            }
        }
        for other in [
            "",
            "hello",
            "leasehold mirror 1\n",
            "leasehold mirror 2\ncluster 7\n",
        ] {
            assert_eq!(Progress::read(other.as_bytes()), None);
        }
    }

    #[test]
    fn a_cluster_that_was_restored_beside_the_source_is_another_one() {
        let origin = progress(b"", Some(1), Position::Copying).origin;
        assert!(origin.is_in(7, Some(BootstrapId(1))));
        assert!(origin.is_in(7, None), "it may be");
        assert!(!origin.is_in(7, Some(BootstrapId(2))));
        assert!(!origin.is_in(8, Some(BootstrapId(1))));
    }

    #[test]
    fn a_mirror_within_one_cluster_does_not_copy_what_it_writes() {
        let check = |from: &'static str, to: &'static str, key: &str| {
            let origin = Origin {
                prefix: from.into(),
                destination_prefix: to.into(),
                ..progress(b"", None, Position::Copying).origin
            };
            let refused = origin.check_that_it_ends(key.as_bytes()).err();
            refused.map(|error| {
                assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
                error.detail.contains("progress key")
            })
        };
        for (from, to) in [
            ("a/", "a/"),
            ("a/", "a/b/"),
            ("a/b/", "a/"),
            ("", "b/"),
            ("a/", ""),
        ] {
            assert_eq!(check(from, to, "p"), Some(false), "{from} {to}");
        }
        assert_eq!(check("a/", "b/", "a/p"), Some(true));
        assert_eq!(check("a/", "b/", "b/p"), None);
        assert_eq!(check("a/", "ab/", "p"), None);
    }
}
