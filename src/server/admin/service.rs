//! The node as its admin port shows and changes it: one document for each question.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::download::Download;
use super::log_control::LogControl;
use crate::api::{
    Consistency, Distribution, Error, ErrorKind, LeaderLeaseStatus, LeaseInfo, LeaseListRequest,
    LeaseRef, Request, ResponseBody, StatusResponse,
};
use crate::node::Input;
use crate::raft::Configuration;
use crate::server::admin::Progress;
use crate::server::config::EffectiveConfig;
use crate::server::mail::Mail;
use crate::server::session::Sessions;
use crate::server::session::drain::Drain;
use crate::server::status::node_state::NodeState;
use crate::server::status::reload::ReloadReports;
use crate::server::status::startup::StartupProgress;
use crate::sync::Mutex;
use crate::transport::{ConnectionFacts, Endpoint};
use crate::types::NodeId;

/// How long consensus may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running node, for its operators.
pub(crate) struct AdminService {
    pub(crate) node: Arc<NodeState>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) startup: Arc<StartupProgress>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) reload: Arc<Notify>,
    pub(crate) reloaded: Arc<ReloadReports>,
    pub(crate) client_port: Endpoint,
    pub(crate) peer_port: Endpoint,
    pub(crate) log: Option<LogControl>,
    /// The settings in force, with their origin.
    pub(crate) settings: EffectiveConfig,
    /// The addresses that it advertises.
    pub(crate) advertised: AdvertisedAddresses,
    /// Renewals, expirations and rejections of the leader lease that are not shown any more.
    pub(crate) baseline: Mutex<[u64; 3]>,
}

/// The addresses that a node advertises.
#[derive(Clone, Debug)]
pub(crate) struct AdvertisedAddresses {
    pub(crate) client: String,
    pub(crate) peer: String,
}

/// Which leases are to be shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseFilter {
    pub(crate) owner: String,
    pub(crate) name_prefix: String,
    pub(crate) limit: u32,
    /// Those with larger ids.
    pub(crate) after: i64,
}

impl AdminService {
    /// The bytes of a backup of all that was acknowledged before this.
    ///
    /// # Errors
    /// Leadership is not confirmed, or the limit of snapshots is reached.
    pub(crate) async fn snapshot(&self, progress: Progress) -> Result<Download, Error> {
        Download::begin(Arc::clone(&self.sessions), progress, PATIENCE).await
    }

    /// The status of the node.
    pub(crate) async fn status(&self) -> Value {
        let sessions = &self.sessions;
        // The storage engine may have to read its files for this.
        let asked = Arc::clone(sessions);
        let response = tokio::task::spawn_blocking(move || asked.status_response()).await;
        let Ok(ResponseBody::Status(status)) = response.map(|response| response.body) else {
            return json!({"name": self.node.name});
        };
        let StatusResponse {
            name,
            version,
            role,
            last_index,
            commit_index,
            applied_index,
            storage_bytes,
            leader_lease,
            members: _,
            warnings,
            history,
            quota,
            reads,
            cluster_version,
        } = *status;
        let leader = self.node.published.leader();
        let known = leader.and_then(|leader| self.node.directory.member(leader));
        let fresh = self.node.published.staleness();
        let staleness = fresh.and_then(|fresh| fresh.age(self.node.clock.now()));
        json!({
            "name": name,
            "id": self.node.member_id.to_string(),
            "cluster_id": self.node.cluster_id.to_string(),
            "version": version,
            "cluster_version": cluster_version,
            "role": role.to_string(),
            "term": self.node.published.term().0,
            "leader": leader.map(|leader| json!({
                "id": leader.to_string(),
                "name": known.map(|member| member.name),
            })),
            "last_index": last_index.0,
            "commit_index": commit_index.0,
            "applied_index": applied_index.0,
            "staleness_ms": staleness.map(millis),
            "revision": sessions.serving.store.revision(),
            "compact_revision": history.compact_revision,
            "storage_bytes": storage_bytes,
            "quota_bytes": quota.bytes,
            "no_space": quota.no_space,
            "requests_in_flight": sessions.in_flight(),
            "reads": {
                "lease": reads.lease,
                "read_index": reads.read_index,
                "follower": reads.follower,
                "read_lease": reads.read_lease,
                "serializable": reads.serializable,
            },
            "startup": self.startup.stands(&self.node, sessions.serving.store.applied()).document(),
            "is_stopping": self.node.is_stopping(),
            "leader_lease": lease_document(&leader_lease),
            "read_lease": self.read_lease(),
            "followers": self.node.followers.documents(&self.node.directory.members()),
            "warnings": warnings,
        })
    }

