//! What each target does with its bytes: a function that returns if all is well and panics if not.
//!
//! Three things must hold wherever bytes come in: there is a result and no panic; what is taken
//! for memory follows what came, never what it claims; and what was understood is what was meant,
//! by a round trip or by a model.

#[cfg(feature = "cli")]
pub mod certificate;
#[cfg(feature = "cli")]
pub mod command_line;
#[cfg(feature = "cli")]
pub mod config;
pub mod disk;
pub mod draw;
#[cfg(feature = "cli")]
pub mod etcd;
pub mod meter;
pub mod trace;

pub mod kv;
pub mod leases;
pub mod log;
pub mod node;
pub mod peer;
pub mod raft;
pub mod ranges;
#[cfg(feature = "cli")]
pub mod scratch;
pub mod state;
pub mod wire;

/// A target by its name: that of its binary and of its folder of seeds.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frames",
        run: wire::frames,
    },
    Target {
        name: "client_messages",
        run: wire::client_messages,
    },
    Target {
        name: "server_messages",
        run: wire::server_messages,
    },
    Target {
        name: "peer_messages",
        run: wire::peer_messages,
    },
    Target {
        name: "raft_inputs",
        run: raft::raft_inputs,
    },
    Target {
        name: "node_inputs",
        run: node::node_inputs,
    },
    Target {
        name: "commands",
        run: kv::commands,
    },
    Target {
        name: "kv_model",
        run: kv::kv_model,
    },
    Target {
        name: "log_files",
        run: log::log_files,
    },
    Target {
        name: "state_stream",
        run: state::state_stream,
    },
    #[cfg(feature = "cli")]
    Target {
        name: "config_file",
        run: config::config_file,
    },
    #[cfg(feature = "cli")]
    Target {
        name: "certificates",
        run: certificate::certificates,
    },
    #[cfg(feature = "cli")]
    Target {
        name: "etcd_requests",
        run: etcd::requests::etcd_requests,
    },
    #[cfg(feature = "cli")]
    Target {
        name: "etcd_json",
        run: etcd::json::etcd_json,
    },
    #[cfg(feature = "cli")]
    Target {
        name: "bbolt_files",
        run: etcd::bolt::bbolt_files,
    },
    #[cfg(feature = "cli")]
    Target {
        name: "command_line",
        run: command_line::command_line,
    },
];
