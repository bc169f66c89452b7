//! What can be typed after the commands that read and write keys.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::lease;
use super::lock;
use crate::api::Fence;

/// Write a key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold put foo bar
  leasehold put foo bar --prev-kv
  leasehold put foo < file")]
pub struct PutArgs {
    /// The key
    #[arg(id = "put_key", value_name = "KEY")]
    pub key: OsString,
    /// The value; read from standard input when left out
    pub value: Option<OsString>,
    /// Show what the key held before
    #[arg(long)]
    pub prev_kv: bool,
    /// Keep the value that the key has, and write it anew
    #[arg(long, conflicts_with = "value")]
    pub ignore_value: bool,
    /// Keep the lease that the key is attached to
    #[arg(long, conflicts_with_all = ["lease", "lease_name"])]
    pub ignore_lease: bool,
    /// Attach the key to this lease: its id, in hexadecimal
    #[arg(long, value_parser = lease::parse_id, value_name = "ID", conflicts_with = "lease_name")]
    pub lease: Option<i64>,
    /// Attach the key to the lease of this name
    #[arg(long, value_name = "NAME")]
    pub lease_name: Option<String>,
    /// Only as long as this lock is held by whom it was given to: its key, and the fencing token
    #[arg(long, value_name = "KEY=TOKEN", value_parser = lock::parse_fence)]
    pub fence: Vec<Fence>,
}

/// Which keys, beginning with the one given.
#[derive(Debug, Args)]
pub struct RangeArgs {
    /// The key, or where the range begins
    #[arg(id = "range_key", value_name = "KEY", required_unless_present_any = ["prefix", "from_key"])]
    pub key: Option<OsString>,
    /// Where the range ends; this key is not in it
    #[arg(value_name = "RANGE_END", conflicts_with_all = ["prefix", "from_key"])]
    pub end: Option<OsString>,
    /// Every key that begins with KEY; without KEY, every key
    #[arg(long, conflicts_with = "from_key")]
    pub prefix: bool,
    /// KEY and every key after it
    #[arg(long)]
    pub from_key: bool,
}

/// Show what happens to a key, or to a range of keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold watch foo
  leasehold watch --prefix /svc/ --rev 10 --prev-kv
  leasehold watch a c -o json      the keys from a up to, not including, c
  leasehold watch foo -- sh -c 'echo $LEASEHOLD_WATCH_EVENT_TYPE $LEASEHOLD_WATCH_KEY'

A command is run for each event, one after the other, with LEASEHOLD_WATCH_EVENT_TYPE,
LEASEHOLD_WATCH_REVISION, LEASEHOLD_WATCH_KEY and LEASEHOLD_WATCH_VALUE in its environment.")]
pub struct WatchArgs {
    /// Which keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Begin with the changes of this revision; 0 for what comes from now on
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub rev: i64,
    /// Also show what a key held before
    #[arg(long)]
    pub prev_kv: bool,
    /// Say from time to time how far the watch is
    #[arg(long)]
    pub progress_notify: bool,
    /// Leave out puts
    #[arg(long, conflicts_with = "no_delete")]
    pub no_put: bool,
    /// Leave out deletes
    #[arg(long)]
    pub no_delete: bool,
    /// Begin with what the keys hold now
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
  leasehold get foo --rev 12       as it was at revision 12
  leasehold get --prefix /svc/ --sort-by modify --order descend --limit 1

A key that does not exist prints nothing and ends with code 5.")]
pub struct GetArgs {
    /// Which keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// At most so many keys; 0 for all
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub limit: u64,
    /// Leave the values out
    #[arg(long, conflicts_with_all = ["count_only", "print_value_only"])]
    pub keys_only: bool,
    /// Only count the keys
    #[arg(long, conflicts_with = "print_value_only")]
    pub count_only: bool,
    /// Leave the keys out (in simple output)
    #[arg(long)]
    pub print_value_only: bool,
    /// Read the store as it was at this revision; 0 for now
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub rev: i64,
    /// By what to sort
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        default_value = "key",
        value_name = "WHAT"
    )]
    pub sort_by: SortBy,
    /// In which direction
    #[arg(long, value_enum, ignore_case = true, value_name = "ORDER")]
    pub order: Option<Order>,
    /// Only keys last written at this revision or later
    #[arg(long, default_value_t = 0, value_name = "REVISION", value_parser = parse_revision)]
    pub min_mod_rev: i64,
    /// Only keys last written at this revision or earlier
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
    /// How often it was written
    Version,
    /// When it was created
    Create,
    /// When it was last written
    Modify,
    /// The value
    Value,
}

/// In which direction keys are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// The smallest first
    Ascend,
    /// The largest first
    Descend,
}

/// Delete a key, or a range of keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold del foo
  leasehold del --prefix /svc/ --prev-kv

Prints how many keys were deleted.")]
pub struct DelArgs {
    /// Which keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Show what the keys held before
    #[arg(long)]
    pub prev_kv: bool,
    /// Only as long as this lock is held by whom it was given to: its key, and the fencing token
    #[arg(long, value_name = "KEY=TOKEN", value_parser = lock::parse_fence)]
    pub fence: Vec<Fence>,
}

/// Compare, and do one thing or another.
#[derive(Debug, Args)]
#[command(after_help = "\
The transaction is read from standard input, in three parts that end with an empty line or the end of \
the input: what is compared; what is done if all of it holds; what is done if not.

  value(\"owner\") = \"a\"        also version, create, mod and lease; also !=, < and >
  mod(\"since\") > \"0\"

  put owner b                 put, get and del, with their options
  get --prefix task/

  get owner

It prints SUCCESS or FAILURE, whether all comparisons held, and then what each operation answers.
Nothing to compare always holds. All changes have one revision; no key may be written twice.

Examples:
  leasehold txn < file
  leasehold txn -i             asks for the three parts
  printf 'mod(\"k\") = \"0\"\\n\\nput k v\\n' | leasehold txn")]
pub struct TxnArgs {
    /// Say on standard error which part is to be typed
    #[arg(short = 'i', long)]
    pub interactive: bool,
}

/// Give up history.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold compaction 1234
  leasehold compaction 1234 --physical

What was before that revision cannot be read any more afterwards. Every key that exists then keeps the \
value that it has then.")]
pub struct CompactionArgs {
    /// The oldest revision to keep
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    pub revision: i64,
    /// Have every node give the space back to its disk, and wait until the endpoints have
    #[arg(long)]
    pub physical: bool,
}

fn parse_revision(text: &str) -> Result<i64, String> {
    let revision = text.parse().ok().filter(|revision| *revision >= 0);
    revision.ok_or_else(|| "write a revision: a whole number, 0 leaves it open".to_owned())
}
