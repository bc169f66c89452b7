//! Where a request goes, and whether it goes again.
//!
//! A request goes to the node that is believed to lead. Whoever does not lead says who does, and
//! that hint is followed, unless its address has just failed; without a hint another node is asked.
//! Between attempts there is a back-off, except before the first redirection and after a wait for a
//! connection; everything ends at the request's deadline.
//!
//! What is sent again is only what is safe to send again: reads; writes with a number, which the
//! cluster recognises; and anything of which it is certain that it has not been applied. So that
//! the last error does not lie about the attempts before it, a write that may have been applied
//! by any attempt fails with outcome *unknown*, whatever its last attempt was told (A18).

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use crate::api::{
    Call, Consistency, Error, ErrorKind, MembersResponse, Outcome, ReadPath, Request, Response,
    ResponseBody, ResponseHeader, SessionCall,
};
use crate::client::addresses::Addresses;
use crate::client::link::{Broken, BrokenCause, Link};
use crate::client::options::RetryPolicy;
use crate::client::pool::Pool;
use crate::client::session::Ticket;
use crate::client::throttle::Throttle;
use crate::sync::Mutex;
use crate::transport::Lost;
use crate::types::NodeId;
use crate::wire::client::ClientFrame;
use crate::wire::point::{PointCall, PointReply};

/// The server is told a little less than is left, so that its own verdict arrives in time.
const REPLY_SHARE: u32 = 20;
const REPLY_TIME_MAX: Duration = Duration::from_millis(50);