    /// The read lease of this node. Whom it has granted one, as the leader, stands beside its followers.
    pub(crate) fn read_lease(&self) -> Value {
        let (now, published) = (self.node.clock.now(), &self.node.published);
        let remaining = published.read_lease().and_then(|cell| cell.remaining(now));
        json!({
            "enabled": self.node.asks_for_read_leases.load(Ordering::Relaxed),
            "is_valid": remaining.is_some(),
            "remaining_ms": remaining.map(millis),
        })
    }

    /// Makes this node ask for read leases until it stops, or ask no more: then it gives back what it holds
    /// first, and writes wait for it no longer.
    pub(crate) fn ask_for_read_leases(&self, asks: bool) -> Value {
        let before = self.node.asks_for_read_leases.swap(asks, Ordering::Relaxed);
        let mail = Mail::Input(Input::AskForReadLeases(asks));
        self.sessions.mailbox.send(mail);
        json!({"enabled": asks, "before": before})
    }

    /// What the node goes by: what was set and where, what follows from it where nothing was set, and
    /// what was changed since.
    pub(crate) fn config(&self) -> Value {
        json!({
            "settings": self.settings.document(),
            "in_use": {
                "advertise.client": self.advertised.client,
                "advertise.peer": self.advertised.peer,
                "log.filter": self.log.as_ref().map(LogControl::filter),
            },
        })
    }

    /// The members of the cluster, as far as this node knows.
    pub(crate) async fn members(&self) -> Value {
        let sessions = &self.sessions;
        let configuration = sessions.configuration().await;
        let configuration = configuration.unwrap_or_default();
        let leader = self.node.published.leader();
        let connected: Vec<String> = self
            .peer_port
            .connections()
            .iter()
            .map(|connection| connection.identity.name().to_owned())
            .collect();
        let members = self.node.directory.members().into_iter().map(|member| {
            json!({
                "id": member.id.to_string(),
                "name": member.name,
                "part": part_of(&configuration, member.id),
                "is_leader": Some(member.id) == leader,
                "is_this_node": member.id == self.node.member_id,
                "is_connected": member.id == self.node.member_id || connected.contains(&member.name),
                "peer_address": member.peer_address,
                "client_address": member.client_address,
            })
        });
        json!({"members": members.collect::<Vec<_>>()})
    }

    /// The leader lease, as this node sees it.
    pub(crate) fn leader_lease(&self) -> Value {
        let ResponseBody::LeaderLeaseReport(report) = self.sessions.lease_report_response().body
        else {
            return Value::Null;
        };
        let mut document = lease_document(&self.since_reset(&report.lease));
        document["clock_source"] = "boottime+monotonic_raw".into();
        document
    }

    /// What the lease depends on, as this node has measured it.
    pub(crate) fn lease_report(&self) -> Value {
        let ResponseBody::LeaderLeaseReport(report) = self.sessions.lease_report_response().body
        else {
            return Value::Null;
        };
        let timing = &report.timing;
        json!({
            "name": report.name,
            "role": report.role.to_string(),
            "lease": lease_document(&self.since_reset(&report.lease)),
            "settings": {
                "heartbeat_interval_ms": millis(timing.heartbeat_interval),
                "election_timeout_min_ms": millis(timing.election_timeout_min),
                "election_timeout_max_ms": millis(timing.election_timeout_max),
                "step_down_after_ms": millis(timing.step_down_after),
                "max_drift_ppm": timing.max_drift_ppm,
            },
            "renew_interval": distribution(&report.renew_interval),
            "round_trip": distribution(&report.round_trip),
            "timer_delay": distribution(&report.timer_delay),
            "warnings": report.warnings,
        })
    }

    /// Resets the report and the counters shown here; those of Prometheus go on.
    pub(crate) fn reset_stats(&self) {
        let counters = self.node.published.lease_counters();
        let now = [
            counters.renewals(),
            counters.expirations(),
            counters.rejections(),
        ];
        *self.baseline() = now;
        self.node.lease_stats.reset();
    }

    fn since_reset(&self, lease: &LeaderLeaseStatus) -> LeaderLeaseStatus {
        let [renewals, expirations, rejections] = *self.baseline();
        LeaderLeaseStatus {
            renewals: lease.renewals.saturating_sub(renewals),
            expirations: lease.expirations.saturating_sub(expirations),
            rejections: lease.rejections.saturating_sub(rejections),
            ..*lease
        }
    }

