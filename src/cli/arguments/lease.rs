//! What can be typed after `leasehold lease`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration::parse_duration;
use crate::api::LEASE_NAME_BYTES_MAX;

/// What to do with leases.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// Grant a lease
    #[command(after_help = "Examples:
  leasehold lease grant 60                 sixty seconds
  leasehold lease grant 1500ms --name server1Lease --owner host-7")]
    Grant(GrantArgs),
    /// Revoke a lease and delete the keys attached to it
    #[command(after_help = "Examples:
  leasehold lease revoke 1f
  leasehold lease revoke server1Lease
  leasehold lease revoke name:1f           the lease that is named 1f

Only the lease that has the id or the name now: one that gets either after it is left alone.")]
    Revoke(LeaseArgs),
    /// Show the remaining time of a lease
    #[command(after_help = "Examples:
  leasehold lease timetolive 1f --keys
  leasehold lease timetolive server1Lease

Exits with 5 if the lease does not exist.")]
    Timetolive(TimeToLiveArgs),
    /// List leases
    #[command(after_help = "Examples:
  leasehold lease list -o table
  leasehold lease list --owner host-7")]
    List(ListArgs),
    /// Keep a lease alive until it ends or this process is stopped
    #[command(after_help = "Examples:
  leasehold lease keep-alive 1f
  leasehold lease keep-alive server1Lease
  leasehold lease keep-alive 1f --once

Keeps the lease that has the id or the name when it begins, and no other that gets either after it. \
Exits with 6 when the lease is lost.")]
    KeepAlive(KeepAliveArgs),
    /// Show the leases that are closest to expiry, updated live
    #[command(after_help = "Examples:
  leasehold lease top
  leasehold lease top --owner host-7 --limit 5 --interval 500ms
  leasehold lease top -o json              once, for programs

A lease is at risk while less than a third of its TTL is left: a healthy holder renews it when a \
third has passed. Each update scans all leases.")]
    Top(TopArgs),
    /// Tell when a lease, or any of several, is granted, extended, given another TTL, or ends, and why
    #[command(after_help = "Examples:
  leasehold lease watch 1f                       until it ends
  leasehold lease watch server1Lease --renewals
  leasehold lease watch --name-prefix job/       until interrupted
  leasehold lease watch -o json                  all leases, a document in each line

There is no history of leases: it looks once in each --interval, and tells what has changed since the \
look before. What begins and ends between two looks is not told, and several renewals are told as one. \
A look at one lease is a read; a look at several goes through all leases of the cluster. Why a lease \
ended is known of the last few thousand that ended.

Exits with 0 when the one lease that it watches has ended, and with 5 if there is no such lease.")]
    Watch(WatchArgs),
    /// Change the TTL of a lease, from its next renewal on
    #[command(after_help = "Examples:
  leasehold lease update-ttl 1f 30s
  leasehold lease update-ttl server1Lease 30s")]
    UpdateTtl(UpdateTtlArgs),
}

/// Grant a lease.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// TTL of the lease: seconds, or a number with a unit
    #[arg(value_name = "TTL", value_parser = parse_ttl, allow_hyphen_values = true)]
    pub ttl_ms: i64,
    /// Id of the lease, in hexadecimal or as dec:31; default: chosen by the cluster
    #[arg(long, value_parser = parse_id, value_name = "ID")]
    pub id: Option<i64>,
    /// Name of the lease, unique among all leases
    #[arg(long)]
    pub name: Option<String>,
    /// Owner of the lease
    #[arg(long)]
    pub owner: Option<String>,
}

/// Which lease.
#[derive(Debug, Args)]
pub struct LeaseArgs {
    /// Which lease: its id, in hexadecimal or as dec:31, or its name
    #[arg(value_parser = parse_lease, value_name = "LEASE")]
    pub lease: LeaseText,
}

/// Show the remaining time of a lease.
#[derive(Debug, Args)]
pub struct TimeToLiveArgs {
    /// Which lease: its id, in hexadecimal or as dec:31, or its name
    #[arg(value_parser = parse_lease, value_name = "LEASE")]
    pub lease: LeaseText,
    /// Also show the keys attached to it
    #[arg(long)]
    pub keys: bool,
}

