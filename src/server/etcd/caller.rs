//! Who calls, how long the caller waits, and what it says of reads; and how a request gets its answer.
//!
//! A caller is the user of the token that it shows, else that of its certificate, else none. Tokens are
//! those of the native protocol, in base64url, and those of an issuer as they are.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio::time::Instant;

use super::grpc;
use super::options::EtcdOptions;
use crate::api::{
    AuthRequest, Call, Consistency, Error, ErrorKind, Outcome, Priority, Request, Response,
    ResponseHeader, Secret,
};
use crate::etcd::convert;
use crate::etcd::errors::{
    DEADLINE, INVALID_AUTH_TOKEN, Method, NO_LEADER, STOPPED, TIMEOUT, is_worth_waiting, status_of,
};
use crate::etcd::proto;
use crate::etcd::status::{Code, Status};
use crate::kv::access::Identity;
use crate::server::disk::store::{Snapshot, StoreError};
use crate::server::session::auth::is_jwt;
use crate::server::session::{LocalClient, Sessions};
use crate::types::NodeId;
use crate::wire::RequestContext;

/// The longest that a unary call takes, unless it waits for something by its nature.
pub(super) const PATIENCE: Duration = Duration::from_secs(7);
/// That of one that waits for this node's disk, and of any single request.
pub(super) const PATIENCE_LONG: Duration = Duration::from_secs(600);
/// That of one that waits for other clients: ten years.
pub(super) const PATIENCE_ENDLESS: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long to wait before a request that was surely not applied is made again.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(200);
/// How often it is looked whether there is a leader, and after how many looks without one the streams end
/// that need one.
const LEADER_LOOK: Duration = Duration::from_millis(500);
const LEADERLESS_LOOKS: u32 = 6;
/// How often it is looked whether the token of a stream is over.
const TOKEN_LOOK: Duration = Duration::from_secs(1);
/// What a message may have around the request that it holds.
const AROUND_BYTES: usize = 512 << 10;

const TOKEN: HeaderName = HeaderName::from_static("token");
const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const PRIORITY: HeaderName = HeaderName::from_static("leasehold-priority");
const CONSISTENCY: HeaderName = HeaderName::from_static("leasehold-consistency");

/// One call of a client.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) sessions: Arc<Sessions>,
    pub(super) options: Arc<EtcdOptions>,
    /// Of the connection.
    client: LocalClient,
    /// What the caller shows. It counts while access is controlled.
    token: Option<Arc<Secret>>,
    /// Whether the port is being closed; so it is, too, if the sender is gone.
    stopping: watch::Receiver<bool>,
    deadline: Instant,
    is_limited_by_client: bool,
    /// When the client's patience with a stream is over, if it said so.
    ends_at: Option<Instant>,
    /// No answer is wanted from a node that knows no leader.
    needs_leader: bool,
    consistency: Option<Consistency>,
    /// What its requests say of themselves.
    context: RequestContext,
}

impl Caller {
    /// By the headers of its call, which takes at most `longest`.
    ///
    /// # Errors
    /// They are malformed.
    pub(super) fn new(
        sessions: Arc<Sessions>,
        options: Arc<EtcdOptions>,
        client: LocalClient,
        stopping: watch::Receiver<bool>,
        headers: &HeaderMap,
        longest: Duration,
    ) -> Result<Self, Status> {
        let given = grpc::timeout(headers)?;
        let patience = given.map_or(longest, |given| given.min(longest));
        let has_leader = headers.get(HAS_LEADER).map(HeaderValue::as_bytes);
        Ok(Self {
            sessions,
            options,
            client,
            token: token(headers).map(Arc::new),
            stopping,
            deadline: now() + patience,
            is_limited_by_client: given.is_some_and(|given| given <= longest),
            ends_at: given
                .filter(|given| *given < PATIENCE_ENDLESS)
                .map(|given| now() + given),
            needs_leader: has_leader == Some(b"true"),
            consistency: consistency(headers)?,
            context: context(headers)?,
        })
    }

    /// The same caller, for one more request of a stream: that takes its own time, and is no part of the
    /// trace in which the stream began, which may go on for days.
    pub(super) fn again(&self) -> Self {
        Self {
            deadline: now() + PATIENCE,
            context: RequestContext {
                trace_parent: None,
                ..self.context
            },
            ..self.clone()
        }
    }

    /// The connection's session, whose limits hold for all that call on it.
    pub(super) fn client(&self) -> &LocalClient {
        &self.client
    }

