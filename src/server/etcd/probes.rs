//! The pages for programs without gRPC: of versions, and of health.

use std::time::Duration;

use serde_json::json;

use super::options::EtcdOptions;
use crate::api::ErrorKind;
use crate::etcd::errors::Method;
use crate::server::session::Sessions;
use crate::server::status::checks;
use crate::server::status::checks::{
    Check, DATA_CORRUPTION, LINEARIZABLE_READ, NON_LEARNER, SERIALIZABLE_READ,
};

/// How long a question about health waits for the word of the leader.
const HEALTH_PATIENCE: Duration = Duration::from_secs(1);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// A page for a program without gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Version,
    Health,
    /// Its checks, of which a query may exclude some.
    Probe(Probe),
    /// One of them.
    Check(Probe, &'static str),
    Metrics,
}

/// What an orchestrator asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Whether the node is to be left alone: another one is restarted.
    Live,
    /// Whether it serves.
    Ready,
}

impl Probe {
    /// The names of its checks, as etcd 3.6 has them.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Live => &[SERIALIZABLE_READ],
            Self::Ready => &[
                DATA_CORRUPTION,
                SERIALIZABLE_READ,
                LINEARIZABLE_READ,
                NON_LEARNER,
            ],
        }
    }
}

impl Page {
    /// The one at this path, if there is one.
    pub(super) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/version" => Self::Version,
            "/health" => Self::Health,
            "/livez" => Self::Probe(Probe::Live),
            "/readyz" => Self::Probe(Probe::Ready),
            "/metrics" => Self::Metrics,
            path => {
                let (probe, name) = path.strip_prefix('/')?.split_once('/')?;
                let probe = match probe {
                    "livez" => Probe::Live,
                    "readyz" => Probe::Ready,
                    _ => return None,
                };
                Self::Check(probe, probe.names().iter().find(|check| **check == name)?)
            }
        })
    }
}

/// What is known of the versions: type and text of its page.
pub(super) fn version(options: &EtcdOptions) -> (u16, &'static str, String) {
    // In the order in which etcd gives them.
    let version = format!(
        "{{\"etcdserver\":{},\"etcdcluster\":{},\"storage\":{}}}",
        json!(options.emulated_version),
        json!(options.storage_version()),
        json!(options.storage_version()),
    );
    (200, JSON, version)
}

/// Whether the node is healthy: status, type and text of its page.
pub(super) async fn health(sessions: &Sessions, query: &str) -> (u16, &'static str, String) {
    let reason = unhealthy(sessions, &Parameters::of(query)).await;
    let (code, health) = match reason.is_empty() {
        true => (200, "true"),
        false => (503, "false"),
    };
    let page = format!("{{\"health\":\"{health}\",\"reason\":{}}}", json!(reason));
    (code, JSON, page)
}

/// A probe: all checks that are not excluded are made, and listed if one failed or the caller wants to know.
/// As in etcd, a check that is not there may be excluded.
pub(super) async fn probe(
    sessions: &Sessions,
    probe: Probe,
    query: &str,
) -> (u16, &'static str, String) {
    let is_excluded = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.any(|pair| pair == ("exclude", name))
    };
    let wanted = probe.names().iter().filter(|name| !is_excluded(name));
    let checks = checks(sessions, probe, &wanted.copied().collect::<Vec<_>>()).await;
    probe_page(&checks, is_verbose(query))
}

/// One check: its line if it failed, or the caller wants to know.
pub(super) async fn check(
    sessions: &Sessions,
    probe: Probe,
    name: &str,
    query: &str,
) -> (u16, &'static str, String) {
    let checks = checks(sessions, probe, &[name]).await;
    probe_page(&checks, is_verbose(query))
}

fn is_verbose(query: &str) -> bool {
    let mut names = query.split('&').map(|pair| pair.split('=').next());
    names.any(|name| name == Some("verbose"))
}

/// Makes the checks of these names.
async fn checks(sessions: &Sessions, probe: Probe, names: &[&str]) -> Vec<Check> {
    let node = &sessions.node;
    let serializable_read = checks::serializable_read(node);
    let mut made = vec![
        checks::data_corruption(node),
        match probe {
            // A node that is restarted before its state is verified begins again, and would be restarted again.
            Probe::Live => serializable_read.borne(),
            Probe::Ready => serializable_read,
        },
    ];
    if names.contains(&LINEARIZABLE_READ) {
        made.push(match node.is_stopping() {
            true => Check::failed(LINEARIZABLE_READ, "the node is stopping"),
            false => checks::linearizable_read(sessions.confirm(HEALTH_PATIENCE).await),
        });
    }
    made.push(checks::non_learner(node.status.load().role));
    made.retain(|check| names.contains(&check.name));
    made
}

