//! What can be typed after the commands that read and write keys.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::lease;
use super::lease::LeaseText;
use super::lock;
use crate::api::Fence;

/// Write a key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold put foo bar
  leasehold put foo bar --prev-kv
  leasehold put foo bar --lease 1f
  leasehold put foo bar --lease server1Lease
  leasehold put foo < file")]
pub struct PutArgs {
    /// The key
    #[arg(id = "put_key", value_name = "KEY")]
    pub key: OsString,
    /// The value; read from standard input if omitted
    pub value: Option<OsString>,
    /// Show the previous value of the key
    #[arg(long)]
    pub prev_kv: bool,
    /// Keep the current value of the key, and write it again
    #[arg(long, conflicts_with = "value")]
    pub ignore_value: bool,
    /// Keep the current lease of the key
    #[arg(long, conflicts_with_all = ["lease", "lease_name"])]
    pub ignore_lease: bool,
    /// Attach the key to this lease: its id, in hexadecimal or as dec:31, or its name
    #[arg(long, value_parser = lease::parse_lease, value_name = "LEASE", conflicts_with = "lease_name")]
    pub lease: Option<LeaseText>,
    /// Attach the key to the lease with this name
    #[arg(long, value_name = "NAME")]
    pub lease_name: Option<String>,
    /// Write only while this lock is still held with this fencing token: the key of the lock and
    /// the token
    #[arg(long, value_name = "KEY=TOKEN", value_parser = lock::parse_fence)]
    pub fence: Vec<Fence>,
}

impl PutArgs {
    /// The lease that the key is attached to, if one is named.
    pub fn lease_text(&self) -> Option<LeaseText> {
        let named = || self.lease_name.clone().map(LeaseText::Name);
        self.lease.clone().or_else(named)
    }
}

/// Which keys, beginning with the one given.
#[derive(Debug, Args)]
pub struct RangeArgs {
    /// The key, or the start of the range
    #[arg(id = "range_key", value_name = "KEY", required_unless_present_any = ["prefix", "from_key"])]
    pub key: Option<OsString>,
    /// The end of the range, exclusive
    #[arg(value_name = "RANGE_END", conflicts_with_all = ["prefix", "from_key"])]
    pub end: Option<OsString>,
    /// All keys with the prefix KEY; without KEY, all keys
    #[arg(long, conflicts_with = "from_key")]
    pub prefix: bool,
    /// All keys from KEY on
    #[arg(long)]
    pub from_key: bool,
}

/// Watch a key, or a range of keys, and print its changes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold watch foo
  leasehold watch --prefix /svc/ --rev 10 --prev-kv
  leasehold watch a c -o json      the keys from a up to, not including, c
  leasehold watch foo -- sh -c 'echo $LEASEHOLD_WATCH_EVENT_TYPE $LEASEHOLD_WATCH_KEY'

The command is run for each event, one after the other, with LEASEHOLD_WATCH_EVENT_TYPE,
LEASEHOLD_WATCH_REVISION, LEASEHOLD_WATCH_KEY and LEASEHOLD_WATCH_VALUE in its environment.")]
pub struct WatchArgs {
    /// Which keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Start with the changes of this revision; 0 for changes from now on
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub rev: i64,
    /// Show previous values as well
    #[arg(long)]
    pub prev_kv: bool,
    /// Print periodic progress notifications
    #[arg(long)]
    pub progress_notify: bool,
    /// Leave out puts
    #[arg(long, conflicts_with = "no_delete")]
    pub no_put: bool,
    /// Leave out deletes
    #[arg(long)]
    pub no_delete: bool,
    /// Start with the current values of the keys
    #[arg(long, conflicts_with = "rev")]
    pub initial_state: bool,
    /// A command to run for each event
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Read a key, or a range of keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold get foo
  leasehold get foo -o fields
  leasehold get --prefix /svc/ --keys-only --limit 2
  leasehold get a c                the keys from a up to, not including, c
  leasehold get foo --consistency q
  leasehold get foo --rev 12       as of revision 12
  leasehold get --prefix /svc/ --sort-by modify --order descend --limit 1

If the key does not exist, nothing is printed and the exit code is 5.")]
pub struct GetArgs {
    /// Which keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Maximum number of keys; 0 for all
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub limit: u64,
    /// Do not print the values
    #[arg(long, conflicts_with_all = ["count_only", "print_value_only"])]
    pub keys_only: bool,
    /// Print only the number of keys
    #[arg(long, conflicts_with = "print_value_only")]
    pub count_only: bool,
    /// Do not print the keys (in simple output)
    #[arg(long)]
    pub print_value_only: bool,
    /// Read the store as of this revision; 0 for the current one
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub rev: i64,
    /// Sort order of the keys
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        default_value = "key",
        value_name = "WHAT"
    )]
    pub sort_by: SortBy,
    /// Sort direction
    #[arg(long, value_enum, ignore_case = true, value_name = "ORDER")]
    pub order: Option<Order>,
    /// Only keys last modified at this revision or later
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub min_mod_rev: i64,
    /// Only keys last modified at this revision or earlier
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub max_mod_rev: i64,
    /// Only keys created at this revision or later
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub min_create_rev: i64,
    /// Only keys created at this revision or earlier
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub max_create_rev: i64,
}

