//! A client of HTTP/1.1 that shows what came: status, headers, and a body as it arrives.

use std::io;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::harness::PATIENCE;

/// A connection, which stays open from one call to the next.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    /// Of a chunked body: what has arrived.
    text: Vec<u8>,
    is_over: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The names of its headers in small letters.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Connection {
    /// To a node that has the port open.
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
            address,
            text: Vec::new(),
            is_over: false,
        }
    }

    /// A call with a whole body, and its whole answer.
    pub(crate) fn post(&mut self, path: &str, body: &str) -> Answer {
        self.request("POST", path, "", body)
    }

    /// The same with another method, and more headers, each with its end of line.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Answer {
        self.request_bytes(method, path, headers, body.as_bytes())
    }

    /// A call with a whole body, which may be no text.
    pub(crate) fn post_bytes(&mut self, path: &str, body: &[u8]) -> Answer {
        self.request_bytes("POST", path, "", body)
    }

    fn request_bytes(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.ask(method, path, headers, body);
        self.answer()
    }

    /// A call with a whole body, whose answer is read later.
    pub(crate) fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let (address, bytes) = (self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {bytes}\r\n{headers}\r\n"
        );
        // Apart: the other side may answer before the body is there.
        self.say(&head);
        let _ = self.stream.get_mut().write_all(body);
    }

    /// The whole answer to a call.
    pub(crate) fn answer(&mut self) -> Answer {
        let (status, head) = self.head();
        let body = match head.contains("transfer-encoding: chunked") {
            true => {
                self.is_over = false;
                while self.chunk().unwrap() {}
                std::mem::take(&mut self.text)
            }
            false => {
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length:"));
                let mut body = vec![0; length.unwrap_or("0").trim().parse().unwrap()];
                self.stream.read_exact(&mut body).unwrap();
                body
            }
        };
        Answer {
            status,
            head,
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// Begins a call whose body comes by and by.
    pub(crate) fn begin(&mut self, path: &str) {
        let address = self.address;
        self.say(&format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nTransfer-Encoding: chunked\r\n\r\n"
        ));
    }

    /// Sends a part of its body.
    pub(crate) fn send(&mut self, text: &str) {
        self.say(&format!("{:x}\r\n{text}\r\n", text.len()));
    }

    /// Ends its body.
    pub(crate) fn finish(&mut self) {
        self.say("0\r\n\r\n");
    }

    /// Bytes, whatever they mean. The other side may have closed.
    pub(crate) fn say(&mut self, words: &str) {
        let _ = self.stream.get_mut().write_all(words.as_bytes());
    }

    /// For how long what follows waits for bytes.
    pub(crate) fn set_patience(&self, patience: Duration) {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// The status and the headers of the answer.
    pub(crate) fn head(&mut self) -> (u16, String) {
        self.try_head().unwrap()
    }

    /// The same, of an answer that may not come.
    pub(crate) fn try_head(&mut self) -> io::Result<(u16, String)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                let ended = format!("the connection ended after {head:?}");
                return Err(io::Error::other(ended));
            }
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok((status, head.to_ascii_lowercase()))
    }

    /// The next line of a chunked answer; none after the last.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.try_line().unwrap()
    }

    /// The same, where it may not come.
    pub(crate) fn try_line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                let line = String::from_utf8(line).unwrap();
                return Ok(Some(line.trim_end().to_owned()));
            }
            if !self.chunk()? {
                assert!(self.text.is_empty(), "a line without an end");
                return Ok(None);
            }
        }
    }

    /// Reads a chunk; false if it was the last.
    fn chunk(&mut self) -> io::Result<bool> {
        if self.is_over {
            return Ok(false);
        }
        let mut size = String::new();
        if self.stream.read_line(&mut size)? == 0 {
            return Err(io::Error::other("the connection ended within an answer"));
        }
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk)?;
        self.text.extend_from_slice(&chunk[..size]);
        self.is_over = size == 0;
        Ok(!self.is_over)
    }
}

/// `text` without what differs between any two clusters: the numbers of ids and terms.
pub(crate) fn masked(text: &str) -> String {
    let mut text = text.to_owned();
    for name in ["cluster_id", "member_id", "raft_term"] {
        let begin = format!("\"{name}\":\"");
        let mut parts = text.split(&begin);
        let mut masked = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            masked.push_str(&begin);
            masked.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
        }
        text = masked;
    }
    text
}