    /// The session in which the caller's requests are made: by its token, if that counts.
    fn session(&self) -> Result<Cow<'_, LocalClient>, Error> {
        let Some(token) = &self.token else {
            return Ok(Cow::Borrowed(&self.client));
        };
        let by_token = self.client.with_token(&self.sessions, token)?;
        Ok(by_token.map_or(Cow::Borrowed(&self.client), Cow::Owned))
    }

    /// By whose rules the watches of the caller are judged.
    ///
    /// # Errors
    /// Its token is no good, or this node has not applied yet what that is from.
    pub(super) fn identity(&self) -> Result<Arc<Identity>, Error> {
        match self.session() {
            Ok(session) => session.identity(),
            Err(error) if error.kind == ErrorKind::Unavailable => {
                // It passes, as the want of a leader does.
                Err(Error::not_applied(ErrorKind::NoLeader, error.detail))
            }
            Err(error) => Err(error),
        }
    }

    /// How a request of the caller ends that failed with `error`, in etcd's words.
    pub(super) fn status_of(&self, error: &Error, method: Method) -> Status {
        let is_unknown = matches!(
            error.kind,
            ErrorKind::Unauthenticated | ErrorKind::TokenExpired
        );
        if is_unknown && self.token.is_some() && method != Method::Authenticate {
            return INVALID_AUTH_TOKEN;
        }
        status_of(error, method, !self.client.name().is_empty())
    }

    /// When the call is over.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How a call ends whose time is over.
    pub(super) fn late(&self) -> Status {
        match self.is_limited_by_client {
            true => DEADLINE,
            false => TIMEOUT,
        }
    }

    /// The longest message that is received.
    pub(super) fn message_bytes_max(&self) -> usize {
        message_bytes_max(&self.sessions)
    }

    /// What a read of this caller asks for.
    pub(super) fn consistency(&self, is_serializable: bool) -> Consistency {
        match self.consistency {
            Some(consistency) => consistency,
            None if is_serializable => Consistency::Serializable,
            None => Consistency::Linearizable,
        }
    }

    /// That a leader is known, if the caller asks for that.
    pub(super) fn wants_leader(&self) -> Result<(), Status> {
        let is_led = self.sessions.node.published.leader().is_some();
        match self.needs_leader && !is_led {
            true => Err(NO_LEADER),
            false => Ok(()),
        }
    }

    /// Waits until streams of this caller have to end: because the node stops, because it has known no
    /// leader for long and the caller wants none then, because the caller's token is over, or because its
    /// deadline has passed.
    pub(super) async fn ended(&self) -> Status {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => STOPPED,
            () = self.leader_lost() => NO_LEADER,
            () = self.token_ended() => INVALID_AUTH_TOKEN,
            () = until(self.ends_at) => DEADLINE,
        }
    }

    /// Until the token of an issuer is over. One of this cluster is good for as long as its stream, as in
    /// etcd.
    async fn token_ended(&self) {
        if !self
            .token
            .as_ref()
            .is_some_and(|token| is_jwt(token.reveal()))
        {
            return std::future::pending().await;
        }
        loop {
            match self.session() {
                Err(error) if error.kind != ErrorKind::Unavailable => return,
                _ => tokio::time::sleep(TOKEN_LOOK).await,
            }
        }
    }

    async fn leader_lost(&self) {
        if !self.needs_leader {
            return std::future::pending().await;
        }
        let mut looks = 0;
        while looks < LEADERLESS_LOOKS {
            tokio::time::sleep(LEADER_LOOK).await;
            looks = match self.wants_leader() {
                Ok(()) => 0,
                Err(_) => looks + 1,
            };
        }
    }

    /// Makes a request of this node. While there is no leader, or another one than this node knows, it
    /// waits and asks again.
    ///
    /// # Errors
    /// In etcd's words, for a request of `method`.
    pub(super) async fn ask(
        &self,
        request: Request,
        consistency: Consistency,
        method: Method,
    ) -> Result<Response, Status> {
        self.ask_at(request, consistency, 0, method).await
    }

    /// [`Caller::ask`] of a state that has `min_revision`.
    pub(super) async fn ask_at(
        &self,
        request: Request,
        consistency: Consistency,
        min_revision: i64,
        method: Method,
    ) -> Result<Response, Status> {
        let mut pause = RETRY_MIN;
        loop {
            if self.sessions.node.is_stopping() {
                return Err(STOPPED);
            }
            let call = Call {
                timeout_ms: self.left_ms(),
                consistency,
                min_revision,
                session: None,
                request: request.clone(),
            };
            let session = match method {
                // Who logs in may show a token that has expired.
                Method::Authenticate => Ok(Cow::Borrowed(&self.client)),
                _ => self.session(),
            };
            let is_login = method == Method::Authenticate;
            let was_ignored = matches!(session, Ok(Cow::Borrowed(_))) && !is_login;
            let error = match session {
                Ok(session) => match session.ask(self.context, call).await {
                    Ok(response) => return Ok(response),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if !is_worth_waiting(&error) && !self.is_overtaken(&error, was_ignored) {
                return Err(self.status_of(&error, method));
            }
            // The deadline of the call ends this.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Whether a request failed because the rules of this node were older than those that it met, or
    /// than the token of the caller: they come with the next entries. `was_ignored`: a token did not count.
    fn is_overtaken(&self, error: &Error, was_ignored: bool) -> bool {
        let is_controlled = self.sessions.serving.access.rules().is_some();
        let passes = match error.kind {
            ErrorKind::Unavailable => self.token.is_some() || is_controlled,
            ErrorKind::Unauthenticated => self.token.is_some() && was_ignored && is_controlled,
            _ => false,
        };
        passes && error.outcome == Outcome::NotApplied && self.sessions.node.is_readable()
    }

    /// Looks at the state of this node, whatever the caller may read. Such a look may wait for the disk, so it has
    /// a thread of its own.
    ///
    /// # Errors
    /// The node stops, or has to.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Snapshot) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Status> {
        let sessions = Arc::clone(&self.sessions);
        let looked = tokio::task::spawn_blocking(move || {
            let found = sessions.serving.store.snapshot();
            found.and_then(|view| look(&view)).map_err(|error| {
                (sessions.on_fatal)(error);
                STOPPED
            })
        });
        looked.await.unwrap_or(Err(STOPPED))
    }

    /// That the caller may do what only the role root may.
    ///
    /// # Errors
    /// It may not.
    pub(super) async fn wants_root(&self) -> Result<(), Status> {
        let only_root = Request::Auth(AuthRequest::UserList);
        let asked = self.ask(only_root, Consistency::Serializable, Method::Auth);
        asked.await.map(drop)
    }

    /// How much time the call has.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(now())
    }

    fn left_ms(&self) -> u32 {
        let left = self.left().min(PATIENCE_LONG);
        // One more, so that the call ends here and not with an error of the driver.
        u32::try_from(left.as_millis() + 1).unwrap_or(u32::MAX)
    }

    /// The header of an answer, in this node's name.
    pub(super) fn header(&self, of: &ResponseHeader) -> proto::ResponseHeader {
        self.header_at(of, of.revision)
    }

    /// [`Caller::header`] that shows another revision.
    pub(super) fn header_at(&self, of: &ResponseHeader, revision: i64) -> proto::ResponseHeader {
        proto::ResponseHeader {
            member_id: self.member_id().0,
            ..convert::header(of, revision)
        }
    }

    /// This node.
    pub(super) fn member_id(&self) -> NodeId {
        self.sessions.node.member_id
    }
}

/// The longest message that is received on this port.
pub(super) fn message_bytes_max(sessions: &Sessions) -> usize {
    sessions.limits.requests.request_bytes_max + AROUND_BYTES
}

/// The time by which calls end.
pub(super) fn now() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a call takes is no lease: plain elapsed time is enough"
    )]
    Instant::now()
}

