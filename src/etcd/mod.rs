//! etcd under load, through its v3 API: what `leasehold bench --peer etcd` compares with.
//!
//! The part of gRPC that single requests need, over `h2`, and the few messages that are asked, so
//! that neither a code generator nor a framework stands between the generator and the server: the
//! less the client costs, the better etcd looks on a machine that carries both. Checked against
//! etcd 3.4 and 3.5.
//!
//! Left out: TLS, authentication, streams (watches, leases), and everything else of the API.

mod cluster;
mod messages;
mod rpc;
mod store;

pub use self::cluster::EtcdCluster;
pub use self::cluster::EtcdProber;
pub use self::store::Etcd;
pub use self::store::EtcdConnection;
pub use self::store::EtcdConnector;
pub use self::store::EtcdStatus;
