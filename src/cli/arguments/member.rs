//! What can be typed after `leasehold member`.

use clap::{Args, Subcommand};

/// See and change who the members are.
#[derive(Clone, Debug, Subcommand)]
pub enum MemberCommand {
    /// Show who the members are
    #[command(after_help = "Examples:
  leasehold member list -o table
  leasehold member list --consistency s    what the node that is asked knows")]
    List,
    /// Take a node in: as a learner at first, as a voter by itself once it has caught up
    #[command(after_help = "Examples:
  leasehold member add n4 --peer-urls 10.0.0.4:7401
  leasehold member add n4 --peer-urls 10.0.0.4:7401 --learner    until it is promoted

The node needs a certificate of that name, an empty data directory, cluster.state = \"join\", and
cluster.initial naming members that it can ask. It may be started before or after this.")]
    Add(MemberAddArgs),
    /// Let a member go: it stops, and says why
    #[command(after_help = "Examples:
  leasehold member remove n4
  leasehold member remove 8211f1d0f64f3269")]
    Remove(MemberArgs),
    /// Make a voter of a learner that has caught up
    #[command(after_help = "Example:
  leasehold member promote n4")]
    Promote(MemberArgs),
    /// Note down another address of a member
    #[command(after_help = "Example:
  leasehold member update n4 --peer-urls 10.0.0.9:7401

Members that are connected tell each other where they are; this is for those that are not.")]
    Update(MemberUpdateArgs),
    /// Put a member in the place of another, in one step; or build a member anew whose data is lost
    #[command(after_help = "Examples:
  leasehold member replace n2                                      its data is lost, or damaged
  leasehold member replace n2 --with n4 --peer-urls 10.0.0.4:7401  another node takes its place

A member that is built anew needs an empty data directory and cluster.state = \"existing\" (or \"join\"); \
it may be started before or after this. Until it has caught up it votes for nothing.")]
    Replace(MemberReplaceArgs),
}

/// Take a node in.
#[derive(Clone, Debug, Args)]
pub struct MemberAddArgs {
    /// Its name, as in its certificate
    pub name: String,
    /// Where the other nodes reach it, as host:port
    #[arg(long, value_name = "HOST:PORT", visible_alias = "peer-addr")]
    pub peer_urls: String,
    /// Where clients reach it, as host:port; it says so itself once it runs
    #[arg(long, value_name = "HOST:PORT", visible_alias = "client-addr")]
    pub client_urls: Option<String>,
    /// It stays a learner until it is promoted
    #[arg(long)]
    pub learner: bool,
}

/// One member.
#[derive(Clone, Debug, Args)]
pub struct MemberArgs {
    /// The member, by name or id
    pub member: String,
}

/// Note down another address of a member.
#[derive(Clone, Debug, Args)]
pub struct MemberUpdateArgs {
    /// The member, by name or id
    pub member: String,
    /// Where the other nodes reach it, as host:port
    #[arg(long, value_name = "HOST:PORT", visible_alias = "peer-addr")]
    pub peer_urls: Option<String>,
    /// Where clients reach it, as host:port
    #[arg(long, value_name = "HOST:PORT", visible_alias = "client-addr")]
    pub client_urls: Option<String>,
}

/// Put a member in the place of another.
#[derive(Clone, Debug, Args)]
pub struct MemberReplaceArgs {
    /// The member to be replaced, by name or id
    pub member: String,
    /// The node that takes its place, by the name in its certificate; default: the same, built anew
    #[arg(long, value_name = "NAME", requires = "peer_urls")]
    pub with: Option<String>,
    /// Where the other nodes reach it, as host:port; default: where they reach the one to be replaced
    #[arg(long, value_name = "HOST:PORT", visible_alias = "peer-addr")]
    pub peer_urls: Option<String>,
    /// Where clients reach it, as host:port; it says so itself once it runs
    #[arg(long, value_name = "HOST:PORT", visible_alias = "client-addr")]
    pub client_urls: Option<String>,
}
