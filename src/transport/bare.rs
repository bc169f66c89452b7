//! quinn by itself, with our settings, certificates and sockets and without our frames: the
//! baseline that the benches compare requests with. The product does not use it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::transport::endpoint::{ask_for_buffers, bind, client_socket};
use crate::transport::settings::{client_config, endpoint_config, server_config};
use crate::transport::{BindError, Port, Tls};

/// Listens as a node's client port does.
///
/// # Errors
/// The address cannot be bound, or `tls` is not a node's.
pub fn listen(address: SocketAddr, tls: &Tls) -> Result<quinn::Endpoint, BindError> {
    let socket = bind(address)?;
    ask_for_buffers(&socket, true);
    let server = server_config(tls, Port::Client).map_err(BindError::Tls)?;
    open(address, socket.into(), tls, Some(server))
}

/// Connects as the SDK does.
///
/// # Errors
/// No socket can be opened, or no node with the right identity answers.
pub async fn connect(address: SocketAddr, tls: &Tls) -> Result<quinn::Connection, BindError> {
    let (own, socket) = client_socket()?;
    let failed = |reason: String| BindError::Other { address, reason };
    let config = client_config(tls, Port::Client).map_err(BindError::Tls)?;
    open(own, socket, tls, None)?
        .connect_with(config, address, &tls.server_name())
        .map_err(|error| failed(error.to_string()))?
        .await
        .map_err(|error| failed(error.to_string()))
}

fn open(
    address: SocketAddr,
    socket: std::net::UdpSocket,
    tls: &Tls,
    server: Option<quinn::ServerConfig>,
) -> Result<quinn::Endpoint, BindError> {
    let config = endpoint_config(tls, server.is_some());
    quinn::Endpoint::new(config, server, socket, Arc::new(quinn::TokioRuntime)).map_err(|error| {
        let reason = error.to_string();
        BindError::Other { address, reason }
    })
}
