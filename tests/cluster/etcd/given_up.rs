//! Clients that give up their calls: however many, and before the node has looked at them, their connection goes on, as
//! with etcd. Context deadlines that are short do that.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::EtcdCluster;
use super::differential::{Etcd, etcd};
use super::grpc::framed;
use super::hostile::{PREFACE, frame};
use crate::harness::{PATIENCE, eventually};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

const LOCK: &str = "/v3lockpb.Lock/Lock";
const RANGE: &str = "/etcdserverpb.KV/Range";
/// Requests for the lock `a`, and for the key.
const NAMED_A: [u8; 3] = [0x0a, 1, b'a'];

/// A call with one message: its headers, and the message.
fn call(path: &str, stream: u32, message: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let headers = [
        // `POST` and `http`, and then the path, the authority and the type of the content by their numbers.
        &[0x83, 0x86, 0x04][..],
        &text(path),
        &[0x01],
        &text("e"),
        &[0x0f, 0x10],
        &text("application/grpc"),
        &[0x00],
        &text("te"),
        &text("trailers"),
    ]
    .concat();
    let headers = frame(HEADERS, END_HEADERS, stream, &headers);
    let data = frame(DATA, END_STREAM, stream, &framed(message));
    [headers, data].concat()
}

/// Gives up `count` calls of Lock, all at once, each with this message, and then reads a key on the same connection.
pub(super) fn give_up(address: SocketAddr, count: u32, message: &[u8]) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = [PREFACE, &frame(4, 0, 0, &[])].concat();
    for number in 0..count {
        said.extend(call(LOCK, 2 * number + 1, message));
        said.extend(frame(RST_STREAM, 0, 2 * number + 1, &CANCEL));
    }
    let last = 2 * count + 1;
    said.extend(call(RANGE, last, &NAMED_A));
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&said));
    let answered = loop {
        let mut head = [0; 9];
        if let Err(error) = reader.read_exact(&mut head) {
            break Err(error.to_string());
        }
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        reader.read_exact(&mut payload).unwrap();
        match kind {
            HEADERS if u32::from_be_bytes(stream) == last => break Ok(()),
            GOAWAY => break Err(String::from_utf8_lossy(&payload).into_owned()),
            _ => {}
        }
    };
    // The other side of one that was ended may not have taken everything.
    let _ = writer.join().unwrap();
    answered
}

#[test]
fn calls_that_are_given_up_at_once_leave_the_connection_to_the_others_as_with_etcd() {
    const CALLS: u32 = 3_000;
    let cluster = EtcdCluster::in_the_clear(1);
    assert_eq!(give_up(cluster.ports[0], CALLS, &NAMED_A), Ok(()));
    let Some(program) = etcd() else {
        return;
    };
    let etcd = Etcd::start(&program);
    eventually("etcd that listens", || {
        TcpStream::connect(etcd.address).ok()
    });
    assert_eq!(give_up(etcd.address, CALLS, &NAMED_A), Ok(()));
}
