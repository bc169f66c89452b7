//! A bare echo over `h2`: what HTTP/2 itself costs, and so the most that any server of this protocol can do.
//!
//! It answers each call with the same message, as long as the answer to a read of one key, in the frames that
//! gRPC needs, and knows neither messages nor methods. A process of its own, so that its CPU time is known.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::TcpStream;

use leasehold::bench::process::{Process, Scratch};
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::failure::Failure;

use super::store::EtcdConnector;
use leasehold::cli::arguments::bench::LoadTarget;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The windows of the servers that it stands for.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// The field of a `RangeResponse` that holds its records, as a tag of the wire.
const RECORDS: u8 = 2 << 3 | 2;
/// The field of a record that holds its value.
const VALUE: u8 = 5 << 3 | 2;

/// The echo, as a process of this program.
#[derive(Debug)]
pub(crate) struct Echo {
    // In this order: the process ends before its directory does.
    process: Process,
    endpoint: String,
    _directory: Scratch,
}

impl Echo {
    /// Starts it, with answers that have a value of so many bytes.
    ///
    /// # Errors
    /// It does not come to life.
    pub(crate) async fn start(parent: &Path, value_bytes: u32) -> Result<Self, Failure> {
        let directory = Scratch::new(parent, "echo")?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = free.local_addr()?;
        drop(free);
        let words = [
            "echo".to_owned(),
            address.to_string(),
            value_bytes.to_string(),
        ];
        let log = directory.path().join("echo.log");
        let mut process = Process::start("echo", &std::env::current_exe()?, words, &log)?;
        let watch = Wall::start();
        while TcpStream::connect(address).await.is_err() {
            process.check()?;
            if watch.elapsed() > PATIENCE {
                return Err(Failure::refused(format!(
                    "the echo does not listen after {PATIENCE:?}"
                )));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(Self {
            process,
            endpoint: address.to_string(),
            _directory: directory,
        })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Who asks it, as it would ask a member of etcd.
    ///
    /// # Errors
    /// None that is known: it is not asked who leads.
    pub(crate) async fn connector(&self, timeout: Duration) -> Result<EtcdConnector, Failure> {
        let endpoints = [self.endpoint.clone()];
        EtcdConnector::find(&endpoints, LoadTarget::Any, timeout).await
    }
}

/// Serves until the process is ended.
///
/// # Errors
/// The address cannot be listened on.
pub(crate) fn serve(address: SocketAddr, value_bytes: u32) -> Result<(), Failure> {
    // As many threads as a node's runtime has: one for each core.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let answer = answer(value_bytes as usize);
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(talk(stream, answer.clone()));
        }
    })
}

/// A range of one record with a value, and nothing else, framed.
fn answer(value_bytes: usize) -> Bytes {
    let mut record = vec![VALUE];
    prost::encode_length_delimiter(value_bytes, &mut record)
        .expect("a vector grows as it is written to");
    record.resize(record.len() + value_bytes, b'v');
    let mut message = vec![RECORDS];
    prost::encode_length_delimiter(record.len(), &mut message)
        .expect("a vector grows as it is written to");
    message.extend_from_slice(&record);
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(&message);
    framed.freeze()
}

async fn talk(stream: TcpStream, answer: Bytes) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(stream)
        .await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        tokio::spawn(reply(request, respond, answer.clone()));
    }
    Ok(())
}

async fn reply(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    answer: Bytes,
) -> Result<(), h2::Error> {
    let mut body = request.into_body();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
    }
    let mut head = Response::new(());
    let kind = HeaderValue::from_static("application/grpc");
    head.headers_mut().insert(CONTENT_TYPE, kind);
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(answer, false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::RangeResponse;
    use prost::Message as _;

    #[test]
    fn the_answer_is_a_range_of_one_record() {
        let framed = answer(256);
        let range = RangeResponse::decode(&framed[5..]).unwrap();
        assert_eq!(range.kvs.len(), 1);
        assert_eq!(framed.len(), 5 + 3 + 3 + 256);
    }
}
