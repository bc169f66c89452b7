//! The port for etcd's clients: etcd's v3 API over gRPC and as JSON, on TCP.
//!
//! [`listener`] accepts connections, in the clear or under TLS, [`router`] finds the method of a
//! request, [`grpc`] carries its messages, and [`gateway`] translates those of programs without gRPC. What a method does stands in [`kv`],
//! [`watches`], [`lease`], [`recipes`], [`auth`], [`cluster`],
//! [`maintenance`], [`health`], [`probes`], [`snapshot`] and [`console`]; what it asks goes through a session of this node like that of any other client
//! ([`LocalClient`](crate::server::session::LocalClient)), so limits, access and the steps of a
//! leased read are the same for both protocols. The messages themselves, and etcd's words for what
//! goes wrong, are in [`etcd`](crate::etcd).
//!
//! What is not there yet is answered `Unimplemented`: docs/etcd.md has the list.

mod arriving;
mod auth;
mod authority;
mod body;
mod caller;
mod calls;
mod certificates;
mod cluster;
mod console;
mod counted;
mod gateway;
mod grpc;
mod health;
mod kv;
mod large;
mod lease;
mod listener;
mod maintenance;
mod options;
mod pages;
mod probes;
mod range_stream;
mod recipes;
mod router;
mod snapshot;
mod stream;
mod stream_frame;
mod tls;
mod unary;
mod unknown;
mod watches;
mod work;

pub(crate) use calls::Scrape;
pub(crate) use certificates::EtcdCertificates;
pub(crate) use listener::EtcdListener;
pub(crate) use options::{BrowserOptions, EtcdOptions};
pub(crate) use snapshot::SnapshotRoom;
