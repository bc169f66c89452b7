//! Service records of DNS (RFC 2782): under which names and ports a service runs.
//!
//! The system's resolver has no call for them, and the crates that do bring forty more, so this asks for itself:
//! one question over UDP to each of the resolvers of this machine in turn, and over TCP where the answer is too
//! long. It leaves out what a resolver does (following delegations, caching, checking signatures): it trusts the
//! resolver that it asks, as every other program of this machine does, and nothing that did not come from there.
//! What a lie could bring about is bounded by certificates: it can name other machines and not speak for a node.

mod message;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

pub use self::message::SrvRecord;
use self::message::{Answer, Failure, Question};

/// How long one resolver is waited for, each time.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often each resolver is asked.
const ROUNDS: u32 = 2;
/// How many resolvers of a machine are asked, as the system's does.
const RESOLVERS_MAX: usize = 3;
const DNS_PORT: u16 = 53;
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How much of it is read.
const RESOLV_CONF_BYTES_MAX: u64 = 64 << 10;

/// The services of a cluster, as their records are called. QUIC runs over UDP, so they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrvService {
    /// The ports for clients.
    Client,
    /// The ports for peers.
    Server,
}

/// The name of the records of `service` in `domain`; with a `suffix`, of one cluster of several.
///
/// # Errors
/// It is no name.
pub fn srv_name(
    service: SrvService,
    suffix: Option<&str>,
    domain: &str,
) -> Result<String, SrvError> {
    let service = match service {
        SrvService::Client => "_leasehold-client",
        SrvService::Server => "_leasehold-server",
    };
    let suffix = suffix.map_or(String::new(), |suffix| format!("-{suffix}"));
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    let name = format!("{service}{suffix}._udp.{domain}");
    match Question::new(&name, 0) {
        Some(_) if !domain.is_empty() && !suffix.contains('.') => Ok(name),
        _ => Err(SrvError::Name(format!("{domain}{suffix}"))),
    }
}

/// Why there are no records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrvError {
    /// The name cannot be asked for.
    #[error(
        "{0:?} is not a domain: write labels of 1 to 63 letters, digits, dashes and underscores, with \
         dots between them and at most 253 bytes in all, for example example.org"
    )]
    Name(String),
    /// There is no such name, or it has no such records.
    #[error("DNS has no SRV records for {0}: add one for each node, with its host and port")]
    NoRecords(String),
    /// The records say that there is no such service.
    #[error("DNS says that there is no service {0}: its SRV record has the target \".\"")]
    NoService(String),
    /// No resolver has answered.
    #[error("no DNS server has answered for {name}: {reason}")]
    NoAnswer {
        /// The name.
        name: String,
        /// What the last one did instead.
        reason: String,
    },
}

/// The records of `name`, the first to be asked first. `resolvers` are asked in turn; if there are none, those of
/// this machine.
///
/// # Errors
/// There are none, or no resolver has answered.
///
/// # Cancel safety
/// Safe.
pub async fn lookup_srv(name: &str, resolvers: &[SocketAddr]) -> Result<Vec<SrvRecord>, SrvError> {
    let question =
        Question::new(name, random_id()).ok_or_else(|| SrvError::Name(name.to_owned()))?;
    let of_machine;
    let resolvers = match resolvers {
        [] => {
            of_machine = of_this_machine();
            &of_machine
        }
        given => given,
    };
    let mut reason = String::new();
    for resolver in resolvers
        .iter()
        .cycle()
        .take(resolvers.len() * ROUNDS as usize)
    {
        match ask(*resolver, &question).await {
            Ok(Answer::Records(records)) => return in_order(name, records),
            Ok(Answer::Nothing) => return Err(SrvError::NoRecords(name.to_owned())),
            Err(failure) => reason = format!("{resolver} {failure}"),
        }
    }
    Err(SrvError::NoAnswer {
        name: name.to_owned(),
        reason,
    })
}

fn in_order(name: &str, mut records: Vec<SrvRecord>) -> Result<Vec<SrvRecord>, SrvError> {
    records.retain(|record| !record.target.is_empty());
    if records.is_empty() {
        return Err(SrvError::NoService(name.to_owned()));
    }
    // Load is not what the weights decide here: clients stay with the nodes that answer best.
    records.sort_by(|one, other| {
        (one.priority, other.weight, &one.target, one.port).cmp(&(
            other.priority,
            one.weight,
            &other.target,
            other.port,
        ))
    });
    // What is named twice is asked where it comes first.
    let mut seen = BTreeSet::new();
    records.retain(|record| seen.insert((record.target.clone(), record.port)));
    Ok(records)
}

async fn ask(resolver: SocketAddr, question: &Question) -> Result<Answer, Failure> {
    let over_udp = tokio::time::timeout(PATIENCE, ask_over_udp(resolver, question));
    match over_udp.await.map_err(|_| Failure::Late)?? {
        Some(answer) => Ok(answer),
        None => {
            let over_tcp = tokio::time::timeout(PATIENCE, ask_over_tcp(resolver, question));
            over_tcp.await.map_err(|_| Failure::Late)?
        }
    }
}

/// `None` if the answer is too long for a datagram.
async fn ask_over_udp(
    resolver: SocketAddr,
    question: &Question,
) -> Result<Option<Answer>, Failure> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A port of its own for each question, and datagrams from the resolver alone.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(question.bytes()).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // What answers another question may be a forgery, and the answer still come.
        if !question.is_answered_by(&buffer[..length]) {
            continue;
        }
        return question.read(&buffer[..length], true);
    }
}

async fn ask_over_tcp(resolver: SocketAddr, question: &Question) -> Result<Answer, Failure> {
    let mut stream = TcpStream::connect(resolver).await?;
    let bytes = question.bytes();
    let length = u16::try_from(bytes.len()).expect("a question has a name and little more");
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(bytes).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    if !question.is_answered_by(&answer) {
        return Err(Failure::Malformed("it answers another question"));
    }
    match question.read(&answer, false)? {
        Some(answer) => Ok(answer),
        None => Err(Failure::Malformed("it is cut off")),
    }
}

/// A number that no sender of forged answers can guess.
fn random_id() -> u16 {
    let mut bytes = [0; 2];
    // Without randomness there is no TLS either.
    let _ = SystemRandom::new().fill(&mut bytes);
    u16::from_be_bytes(bytes)
}

/// The resolvers of this machine; its own, if it names none.
fn of_this_machine() -> Vec<SocketAddr> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(RESOLV_CONF) {
        // What was read before an error counts.
        let _ = file.take(RESOLV_CONF_BYTES_MAX).read_to_end(&mut text);
    }
    resolvers_in(&String::from_utf8_lossy(&text))
}

fn resolvers_in(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then_some(())?;
        let address: IpAddr = words.next()?.parse().ok()?;
        Some(SocketAddr::new(address, DNS_PORT))
    };
    let found: Vec<SocketAddr> = text
        .lines()
        .filter_map(address)
        .take(RESOLVERS_MAX)
        .collect();
    match found.is_empty() {
        true => vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DNS_PORT)],
        false => found,
    }
}

#[cfg(test)]
mod tests;
