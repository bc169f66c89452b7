//! etcd under load, through its v3 API: what `--peer etcd` compares with.
//!
//! The part of gRPC that requests and streams need, over `h2`, and the few messages that are asked, so
//! that neither a code generator nor a framework stands between the generator and the server: the
//! less the client costs, the better etcd looks on a machine that carries both. Checked against
//! etcd 3.4 and 3.5.
//!
//! Left out: TLS, authentication, and everything else of the API.

mod cluster;
mod echo;
mod expiry;
mod leases;
mod messages;
mod rpc;
mod store;
mod watches;

pub(crate) use self::cluster::{EtcdCluster, EtcdProber};
pub(crate) use self::echo::{Echo, serve as serve_echo};
pub(crate) use self::expiry::EtcdLeases;
pub(crate) use self::store::EtcdConnector;
