//! What can be typed after `leasehold lease`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration::parse_duration;

/// What to do with leases.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// Grant a lease
    #[command(after_help = "Examples:
  leasehold lease grant 60                 sixty seconds
  leasehold lease grant 1500ms --name server1Lease --owner host-7")]
    Grant(GrantArgs),
    /// Revoke a lease and delete the keys attached to it
    #[command(after_help = "Example:\n  leasehold lease revoke 1f")]
    Revoke(LeaseArgs),
    /// Show the remaining time of a lease
    #[command(after_help = "Example:
  leasehold lease timetolive 1f --keys

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
  leasehold lease keep-alive 1f --once

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
    /// Change the TTL of a lease, from its next renewal on
    #[command(after_help = "Example:\n  leasehold lease update-ttl 1f 30s")]
    UpdateTtl(UpdateTtlArgs),
}

/// Grant a lease.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// TTL of the lease: seconds, or a number with a unit
    #[arg(value_name = "TTL", value_parser = parse_ttl, allow_hyphen_values = true)]
    pub ttl_ms: i64,
    /// Id of the lease, in hexadecimal; default: chosen by the cluster
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
    /// Id of the lease, in hexadecimal
    #[arg(value_parser = parse_id, value_name = "ID")]
    pub id: i64,
}

/// Show the remaining time of a lease.
#[derive(Debug, Args)]
pub struct TimeToLiveArgs {
    /// Id of the lease, in hexadecimal
    #[arg(value_parser = parse_id, value_name = "ID")]
    pub id: i64,
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

/// Renew a lease.
#[derive(Debug, Args)]
pub struct KeepAliveArgs {
    /// Id of the lease, in hexadecimal
    #[arg(value_parser = parse_id, value_name = "ID")]
    pub id: i64,
    /// Renew it once and exit
    #[arg(long)]
    pub once: bool,
}

/// Give a lease another time to live.
#[derive(Debug, Args)]
pub struct UpdateTtlArgs {
    /// Id of the lease, in hexadecimal
    #[arg(value_parser = parse_id, value_name = "ID")]
    pub id: i64,
    /// New TTL of the lease: seconds, or a number with a unit
    #[arg(value_name = "TTL", value_parser = parse_ttl, allow_hyphen_values = true)]
    pub ttl_ms: i64,
}

/// The id of a lease.
pub fn parse_id(text: &str) -> Result<i64, String> {
    let id = read_id(text).and_then(|id| i64::try_from(id).ok());
    id.filter(|id| *id > 0)
        .ok_or_else(|| "write the id of a lease in hexadecimal, as it was printed".to_owned())
}

/// An id as it is printed, in hexadecimal, or as JSON has it, in decimal: then it has more digits than
/// any in hexadecimal.
pub fn read_id(text: &str) -> Option<u64> {
    const HEX_DIGITS_MAX: usize = 16;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > HEX_DIGITS_MAX => text.parse().ok(),
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
        for bad in ["", "0", "-1", "xyz", "ffffffffffffffff"] {
            assert!(parse_id(bad).is_err(), "{bad}");
        }
    }
}