/// How long a connection to a node is waited for; doubled with each time round all nodes, so often at
/// most.
const DIAL_PATIENCE: Duration = Duration::from_millis(300);
const DIAL_DOUBLINGS_MAX: usize = 2;
/// How long the list of members is waited for, and how seldom it is asked for without need.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
const REFRESH_MIN: Duration = Duration::from_secs(1);
/// The same where another one leads, which not all members know at once.
const REFRESH_LEADER_MIN: Duration = Duration::from_millis(100);
/// So long nobody waits for a leader at an address that has failed, whoever hints at it: followers
/// name a dead leader until there is a new one.
const HINT_DISTRUST: Duration = Duration::from_secs(10);
/// How seldom whoever is served by a follower looks for the leader.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// With less time than this another attempt is not worth making.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);

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
    addresses: Arc<Addresses>,
    retry: RetryPolicy,
    /// Who led when the members were last asked for, and when that was.
    refreshed: Mutex<Option<(NodeId, Instant)>>,
    leader: ArcSwapOption<Leader>,
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
            addresses: Arc::new(Addresses::new(endpoints)),
            retry,
            refreshed: Mutex::default(),
            leader: ArcSwapOption::empty(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        }
    }

    pub(super) fn endpoints(&self) -> &[String] {
        self.addresses.given()
    }

    /// Where members are that the endpoints do not name.
    pub(super) fn learned(&self) -> Arc<Vec<String>> {
        self.addresses.learned()
    }

    /// The members are these.
    pub(super) fn learn_members(&self, list: &MembersResponse) {
        self.addresses.learn(list);
    }

    /// These are members, perhaps not all.
    pub(super) fn learn_more_members(&self, list: &MembersResponse) {
        self.addresses.learn_more(list);
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
                    None => self.target(&frame.call),
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
            let left = remaining(deadline);
            let wait = self.wait_before(next, left, &mut progress);
            if left <= wait {
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
            Ok(error) => match self
                .log_in(&error, address, &first.link, deadline, progress)
                .await
            {
                Some(verdict) => verdict,
                None => self.refused(error, address, &first.link, safety, progress),
            },
            Err(broken) => self.broken(broken, address, &first.link, safety, progress),
        }
    }

    /// If whoever was asked did not know who asks: tells him, to ask again then.
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
            Err(refusal) => match &refusal.kind {
                ErrorKind::SlowDown { retry_after_ms } => {
                    let wait = Duration::from_millis(u64::from(*retry_after_ms));
                    Verdict::Again(refusal, Next::After(wait))
                }
                // It may know too little, or nobody who knows; another may know more.
                ErrorKind::NoLeader
                | ErrorKind::NotLeader { .. }
                | ErrorKind::LeaderChanged
                | ErrorKind::QuorumTimeout
                | ErrorKind::Unavailable
                | ErrorKind::ConnectionLost => {
                    self.forget(address);
                    Verdict::Again(refusal, Next::Elsewhere)
                }
                _ => Verdict::Final(refusal),
            },
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
            None => match self.connect(address, deadline, progress).await {
                Ok(link) => {
                    // That took its time.
                    frame.call.timeout_ms = told(remaining(deadline));
                    link
                }
                Err((error, waited)) => {
                    self.forget(address);
                    progress.met_nobody = true;
                    return Verdict::unreachable(error, waited);
                }
            },
        };
        let concerned = Throttle::concerns(&frame.call.request);
        if concerned && let Err(error) = self.admit(&link) {
            return self.refused(error, address, &link, safety, progress);
        }
        let answer = link.call(frame, safety != Safety::Once, deadline).await;
        if concerned && let Ok(answer) = &answer {
            link.throttle().answered(answer.as_ref().err());
        }
        match answer {
            Ok(Ok(response)) => {
                self.learn(&response.header, target, &link);
                if progress.met_nobody {
                    // Where somebody was there is nobody now.
                    self.refresh(None, &link);
                }
                Verdict::Done(response)
            }
            Ok(Err(error)) => match self
                .log_in(&error, address, &link, deadline, progress)
                .await
            {
                Some(verdict) => verdict,
                None => self.refused(error, address, &link, safety, progress),
            },
            Err(broken) => self.broken(broken, address, &link, safety, progress),
        }
    }

    /// Whether more may be sent on this link, which has been refused lately.
    fn admit(&self, link: &Link) -> Result<(), Error> {
        let throttle = link.throttle();
        if !throttle.is_counting() {
            return Ok(());
        }
        let drawn = {
            let mut random = self.random.lock();
            random.f64()
        };
        throttle.admit(in_time(Duration::ZERO), drawn)
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
                let hint = self.hinted(*leader, address.as_deref());
                if self.follow(*leader, hint, target, link.member_id()) {
                    Next::Redirected
                } else {
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
                Next::Elsewhere
            }
            ErrorKind::DeadlineExceeded | ErrorKind::FutureRevision => {
                // It is behind, or slow: the next request may do better elsewhere.
                self.addresses.failed(target);
                return Verdict::Final(error);
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
        link: &Link,
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
        if cause == BrokenCause::Silent && link.is_first_silence() {
            self.pool.strike(target);
        }
        if cause == BrokenCause::OutOfTime {
            self.addresses.failed(target);
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
        if closed_here || (unknown && safety == Safety::Once) {
            return Verdict::Final(error);
        }
        progress.unknown |= unknown;
        Verdict::Again(error, Next::Elsewhere)
    }

    /// Where to go: to the leader if one is known, else to whoever comes next.
    fn target(&self, call: &Call) -> Target {
        let anyone = matches!(call.request, Request::Status | Request::LeaderLeaseReport)
            || (call.request.is_read()
                && matches!(
                    call.consistency,
                    Consistency::Serializable | Consistency::MaxStaleness(_)
                ));
        match self.leader.load_full() {
            Some(leader) if !anyone => Target::Leader(leader),
            _ => Target::Other(self.next()),
        }
    }

    /// The node to ask next where any may do, or nobody knows better.
    pub(super) fn next(&self) -> String {
        self.addresses.next(&self.pool)
    }

    /// A link to a node, if there is one soon; else the error, and whether it was waited for. The
    /// connection is made in the background all the same, for when its turn comes again.
    async fn connect(
        &self,
        address: &str,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<Arc<Link>, (Error, bool)> {
        let rounds = progress.dials / self.addresses.count().max(1);
        progress.dials += 1;
        let until = deadline.min(in_time(patience(rounds)));
        let link = self.pool.link(address, until).await;
        link.map_err(|error| (error, in_time(Duration::ZERO) >= until))
    }

    /// A link to a node, for whoever has time: the same patience as requests have at first.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn connect_soon(
        &self,
        address: &str,
        deadline: Instant,
    ) -> Result<Arc<Link>, Error> {
        let until = deadline.min(in_time(patience(0)));
        self.pool.link(address, until).await
    }

    /// A node did not serve: the next one's turn.
    pub(super) fn avoid(&self, address: &str) {
        self.forget(address);
    }

    /// A node had no room: another one's turn.
    pub(super) fn pass_over(&self, address: &str) {
        self.addresses.failed(address);
    }

    /// The address that a hint leads to, if it is worth following.
    fn hinted(&self, leader: Option<NodeId>, address: Option<&str>) -> Option<String> {
        // Where the leader has been met is better than where it says it is: we have been there.
        let met = leader.and_then(|id| self.pool.address_of(id));
        if met.is_some() {
            return met;
        }
        let said = address.filter(|address| !address.is_empty())?;
        if self.addresses.failed_within(said, HINT_DISTRUST) && self.pool.usable(said).is_none() {
            // It may be back. Once it is connected it is believed.
            self.addresses.call_ahead(said, &self.pool);
            return None;
        }
        Some(said.to_string())
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
        self.addresses.failed(address);
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

    /// Asks a member that is connected who the members are, in the background: the one that leads, if
    /// it is known.
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
                    timeout_ms: told(REFRESH_PATIENCE),
                    consistency: Consistency::Serializable,
                    min_revision: 0,
                    session: None,
                    request: Request::MemberList,
                },
            };
            // What does not come is asked for the next time.
            let answer = link.call(&mut frame, true, in_time(REFRESH_PATIENCE)).await;
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

    /// A follower served a read by the word of `leader`, which is one exchange more than asking the
    /// leader itself. Where the leader is not known, one more member is connected to in the
    /// background now and then: this may be it.
    fn look_for(&self, leader: NodeId) {
        if let Some(address) = self.pool.address_of(leader) {
            let id = Some(leader);
            let link = Weak::new();
            self.leader
                .store(Some(Arc::new(Leader { id, address, link })));
            return;
        }
        self.addresses.call_another(&self.pool, LOOK_INTERVAL);
    }

    /// How long to wait before the next attempt, with so much time `left`. If that is all of it, no
    /// attempt is made.
    fn wait_before(&self, next: Next, left: Duration, progress: &mut Progress) -> Duration {
        let back_off = |progress: &mut Progress| {
            progress.back_offs += 1;
            progress.redirected = false;
            within(left, self.jittered(self.retry.back_off(progress.back_offs)))
        };
        match next {
            // The first hint since the last wait is fresh; another one may be part of a circle.
            Next::Redirected if !progress.redirected => {
                progress.redirected = true;
                Duration::ZERO
            }
            // That was a wait.
            Next::ElsewhereNow => Duration::ZERO,
            Next::Redirected | Next::Elsewhere => back_off(progress),
            Next::After(asked) => asked.max(back_off(progress)),
        }
    }

    pub(super) fn jittered(&self, wait: Duration) -> Duration {
        let mut random = self.random.lock();
        wait.mul_f64(0.8 + 0.4 * random.f64())
    }

    /// A number that other clients are unlikely to draw.
    pub(super) fn random(&self) -> u64 {
        let mut random = self.random.lock();
        random.u64(..)
    }
}

