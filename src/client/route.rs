//! Where a request goes, and whether it goes again.
//!
//! A request goes to the node that is believed to lead. Whoever does not lead says who does, and
//! that hint is followed; without a hint the endpoints are tried in turn. Between attempts there
//! is a back-off, except before the first redirection; everything ends at the request's deadline.
//!
//! What is sent again is only what is safe to send again: reads; writes with a number, which the
//! cluster recognises; and anything of which it is certain that it has not been applied. So that
//! the last error does not lie about the attempts before it, a write that may have been applied
//! by any attempt fails with outcome *unknown*, whatever its last attempt was told (A18).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use crate::api::Call;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::Member;
use crate::api::MembersResponse;
use crate::api::Outcome;
use crate::api::ReadPath;
use crate::api::Request;
use crate::api::Response;
use crate::api::ResponseBody;
use crate::api::ResponseHeader;
use crate::api::SessionCall;
use crate::client::link::Broken;
use crate::client::link::BrokenCause;
use crate::client::link::Link;
use crate::client::options::RetryPolicy;
use crate::client::pool::Pool;
use crate::client::session::Ticket;
use crate::transport::Lost;
use crate::types::NodeId;
use crate::wire::client::ClientFrame;
use crate::wire::point::PointCall;
use crate::wire::point::PointReply;

/// The server is told a little less than is left, so that its own verdict arrives in time.
const REPLY_SHARE: u32 = 20;
const REPLY_TIME_MAX: Duration = Duration::from_millis(50);

/// How long the first attempt to connect is waited for; doubled each time.
const DIAL_PATIENCE: Duration = Duration::from_millis(300);
/// How long the list of members is waited for, and how seldom it is asked for without need.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
const REFRESH_MIN: Duration = Duration::from_secs(1);
/// After so many back-offs, endpoints that are not connected get their turn as well.
const TRIES_OF_CONNECTED: u32 = 2;

/// A token may have had its time before it was used, where time is short.
const LOGINS_MAX: u32 = 3;

/// Who is believed to lead, and where.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) id: Option<NodeId>,
    pub(super) address: String,
    /// The link that it answered on last. The pool keeps it.
    link: Weak<Link>,
}

/// Where a request goes.
enum Target {
    Leader(Arc<Leader>),
    Other(String),
}

impl Target {
    fn address(&self) -> &str {
        match self {
            Self::Leader(leader) => &leader.address,
            Self::Other(address) => address,
        }
    }

    /// The link to it, if one is known that requests have a good chance on.
    fn link(&self, pool: &Pool) -> Option<Arc<Link>> {
        let known = match self {
            Self::Leader(leader) => leader.link.upgrade(),
            Self::Other(_) => None,
        };
        known
            .filter(|link| link.is_usable())
            .or_else(|| pool.usable(self.address()))
    }
}

/// The endpoints, and what is known of who leads.
#[derive(Debug)]
pub(super) struct Router {
    pool: Arc<Pool>,
    endpoints: Vec<String>,
    retry: RetryPolicy,
    /// Where clients reach the members, as one of them said: for when the endpoints do not answer.
    learned: Arc<ArcSwap<Vec<String>>>,
    /// Who led when the members were last asked for, and when that was.
    refreshed: Mutex<Option<(NodeId, Instant)>>,
    leader: ArcSwapOption<Leader>,
    turn: AtomicUsize,
    random: Mutex<fastrand::Rng>,
}

/// One request on its way through attempts.
pub(super) struct Errand<'a> {
    pub(super) request: Request,
    pub(super) consistency: Consistency,
    pub(super) min_revision: i64,
    pub(super) ticket: Option<&'a Ticket>,
    pub(super) timeout: Duration,
    /// Only this node will do.
    pub(super) only: Option<&'a str>,
}

/// What came of a first attempt in the shortest way.
pub(super) enum Tried {
    Found(PointReply),
    Failed(FirstAttempt),
    /// It was not made.
    Not,
}

