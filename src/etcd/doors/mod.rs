//! Where the fuzz targets enter: what strangers send to the port for etcd's clients, and nothing else of
//! this part. Bytes go in, and bytes or requests of our own come out.

mod requests;

pub use requests::{Meant, Understood, messages, request};