fn probe_page(checks: &[Check], is_verbose: bool) -> (u16, &'static str, String) {
    let lines: String = checks.iter().map(Check::line).collect();
    match checks.iter().all(|check| check.ok) {
        false => (503, TEXT, lines),
        true if is_verbose => (200, TEXT, lines + "ok\n"),
        true => (200, TEXT, "ok\n".to_owned()),
    }
}

/// What a question about health leaves out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parameters {
    is_serializable: bool,
    excludes_no_space: bool,
    excludes_corrupt: bool,
}

impl Parameters {
    fn of(query: &str) -> Self {
        let mut parameters = Self::default();
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("serializable", "true")) => parameters.is_serializable = true,
                Some(("exclude", "NOSPACE")) => parameters.excludes_no_space = true,
                Some(("exclude", "CORRUPT")) => parameters.excludes_corrupt = true,
                _ => {}
            }
        }
        parameters
    }
}

/// Why this node is not healthy; empty if it is.
async fn unhealthy(sessions: &Sessions, parameters: &Parameters) -> String {
    if !sessions.node.integrity.is_sound() && !parameters.excludes_corrupt {
        return "ALARM CORRUPT".to_owned();
    }
    if sessions.serving.is_no_space() && !parameters.excludes_no_space {
        return "ALARM NOSPACE".to_owned();
    }
    if sessions.node.is_stopping() || !sessions.node.is_readable() {
        return "RANGE ERROR:etcdserver: server stopped".to_owned();
    }
    if parameters.is_serializable {
        return String::new();
    }
    if sessions.node.published.leader().is_none() {
        return "RAFT NO LEADER".to_owned();
    }
    match sessions.confirm(HEALTH_PATIENCE).await {
        Ok(()) => String::new(),
        Err(error) if error.kind == ErrorKind::Corrupt && parameters.excludes_corrupt => {
            String::new()
        }
        Err(error) => {
            let status = crate::etcd::errors::status_of(&error, Method::Range, true);
            format!("RANGE ERROR:{}", status.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_health_may_leave_things_out() {
        let some = Parameters::of("serializable=true&exclude=NOSPACE&x=y");
        assert!(some.is_serializable && some.excludes_no_space);
        assert!(!some.excludes_corrupt);
        let both = Parameters::of("exclude=CORRUPT&exclude=NOSPACE");
        assert!(both.excludes_no_space && both.excludes_corrupt);
        assert_eq!(Parameters::of("exclude=OTHER"), Parameters::default());
    }

    #[test]
    fn checks_have_paths_below_their_probe() {
        assert_eq!(Page::at("/livez"), Some(Page::Probe(Probe::Live)));
        assert_eq!(
            Page::at("/readyz/data_corruption"),
            Some(Page::Check(Probe::Ready, DATA_CORRUPTION))
        );
        for none in ["/livez/data_corruption", "/readyz/", "/readyz/x", "/x", "/"] {
            assert_eq!(Page::at(none), None, "{none}");
        }
    }

    #[test]
    fn checks_are_listed_where_one_failed_or_all_are_asked_for() {
        let ok = Check::ok(SERIALIZABLE_READ);
        let failed = Check::failed(NON_LEARNER, "it is one");
        assert_eq!(probe_page(&[], false).2, "ok\n");
        let of = |checks: &[Check], query: &str| {
            let (status, _, text) = probe_page(checks, is_verbose(query));
            (status, text)
        };
        let said = |status, text: &str| (status, text.to_owned());
        let one = std::slice::from_ref(&ok);
        assert_eq!(of(one, "x=verbose"), said(200, "ok\n"));
        let listed = said(200, "[+]serializable_read ok\nok\n");
        assert_eq!(of(one, "x&verbose"), listed);
        assert_eq!(of(one, "verbose=1"), listed);
        let listed = "[+]serializable_read ok\n[-]non_learner failed: it is one\n";
        assert_eq!(of(&[ok, failed], ""), said(503, listed));
    }
}