/// A first attempt that failed.
pub(super) struct FirstAttempt {
    target: Target,
    link: Arc<Link>,
    failure: Result<Error, Broken>,
}

/// Why a request failed in the end.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// An attempt before the one that brought this error may have been applied.
    pub(super) unknown_before: bool,
}

impl Router {
    pub(super) fn new(
        pool: Arc<Pool>,
        endpoints: Vec<String>,
        retry: RetryPolicy,
        seed: u64,
    ) -> Self {
        Self {
            pool,
            endpoints,
            retry,
            learned: Arc::default(),
            refreshed: Mutex::default(),
            leader: ArcSwapOption::empty(),
            turn: AtomicUsize::new(0),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        }
    }

    pub(super) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Where members are that the endpoints do not name.
    pub(super) fn learned(&self) -> Arc<Vec<String>> {
        self.learned.load_full()
    }

    /// The members are these.
    pub(super) fn learn_members(&self, list: &MembersResponse) {
        self.learned.store(Arc::new(beside(&self.endpoints, list)));
    }

    pub(super) fn leader(&self) -> Option<Arc<Leader>> {
        self.leader.load_full()
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Carries a request out.
    ///
    /// # Cancel safety
    /// Safe; but what was sent stays sent, and a write may take effect.
    pub(super) async fn run(&self, errand: Errand<'_>) -> Result<Response, Failed> {
        let deadline = in_time(errand.timeout);
        self.run_after(errand, deadline, None).await
    }

    /// Makes the first attempt of a read of one key in the shortest way, if a leader is known and
    /// connected. Whatever does not come of it at once is left to [`Router::run_after`].
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn try_point(
        &self,
        call: &mut PointCall<'_>,
        timeout: Duration,
        deadline: Instant,
    ) -> Tried {
        let Some(leader) = self.leader.load_full() else {
            return Tried::Not;
        };
        let Some(link) = leader.link.upgrade().filter(|link| link.is_usable()) else {
            return Tried::Not;
        };
        call.timeout_ms = told(timeout);
        let failure = match link.read_point(call, deadline).await {
            Ok(Ok(found)) => {
                // The usual reply has no news.
                if found.header.leader_id != leader.id || found.header.member_id != link.member_id()
                {
                    self.learn(&found.header, &Target::Leader(leader), &link);
                }
                return Tried::Found(found);
            }
            Ok(Err(error)) => Ok(error),
            Err(broken) => Err(broken),
        };
        Tried::Failed(FirstAttempt {
            target: Target::Leader(leader),
            link,
            failure,
        })
    }

    /// Carries a request out whose `first` attempt may have been made already.
    ///
    /// # Cancel safety
    /// As [`Router::run`].
    pub(super) async fn run_after(
        &self,
        errand: Errand<'_>,
        deadline: Instant,
        mut first: Option<FirstAttempt>,
    ) -> Result<Response, Failed> {
        let mut frame = ClientFrame {
            request_id: 0,
            call: Call {
                timeout_ms: 0,
                consistency: errand.consistency,
                min_revision: errand.min_revision,
                session: None,
                request: errand.request,
            },
        };
        let safety = Safety::of(&frame.call.request, errand.ticket.is_some());
        let mut progress = Progress::default();
        loop {
            progress.attempts += 1;
            let verdict = if let Some(first) = first.take() {
                self.judge(first, safety, deadline, &mut progress).await
            } else {
                let target = match errand.only {
                    Some(address) => Target::Other(address.to_string()),
                    None => self.target(&frame.call, &progress),
                };
                frame.call.session = errand.ticket.map(Ticket::call);
                frame.call.timeout_ms = told(remaining(deadline));
                self.attempt(&target, &mut frame, safety, deadline, &mut progress)
                    .await
            };
            let (error, next) = match verdict {
                Verdict::Done(response) => return Ok(response),
                Verdict::Final(error) => return Err(progress.fail(error, safety)),
                Verdict::Again(error, next) => (error, next),
            };
            let given_up = progress.attempts >= self.retry.attempts_max || self.pool.is_closed();
            if given_up {
                return Err(progress.fail(error, safety));
            }
            let wait = self.wait_before(next, &mut progress);
            if remaining(deadline) <= wait {
                let error = progress.out_of_time(error, errand.timeout);
                return Err(progress.fail(error, safety));
            }
            progress.last = Some(error);
            tokio::time::sleep(wait).await;
        }
    }

    async fn judge(
        &self,
        first: FirstAttempt,
        safety: Safety,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Verdict {
        let address = first.target.address();
        match first.failure {
            Ok(error) => match self.log_in(&error, &first.link, deadline, progress).await {
                Some(verdict) => verdict,
                None => self.refused(error, address, &first.link, safety, progress),
            },
            Err(broken) => self.broken(broken, address, safety, progress),
        }
    }

    /// If whoever was asked did not know who asks: tells him, to ask again then.
    async fn log_in(
        &self,
        error: &Error,
        link: &Link,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Option<Verdict> {
        let login = self.pool.remedy(link, error)?;
        if error.outcome != Outcome::NotApplied || progress.logins >= LOGINS_MAX {
            return None;
        }
        progress.logins += 1;
        Some(match login.log_in(link, deadline).await {
            Ok(()) => Verdict::Again(error.clone(), Next::Redirected),
            Err(refusal) => Verdict::Final(refusal),
        })
    }

    /// One attempt, at one node.
    async fn attempt(
        &self,
        target: &Target,
        frame: &mut ClientFrame,
        safety: Safety,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Verdict {
        let address = target.address();
        let link = match target.link(&self.pool) {
            Some(link) => link,
            None => match self.pool.link(address, progress.patience(deadline)).await {
                Ok(link) => {
                    // That took its time.
                    frame.call.timeout_ms = told(remaining(deadline));
                    link
                }
                Err(error) => {
                    self.forget(address);
                    progress.unreachable = Some(address.to_string());
                    progress.failed_at = Some(address.to_string());
                    return Verdict::unreachable(error);
                }
            },
        };
        match link.call(frame, safety != Safety::Once, deadline).await {
            Ok(Ok(response)) => {
                self.learn(&response.header, target, &link);
                if progress.unreachable.is_some() {
                    // Where somebody was there is nobody now.
                    self.refresh(None, &link);
                }
                Verdict::Done(response)
            }
            Ok(Err(error)) => match self.log_in(&error, &link, deadline, progress).await {
                Some(verdict) => verdict,
                None => self.refused(error, address, &link, safety, progress),
            },
            Err(broken) => self.broken(broken, address, safety, progress),
        }
    }

    /// The node answered that it will not, or could not.
    fn refused(
        &self,
        error: Error,
        target: &str,
        link: &Link,
        safety: Safety,
        progress: &mut Progress,
    ) -> Verdict {
        let next = match &error.kind {
            ErrorKind::NotLeader { leader, address } => {
                let hint = self.hinted(*leader, address.as_deref(), progress);
                if self.follow(*leader, hint, target, link.member_id()) {
                    Next::Redirected
                } else {
                    progress.failed_at = Some(target.to_string());
                    Next::Elsewhere
                }
            }
            ErrorKind::SlowDown { retry_after_ms } => {
                Next::After(Duration::from_millis(u64::from(*retry_after_ms)))
            }
            // What this node cannot do, another may.
            ErrorKind::NoLeader
            | ErrorKind::LeaderChanged
            | ErrorKind::QuorumTimeout
            | ErrorKind::Unavailable
            | ErrorKind::Corrupt => {
                self.forget(target);
                progress.failed_at = Some(target.to_string());
                Next::Elsewhere
            }
            _ => return Verdict::Final(error),
        };
        // A read has no outcome to worry about, and a numbered write is recognised.
        let certain = error.outcome == Outcome::NotApplied;
        if !certain {
            progress.unknown |= safety != Safety::Repeatable;
        }
        if certain || safety != Safety::Once {
            Verdict::Again(error, next)
        } else {
            Verdict::Final(error)
        }
    }

    /// The link broke, or the time ran out, before an answer came.
    fn broken(
        &self,
        broken: Broken,
        target: &str,
        safety: Safety,
        progress: &mut Progress,
    ) -> Verdict {
        let Broken { sent, cause } = broken;
        let kind = match &cause {
            BrokenCause::TooLong(error) => {
                return Verdict::Final(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    format!("the request cannot be sent: {error}"),
                ));
            }
            BrokenCause::OutOfTime => ErrorKind::DeadlineExceeded,
            _ => ErrorKind::ConnectionLost,
        };
        let closed_here = cause == BrokenCause::Lost(Lost::ClosedHere);
        let error = if closed_here {
            super::pool::closed()
        } else {
            Error::not_applied(kind, format!("no answer from {target}: {cause}"))
        };
        // A read that got no answer is simply not answered.
        let unknown = sent && safety != Safety::Repeatable;
        let error = Error {
            outcome: if unknown {
                Outcome::Unknown
            } else {
                Outcome::NotApplied
            },
            ..error
        };
        if cause == BrokenCause::Silent {
            self.pool.strike(target);
        }
        if cause == BrokenCause::OutOfTime {
            let error = match &progress.last {
                Some(last) => Error {
                    detail: format!("{}; before that: {}", error.detail, last.detail),
                    ..error
                },
                None => error,
            };
            return Verdict::Final(error);
        }
        self.forget(target);
        progress.failed_at = Some(target.to_string());
        if closed_here || (unknown && safety == Safety::Once) {
            return Verdict::Final(error);
        }
        progress.unknown |= unknown;
        Verdict::Again(error, Next::Elsewhere)
    }

    /// Where to go: to the leader if one is known, else around, not at once to where it failed.
    fn target(&self, call: &Call, progress: &Progress) -> Target {
        let anyone = matches!(call.request, Request::Status | Request::LeaderLeaseReport)
            || (call.request.is_read()
                && matches!(
                    call.consistency,
                    Consistency::Serializable | Consistency::MaxStaleness(_)
                ));
        if !anyone && let Some(leader) = self.leader.load_full() {
            return Target::Leader(leader);
        }
        let turn = self.turn.load(Ordering::Relaxed);
        // Where members say that they are may be out of reach from here: what was given comes first.
        let all = match (progress.back_offs as usize) < self.endpoints.len() {
            true => self.endpoints.clone(),
            false => self.endpoints_and_learned(),
        };
        let count = all.len();
        let around = || (0..count).map(|step| &all[(turn + step) % count]);
        let elsewhere = |address: &&String| Some(*address) != progress.failed_at.as_ref();
        // Nodes that are connected come first, but not for ever: they may all be followers whose
        // leader is reached only at an endpoint that has not been tried.
        let connected = if progress.back_offs < TRIES_OF_CONNECTED {
            around().find(|address| elsewhere(address) && self.pool.usable(address).is_some())
        } else {
            None
        };
        let candidate = connected
            .or_else(|| around().find(elsewhere))
            .or_else(|| around().next());
        // There is at least one endpoint, so this is never empty.
        Target::Other(candidate.cloned().unwrap_or_default())
    }

    /// A node that may serve what any node can: one that is connected, if there is one.
    pub(super) fn anyone(&self, attempt: u32) -> String {
        let turn = self.turn.load(Ordering::Relaxed);
        let all = match (attempt as usize) <= self.endpoints.len() {
            true => self.endpoints.clone(),
            false => self.endpoints_and_learned(),
        };
        let count = all.len();
        let mut around = (0..count).map(|step| &all[(turn + step) % count]);
        let next = around.clone().next();
        let connected = if attempt <= TRIES_OF_CONNECTED {
            around.find(|address| self.pool.usable(address).is_some())
        } else {
            None
        };
        // There is at least one endpoint, so this is never empty.
        connected.or(next).cloned().unwrap_or_default()
    }

    fn endpoints_and_learned(&self) -> Vec<String> {
        let learned = self.learned.load();
        self.endpoints.iter().chain(&**learned).cloned().collect()
    }

    /// A node did not serve: the next one's turn.
    pub(super) fn avoid(&self, address: &str) {
        self.forget(address);
    }

    /// The address that a hint leads to, if it is worth following.
    fn hinted(
        &self,
        leader: Option<NodeId>,
        address: Option<&str>,
        progress: &Progress,
    ) -> Option<String> {
        // Where the leader has been met is better than where it says it is: we have been there.
        let met = leader.and_then(|id| self.pool.address_of(id));
        let said = address
            .filter(|address| !address.is_empty())
            // A dead leader is hinted at until a new one is elected. It has just been called.
            .filter(|address| Some(*address) != progress.unreachable.as_deref())
            .map(String::from);
        met.or(said)
    }

    /// Follows a hint. False if it leads nowhere new.
    fn follow(
        &self,
        leader: Option<NodeId>,
        hint: Option<String>,
        from: &str,
        from_member: NodeId,
    ) -> bool {
        match hint {
            Some(address) if address != from && leader != Some(from_member) => {
                let id = leader;
                let link = Weak::new();
                self.leader
                    .store(Some(Arc::new(Leader { id, address, link })));
                true
            }
            _ => {
                self.forget(from);
                false
            }
        }
    }

    /// A node that is not to be believed the leader any more; the next one's turn.
    fn forget(&self, address: &str) {
        let believed = self.leader.load();
        if believed
            .as_ref()
            .is_some_and(|leader| leader.address == address)
        {
            self.leader.store(None);
        }
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// A reply tells who leads.
    fn learn(&self, header: &ResponseHeader, from: &Target, link: &Arc<Link>) {
        let Some(id) = header.leader_id else {
            return;
        };
        self.refresh(Some(id), link);
        if id != header.member_id {
            // A follower that has just been told by its leader knows who that is.
            if header
                .read
                .is_some_and(|read| read.path == ReadPath::Follower)
            {
                self.look_for(id);
            }
            return;
        }
        let is_known = |known: &Leader| {
            known.id == Some(id)
                && known.link.as_ptr() == Arc::as_ptr(link)
                && known.address == from.address()
        };
        if !self.leader.load().as_deref().is_some_and(is_known) {
            self.leader.store(Some(Arc::new(Leader {
                id: Some(id),
                address: from.address().to_string(),
                link: Arc::downgrade(link),
            })));
        }
    }

    /// Asks the member at the other end of `link` who the members are, in the background: when another
    /// one leads than when it was last asked, or now and then.
    fn refresh(&self, leader: Option<NodeId>, link: &Arc<Link>) {
        let now = in_time(Duration::ZERO);
        {
            let mut refreshed = self
                .refreshed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let is_due = match (*refreshed, leader) {
                (None, _) => true,
                (Some((known, _)), Some(leader)) => known != leader,
                (Some((_, at)), None) => now > at + REFRESH_MIN,
            };
            if !is_due {
                return;
            }
            let known = refreshed.map_or(NodeId(0), |(known, _)| known);
            *refreshed = Some((leader.unwrap_or(known), now));
        }
        let (link, learned) = (Arc::clone(link), Arc::clone(&self.learned));
        let endpoints = self.endpoints.clone();
        tokio::spawn(async move {
            let mut frame = ClientFrame {
                request_id: 0,
                call: Call {
                    timeout_ms: told(REFRESH_PATIENCE),
                    consistency: Consistency::Serializable,
                    min_revision: 0,
                    session: None,
                    request: Request::MemberList,
                },
            };
            // What does not come is asked for the next time.
            let answer = link.call(&mut frame, true, in_time(REFRESH_PATIENCE)).await;
            if let Ok(Ok(response)) = answer
                && let ResponseBody::Members(list) = response.body
            {
                learned.store(Arc::new(beside(&endpoints, &list)));
            }
        });
    }

    /// A follower served a read by the word of `leader`, which is one exchange more than asking the
    /// leader itself. Where the leader is not known, one more endpoint is connected to in the
    /// background: this may be it. A client that was given followers only goes on asking them.
    fn look_for(&self, leader: NodeId) {
        if let Some(address) = self.pool.address_of(leader) {
            let id = Some(leader);
            let link = Weak::new();
            self.leader
                .store(Some(Arc::new(Leader { id, address, link })));
            return;
        }
        let unknown = |address: &&String| self.pool.usable(address).is_none();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.endpoints.len();
        let mut around = (0..count).map(|step| &self.endpoints[(turn + step) % count]);
        if let Some(address) = around.find(unknown).cloned() {
            let pool = self.pool.clone();
            tokio::spawn(async move {
                // Whom it leads to is known once it is there; if it fails, another's turn comes.
                let _ = pool.link(&address, in_time(DIAL_PATIENCE)).await;
            });
        }
    }

    fn wait_before(&self, next: Next, progress: &mut Progress) -> Duration {
        let back_off = |progress: &mut Progress| {
            progress.back_offs += 1;
            progress.redirected = false;
            self.jittered(self.retry.back_off(progress.back_offs))
        };
        match next {
            // The first hint since the last wait is fresh; another one may be part of a circle.
            Next::Redirected if !progress.redirected => {
                progress.redirected = true;
                Duration::ZERO
            }
            Next::Redirected | Next::Elsewhere => back_off(progress),
            Next::After(asked) => asked.max(back_off(progress)),
        }
    }

    pub(super) fn jittered(&self, wait: Duration) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        wait.mul_f64(0.8 + 0.4 * random.f64())
    }

    /// A number that other clients are unlikely to draw.
    pub(super) fn random(&self) -> u64 {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.u64(..)
    }
}

/// Where clients reach the members that `endpoints` does not name. Those that vote come first: one of
/// them leads.
fn beside(endpoints: &[String], list: &MembersResponse) -> Vec<String> {
    let mut members: Vec<&Member> = list.members.iter().collect();
    members.sort_by_key(|member| !member.membership.votes());
    let mut found: Vec<String> = Vec::new();
    for member in members {
        let address = &member.info.client_address;
        // "Any address" is where a node listens, and nowhere that anybody could call.
        let can_be_called = match address.parse::<SocketAddr>() {
            Ok(address) => !address.ip().is_unspecified() && address.port() > 0,
            Err(_) => !address.is_empty(),
        };
        if can_be_called && !endpoints.contains(address) && !found.contains(address) {
            found.push(address.clone());
        }
    }
    found
}

/// What an attempt came to.
enum Verdict {
    Done(Response),
    Final(Error),
    Again(Error, Next),
}

impl Verdict {
    /// No connection: nothing was sent, so anything may be tried again, unless it is hopeless.
    fn unreachable(error: Error) -> Self {
        match error.kind {
            ErrorKind::InvalidArgument | ErrorKind::Unauthenticated | ErrorKind::TokenExpired => {
                Self::Final(error)
            }
            _ => Self::Again(error, Next::Elsewhere),
        }
    }
}

/// When and where the next attempt is made.
enum Next {
    /// At once, where the hint leads.
    Redirected,
    /// After a back-off, at another node if there is one.
    Elsewhere,
    /// At the same node, once it wants to hear of us again.
    After(Duration),
}

/// How often a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Safety {
    /// It changes nothing (or, of a session that is opened and not used, nothing that matters).
    Repeatable,
    /// The cluster recognises it.
    Numbered,
    /// Again only if it is certain that it was not applied.
    Once,
}

impl Safety {
    fn of(request: &Request, numbered: bool) -> Self {
        match request {
            Request::Range(_)
            | Request::RangePage(_)
            | Request::Snapshot(_)
            | Request::Status
            | Request::LeaderLeaseReport
            | Request::OpenSession
            | Request::Watch { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::LeaseKeepAlive(_)
            | Request::LeaseTimeToLive { .. }
            | Request::LeaseList(_)
            | Request::MemberList => Self::Repeatable,
            Request::Auth(auth) if !auth.is_write() => Self::Repeatable,
            Request::Txn(txn) if txn.is_read_only() => Self::Repeatable,
            Request::MoveLeader { .. }
            | Request::MemberAdd(_)
            | Request::MemberRemove { .. }
            | Request::MemberPromote { .. }
            | Request::MemberUpdate(_) => Self::Once,
            _ if numbered => Self::Numbered,
            Request::Put(_)
            | Request::DeleteRange(_)
            | Request::Compact(_)
            | Request::Txn(_)
            | Request::LeaseGrant(_)
            | Request::LeaseRevoke(_)
            | Request::LeaseUpdateTtl { .. }
            | Request::PutWithNewLease(..)
            | Request::Auth(_) => Self::Once,
        }
    }
}

/// What has happened to a request so far.
#[derive(Default)]
struct Progress {
    attempts: u32,
    back_offs: u32,
    redirected: bool,
    /// An attempt may have been applied.
    unknown: bool,
    /// Where the last attempt failed.
    failed_at: Option<String>,
    /// Where no connection could be made.
    unreachable: Option<String>,
    /// Connections that were waited for.
    dials: u32,
    /// How often it was said anew who asks.
    logins: u32,
    last: Option<Error>,
}

impl Progress {
    /// How long to wait for a connection before another node is tried. The connection is made in
    /// the background all the same; where all are far away, patience grows.
    fn patience(&mut self, deadline: Instant) -> Instant {
        let patience = DIAL_PATIENCE.saturating_mul(1 << self.dials.min(8));
        self.dials += 1;
        deadline.min(in_time(patience))
    }

    fn fail(&self, error: Error, safety: Safety) -> Failed {
        let unknown = self.unknown && safety != Safety::Repeatable;
        let outcome = match error.outcome {
            Outcome::NotApplied if unknown => Outcome::Unknown,
            // The word of a server that is cautious about a read.
            Outcome::Unknown if safety == Safety::Repeatable => Outcome::NotApplied,
            outcome => outcome,
        };
        Failed {
            error: Error { outcome, ..error },
            unknown_before: self.unknown,
        }
    }

    /// There is no time for another attempt: the last cause, and that time ran out.
    fn out_of_time(&self, error: Error, timeout: Duration) -> Error {
        Error {
            detail: format!(
                "{} (given up after {} attempts, with no time left of {timeout:?})",
                error.detail, self.attempts
            ),
            ..error
        }
    }
}

pub(super) fn in_time(timeout: Duration) -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a caller's patience is no lease: plain elapsed time is enough"
    )]
    let now = Instant::now();
    // A deadline beyond what the clock can say is none; a year will do.
    now.checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(365 * 86_400))
}

fn remaining(deadline: Instant) -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "a caller's patience is no lease: plain elapsed time is enough"
    )]
    let now = Instant::now();
    deadline.saturating_duration_since(now)
}

/// What the server is told of the time that remains.
fn told(remaining: Duration) -> u32 {
    let kept = (remaining / REPLY_SHARE).min(REPLY_TIME_MAX);
    let told = remaining.saturating_sub(kept).as_millis().max(1);
    u32::try_from(told).unwrap_or(u32::MAX)
}

/// What the session says of a write, for the error of a session that is gone.
pub(super) fn describe(call: SessionCall) -> String {
    format!("write {} of session {}", call.sequence, call.id)
}