/// List leases.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only leases of this owner
    #[arg(long, default_value = "")]
    pub owner: String,
    /// Only leases whose name has this prefix
    #[arg(long, default_value = "", value_name = "PREFIX")]
    pub name_prefix: String,
}

/// Show leases that are nearest to their end.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Number of leases to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    /// Interval between updates
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Number of updates; default: until interrupted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Only leases of this owner
    #[arg(long, default_value = "")]
    pub owner: String,
    /// Only leases whose name has this prefix
    #[arg(long, default_value = "", value_name = "PREFIX")]
    pub name_prefix: String,
}

/// Watch leases.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Which lease: its id, in hexadecimal or as dec:31, or its name; without it, all leases
    #[arg(value_parser = parse_lease, value_name = "LEASE")]
    pub lease: Option<LeaseText>,
    /// Also tell of renewals
    #[arg(long)]
    pub renewals: bool,
    /// Interval between looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Only leases of this owner
    #[arg(long, default_value = "", conflicts_with = "lease")]
    pub owner: String,
    /// Only leases whose name has this prefix
    #[arg(
        long,
        default_value = "",
        value_name = "PREFIX",
        conflicts_with = "lease"
    )]
    pub name_prefix: String,
}

/// Renew a lease.
#[derive(Debug, Args)]
pub struct KeepAliveArgs {
    /// Which lease: its id, in hexadecimal or as dec:31, or its name
    #[arg(value_parser = parse_lease, value_name = "LEASE")]
    pub lease: LeaseText,
    /// Renew it once and exit
    #[arg(long)]
    pub once: bool,
}

/// Give a lease another time to live.
#[derive(Debug, Args)]
pub struct UpdateTtlArgs {
    /// Which lease: its id, in hexadecimal or as dec:31, or its name
    #[arg(value_parser = parse_lease, value_name = "LEASE")]
    pub lease: LeaseText,
    /// New TTL of the lease: seconds, or a number with a unit
    #[arg(value_name = "TTL", value_parser = parse_ttl, allow_hyphen_values = true)]
    pub ttl_ms: i64,
}

/// A lease as it is typed.
///
/// `id:1f` and, in decimal, `dec:31` are an id and `name:1f` is a name. So is what can be nothing else: an id with all
/// its digits, as it is printed, or with `0x`, or in decimal as JSON has it; and a name that does not read as an id. A
/// few hexadecimal digits, as `1f` or `db`, may be either: which of the two is meant is settled by asking whether a
/// lease has that name, and then it is for the user to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseText {
    /// Its id.
    Id(i64),
    /// Its name.
    Name(String),
    /// Reads as an id, and may be a name.
    Short {
        /// The id that it reads as.
        id: i64,
        /// As it was typed.
        text: String,
    },
}

/// A lease, by its id or its name.
pub fn parse_lease(text: &str) -> Result<LeaseText, String> {
    if let Some(id) = text.strip_prefix("id:") {
        return Ok(LeaseText::Id(parse_id(id)?));
    }
    if text.starts_with("dec:") {
        return Ok(LeaseText::Id(parse_id(text)?));
    }
    if let Some(name) = text.strip_prefix("name:") {
        return named(name);
    }
    let Some(id) = read_id(text) else {
        return named(text);
    };
    let id = i64::try_from(id).ok().filter(|id| *id > 0);
    match id {
        None => Err(format!(
            "it reads as the id of a lease, and no lease has this one: a lease of that name is written name:{text}"
        )),
        Some(id) if text.len() >= ID_DIGITS || text.starts_with("0x") => Ok(LeaseText::Id(id)),
        Some(id) => Ok(LeaseText::Short {
            id,
            text: text.to_owned(),
        }),
    }
}

fn named(name: &str) -> Result<LeaseText, String> {
    match name.len() {
        1..=LEASE_NAME_BYTES_MAX => Ok(LeaseText::Name(name.to_owned())),
        bytes => Err(format!(
            "write the id of a lease in hexadecimal, as it was printed, or its name, which has 1 to \
             {LEASE_NAME_BYTES_MAX} bytes; this has {bytes}"
        )),
    }
}