/// By what keys are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// The key
    Key,
    /// Number of times the key was written
    Version,
    /// Revision of its creation
    Create,
    /// Revision of its last modification
    Modify,
    /// The value
    Value,
}

/// Sort direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Smallest first
    Ascend,
    /// Largest first
    Descend,
}

/// Delete a key, or a range of keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold del foo
  leasehold del a c                the keys from a up to, not including, c
  leasehold del --prefix /svc/ --prev-kv
  leasehold del --all              every key; asks first on a terminal

Prints the number of deleted keys; and on standard error the revision, which `leasehold compaction` \
takes.")]
pub struct DelArgs {
    /// The key, or the start of the range; must not be empty
    #[arg(id = "del_key", value_name = "KEY", required_unless_present = "all")]
    pub key: Option<OsString>,
    /// The end of the range, exclusive
    #[arg(id = "del_end", value_name = "RANGE_END", conflicts_with_all = ["prefix", "from_key", "all"])]
    pub end: Option<OsString>,
    /// All keys with the prefix KEY
    #[arg(long, conflicts_with = "from_key")]
    pub prefix: bool,
    /// All keys from KEY on
    #[arg(long)]
    pub from_key: bool,
    /// Every key of the store; then KEY is left out, or empty
    #[arg(long)]
    pub all: bool,
    /// Show the previous values of the keys
    #[arg(long)]
    pub prev_kv: bool,
    /// Write only while this lock is still held with this fencing token: the key of the lock and
    /// the token
    #[arg(long, value_name = "KEY=TOKEN", value_parser = lock::parse_fence)]
    pub fence: Vec<Fence>,
}

/// Compare, and do one thing or another.
#[derive(Debug, Args)]
#[command(after_help = "\
The transaction is read from standard input, in three parts that end with an empty line or the end \
of the input: the comparisons; the operations to run if all of them hold; the operations to run \
otherwise.

  value(\"owner\") = \"a\"        also version, create, mod and lease (its id or name); also !=, < and >
  mod(\"since\") > \"0\"

  put owner b                 put, get and del, with their options
  get --prefix task/

  get owner

It prints SUCCESS if all comparisons held or FAILURE if not, and then the reply of each operation.
An empty list of comparisons always holds. All changes share one revision; no key may be written \
twice.

Examples:
  leasehold txn < file
  leasehold txn -i             prompts for the three parts
  printf 'mod(\"k\") = \"0\"\\n\\nput k v\\n' | leasehold txn")]
pub struct TxnArgs {
    /// Prompt for each part on standard error
    #[arg(short = 'i', long)]
    pub interactive: bool,
}

/// Compact history up to a revision.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold compaction 1234
  leasehold compaction 1234 --physical
  leasehold compaction --physical   up to now: what was deleted is gone from the disks

Afterwards, older revisions can no longer be read. Every key that exists at that revision keeps \
its value at it.")]
pub struct CompactionArgs {
    /// The oldest revision to keep; default with --physical: the current one
    #[arg(required_unless_present = "physical", value_parser = clap::value_parser!(i64).range(1..))]
    pub revision: Option<i64>,
    /// Have every node reclaim the disk space, and wait until the endpoints have done so
    #[arg(long)]
    pub physical: bool,
}

fn parse_revision(text: &str) -> Result<i64, String> {
    let revision = text.parse().ok().filter(|revision| *revision >= 0);
    revision.ok_or_else(|| "write a revision: a whole number, 0 leaves it open".to_owned())
}
