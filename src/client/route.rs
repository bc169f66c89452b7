//! Routing and retries of requests.
//!
//! A request goes to the node that is believed to be the leader; a linearizable read, to the node beside the
//! client if that serves it by a read lease ([`Home`]). A node that is not the leader
//! returns a hint, which is followed, unless its address has just failed; without a hint another
//! node is tried. A node whose leader cannot be reached from here is asked to forward
//! ([`Request::ForwardToLeader`]); meanwhile the leader is looked for, and asked directly again once it is
//! connected. Between attempts there is a back-off, except before the first redirection and
//! after a wait for a connection; a new connection, or a leader that answered another request, ends
//! it early. Everything ends at the request's deadline.
//!
//! Only what is safe to repeat is sent again: reads; writes with a sequence number, which the
//! cluster recognises; and anything that has certainly not been applied. The last error must hold
//! for the attempts before it, too: a write that any attempt may have applied fails with outcome
//! *unknown*, whatever the result of its last attempt (A18).

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;
use tracing::Instrument;

use super::deadline::{deadline_after, now, remaining, timeout_ms, within};
use crate::api::{
    Attempts, Call, Consistency, Error, ErrorKind, MembersResponse, Outcome, ReadPath, Request,
    RequestKind, Response, ResponseBody, ResponseHeader, Safety, SessionCall, Tries,
};
use crate::client::addresses::Addresses;
use crate::client::home::{HOME_PATIENCE, Home};
use crate::client::known_node::KnownNode;
use crate::client::link::{BrokenCause, Link, LinkFailure};
use crate::client::measure::{Measurement, name_of};
use crate::client::newest::{may_be_old, may_fall_back};
use crate::client::options::RetryPolicy;
use crate::client::pool::Pool;
use crate::client::retry_rule::RetryRule;
use crate::client::session::Ticket;
use crate::client::throttle::Throttle;
use crate::sync::Mutex;
use crate::transport::ConnectionLost;
use crate::types::{BootstrapId, NodeId};
use crate::wire::RequestContext;
use crate::wire::client::ClientFrame;
use crate::wire::point::{PointCall, PointReply};

/// How long to wait for a connection to a node; doubled with each round through all nodes, at most
/// this often.
const DIAL_PATIENCE: Duration = Duration::from_millis(300);
const DIAL_DOUBLINGS_MAX: usize = 2;
/// How long a node may take to say whether it forwards: a quorum round between members that may be far from each
/// other.
const FORWARD_PATIENCE: Duration = Duration::from_secs(2);
/// Timeout of a request for the member list, and the shortest interval between unneeded ones.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
const REFRESH_MIN: Duration = Duration::from_secs(1);
/// The interval when the leader has changed, which not all members know at once.
const REFRESH_LEADER_MIN: Duration = Duration::from_millis(100);
/// For this long, no request waits for a leader at an address that has failed, whichever node hints
/// at it: followers name a failed leader until there is a new one.
const HINT_DISTRUST: Duration = Duration::from_secs(10);
/// Shortest interval between searches for the leader while a follower serves the requests.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of logins per request: a short-lived token may expire before it is used.
const LOGINS_MAX: u32 = 3;

/// The destination of a request.
enum Target {
    Leader(Arc<KnownNode>),
    /// The node beside the client, which serves reads by its read lease.
    Home(Arc<KnownNode>),
    Other(String),
}

impl Target {
    fn address(&self) -> &str {
        match self {
            Self::Leader(node) | Self::Home(node) => &node.address,
            Self::Other(address) => address,
        }
    }

    /// How long it has for a request whose deadline this is.
    fn until(&self, deadline: Instant) -> Instant {
        match self {
            Self::Home(_) => deadline.min(deadline_after(HOME_PATIENCE)),
            Self::Leader(_) | Self::Other(_) => deadline,
        }
    }

    /// A node beside the client that took too long is not the last to be asked, while there is time.
    fn is_not_last(&self, verdict: Verdict, deadline: Instant) -> Verdict {
        match (self, verdict) {
            (Self::Home(_), Verdict::Final(error))
                if error.kind == ErrorKind::DeadlineExceeded && !remaining(deadline).is_zero() =>
            {
                Verdict::Again(error, Next::ElsewhereNow)
            }
            (_, verdict) => verdict,
        }
    }

    /// The connection to it, if there is one that is likely to work.
    fn link(&self, pool: &Pool) -> Option<Arc<Link>> {
        let known = match self {
            Self::Leader(node) | Self::Home(node) => node.link.upgrade(),
            Self::Other(_) => None,
        };
        known
            .filter(|link| link.is_usable())
            .or_else(|| pool.usable(self.address()))
    }
}