/// Waits for that time; without one, for ever.
pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A token as clients are given it.
pub(super) fn shown_token(token: &Secret) -> String {
    URL_SAFE_NO_PAD.encode(token.reveal())
}

/// The token in the headers of a call. One that does not read is none that is good.
fn token(headers: &HeaderMap) -> Option<Secret> {
    let text = match headers.get(TOKEN) {
        Some(token) => token.as_bytes(),
        None => {
            let given = headers.get(AUTHORIZATION)?.as_bytes();
            given.strip_prefix(b"Bearer ").unwrap_or(given)
        }
    };
    // One of an issuer is text, and longer than any that is good only by mistake.
    if is_jwt(text) && text.contains(&b'.') {
        return Some(Secret::new(text));
    }
    let token = URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
    Some(Secret::new(token))
}

/// What the caller asks for its reads, in our own word for it.
fn consistency(headers: &HeaderMap) -> Result<Option<Consistency>, Status> {
    let Some(value) = headers.get(CONSISTENCY) else {
        return Ok(None);
    };
    let unknown = || {
        Status::new(
            Code::InvalidArgument,
            "leasehold-consistency is none of q, lease, s, or a duration such as 500ms",
        )
    };
    let text = value.to_str().map_err(|_| unknown())?;
    Ok(Some(match text {
        "q" => Consistency::LinearizableQuorum,
        "lease" => Consistency::LeaseOnly,
        "s" => Consistency::Serializable,
        text => {
            let bound = humantime::parse_duration(text).map_err(|_| unknown())?;
            Consistency::MaxStaleness(bound)
        }
    }))
}

