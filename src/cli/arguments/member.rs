//! What can be typed after `leasehold member`.

use clap::{Args, Subcommand};

/// List and change the members of the cluster.
#[derive(Clone, Debug, Subcommand)]
pub enum MemberCommand {
    /// List the members
    #[command(after_help = "Examples:
  leasehold member list -o table
  leasehold member list --consistency s    as known to the node that is asked")]
    List,
    /// Add a member: as a learner first, promoted to voter automatically once it has caught up
    #[command(after_help = "Examples:
  leasehold member add n4 --peer-urls 10.0.0.4:7401
  leasehold member add n4 --peer-urls 10.0.0.4:7401 --learner    until it is promoted

The node needs a certificate with that name, an empty data directory, cluster.state = \"join\", and
cluster.initial with members that it can contact. Start it before or after this command.")]
    Add(MemberAddArgs),
    /// Remove a member; its process stops and reports why
    #[command(after_help = "Examples:
  leasehold member remove n4
  leasehold member remove 8211f1d0f64f3269")]
    Remove(MemberArgs),
    /// Promote a learner that has caught up to voter
    #[command(after_help = "Example:
  leasehold member promote n4")]
    Promote(MemberArgs),
    /// Change the addresses of a member
    #[command(after_help = "Example:
  leasehold member update n4 --peer-urls 10.0.0.9:7401

Connected members announce their addresses to each other; this command is for a member that cannot \
connect.")]
    Update(MemberUpdateArgs),
    /// Replace a member by another node in one step, or rebuild a member that lost its data
    #[command(after_help = "Examples:
  leasehold member replace n2                                      its data is lost or damaged
  leasehold member replace n2 --with n4 --peer-urls 10.0.0.4:7401  another node takes its place

A rebuilt member needs an empty data directory and cluster.state = \"existing\" (or \"join\"); \
start it before or after this command. It does not vote until it has caught up.")]
    Replace(MemberReplaceArgs),
}

/// Add a member.
#[derive(Clone, Debug, Args)]
pub struct MemberAddArgs {
    /// Name of the node, as in its certificate
    pub name: String,
    /// Peer address of the node, as host:port
    #[arg(long, value_name = "HOST:PORT", visible_alias = "peer-addr")]
    pub peer_urls: String,
    /// Client address of the node, as host:port; once running, the node announces it itself
    #[arg(long, value_name = "HOST:PORT", visible_alias = "client-addr")]
    pub client_urls: Option<String>,
    /// Keep it a learner until it is promoted by hand
    #[arg(long)]
    pub learner: bool,
}

/// One member.
#[derive(Clone, Debug, Args)]
pub struct MemberArgs {
    /// The member, by name or id
    pub member: String,
}

/// Change the addresses of a member.
#[derive(Clone, Debug, Args)]
pub struct MemberUpdateArgs {
    /// The member, by name or id
    pub member: String,
    /// Peer address of the node, as host:port
    #[arg(long, value_name = "HOST:PORT", visible_alias = "peer-addr")]
    pub peer_urls: Option<String>,
    /// Client address of the node, as host:port
    #[arg(long, value_name = "HOST:PORT", visible_alias = "client-addr")]
    pub client_urls: Option<String>,
}

/// Replace a member.
#[derive(Clone, Debug, Args)]
pub struct MemberReplaceArgs {
    /// The member to replace, by name or id
    pub member: String,
    /// The node that replaces it, by the name in its certificate; default: the same node, rebuilt
    #[arg(long, value_name = "NAME", requires = "peer_urls")]
    pub with: Option<String>,
    /// Peer address of the node, as host:port; default: that of the replaced member
    #[arg(long, value_name = "HOST:PORT", visible_alias = "peer-addr")]
    pub peer_urls: Option<String>,
    /// Client address of the node, as host:port; once running, the node announces it itself
    #[arg(long, value_name = "HOST:PORT", visible_alias = "client-addr")]
    pub client_urls: Option<String>,
}