/// The endpoints, and the known leader.
#[derive(Debug)]
pub(super) struct Router {
    pool: Arc<Pool>,
    addresses: Arc<Addresses>,
    retry: RetryPolicy,
    /// No read falls back behind what was seen.
    is_monotonic: bool,
    /// Each request has a span of its own.
    has_spans: bool,
    /// The leader when the member list was last requested, and the time of that.
    refreshed: Mutex<Option<(NodeId, Instant)>>,
    leader: ArcSwapOption<KnownNode>,
    home: Home,
    random: Mutex<fastrand::Rng>,
}

/// One pending request, through all of its attempts.
pub(super) struct Errand<'a> {
    pub(super) request: Request,
    pub(super) consistency: Consistency,
    pub(super) min_revision: i64,
    pub(super) ticket: Option<&'a Ticket>,
    pub(super) timeout: Duration,
    /// Only this node may serve it.
    pub(super) only: Option<&'a str>,
    /// What it says of itself.
    pub(super) context: RequestContext,
}

/// The result of a first attempt on the fast path.
pub(super) enum PointAttempt {
    Found(PointReply),
    Failed(FirstAttempt),
    /// No attempt was made.
    Not,
}

/// A first attempt that failed.
pub(super) struct FirstAttempt {
    began: Instant,
    target: Target,
    link: Arc<Link>,
    failure: Result<Error, LinkFailure>,
}

/// The final error of a request.
#[derive(Debug)]
pub(super) struct RequestFailure {
    pub(super) error: Error,
    /// Whether an attempt before the one that failed with this error may have been applied.
    pub(super) unknown_before: bool,
}

