//! Alarms, as text.

use std::io;
use std::io::Write;

use serde::Serialize;

use super::json;
use super::status::EndpointStatus;
use super::table::{Align, table};
use crate::cli::arguments::Format;

/// The only alarm that members tell of here; etcd has it under this name.
const NO_SPACE: &str = "NOSPACE";

/// As JSON shows one.
#[derive(Serialize)]
struct Document<'a> {
    header: json::Header,
    member_id: u64,
    name: &'a str,
    alarm: &'a str,
    used: u64,
    quota: u64,
}

/// The alarms that are raised, of those who answered.
///
/// # Errors
/// Those of `out`.
pub fn alarms(out: &mut impl Write, format: Format, all: &[EndpointStatus]) -> io::Result<()> {
    let raised: Vec<Document<'_>> = all
        .iter()
        .filter(|one| one.status.quota.no_space)
        .map(|one| Document {
            header: json::header(&one.header),
            member_id: one.header.member_id.0,
            name: &one.status.name,
            alarm: NO_SPACE,
            used: one.status.storage_bytes,
            quota: one.status.quota.bytes,
        })
        .collect();
    match format {
        Format::Json => json::line(out, &raised),
        Format::Table => {
            let columns = [
                ("ID", Align::Left),
                ("NAME", Align::Left),
                ("ALARM", Align::Left),
                ("USED", Align::Right),
                ("QUOTA", Align::Right),
            ];
            let rows = raised.iter().map(|one| {
                vec![
                    format!("{:016x}", one.member_id),
                    one.name.to_owned(),
                    one.alarm.to_owned(),
                    super::status::size(one.used),
                    super::status::size(one.quota),
                ]
            });
            table(out, &columns, rows)
        }
        Format::Fields => raised.iter().try_for_each(|one| {
            writeln!(out, "\"MemberID\" : {}", one.member_id)?;
            writeln!(out, "\"Alarm\" : \"{}\"", one.alarm)
        }),
        // As etcdctl, but for the id: in hexadecimal, as everywhere else.
        Format::Simple => raised.iter().try_for_each(|one| {
            let (id, alarm) = (one.member_id, one.alarm);
            writeln!(out, "memberID:{id:016x} alarm:{alarm}")
        }),
    }
}
