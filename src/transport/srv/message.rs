//! One question of DNS and its answer (RFC 1035), whose bytes anybody may have sent.

const HEADER_BYTES: usize = 12;
const NAME_BYTES_MAX: usize = 255;
const LABEL_BYTES_MAX: usize = 63;
/// How many names lead from the one that was asked for to that of the records.
const ALIASES_MAX: usize = 8;

const TYPE_CNAME: u16 = 5;
const TYPE_SRV: u16 = 33;
const CLASS_INTERNET: u16 = 1;

/// Bits of the third and fourth byte of a header.
const IS_RESPONSE: u8 = 0x80;
const OPERATION: u8 = 0x78;
const IS_CUT_OFF: u8 = 0x02;
const CODE: u8 = 0x0f;
const RECURSION_DESIRED: u8 = 0x01;

const NO_ERROR: u8 = 0;
const NO_SUCH_NAME: u8 = 3;

/// One place where a service runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvRecord {
    /// The lower, the earlier it is to be asked.
    pub priority: u16,
    /// How much of the load it can take, of those with its priority.
    pub weight: u16,
    /// The port.
    pub port: u16,
    /// The host, without a dot at the end.
    pub target: String,
}

/// What a resolver did instead of answering.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot be reached: {0}")]
    Io(#[from] std::io::Error),
    #[error("did not answer in time")]
    Late,
    #[error("sent what is no answer: {0}")]
    Malformed(&'static str),
    #[error("refused, with code {0}")]
    Code(u8),
}

/// What a resolver knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The records, at least one.
    Records(Vec<SrvRecord>),
    /// There are none.
    Nothing,
}

/// A question for service records.
#[derive(Debug)]
pub(super) struct Question {
    bytes: Vec<u8>,
    /// Its name, in small letters.
    name: String,
}

