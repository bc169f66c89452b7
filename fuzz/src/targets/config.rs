//! The configuration: any file, any variables, any flags.

use std::fs;

use leasehold::raft::Timing;
use leasehold::server::config::{ClusterState, Config, ConfigSources};
use leasehold::types::is_name;

use super::scratch::Scratch;
use super::trace::say;

/// Three parts with a zero byte between: the file, variables as `NAME=value` and flags as
/// `section.key=value`, one on each line. What is refused is refused with a reason, and what is
/// taken keeps the relations that everybody behind it rests on.
pub fn config_file(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let file = parts.next().unwrap_or_default();
    let pairs = |part: Option<&[u8]>| {
        let text = String::from_utf8_lossy(part.unwrap_or_default()).into_owned();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect::<Vec<_>>()
    };
    let (env, flags) = (pairs(parts.next()), pairs(parts.next()));
    let scratch = Scratch::new("toml");
    fs::write(scratch.path(), file).expect("a file can be written");
    let sources = ConfigSources {
        file: Some(scratch.path().to_owned()),
        env,
        flags,
    };
    let config = match Config::load(sources.clone()) {
        Ok(config) => config,
        Err(error) => {
            say(format_args!("{error}"));
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(Config::load(sources).ok().as_ref(), Some(&config));
    assert!(is_name(&config.node.name));
    let own = |member: &&leasehold::server::config::InitialMember| member.name == config.node.name;
    let founds = config.cluster.state == ClusterState::New;
    assert!(!founds || config.cluster.initial.iter().any(|member| own(&member)));
    assert!(config.listen.admin.ip().is_loopback());
    assert!(Timing::new(*config.timing).is_ok(), "the relations hold");
    let limits = &config.limits;
    assert!(limits.key_bytes_max + limits.value_bytes_max < limits.request_bytes_max);
    assert!(config.storage.segment_bytes >= 4 * limits.request_bytes_max as u64);
    assert!(config.work.in_flight_max > 0);
}
