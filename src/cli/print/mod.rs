//! Replies as text. Pure: takes replies, writes lines, knows no connection.
//!
//! `simple` is etcdctl's way: keys and values on lines of their own, raw, for people and pipes.
//! `fields` names each field. `json` is one document whose keys and values are base64, since they
//! are bytes. `table` is for looking at many.

mod alarms;
pub mod held;
mod json;
mod kv;
pub mod leases;
pub mod members;
pub mod snapshot;
mod status;
mod table;
mod text;

pub use self::alarms::alarms;
pub use self::json::{fields, key_value_line, line, row, with_header};
pub use self::kv::{compacted, delete, get, put, txn, watched};
pub use self::status::{EndpointHealth, EndpointStatus, health, moved, size, status};
pub use self::table::{
    Align, fit_to_output, steady_table, table, table_of_most, table_of_one, terminal,
};
pub(in crate::cli) use self::table::{lines, room};
pub use self::text::{Parts, View};
pub(in crate::cli) use self::text::{escaped, event_kind};

#[cfg(test)]
mod tests;
