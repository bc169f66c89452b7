//! Errors of a configuration, each with its place.

use std::path::PathBuf;
use std::{fmt, io};

use super::setting::environment_variable;

/// Where a setting was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// In this line of the file; the first is 1.
    File {
        /// The file, as it was given.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// In this environment variable.
    Environment(String),
    /// In the flag with this key.
    Flag(String),
    /// It is the default of this key.
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

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{at}: {message}")]
    Syntax {
        /// Where.
        at: At,
        /// The message of the parser.
        message: String,
    },
    /// The key is unknown.
    #[error("{at}: unknown key `{key}`{}", did_you_mean(.nearest))]
    UnknownKey {
        /// Where.
        at: At,
        /// The key.
        key: String,
        /// The setting whose key is most like it.
        nearest: Option<&'static str>,
    },
    /// Text that is not UTF-8.
    #[error("{at}: it is not UTF-8: write it anew, or unset it")]
    NotUtf8 {
        /// Where.
        at: At,
    },
    /// A required setting is missing.
    #[error(
        "{key} is not set. {help}. Set it in the configuration file, in {} or with --{key}",
        environment_variable(key)
    )]
    Missing {
        /// The key.
        key: &'static str,
        /// Its help.
        help: &'static str,
    },
    /// A value is of the wrong type.
    #[error("{at}: {key} is {found}, and must be {expected}")]
    WrongType {
        /// Where.
        at: At,
        /// The key.
        key: &'static str,
        /// The type that is expected.
        expected: &'static str,
        /// The type that was found.
        found: &'static str,
    },
    /// A value of the right type is invalid.
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
    /// Two settings contradict each other.
    #[error("{at}: {problem}")]
    Relation {
        /// Where one of them was set.
        at: At,
        /// Which, why, and what would be valid.
        problem: String,
    },
    /// Two sockets have the same address.
    #[error("{at}: {first} and {second} are both {address}: give each a port of its own")]
    SameSocket {
        /// Where one of them was set.
        at: At,
        /// One key.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The address.
        address: String,
    },
    /// Two members have the same name.
    #[error("{at}: cluster.initial names `{name}` twice: every node needs a name of its own")]
    DuplicateNode {
        /// Where the second one was given.
        at: At,
        /// The name.
        name: String,
    },
    /// Two members have the same address.
    #[error(
        "{at}: cluster.initial gives `{first}` and `{second}` the same address {address}: every \
         node needs an address of its own"
    )]
    DuplicateAddress {
        /// Where the second one was given.
        at: At,
        /// The address.
        address: String,
        /// The first member.
        first: String,
        /// The second member.
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
        /// The names of the members.
        members: Vec<String>,
    },
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(key) => format!(": did you mean `{key}`?"),
        None => ": `leasehold serve --help` lists all keys".to_owned(),
    }
}
