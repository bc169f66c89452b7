//! Where the fuzz targets enter: what strangers send to the port for etcd's clients, and nothing else of
//! this part. Bytes go in, and bytes or requests of our own come out.

mod bolt;
mod json;
mod requests;

pub use bolt::{Pairs, read_bolt, write_bolt};
pub use json::{from_json, objects, to_json};
pub use requests::{Meant, Understood, messages, request};