impl Question {
    /// `None` if `name` is none.
    pub(super) fn new(name: &str, id: u16) -> Option<Self> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut bytes = id.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name.split('.') {
            if !is_label(label.as_bytes()) {
                return None;
            }
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        if bytes.len() - HEADER_BYTES > NAME_BYTES_MAX {
            return None;
        }
        bytes.extend_from_slice(&TYPE_SRV.to_be_bytes());
        bytes.extend_from_slice(&CLASS_INTERNET.to_be_bytes());
        Some(Self {
            bytes,
            name: name.to_ascii_lowercase(),
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether `message` is a response to this question, whatever it says.
    pub(super) fn is_answered_by(&self, message: &[u8]) -> bool {
        let length = self.bytes.len();
        let Some(begin) = message.get(..length) else {
            return false;
        };
        begin[..2] == self.bytes[..2]
            && begin[2] & IS_RESPONSE != 0
            && begin[2] & OPERATION == 0
            && begin[4..6] == [0, 1]
            && begin[HEADER_BYTES..].eq_ignore_ascii_case(&self.bytes[HEADER_BYTES..])
    }

    /// What a response to this question says; `None` if it is cut off and `may_be_cut_off`.
    pub(super) fn read(
        &self,
        message: &[u8],
        may_be_cut_off: bool,
    ) -> Result<Option<Answer>, Failure> {
        if message[2] & IS_CUT_OFF != 0 {
            return match may_be_cut_off {
                true => Ok(None),
                false => Err(Failure::Malformed("it is cut off")),
            };
        }
        match message[3] & CODE {
            NO_ERROR => {}
            NO_SUCH_NAME => return Ok(Some(Answer::Nothing)),
            code => return Err(Failure::Code(code)),
        }
        let count = u16::from_be_bytes([message[6], message[7]]);
        let mut reader = Reader {
            message,
            at: self.bytes.len(),
        };
        let mut records = Vec::new();
        let mut aliases = Vec::new();
        for _ in 0..count {
            match reader.record()? {
                Record::Service(owner, record) => records.push((owner, record)),
                Record::Alias(owner, name) => aliases.push((owner, name)),
                Record::Other => {}
            }
        }
        let mut name = self.name.clone();
        for _ in 0..ALIASES_MAX {
            match aliases.iter().find(|(owner, _)| *owner == name) {
                Some((_, next)) => name.clone_from(next),
                None => break,
            }
        }
        let ours = records.into_iter().filter(|(owner, _)| *owner == name);
        let records: Vec<SrvRecord> = ours.map(|(_, record)| record).collect();
        Ok(Some(match records.is_empty() {
            true => Answer::Nothing,
            false => Answer::Records(records),
        }))
    }
}

/// A record of an answer, with the name that it is of.
enum Record {
    Service(String, SrvRecord),
    Alias(String, String),
    Other,
}

/// Reads a message from the front to the back.
struct Reader<'m> {
    message: &'m [u8],
    at: usize,
}

impl Reader<'_> {
    fn record(&mut self) -> Result<Record, Failure> {
        let owner = self.name()?;
        let kind = self.number()?;
        let class = self.number()?;
        // How long it may be remembered.
        self.bytes(4)?;
        let length = usize::from(self.number()?);
        let end = self.at + length;
        if end > self.message.len() {
            return Err(Failure::Malformed("a record is longer than the message"));
        }
        let record = match (class, kind) {
            (CLASS_INTERNET, TYPE_SRV) => {
                let (priority, weight, port) = (self.number()?, self.number()?, self.number()?);
                let target = self.name()?;
                let record = SrvRecord {
                    priority,
                    weight,
                    port,
                    target,
                };
                Record::Service(owner, record)
            }
            (CLASS_INTERNET, TYPE_CNAME) => Record::Alias(owner, self.name()?),
            _ => {
                self.at = end;
                Record::Other
            }
        };
        match self.at == end {
            true => Ok(record),
            false => Err(Failure::Malformed("a record is not as long as it says")),
        }
    }

    /// A name, in small letters and without a dot at the end.
    fn name(&mut self) -> Result<String, Failure> {
        let (name, at) = name_at(self.message, self.at)?;
        self.at = at;
        Ok(name)
    }

    fn number(&mut self) -> Result<u16, Failure> {
        let bytes = self.bytes(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn bytes(&mut self, count: usize) -> Result<&[u8], Failure> {
        let bytes = self.message.get(self.at..self.at + count);
        self.at += count;
        bytes.ok_or(Failure::Malformed("it ends too soon"))
    }
}

/// The name that begins at `at`, and where what follows it begins. A part of a name may lie further in front, and
/// only there, so that no name goes round in circles.
fn name_at(message: &[u8], at: usize) -> Result<(String, usize), Failure> {
    let mut name = String::new();
    let (mut at, mut before) = (at, at);
    let mut end = None;
    loop {
        let first = *message
            .get(at)
            .ok_or(Failure::Malformed("a name ends too soon"))?;
        let length = usize::from(first);
        match first & 0xc0 {
            0x00 if length == 0 => return Ok((name, end.unwrap_or(at + 1))),
            0x00 => {
                let label = message
                    .get(at + 1..at + 1 + length)
                    .ok_or(Failure::Malformed("a name ends too soon"))?;
                if !is_label(label) {
                    return Err(Failure::Malformed("a name has other characters"));
                }
                if !name.is_empty() {
                    name.push('.');
                }
                name.extend(
                    label
                        .iter()
                        .map(|byte| char::from(byte.to_ascii_lowercase())),
                );
                if name.len() > NAME_BYTES_MAX {
                    return Err(Failure::Malformed("a name is too long"));
                }
                at += 1 + length;
            }
            0xc0 => {
                let second = *message
                    .get(at + 1)
                    .ok_or(Failure::Malformed("a name ends too soon"))?;
                end.get_or_insert(at + 2);
                at = usize::from(first & 0x3f) << 8 | usize::from(second);
                if at >= before {
                    return Err(Failure::Malformed("a name goes on behind itself"));
                }
                before = at;
            }
            _ => return Err(Failure::Malformed("a name is of an unknown kind")),
        }
    }
}

/// Whether these bytes are a label of the name of a host or a service.
fn is_label(label: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.iter().all(is_allowed)
}
