//! `leasehold drain`: takes the node of this machine out of service, over its admin port.
//!
//! Changes to a node are requested on its own machine, where no certificate is needed: a container
//! that is about to be stopped has none of a client's.

use std::io;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

use crate::cli::arguments::{DrainArgs, Format, GlobalArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::print::{fields, line, row};

/// How long a drain takes at most, and more: the hand-over and what is in flight have two seconds each.
const PATIENCE: Duration = Duration::from_secs(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// Answers of the admin port are some hundred bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Drains, and says what came of it.
///
/// # Errors
/// Nothing answers there, or refuses.
pub(super) fn run(
    arguments: &DrainArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let answer = post(&arguments.admin, "/admin/v1/drain").map_err(|error| {
        Failure::new(
            Exit::NotConnected,
            format!(
                "no answer from the admin port at {}: {error}; run this on the node's machine, and \
                 give its listen.admin with --admin",
                arguments.admin
            ),
        )
    })?;
    let (status, body) = split(&answer).ok_or_else(|| {
        let at = &arguments.admin;
        Failure::refused(format!("{at} is not the admin port of a node"))
    })?;
    let document: Option<Value> = serde_json::from_str(body).ok();
    let (200, Some(document)) = (status, document) else {
        return Err(Failure::refused(format!(
            "{} answered with {status}: {}",
            arguments.admin,
            body.trim()
        )));
    };
    match global.output {
        Format::Json => line(out, &document)?,
        Format::Fields => fields(out, &document)?,
        Format::Table => row(out, &document)?,
        Format::Simple => writeln!(out, "{}", sentence(&document))?,
    }
    Ok(())
}

fn sentence(document: &Value) -> String {
    let leadership = match (
        document["led"].as_bool().unwrap_or(false),
        document["leader"].as_str(),
        document["not_handed_over"].as_str(),
    ) {
        (false, ..) => "it was not the leader".to_owned(),
        (true, Some(leader), _) => format!("{leader} is the new leader"),
        (true, None, Some(problem)) => format!("leadership was not transferred: {problem}"),
        (true, None, None) => "leadership was transferred".to_owned(),
    };
    let unfinished = match document["unfinished_requests"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!("; {count} requests were not finished in time"),
    };
    format!("drained: {leadership}{unfinished}")
}

/// One request without a body, and its whole answer.
fn post(authority: &str, path: &str) -> io::Result<String> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    let addresses: Vec<SocketAddr> = authority.to_socket_addrs()?.collect();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return exchange(stream, authority, path),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(mut stream: TcpStream, authority: &str, path: &str) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(CONNECT_PATIENCE))?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The status and the body of an answer.
fn split(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_it_is_said_in_a_sentence() {
        let say = |text: &str| sentence(&serde_json::from_str(text).unwrap());
        assert_eq!(say(r#"{"led":false}"#), "drained: it was not the leader");
        assert_eq!(
            say(r#"{"led":true,"leader":"n2","unfinished_requests":0}"#),
            "drained: n2 is the new leader"
        );
        assert_eq!(
            say(
                r#"{"led":true,"leader":null,"not_handed_over":"nobody is fit","unfinished_requests":3}"#
            ),
            "drained: leadership was not transferred: nobody is fit; 3 requests were not finished in time"
        );
    }

    #[test]
    fn only_an_answer_of_http_is_one() {
        assert_eq!(
            split("HTTP/1.1 200 OK\r\na: b\r\n\r\n{}"),
            Some((200, "{}"))
        );
        for text in [
            "",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 xyz\r\n\r\n",
            "HTTP/1.1 200",
        ] {
            assert_eq!(split(text), None, "{text}");
        }
    }
}