/// As many as an id has that is printed.
const ID_DIGITS: usize = 16;

/// The id of a lease.
pub fn parse_id(text: &str) -> Result<i64, String> {
    let id = read_id(text).and_then(|id| i64::try_from(id).ok());
    id.filter(|id| *id > 0).ok_or_else(|| {
        "write the id of a lease in hexadecimal, as it was printed, or in decimal as dec:31"
            .to_owned()
    })
}

/// An id as it is printed, in hexadecimal, or in decimal after `dec:`; without that, if it has more digits than
/// any in hexadecimal, as most ids have in JSON.
pub fn read_id(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("dec:") {
        return digits.parse().ok();
    }
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > ID_DIGITS => text.parse().ok(),
        None => u64::from_str_radix(text, 16).ok(),
    }
}

/// Whole seconds, as etcdctl takes them, or a number with its unit; in milliseconds.
pub(super) fn parse_ttl(text: &str) -> Result<i64, String> {
    if let Ok(seconds) = text.parse::<i64>() {
        return Ok(seconds.saturating_mul(1_000));
    }
    match humantime::parse_duration(text) {
        Ok(ttl) => Ok(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
        Err(_) => Err("write seconds, or a number with its unit, for example 60 or 1500ms".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s19_a_time_to_live_is_seconds_or_says_its_unit() {
        for (text, ms) in [
            ("60", 60_000),
            ("1500ms", 1_500),
            ("2m", 120_000),
            ("-5", -5_000),
        ] {
            assert_eq!(parse_ttl(text), Ok(ms));
        }
        assert!(parse_ttl("99999999999999999999s").is_err());
        assert!(parse_ttl("soon").is_err());
    }

    #[test]
    fn an_id_is_read_as_it_is_printed() {
        assert_eq!(parse_id("000000000000001f"), Ok(31));
        assert_eq!(parse_id("0x1f"), Ok(31));
        assert_eq!(parse_id("7587886430713872123"), Ok(0x694d9681a2b4fefb));
        assert_eq!(read_id("9373117938262979177"), Some(0x8214011a9c01b269));
        assert_eq!(parse_id("dec:31"), Ok(31));
        assert_eq!(read_id("dec:9373117938262979177"), Some(0x8214011a9c01b269));
        for bad in [
            "",
            "0",
            "-1",
            "xyz",
            "ffffffffffffffff",
            "dec:",
            "dec:1f",
            "dec:-1",
            "dec:0",
        ] {
            assert!(parse_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lease_is_an_id_or_a_name_and_a_few_digits_may_be_either() {
        let name = |name: &str| LeaseText::Name(name.to_owned());
        let short = |text: &str, id| LeaseText::Short {
            id,
            text: text.to_owned(),
        };
        for (text, lease) in [
            ("000000000000001f", LeaseText::Id(31)),
            ("0x1f", LeaseText::Id(31)),
            ("7587886430713872123", LeaseText::Id(0x694d9681a2b4fefb)),
            ("id:1f", LeaseText::Id(31)),
            ("dec:31", LeaseText::Id(31)),
            ("id:dec:31", LeaseText::Id(31)),
            ("31", short("31", 0x31)),
            ("1f", short("1f", 31)),
            ("db", short("db", 0xdb)),
            ("server1Lease", name("server1Lease")),
            ("-1", name("-1")),
            ("name:1f", name("1f")),
            ("name:name:x", name("name:x")),
            ("name:0", name("0")),
        ] {
            assert_eq!(parse_lease(text), Ok(lease), "{text}");
        }
        let long = "n".repeat(LEASE_NAME_BYTES_MAX + 1);
        for bad in [
            "",
            "name:",
            "id:",
            "id:xyz",
            "id:0",
            "0",
            "ffffffffffffffff",
            &long,
        ] {
            assert!(parse_lease(bad).is_err(), "{bad}");
        }
        let zero = parse_lease("0").unwrap_err();
        assert!(zero.contains("name:0"), "{zero}");
    }
}
