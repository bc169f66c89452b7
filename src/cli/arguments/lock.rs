//! What can be typed after `leasehold lock` and `leasehold elect`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;

use super::lease::parse_ttl;
use crate::api::Fence;

/// Hold a lock.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold lock mylock                        hold it until interrupted
  leasehold lock mylock --ttl 10s -- ./job.sh  hold it while a command runs
  leasehold lock mylock --wait 0 -- ./job.sh   only if nobody else holds it

Without a command it prints the key of the lock and the fencing token. A command finds them in \
LEASEHOLD_LOCK_KEY and LEASEHOLD_FENCING_TOKEN, and the lease in LEASEHOLD_LEASE. The command is \
stopped (SIGTERM, then SIGKILL) before the lease can be lost, together with its child processes \
unless it was started from a terminal. Writes that only the holder may make name the lock:

  leasehold put k v --fence \"$LEASEHOLD_LOCK_KEY=$LEASEHOLD_FENCING_TOKEN\"

The lock is lost when its lease is, or when somebody deletes its key. --timeout is the deadline of \
the connection and of single requests, --wait that of everything from then on until the lock is \
acquired.

Exits with the code of the command, with 6 when the lock is lost, or with 8 when --wait is over.")]
pub struct LockArgs {
    /// The name of the lock
    #[arg(id = "lock_name", value_name = "NAME")]
    pub name: OsString,
    /// TTL of the lock's lease: how long the lock stays held if its holder crashes
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl_length, default_value = "10s")]
    pub ttl: Duration,
    /// How long to wait for the lock; 0 tries once, within --timeout. Default: for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = parse_wait)]
    pub wait: Option<Duration>,
    /// A command before which `--` is missing
    #[arg(hide = true, value_name = "COMMAND")]
    pub unmarked: Vec<OsString>,
    /// Command to run while the lock is held
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Campaign in an election, or observe its leader.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold elect myelection host-7      campaign, and lead until interrupted
  leasehold elect --listen myelection    print the current and every later leader

A leader prints its key and its value. Exits with 6 when leadership is lost.")]
pub struct ElectArgs {
    /// The name of the election
    #[arg(id = "election_name", value_name = "NAME")]
    pub name: OsString,
    /// Value to publish while this client is the leader
    #[arg(
        id = "election_value",
        value_name = "VALUE",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    pub value: Option<OsString>,
    /// Do not campaign; print every leader
    #[arg(long)]
    pub listen: bool,
    /// TTL of the leader's lease: how long leadership is kept if the leader crashes
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl_length, default_value = "10s")]
    pub ttl: Duration,
}

fn parse_ttl_length(text: &str) -> Result<Duration, String> {
    let ms = u64::try_from(parse_ttl(text)?).ok().filter(|ms| *ms > 0);
    ms.map(Duration::from_millis)
        .ok_or_else(|| "write how long: more than nothing".to_owned())
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    let ms = u64::try_from(parse_ttl(text)?).ok();
    ms.map(Duration::from_millis)
        .ok_or_else(|| "write how long to wait: seconds, or a number with its unit".to_owned())
}

/// The key of a lock and its token, with `=` between: the last one, for a key may have some.
pub fn parse_fence(text: &str) -> Result<Fence, String> {
    let form = "write the key of the lock, `=` and the fencing token, as in mylock/1f=42";
    let (key, token) = text.rsplit_once('=').ok_or(form)?;
    let token = token.parse().ok().filter(|token| *token > 0).ok_or(form)?;
    match key.is_empty() {
        true => Err(form.to_owned()),
        false => Ok(Fence::new(OsString::from(key).as_bytes().to_vec(), token)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_the_key_of_a_lock_and_its_token() {
        assert_eq!(parse_fence("a=b/1f=42"), Ok(Fence::new("a=b/1f", 42)));
        for bad in ["", "=", "a", "a=", "a=0", "a=-1", "a=x", "=5"] {
            assert!(parse_fence(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lock_is_kept_for_longer_than_nothing() {
        assert_eq!(parse_ttl_length("1500ms"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "soon"] {
            assert!(parse_ttl_length(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wait_may_be_none_at_all() {
        assert_eq!(parse_wait("0"), Ok(Duration::ZERO));
        assert_eq!(parse_wait("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_wait("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["-1", "soon", ""] {
            assert!(parse_wait(bad).is_err(), "{bad}");
        }
    }
}
