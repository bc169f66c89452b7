//! What can be wrong with a configuration, said with its place.

use std::path::PathBuf;
use std::{fmt, io};

use super::environment_variable;

/// Where a setting was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// In the file, in this line (the first is 1).
    File {
        /// The file, as it was named to us.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// In this environment variable.
    Environment(String),
    /// In the flag of this key.
    Flag(String),
    /// Nowhere: it is the default of this key.
    Default(&'static str),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(key) => write!(f, "flag --{key}"),
            Self::Default(key) => write!(f, "default of {key}"),
        }
    }
}

/// Why there is no valid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{at}: {message}")]
    Syntax {
        /// Where.
        at: At,
        /// What the parser expected.
        message: String,
    },
    /// Nobody knows this key.
    #[error("{at}: unknown key `{key}`{}", did_you_mean(.nearest))]
    UnknownKey {
        /// Where.
        at: At,
        /// What was written.
        key: String,
        /// The known key that looks most like it.
        nearest: Option<&'static str>,
    },
    /// A key without which nothing works is not set.
    #[error(
        "{key} is not set. {help}. Set it in the configuration file, in {} or with --{key}",
        environment_variable(key)
    )]
    Missing {
        /// The key.
        key: &'static str,
        /// What it is for.
        help: &'static str,
    },
    /// A value is of the wrong type.
    #[error("{at}: {key} is {found}, and must be {expected}")]
    WrongType {
        /// Where.
        at: At,
        /// The key.
        key: &'static str,
        /// What would be right.
        expected: &'static str,
        /// What was found.
        found: &'static str,
    },
    /// A value of the right type cannot be used.
    #[error("{at}: {key} = `{value}`: {problem}")]
    Invalid {
        /// Where.
        at: At,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// Why, and what would be valid.
        problem: String,
    },
    /// Two settings do not go together.
    #[error("{at}: {problem}")]
    Relation {
        /// Where the first of them was set.
        at: At,
        /// Which, why, and what would be valid.
        problem: String,
    },
    /// Two sockets would have the same address.
    #[error("{at}: {first} and {second} are both {address}: give each a port of its own")]
    SameSocket {
        /// Where the first of them was set.
        at: At,
        /// One key.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The address.
        address: String,
    },
    /// A name stands twice among the members.
    #[error("{at}: cluster.initial names `{name}` twice: every node needs a name of its own")]
    DuplicateNode {
        /// Where the second stands.
        at: At,
        /// The name.
        name: String,
    },
    /// An address stands twice among the members.
    #[error(
        "{at}: cluster.initial gives `{first}` and `{second}` the same address {address}: every \
         node needs an address of its own"
    )]
    DuplicateAddress {
        /// Where the second stands.
        at: At,
        /// The address.
        address: String,
        /// Who has it.
        first: String,
        /// Who has it too.
        second: String,
    },
    /// This node is not among the members.
    #[error(
        "{at}: cluster.initial does not list this node: node.name is `{name}`, the members are {}; \
         correct the name, or add `{name}=host:port`",
        .members.join(", ")
    )]
    NotAMember {
        /// Where the members were given.
        at: At,
        /// This node's name.
        name: String,
        /// Who is there.
        members: Vec<String>,
    },
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(key) => format!(": did you mean `{key}`?"),
        None => ": `leasehold serve --help` lists all keys".to_owned(),
    }
}