/// What the headers of a call say of its requests. A `traceparent` that does not read is passed over, as W3C
/// asks, and so are several, none of which is better than the others.
///
/// # Errors
/// It asks for a priority that there is not.
fn context(headers: &HeaderMap) -> Result<RequestContext, Status> {
    let mut given = headers.get_all(TRACE_PARENT).iter();
    let only = given.next().filter(|_| given.next().is_none());
    let text = only.and_then(|value| value.to_str().ok());
    Ok(RequestContext {
        trace_parent: text.and_then(|text| text.trim().parse().ok()),
        priority: match headers.get(PRIORITY).map(HeaderValue::as_bytes) {
            None | Some(b"normal") => Priority::Normal,
            Some(b"low") => Priority::Low,
            Some(_) => {
                return Err(Status::new(
                    Code::InvalidArgument,
                    "leasehold-priority is none of low and normal",
                ));
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_in_either_header_and_what_does_not_read_is_no_good() {
        let read = |pairs: &[(HeaderName, &str)]| {
            let pairs = pairs.iter().cloned();
            let pairs = pairs.map(|(name, value)| (name, HeaderValue::from_str(value).unwrap()));
            token(&pairs.collect())
        };
        let secret = Secret::new([1_u8, 0xff, 0xfe, 0xfb, 7]);
        let shown = shown_token(&secret);
        assert!(shown.contains(['-', '_']) && !shown.contains(['+', '/', '=']));
        let bearer = format!("Bearer {shown}");
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[(TOKEN, shown.as_str())]), Some(secret.clone()));
        assert_eq!(
            read(&[(AUTHORIZATION, shown.as_str())]),
            Some(secret.clone())
        );
        assert_eq!(
            read(&[(AUTHORIZATION, bearer.as_str())]),
            Some(secret.clone())
        );
        let both = [(AUTHORIZATION, "other"), (TOKEN, shown.as_str())];
        assert_eq!(read(&both), Some(secret));
        for text in ["", "!", "Basic YTpi"] {
            assert_eq!(read(&[(AUTHORIZATION, text)]), Some(Secret::default()));
        }
    }

    #[test]
    fn the_trace_of_a_call_is_read_and_what_is_none_is_passed_over() {
        let read = |texts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for text in texts {
                headers.append(TRACE_PARENT, HeaderValue::from_static(text));
            }
            context(&headers).unwrap().trace_parent
        };
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = read(&[text]).unwrap();
        assert_eq!(parent.to_string(), text);
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["", ""]), None);
        assert_eq!(read(&["00-zz"]), None);
        assert_eq!(read(&[text, text]), None);
    }

    #[test]
    fn the_priority_of_a_call_is_read() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(PRIORITY, HeaderValue::from_static(text))]);
            context(&headers).map(|context| context.priority)
        };
        assert_eq!(read("low"), Ok(Priority::Low));
        assert_eq!(read("normal"), Ok(Priority::Normal));
        for text in ["", "high", "LOW"] {
            assert_eq!(read(text).unwrap_err().code, Code::InvalidArgument);
        }
    }

    #[test]
    fn the_consistency_of_a_call_is_read() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONSISTENCY, HeaderValue::from_static(text));
            consistency(&headers)
        };
        assert_eq!(consistency(&HeaderMap::new()), Ok(None));
        assert_eq!(read("q"), Ok(Some(Consistency::LinearizableQuorum)));
        assert_eq!(read("lease"), Ok(Some(Consistency::LeaseOnly)));
        assert_eq!(read("s"), Ok(Some(Consistency::Serializable)));
        let bound = Duration::from_millis(500);
        assert_eq!(read("500ms"), Ok(Some(Consistency::MaxStaleness(bound))));
        for text in ["", "x", "-1s"] {
            assert_eq!(read(text).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
