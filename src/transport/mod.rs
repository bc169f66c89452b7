//! QUIC with mutual TLS: authenticated connections and framed streams, and nothing that names
//! the libraries below.
//!
//! quinn's and rustls' defaults suit the open internet, not a closed cluster, so everything is
//! configured by hand here: TLS 1.3 only, a client certificate is
//! mandatory, no resumption, no tickets, no early data, no datagrams, bounded windows, address
//! validation under load. Who the other side is comes from the URI name in its certificate
//! (`identity.rs`) and is checked on both sides before a [`Connection`] exists at all, so that no
//! caller can forget it.
//!
//! Two ports, two protocols: on [`Port::Peer`] both sides are nodes; on [`Port::Client`] a client
//! calls a node, and neither can stand in for the other.
//!
//! What is left out on purpose: what frames mean (that is `wire`'s), retries, reconnects and
//! routing (`client`, `server::peers`).

#[doc(hidden)]
pub mod bare;
mod connection;
mod endpoint;
mod framed;
mod identity;
mod key_file;
mod listener;
mod settings;
mod spiffe;
mod srv;
mod stats;
mod tls;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use connection::{
    CloseCode, ConnectError, Connection, ConnectionFacts, ConnectionLost, Datagrams,
};
pub use endpoint::{Admission, BindError, Endpoint, IncomingConnection, resolve};
pub use framed::{FrameReceiver, FrameSender, FrameStream, StreamError};
#[allow(unused_imports, reason = "the SDK alone has no port on TCP")]
pub(crate) use identity::spiffe_id;
pub use identity::{IdentityError, IdentityKind, PeerIdentity, Workload};
pub use key_file::exposed_mode;
pub use listener::{ClientConnection, ClientListener, Introduction, ListenerConfig};
#[allow(unused_imports, reason = "the SDK alone has no settings")]
pub(crate) use spiffe::check_trust_domain;
pub use spiffe::{SpiffeError, SpiffeId, SpiffeRule, SpiffeRuleError, SpiffeUsers};
pub use srv::{SrvError, SrvRecord, SrvService, lookup_srv, srv_name};
pub use stats::{HandshakeFailure, Port, Traffic, TransportStats, is_worth_saying};
pub(crate) use tls::TlsStamps;
pub use tls::{Tls, TlsError, TlsPaths};
#[allow(unused_imports, reason = "the SDK alone has no port on TCP")]
pub(crate) use tls::{name_of, read_file, refuse_exposed_key};