impl Router {
    pub(super) fn new(
        pool: Arc<Pool>,
        endpoints: Vec<String>,
        retry: RetryPolicy,
        (is_monotonic, has_spans): (bool, bool),
        seed: u64,
    ) -> Self {
        Self {
            pool,
            addresses: Arc::new(Addresses::new(endpoints)),
            retry,
            is_monotonic,
            has_spans,
            refreshed: Mutex::default(),
            leader: ArcSwapOption::empty(),
            home: Home::default(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        }
    }

    pub(super) fn endpoints(&self) -> &[String] {
        self.addresses.given()
    }

    /// Addresses of members that the endpoints do not name.
    pub(super) fn learned(&self) -> Arc<Vec<String>> {
        self.addresses.learned()
    }

    /// Replaces the known members.
    pub(super) fn learn_members(&self, list: &MembersResponse) {
        self.addresses.learn(list);
    }

    /// Adds known members from a list that may be incomplete.
    pub(super) fn learn_more_members(&self, list: &MembersResponse) {
        self.addresses.learn_more(list);
    }

    /// Which bootstrap of its cluster `member` comes from, which has answered, by what it said when it was
    /// connected; one that was asked through others, by what they said. Where that is not known, it is
    /// connected again, so that it is known soon.
    pub(super) fn bootstrap_of(&self, member: NodeId) -> Option<BootstrapId> {
        let mut links = self.pool.all_usable();
        if links.iter().any(|(_, link)| link.member_id() == member) {
            links.retain(|(_, link)| link.member_id() == member);
        }
        let mut said = links.iter().map(|(_, link)| link.bootstrap());
        let first = said.next().flatten();
        // A connection of before may not have been noticed to be lost.
        if first.is_some() && said.all(|other| other == first) {
            return first;
        }
        for (address, link) in links {
            self.forget(&address);
            self.pool.replace(&address, &link);
        }
        None
    }

    /// Whether no read falls back behind what was seen.
    pub(super) fn is_monotonic(&self) -> bool {
        self.is_monotonic
    }

    pub(super) fn leader(&self) -> Option<Arc<KnownNode>> {
        self.leader.load_full()
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Executes a request.
    ///
    /// # Cancel safety
    /// Safe; but what was sent stays sent, and a write may take effect.
    pub(super) async fn run(&self, errand: Errand<'_>) -> Result<Response, RequestFailure> {
        let deadline = deadline_after(errand.timeout);
        self.run_after(errand, deadline, None).await
    }

    /// Makes the first attempt of a read of one key on the fast path, if the leader is known and
    /// connected, or a node beside the client that serves it. Everything else is left to
    /// [`Router::run_after`].
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn try_point(
        &self,
        call: &mut PointCall<'_>,
        timeout: Duration,
        deadline: Instant,
    ) -> PointAttempt {
        let Some((target, link)) = self.point_target(call.consistency) else {
            return PointAttempt::Not;
        };
        let began = deadline.checked_sub(timeout).unwrap_or(deadline);
        let mut measured = Measurement::begin("range", began);
        measured.attempt();
        let (timeout, until) = match target {
            Target::Home(_) => (timeout.min(HOME_PATIENCE), target.until(deadline)),
            _ => (timeout, deadline),
        };
        call.timeout_ms = timeout_ms(timeout);
        let least = link
            .newest()
            .least(self.is_monotonic && may_be_old(call.consistency));
        let read = link.read_point(call, until);
        let read = match self.has_spans {
            true => in_point_span(read).await,
            false => read.await,
        };
        let failure = match read {
            // Another node is asked.
            Ok(Ok(found)) if found.header.revision < least => {
                measured.hand_over();
                return PointAttempt::Not;
            }
            Ok(Ok(found)) => {
                measured.succeed();
                link.newest().saw(found.header.revision);
                self.learn_from_point(&found.header, &target, &link);
                return PointAttempt::Found(found);
            }
            Ok(Err(error)) => Ok(error),
            Err(broken) => Err(broken),
        };
        measured.hand_over();
        PointAttempt::Failed(FirstAttempt {
            began,
            target,
            link,
            failure,
        })
    }

    fn point_target(&self, consistency: Consistency) -> Option<(Target, Arc<Link>)> {
        if consistency == Consistency::Linearizable
            && let Some((node, link)) = self.home.node(&self.pool, &self.addresses)
        {
            return Some((Target::Home(node), link));
        }
        let leader = self.leader.load_full()?;
        let link = leader.link.upgrade().filter(|link| link.is_usable())?;
        Some((Target::Leader(leader), link))
    }

    /// The usual reply carries no new information.
    fn learn_from_point(&self, header: &ResponseHeader, target: &Target, link: &Arc<Link>) {
        let is_new = match target {
            Target::Leader(leader) => header.leader_id != leader.id,
            Target::Home(_) => {
                if let Some(read) = header.read {
                    self.home.served(read.path);
                }
                let leader = self.leader.load();
                header.leader_id != leader.as_ref().and_then(|leader| leader.id)
            }
            Target::Other(_) => true,
        };
        if is_new || header.member_id != link.member_id() {
            self.learn(header, target, link);
        }
    }

    /// Executes a request whose `first` attempt may have been made already.
    ///
    /// # Cancel safety
    /// As [`Router::run`].
    pub(super) async fn run_after(
        &self,
        errand: Errand<'_>,
        deadline: Instant,
        first: Option<FirstAttempt>,
    ) -> Result<Response, RequestFailure> {
        let method = errand.request.method();
        let began = first.as_ref().map_or_else(now, |first| first.began);
        let mut measured = Measurement::begin(method, began);
        let attempts = self.attempts(errand, deadline, first, &mut measured);
        let result = match self.has_spans {
            true => in_span(method, attempts).await,
            false => attempts.await,
        };
        match &result {
            Ok(_) => measured.succeed(),
            Err(failed) => measured.fail(&failed.error),
        }
        result
    }

    async fn attempts(
        &self,
        errand: Errand<'_>,
        deadline: Instant,
        mut first: Option<FirstAttempt>,
        measured: &mut Measurement,
    ) -> Result<Response, RequestFailure> {
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
        let safety = frame.call.request.spec().safety(errand.ticket.is_some());
        let mut progress = Progress::new(safety, errand.context);
        progress.may_fall_back =
            self.is_monotonic && errand.only.is_none() && may_fall_back(&frame.call);
        loop {
            progress.attempts += 1;
            measured.attempt();
            progress.news = self.pool.news();
            let verdict = if let Some(first) = first.take() {
                progress.began = first.began;
                self.judge(first, deadline, &mut progress).await
            } else {
                let target = match errand.only {
                    Some(address) => Target::Other(address.to_string()),
                    None => self.target(&frame.call, &progress),
                };
                frame.call.session = errand.ticket.map(Ticket::call);
                let until = target.until(deadline);
                frame.call.timeout_ms = timeout_ms(remaining(until));
                let verdict = self
                    .attempt(&target, &mut frame, until, &mut progress)
                    .await;
                target.is_not_last(verdict, deadline)
            };
            let (error, next) = match verdict {
                Verdict::Done(response) => return Ok(response),
                Verdict::Final(error) => return Err(progress.fail(error)),
                Verdict::Again(error, next) => (error, next),
            };
            let given_up = progress.attempts >= self.retry.attempts_max || self.pool.is_closed();
            if given_up {
                return Err(progress.fail(error));
            }
            let may_be_cut_short = !matches!(next, Next::After(_));
            if matches!(next, Next::Elsewhere) {
                // Others are called now, so that they can be asked after the wait, or end it.
                let _ = self.next();
            }
            let left = remaining(deadline);
            let wait = self.wait_before(next, left, &mut progress);
            if left <= wait {
                return Err(progress.fail(error));
            }
            progress.last = Some(error);
            if may_be_cut_short {
                let news = self.pool.news_after(progress.news);
                let _ = tokio::time::timeout(wait, news).await;
            } else {
                tokio::time::sleep(wait).await;
            }
        }
    }

    async fn judge(
        &self,
        first: FirstAttempt,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Verdict {
        let address = first.target.address();
        let verdict = match first.failure {
            Ok(error) => match self
                .log_in(&error, address, &first.link, deadline, progress)
                .await
            {
                Some(verdict) => verdict,
                None => self.refused(error, address, &first.link, progress),
            },
            Err(broken) => self.broken(broken, address, &first.link, progress),
        };
        first.target.is_not_last(verdict, deadline)
    }

    /// Authenticates on the connection if the request failed for lack of that, to retry it then.
    async fn log_in(
        &self,
        error: &Error,
        address: &str,
        link: &Link,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Option<Verdict> {
        let login = self.pool.remedy(link, error)?;
        if error.outcome != Outcome::NotApplied || progress.logins >= LOGINS_MAX {
            return None;
        }
        Some(match login.log_in(link, deadline).await {
            Ok(()) => {
                progress.logins += 1;
                Verdict::Again(error.clone(), Next::Redirected)
            }
            Err(refusal) => match RetryRule::of(&refusal.kind) {
                RetryRule::AfterWait(wait) => Verdict::Again(refusal, Next::After(wait)),
                // The node may know too little, or no leader; another may know more.
                RetryRule::AtLeader | RetryRule::Elsewhere => {
                    self.forget(address);
                    Verdict::Again(refusal, Next::Elsewhere)
                }
                RetryRule::AfterLogin | RetryRule::NextElsewhere | RetryRule::Never => {
                    Verdict::Final(refusal)
                }
            },
        })
    }

    /// One attempt, at one node.
    async fn attempt(
        &self,
        target: &Target,
        frame: &mut ClientFrame,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Verdict {
        let address = target.address();
        let link = match target.link(&self.pool) {
            Some(link) => link,
            None => match self.connect(address, deadline, progress).await {
                Ok(link) => {
                    progress.news = self.pool.news();
                    // The login took part of the time.
                    frame.call.timeout_ms = timeout_ms(remaining(deadline));
                    link
                }
                Err((error, waited)) => {
                    self.forget(address);
                    progress.met_nobody = true;
                    return Verdict::unreachable(error, waited);
                }
            },
        };
        let concerned = frame.call.request.spec().is_throttled;
        let priority = progress.context.priority;
        if concerned && let Err(error) = self.admit(link.throttle(priority)) {
            return self.refused(error, address, &link, progress);
        }
        let repeats = progress.failed.safety() != Safety::Once;
        let least = link.newest().least(progress.may_fall_back);
        let answer = link.call(&progress.context, frame, repeats, deadline).await;
        if concerned && let Ok(answer) = &answer {
            link.throttle(priority).answered(answer.as_ref().err());
        }
        match answer {
            Ok(Ok(response)) if response.header.revision < least => {
                self.behind(address, response.header.revision, least, progress)
            }
            Ok(Ok(response)) => {
                self.learn(&response.header, target, &link);
                link.newest().saw(response.header.revision);
                if let (Target::Home(_), Some(read)) = (target, response.header.read) {
                    self.home.served(read.path);
                }
                if progress.met_nobody {
                    // A node that was connected is no longer there.
                    self.refresh(None, &link);
                }
                Verdict::Done(response)
            }
            Ok(Err(error)) => {
                if let Some(verdict) = self
                    .log_in(&error, address, &link, deadline, progress)
                    .await
                {
                    return verdict;
                }
                if let Some(leader) = self.unreachable_leader(&error, &link)
                    && self.has_forward(&link, leader, deadline).await
                {
                    return Verdict::Again(error, Next::Redirected);
                }
                self.refused(error, address, &link, progress)
            }
            Err(broken) => self.broken(broken, address, &link, progress),
        }
    }

    /// The leader that the node at the other end of `link` names, if that cannot be reached from here. The node
    /// does not forward to it, then, whatever was agreed before.
    fn unreachable_leader(&self, error: &Error, link: &Link) -> Option<NodeId> {
        let ErrorKind::NotLeader { leader, address } = &error.kind else {
            return None;
        };
        let leader = leader.filter(|leader| *leader != link.member_id())?;
        link.names_instead(leader);
        let is_reachable = || self.hinted(Some(leader), address.as_deref()).is_some();
        (error.outcome == Outcome::NotApplied && !is_reachable()).then_some(leader)
    }

    /// Asks a node to forward to `leader`. Whether it does: one that no node reaches has failed, and its
    /// successor is not waited for here.
    async fn has_forward(&self, link: &Link, leader: NodeId, deadline: Instant) -> bool {
        let until = deadline.min(deadline_after(FORWARD_PATIENCE));
        link.forward_to(leader, until).await.is_ok()
    }

    /// Handles a reply of an older state than this client has seen. The next to ask is the leader, if one
    /// is known, then others: one after the other at once, and with waits after that.
    fn behind(&self, target: &str, revision: i64, least: i64, progress: &mut Progress) -> Verdict {
        progress.behind += 1;
        // The leader is next, if one is known: then the node keeps its turn, and goes on to serve what it has.
        if progress.behind > 1 || self.leader.load().is_none() {
            self.pass_over(target);
        }
        let error = Error::not_applied(
            ErrorKind::FutureRevision,
            format!(
                "{target} is at revision {revision}, and this client has seen {least} already: the node is behind, or \
                 cut off from the others. A client with_monotonic(false) reads there nevertheless"
            ),
        );
        let next = match progress.behind <= self.addresses.count() {
            true => Next::ElsewhereNow,
            false => Next::Elsewhere,
        };
        Verdict::Again(error, next)
    }

    /// Whether more may be sent on a connection with this throttle, which may have had refusals lately.
    fn admit(&self, throttle: &Throttle) -> Result<(), Error> {
        if !throttle.is_counting() {
            return Ok(());
        }
        let drawn = {
            let mut random = self.random.lock();
            random.f64()
        };
        throttle.admit(now(), drawn)
    }

    /// Handles an error reply of the node.
    fn refused(&self, error: Error, target: &str, link: &Link, progress: &mut Progress) -> Verdict {
        let next = match RetryRule::of(&error.kind) {
            RetryRule::AtLeader => self.at_leader(&error, target, link),
            RetryRule::AfterWait(wait) => Next::After(wait),
            RetryRule::Elsewhere => {
                self.forget(target);
                Next::Elsewhere
            }
            RetryRule::NextElsewhere => {
                self.forget(target);
                return Verdict::Final(error);
            }
            // Logging in was tried, or there is no user to log in.
            RetryRule::AfterLogin | RetryRule::Never => return Verdict::Final(error),
        };
        if !progress.failed.may_repeat_after(error.outcome) {
            return Verdict::Final(error);
        }
        progress.failed.failed(error.outcome);
        Verdict::Again(error, next)
    }

    /// At the leader that an error names, if that is worth following.
    fn at_leader(&self, error: &Error, target: &str, link: &Link) -> Next {
        let ErrorKind::NotLeader { leader, address } = &error.kind else {
            return Next::Elsewhere;
        };
        let hint = self.hinted(*leader, address.as_deref());
        match self.follow(*leader, hint, target, link.member_id()) {
            true => Next::Redirected,
            false => Next::Elsewhere,
        }
    }

    /// Handles a connection that broke, or a deadline that passed, before a reply arrived.
    fn broken(
        &self,
        broken: LinkFailure,
        target: &str,
        link: &Link,
        progress: &mut Progress,
    ) -> Verdict {
        let LinkFailure { sent, cause } = broken;
        let kind = match &cause {
            BrokenCause::TooLong(error) => {
                return Verdict::Final(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    format!("cannot send the request: {error}"),
                ));
            }
            BrokenCause::OutOfTime => ErrorKind::DeadlineExceeded,
            _ => ErrorKind::ConnectionLost,
        };
        let closed_here = cause == BrokenCause::Lost(ConnectionLost::ClosedHere);
        let error = if closed_here {
            super::pool::closed()
        } else {
            Error::not_applied(kind, format!("no answer from {target}: {cause}"))
        };
        // A read without a reply has simply failed.
        let unknown = sent && progress.failed.safety() != Safety::Repeatable;
        let error = Error {
            outcome: if unknown {
                Outcome::Unknown
            } else {
                Outcome::NotApplied
            },
            ..error
        };
        if cause == BrokenCause::Silent && link.is_first_silence() {
            self.pool.strike(target);
        }
        if cause == BrokenCause::OutOfTime {
            self.forget(target);
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
        if closed_here || !progress.failed.may_repeat_after(error.outcome) {
            return Verdict::Final(error);
        }
        progress.failed.failed(error.outcome);
        Verdict::Again(error, Next::Elsewhere)
    }

    /// The destination of an attempt: the node beside the client if that serves the read, the leader if it is
    /// known, otherwise the next address.
    fn target(&self, call: &Call, progress: &Progress) -> Target {
        if progress.attempts == 1
            && call.consistency == Consistency::Linearizable
            && call.request.spec().kind == RequestKind::Read
            && let Some((node, _)) = self.home.node(&self.pool, &self.addresses)
        {
            return Target::Home(node);
        }
        let may_be_old = call.request.is_read()
            && matches!(
                call.consistency,
                Consistency::Serializable | Consistency::MaxStaleness(_)
            );
        let anyone = may_be_old || call.request.spec().kind == RequestKind::Node;
        match self.leader.load_full() {
            Some(leader) if !anyone || progress.behind % 2 == 1 => Target::Leader(leader),
            _ if may_be_old && progress.attempts == 1 => {
                Target::Other(self.addresses.near(&self.pool))
            }
            _ if may_be_old && progress.attempts == 2 && progress.behind == 0 => {
                self.addresses.leave_near();
                Target::Other(self.next())
            }
            _ => Target::Other(self.next()),
        }
    }

    /// The next node for a request that any node may serve, or whose leader is unknown.
    pub(super) fn next(&self) -> String {
        self.addresses.next(&self.pool)
    }

    /// A connection to a node, if one is made soon; otherwise the error, and whether there was a
    /// wait. The attempt goes on in the background, for the node's next turn.
    async fn connect(
        &self,
        address: &str,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<Arc<Link>, (Error, bool)> {
        let rounds = progress.dials / self.addresses.count().max(1);
        progress.dials += 1;
        let until = deadline.min(deadline_after(patience(rounds)));
        let link = self.pool.link(address, until).await;
        link.map_err(|error| (error, now() >= until))
    }

    /// A connection to a node, with the same timeout as a request's first attempt.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn connect_soon(
        &self,
        address: &str,
        deadline: Instant,
    ) -> Result<Arc<Link>, Error> {
        let until = deadline.min(deadline_after(patience(0)));
        self.pool.link(address, until).await
    }

    /// Records that a node did not serve; the next one follows.
    pub(super) fn avoid(&self, address: &str) {
        self.forget(address);
    }

    /// Records that a node had no capacity; another one follows.
    pub(super) fn pass_over(&self, address: &str) {
        self.addresses.failed(address);
    }

    /// The address that a hint leads to, if it is worth following.
    fn hinted(&self, leader: Option<NodeId>, address: Option<&str>) -> Option<String> {
        // An address that a connection was made to is more reliable than the advertised one.
        let met = leader.and_then(|id| self.pool.address_of(id));
        if met.is_some() {
            return met;
        }
        let said = address.filter(|address| !address.is_empty())?;
        match self.pool.usable(said) {
            // Another member is there, as behind an address that all have in common.
            Some(link) if leader.is_some_and(|id| id != link.member_id()) => None,
            None if self.addresses.failed_within(said, HINT_DISTRUST) => {
                // It may be back. It is trusted again once it is connected.
                self.addresses.call_ahead(said, &self.pool);
                None
            }
            _ => Some(said.to_string()),
        }
    }

    /// Follows a hint. False if it leads to no new address.
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
                    .store(Some(Arc::new(KnownNode { id, address, link })));
                true
            }
            _ => {
                self.forget(from);
                false
            }
        }
    }

    /// A client's first connection, to `address`: the node there has said who leads, so that the first request
    /// can go there.
    pub(super) fn greeted(&self, address: &str, link: &Arc<Link>) {
        self.home.greeted(address, link);
        let Some(leader) = link.leader() else {
            return;
        };
        let id = Some(leader.id);
        let (address, link) = match leader.id == link.member_id() {
            true => (address.to_owned(), Arc::downgrade(link)),
            false => match self.hinted(id, leader.address.as_deref()) {
                Some(hint) => (hint, Weak::new()),
                None => return,
            },
        };
        self.leader
            .store(Some(Arc::new(KnownNode { id, address, link })));
    }

    /// Drops the belief that a node is the leader; the next one follows.
    fn forget(&self, address: &str) {
        let believed = self.leader.load();
        if believed
            .as_ref()
            .is_some_and(|leader| leader.address == address)
        {
            self.leader.store(None);
        }
        self.home.failed(address);
        self.addresses.failed(address);
    }

    /// Updates the known leader from a reply.
    fn learn(&self, header: &ResponseHeader, from: &Target, link: &Arc<Link>) {
        let Some(id) = header.leader_id else {
            return;
        };
        self.refresh(Some(id), link);
        if id != header.member_id {
            // A follower that has just confirmed a read with its leader, or was answered by it, knows it.
            let is_from_leader = match header.read {
                Some(read) => read.path == ReadPath::Follower,
                None => link.forwards_to(id),
            };
            if is_from_leader {
                self.look_for(id);
            }
            return;
        }
        let is_known = |known: &KnownNode| {
            known.id == Some(id)
                && known.link.as_ptr() == Arc::as_ptr(link)
                && known.address == from.address()
        };
        if !self.leader.load().as_deref().is_some_and(is_known) {
            self.leader.store(Some(Arc::new(KnownNode {
                id: Some(id),
                address: from.address().to_string(),
                link: Arc::downgrade(link),
            })));
            self.pool.tell_news();
        }
    }

    /// Requests the member list from the node at the other end of `link`, in the background: when
    /// the leader has changed since the last request, or after an interval.
    fn refresh(&self, leader: Option<NodeId>, link: &Arc<Link>) {
        let now = now();
        {
            let mut refreshed = self.refreshed.lock();
            let is_due = match (*refreshed, leader) {
                (None, _) => true,
                (Some((known, at)), Some(leader)) => {
                    known != leader && now > at + REFRESH_LEADER_MIN
                }
                (Some((_, at)), None) => now > at + REFRESH_MIN,
            };
            if !is_due {
                return;
            }
            let known = refreshed.map_or(NodeId(0), |(known, _)| known);
            *refreshed = Some((leader.unwrap_or(known), now));
        }
        self.ask_for_members(Arc::clone(link));
    }

    /// Requests the member list from a connected member, in the background: from the leader, if it
    /// is known.
    pub(super) fn sync(&self) {
        let leader = self.leader.load();
        let leading = leader.as_ref().and_then(|leader| leader.link.upgrade());
        let leading = leading.filter(|link| link.is_usable());
        if let Some(link) = leading {
            return self.ask_for_members(link);
        }
        let next = self.next();
        match self.pool.usable(&next) {
            Some(link) => self.ask_for_members(link),
            // For the next time.
            None => self.addresses.call_ahead(&next, &self.pool),
        }
    }

    fn ask_for_members(&self, link: Arc<Link>) {
        let addresses = Arc::clone(&self.addresses);
        tokio::spawn(async move {
            let mut frame = ClientFrame {
                request_id: 0,
                call: Call {
                    timeout_ms: timeout_ms(REFRESH_PATIENCE),
                    consistency: Consistency::Serializable,
                    min_revision: 0,
                    session: None,
                    request: Request::MemberList,
                },
            };
            // If no reply arrives, the next request asks again.
            let answer = link
                .call(
                    &RequestContext::default(),
                    &mut frame,
                    true,
                    deadline_after(REFRESH_PATIENCE),
                )
                .await;
            if let Ok(Ok(Response { header, body })) = answer
                && let ResponseBody::Members(list) = body
            {
                match header.leader_id == Some(header.member_id) {
                    true => addresses.learn(&list),
                    false => addresses.learn_more(&list),
                }
            }
        });
    }

    /// A follower served a read confirmed by `leader`, which is one exchange more than a read at
    /// the leader. Where the leader's address is not known, one more member is connected to in the
    /// background from time to time: it may be the leader.
    fn look_for(&self, leader: NodeId) {
        if let Some(address) = self.pool.address_of(leader) {
            let id = Some(leader);
            let link = Weak::new();
            self.leader
                .store(Some(Arc::new(KnownNode { id, address, link })));
            return;
        }
        self.addresses.call_another(&self.pool, LOOK_INTERVAL);
    }

    /// The wait before the next attempt, with this much time `left`. If that is all of it, no
    /// attempt is made.
    fn wait_before(&self, next: Next, left: Duration, progress: &mut Progress) -> Duration {
        let back_off = |progress: &mut Progress| {
            progress.back_offs += 1;
            progress.redirected = false;
            within(left, self.jittered(self.retry.back_off(progress.back_offs)))
        };
        match next {
            // The first hint since the last wait is fresh; another one may be part of a cycle.
            Next::Redirected if !progress.redirected => {
                progress.redirected = true;
                Duration::ZERO
            }
            // The attempt itself was a wait.
            Next::ElsewhereNow => Duration::ZERO,
            Next::Redirected | Next::Elsewhere => back_off(progress),
            Next::After(asked) => asked.max(back_off(progress)),
        }
    }

    pub(super) fn jittered(&self, wait: Duration) -> Duration {
        let mut random = self.random.lock();
        wait.mul_f64(0.8 + 0.4 * random.f64())
    }

    /// A random number that other clients are unlikely to draw.
    pub(super) fn random(&self) -> u64 {
        let mut random = self.random.lock();
        random.u64(..)
    }
}

fn patience(rounds: usize) -> Duration {
    DIAL_PATIENCE.saturating_mul(1 << rounds.min(DIAL_DOUBLINGS_MAX))
}

/// The result of an attempt.
enum Verdict {
    Done(Response),
    Final(Error),
    Again(Error, Next),
}

impl Verdict {
    /// No connection: nothing was sent, so any request may be retried, unless the error is
    /// permanent.
    fn unreachable(error: Error, waited: bool) -> Self {
        match RetryRule::of_connecting(&error.kind) {
            RetryRule::Never => Self::Final(error),
            _ if waited => Self::Again(error, Next::ElsewhereNow),
            _ => Self::Again(error, Next::Elsewhere),
        }
    }
}

/// When and where the next attempt is made.
enum Next {
    /// At once, at the hinted node.
    Redirected,
    /// After a back-off, at another node if there is one.
    Elsewhere,
    /// At another node at once: there was a wait already.
    ElsewhereNow,
    /// At the same node, after the wait that it requested.
    After(Duration),
}

/// The history of a request's attempts.
struct Progress {
    began: Instant,
    attempts: u32,
    back_offs: u32,
    redirected: bool,
    /// What those that failed may have done.
    failed: Attempts,
    /// A connection could not be made.
    met_nobody: bool,
    /// Number of waits for a connection.
    dials: usize,
    /// Number of logins.
    logins: u32,
    /// A reply may be of an older state than this client has seen, which it must not be.
    may_fall_back: bool,
    /// Number of replies that were.
    behind: usize,
    /// The news that the last attempt could know.
    news: u64,
    last: Option<Error>,
    /// What each attempt says of itself.
    context: RequestContext,
}

impl Progress {
    fn new(safety: Safety, context: RequestContext) -> Self {
        Self {
            began: now(),
            attempts: 0,
            back_offs: 0,
            redirected: false,
            failed: Attempts::new(safety),
            met_nobody: false,
            dials: 0,
            logins: 0,
            may_fall_back: false,
            behind: 0,
            news: 0,
            last: None,
            context,
        }
    }

    fn fail(&self, error: Error) -> RequestFailure {
        let outcome = self.failed.outcome(error.outcome);
        let tries = (self.attempts > 1).then(|| Tries {
            attempts: self.attempts,
            elapsed: now().saturating_duration_since(self.began),
        });
        RequestFailure {
            error: Error {
                outcome,
                tries,
                ..error
            },
            unknown_before: self.failed.are_in_doubt(),
        }
    }
}

fn request_span(method: &'static str) -> tracing::Span {
    tracing::info_span!(
        "leasehold.request",
        method,
        outcome = tracing::field::Empty,
        code = tracing::field::Empty,
        attempts = tracing::field::Empty,
        member = tracing::field::Empty,
    )
}

/// Carries a request out within a span of its own, which says what came of it.
async fn in_span(
    method: &'static str,
    request: impl Future<Output = Result<Response, RequestFailure>>,
) -> Result<Response, RequestFailure> {
    let span = request_span(method);
    let result = request.instrument(span.clone()).await;
    match &result {
        Ok(response) => {
            span.record("outcome", "ok");
            span.record("member", tracing::field::display(response.header.member_id));
        }
        Err(RequestFailure { error, .. }) => {
            span.record("outcome", name_of(error.outcome));
            span.record("code", error.code());
            span.record("attempts", error.tries.map_or(1, |tries| tries.attempts));
        }
    }
    result
}

/// Makes the first attempt of a read of one key within a span. If it fails, those after it have another.
async fn in_point_span<E>(
    read: impl Future<Output = Result<Result<PointReply, Error>, E>>,
) -> Result<Result<PointReply, Error>, E> {
    let method = "range";
    let span = request_span(method);
    let result = read.instrument(span.clone()).await;
    match &result {
        Ok(Ok(found)) => {
            span.record("outcome", "ok");
            span.record("member", tracing::field::display(found.header.member_id));
        }
        Ok(Err(error)) => {
            span.record("code", error.code());
        }
        Err(_) => {}
    }
    result
}

/// A seed that differs between clients, so that they do not retry in step.
pub(super) fn seed() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "only spreads retries; nothing depends on it"
    )]
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = since_1970.map_or(0, |elapsed| elapsed.as_nanos());
    let mut bytes = nanos.to_le_bytes().to_vec();
    bytes.extend_from_slice(&std::process::id().to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Describes a write's place in its session, for the error of a session that is gone.
pub(super) fn describe(call: SessionCall) -> String {
    format!("write {} of session {}", call.sequence, call.id)
}