/// How long to wait with so much time `left`: that is for attempts, as long as those make sense.
pub(super) fn within(left: Duration, back_off: Duration) -> Duration {
    match left > LAST_ATTEMPT {
        true => back_off.min(left / 2),
        false => left,
    }
}

fn patience(rounds: usize) -> Duration {
    DIAL_PATIENCE.saturating_mul(1 << rounds.min(DIAL_DOUBLINGS_MAX))
}

/// What an attempt came to.
enum Verdict {
    Done(Response),
    Final(Error),
    Again(Error, Next),
}

impl Verdict {
    /// No connection: nothing was sent, so anything may be tried again, unless it is hopeless.
    fn unreachable(error: Error, waited: bool) -> Self {
        match error.kind {
            ErrorKind::InvalidArgument | ErrorKind::Unauthenticated | ErrorKind::TokenExpired => {
                Self::Final(error)
            }
            _ if waited => Self::Again(error, Next::ElsewhereNow),
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
    /// The same at once: there was a wait already.
    ElsewhereNow,
    /// At the same node, once it wants to hear of us again.
    After(Duration),
}

/// How often a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Safety {
    /// It changes nothing (or, of a session that is opened and not used, nothing that matters).
    Repeatable,
    /// The cluster recognises it.
    Numbered,
    /// Again only if it is certain that it was not applied.
    Once,
}

impl Safety {
    pub(crate) fn of(request: &Request, numbered: bool) -> Self {
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
    /// Somewhere no connection could be made.
    met_nobody: bool,
    /// Connections that were waited for.
    dials: usize,
    /// How often it was said anew who asks.
    logins: u32,
    last: Option<Error>,
}

impl Progress {
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