    fn baseline(&self) -> std::sync::MutexGuard<'_, [u64; 3]> {
        self.baseline.lock()
    }

    /// A page of the client leases.
    pub(crate) async fn leases(&self, filter: LeaseFilter) -> Result<Value, Error> {
        let request = Request::LeaseList(LeaseListRequest {
            after: filter.after,
            limit: filter.limit,
            owner: filter.owner,
            name_prefix: filter.name_prefix,
        });
        let (body, may_be_old) = self.ask_about_leases(request).await?;
        let ResponseBody::LeaseList(page) = body else {
            return Err(unexpected());
        };
        let leases = page.leases.iter().map(lease_info);
        Ok(json!({
            "leases": leases.collect::<Vec<_>>(),
            "next": page.next.map(|next| format!("{next:016x}")),
            "may_be_old": may_be_old,
        }))
    }

    /// One client lease, with the keys that hang on it.
    pub(crate) async fn lease(&self, id: i64) -> Result<Value, Error> {
        let request = Request::LeaseTimeToLive { id, keys: true };
        let (body, may_be_old) = self.ask_about_leases(request).await?;
        let ResponseBody::LeaseTimeToLive(info) = body else {
            return Err(unexpected());
        };
        let mut document = lease_info(&info);
        let keys = info.keys.iter().map(|key| key.escape_ascii().to_string());
        document["attached"] = keys.collect::<Vec<_>>().into();
        document["may_be_old"] = may_be_old.into();
        Ok(document)
    }

    /// Only a leader knows the remaining time of a lease. Another node lists the leases of its own
    /// state.
    async fn ask_about_leases(&self, request: Request) -> Result<(ResponseBody, bool), Error> {
        let sessions = &self.sessions;
        let asked = sessions.ask(request.clone(), Consistency::Linearizable, PATIENCE);
        match asked.await {
            Ok(response) => Ok((response.body, false)),
            Err(error) if matches!(error.kind, ErrorKind::NotLeader { .. }) => {
                let asked = sessions.ask(request, Consistency::Serializable, PATIENCE);
                Ok((asked.await?.body, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a client lease. This node must lead.
    pub(crate) async fn revoke(&self, id: i64) -> Result<Value, Error> {
        let request = Request::LeaseRevoke(LeaseRef::id(id));
        let asked = self
            .sessions
            .ask(request, Consistency::Linearizable, PATIENCE);
        let response = asked.await?;
        let ResponseBody::LeaseRevoke(revoked) = response.body else {
            return Err(unexpected());
        };
        tracing::info!(
            lease = format!("{id:016x}"),
            "lease revoked over the admin port"
        );
        Ok(json!({
            "revoked": format!("{id:016x}"),
            "deleted": revoked.deleted,
            "revision": response.header.revision,
        }))
    }

    /// What watches there are, a thousand at most.
    pub(crate) async fn watches(&self) -> Value {
        let listed = self.sessions.serving.watches.list().await;
        let shown: Vec<Value> = listed
            .iter()
            .map(|listed| {
                let view = &listed.view;
                json!({
                    "client": &*listed.client,
                    "address": listed.address.map(|address| address.to_string()),
                    "watch_id": listed.watch_id,
                    "from": view.from.escape_ascii().to_string(),
                    "until": view.until.as_ref().map(|key| key.escape_ascii().to_string()),
                    "phase": view.phase,
                    "next_revision": view.next_revision,
                    "lag": view.lag,
                    "waiting_notices": view.waiting_events,
                    "waiting_bytes": view.waiting_bytes,
                })
            })
            .collect();
        let open = &self.sessions.serving.watches.counts().watchers;
        json!({
            "open": open.load(Ordering::Relaxed),
            "watches": shown,
        })
    }

    /// The connections of both ports.
    pub(crate) fn connections(&self) -> Value {
        let show = |port: &Endpoint| -> Vec<Value> {
            port.connections().iter().map(connection_document).collect()
        };
        json!({"clients": show(&self.client_port), "peers": show(&self.peer_port)})
    }

    /// The log of this process, if it is this node's.
    pub(crate) fn log(&self) -> Option<&LogControl> {
        self.log.as_ref()
    }

    /// Reloads the certificates, and returns the expiry of those in use then.
    ///
    /// # Errors
    /// What is wrong with them; those before stay in use.
    pub(crate) async fn reload_certificates(&self) -> Result<Value, Vec<String>> {
        let asked = self.reloaded.ask(&self.reload);
        let answered = tokio::time::timeout(PATIENCE, asked).await;
        answered.map_err(|_| vec!["reading the files timed out".to_owned()])??;
        Ok(json!({
            "reloaded": true,
            "client_certificate_ends": self.client_port.certificate_ends(),
            "peer_certificate_ends": self.peer_port.certificate_ends(),
        }))
    }

    /// The member of this name or id.
    pub(crate) fn find_member(&self, name_or_id: &str) -> Option<NodeId> {
        let members = self.node.directory.members();
        let found = members
            .iter()
            .find(|member| member.name == name_or_id || member.id.to_string() == name_or_id);
        found.map(|member| member.id)
    }

    /// Hands leadership to another member. This node must lead.
    pub(crate) async fn transfer_leadership(&self, target: Option<NodeId>) -> Result<Value, Error> {
        let request = Request::MoveLeader { target };
        let asked = self
            .sessions
            .ask(request, Consistency::Linearizable, PATIENCE);
        asked.await?;
        let leader = self.node.published.leader();
        let known = leader.and_then(|leader| self.node.directory.member(leader));
        Ok(json!({
            "transferred": true,
            "leader": leader.map(|leader| leader.to_string()),
            "name": known.map(|member| member.name),
        }))
    }

    /// Takes the node out of service until it is restarted.
    pub(crate) async fn drain(&self) -> Value {
        let report = self.drain.run().await;
        let (led, handed_over, problem) = match report.handed_over {
            None => (false, None, None),
            Some(Ok(leader)) => (true, leader, None),
            Some(Err(problem)) => (true, None, Some(problem)),
        };
        let known = handed_over.and_then(|leader| self.node.directory.member(leader));
        json!({
            "drained": true,
            "led": led,
            "leader": known.map(|member| member.name),
            "not_handed_over": problem,
            "unfinished_requests": report.unfinished,
        })
    }
}

fn part_of(configuration: &Configuration, id: NodeId) -> &'static str {
    if configuration.voters.contains(&id) {
        "voter"
    } else if configuration.learners.contains(&id) {
        "learner"
    } else if configuration
        .outgoing
        .as_ref()
        .is_some_and(|outgoing| outgoing.contains(&id))
    {
        "leaving"
    } else {
        "none"
    }
}

fn lease_document(lease: &LeaderLeaseStatus) -> Value {
    let remaining = millis(lease.remaining);
    json!({
        "is_valid": lease.is_valid,
        "remaining_ms": remaining,
        "expires_in_ms": lease.is_valid.then_some(remaining),
        "lease_duration_ms": millis(lease.lease_duration),
        "max_clock_skew_ms": millis(lease.max_clock_skew),
        "renewal_count": lease.renewals,
        "expiration_count": lease.expirations,
        "rejection_count": lease.rejections,
    })
}

fn distribution(taken: &Distribution) -> Value {
    json!({
        "count": taken.count(),
        "p50_ms": taken.at(0.5).as_secs_f64() * 1e3,
        "p99_ms": taken.at(0.99).as_secs_f64() * 1e3,
        "p999_ms": taken.at(0.999).as_secs_f64() * 1e3,
        "max_ms": taken.max().as_secs_f64() * 1e3,
    })
}

fn lease_info(info: &LeaseInfo) -> Value {
    json!({
        "id": format!("{:016x}", info.id),
        "name": info.name,
        "owner": info.owner,
        "ttl_ms": info.granted_ttl_ms,
        "remaining_ms": info.remaining_ms,
        "granted_at_ms": info.granted_at_ms,
        "keys": info.key_count,
        "is_revoking": info.is_revoking,
    })
}

fn connection_document(connection: &ConnectionFacts) -> Value {
    json!({
        "name": connection.identity.name(),
        "address": connection.address.to_string(),
        "dialled": connection.dialled,
        "round_trip_us": u64::try_from(connection.round_trip.as_micros()).unwrap_or(u64::MAX),
        "sent_packets": connection.sent_packets,
        "lost_packets": connection.lost_packets,
        "datagram_bytes": connection.datagram_bytes,
        "sent_bytes": connection.sent_bytes,
        "received_bytes": connection.received_bytes,
    })
}

fn unexpected() -> Error {
    Error::not_applied(ErrorKind::Internal, "the node sent an unexpected reply")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
