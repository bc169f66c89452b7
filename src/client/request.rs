//! Requests to the cluster: a write carries its sequence number in a session, so that a retry is
//! recognised.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Client;
use super::deadline::{deadline_after, now};
use super::response::unexpected_response;
use super::route::{Errand, RequestFailure, describe};
use super::session::{Session, Ticket};
use crate::api::{
    Consistency, Error, ErrorKind, Outcome, Request, RequestKind, Response, ResponseBody,
    ResponseHeader,
};

impl Client {
    /// Sends a request that the caller has built, by the same rules as the other methods.
    /// `consistency` is ignored by writes.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::api::{Consistency, PutRequest, Request};
    ///
    /// let put = PutRequest { key: "color".into(), value: "red".into(), ..PutRequest::default() };
    /// let reply = client.call(Request::Put(put), Consistency::Linearizable).await?;
    /// println!("at revision {}", reply.header.revision);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`] and [`Client::put`]; [`ErrorKind::Unsupported`] for requests that concern
    /// a single node (a status) or that the client makes itself (a session).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn call(
        &self,
        request: Request,
        consistency: Consistency,
    ) -> Result<Response, Error> {
        let (header, body) = match (request.spec().kind, request) {
            // The client makes these itself, and means something else by them.
            (_, request @ (Request::OpenSession | Request::Snapshot(_))) => {
                return Err(not_of_a_cluster(&request));
            }
            (RequestKind::Read | RequestKind::LeaseRead | RequestKind::MemberList, request) => {
                self.read(request, consistency, 0, None).await?
            }
            (RequestKind::Write, request) => self.write(request, None).await?,
            (_, Request::LeaseKeepAlive(leases)) => {
                let kept = self.renew(leases, self.inner.options.timeout).await?;
                (self.header(), ResponseBody::LeaseKeepAlive(kept))
            }
            (_, Request::MoveLeader { target }) => {
                (self.move_leader(target).await?, ResponseBody::MoveLeader)
            }
            (RequestKind::MemberChange, request) => {
                let members = self.change_members(request).await?;
                (self.header(), ResponseBody::Members(Box::new(members)))
            }
            (_, request) => return Err(not_of_a_cluster(&request)),
        };
        Ok(Response { header, body })
    }

    /// Of a reply that was put together here.
    fn header(&self) -> ResponseHeader {
        ResponseHeader {
            leader_id: self.leader(),
            ..ResponseHeader::default()
        }
    }

    pub(super) async fn read(
        &self,
        request: Request,
        consistency: Consistency,
        min_revision: i64,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, ResponseBody), Error> {
        let errand = Errand {
            request: self.prepared(request)?,
            consistency,
            min_revision,
            ticket: None,
            timeout: timeout.unwrap_or(self.inner.options.timeout),
            only: None,
            context: self.context,
        };
        let response = self.inner.router.run(errand).await;
        let response = response.map_err(|failed| failed.error)?;
        self.received(response, Outcome::NotApplied)
    }

    pub(super) async fn write(
        &self,
        request: Request,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, ResponseBody), Error> {
        let options = &self.inner.options;
        let request = self.prepared(request)?;
        let timeout = timeout.unwrap_or(options.timeout);
        let deadline = deadline_after(timeout);
        let mut sessions = 0;
        loop {
            let left = deadline.saturating_duration_since(now());
            let ticket = if options.exactly_once {
                Some(self.number(left).await?)
            } else {
                None
            };
            let left = deadline.saturating_duration_since(now());
            let errand = Errand {
                request: request.clone(),
                consistency: Consistency::Linearizable,
                min_revision: 0,
                ticket: ticket.as_ref(),
                timeout: left,
                only: None,
                context: self.context,
            };
            let failed = match self.inner.router.run(errand).await {
                Ok(response) => return self.received(response, Outcome::Applied),
                Err(failed) => failed,
            };
            let Some(ticket) = ticket else {
                return Err(failed.error);
            };
            sessions += 1;
            match self
                .after_failure(failed, &ticket, sessions, deadline)
                .await
            {
                None => {}
                Some(error) => return Err(error),
            }
        }
    }

    /// Decides what follows a failed write: `None` means that it was certainly not applied, because
    /// its session was unknown from its first attempt on, and may be retried in a new one.
    async fn after_failure(
        &self,
        failed: RequestFailure,
        ticket: &Ticket,
        sessions: u32,
        deadline: Instant,
    ) -> Option<Error> {
        let RequestFailure {
            error,
            unknown_before,
        } = failed;
        if error.kind != ErrorKind::SessionExpired {
            return Some(error);
        }
        // Another task that is opening a session may take longer than this write's deadline.
        let forgetting = self.forget_session(ticket.session());
        let _ = tokio::time::timeout_at(deadline, forgetting).await;
        if unknown_before {
            // An earlier attempt may have been applied before the session was forgotten.
            return Some(Error {
                outcome: Outcome::Unknown,
                detail: format!(
                    "{}: {} may have been applied before; read before you repeat it",
                    error.detail,
                    describe(ticket.call())
                ),
                ..error
            });
        }
        let error = Error {
            outcome: Outcome::NotApplied,
            ..error
        };
        (sessions >= SESSIONS_MAX).then_some(error)
    }

    /// The sequence number of a new write, in a session that is opened if there is none.
    async fn number(&self, timeout: Duration) -> Result<Ticket, Error> {
        if let Some(session) = &*self.inner.opened.load() {
            return Ok(session.number());
        }
        let deadline = deadline_after(timeout);
        let waiting = tokio::time::timeout_at(deadline, self.inner.session.lock());
        let Ok(mut open) = waiting.await else {
            return Err(Error::not_applied(
                ErrorKind::DeadlineExceeded,
                "no session could be opened in time, so the write was not sent",
            ));
        };
        if let Some(session) = &*open {
            return Ok(session.number());
        }
        let errand = Errand {
            request: Request::OpenSession,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            ticket: None,
            timeout: deadline.saturating_duration_since(now()),
            only: None,
            context: self.context,
        };
        // Whatever the outcome for the session, the write itself was not sent.
        let response = self
            .inner
            .router
            .run(errand)
            .await
            .map_err(|failed| Error {
                outcome: Outcome::NotApplied,
                detail: format!("no session could be opened: {}", failed.error.detail),
                kind: failed.error.kind,
                tries: failed.error.tries,
            })?;
        let ResponseBody::OpenSession { id } = response.body else {
            return Err(unexpected_response(&response.body, Outcome::NotApplied));
        };
        let session = Session::new(id);
        *open = Some(Arc::clone(&session));
        self.inner.opened.store(Some(Arc::clone(&session)));
        Ok(session.number())
    }

    /// Drops a session that the cluster has forgotten, unless a newer one is open.
    async fn forget_session(&self, gone: &Arc<Session>) {
        let mut open = self.inner.session.lock().await;
        if open
            .as_ref()
            .is_some_and(|session| session.id() == gone.id())
        {
            *open = None;
            self.inner.opened.store(None);
        }
    }
}

fn not_of_a_cluster(request: &Request) -> Error {
    Error::not_applied(
        ErrorKind::Unsupported,
        format!(
            "`{}` is not a request to the cluster as a whole: see Client::status, \
             Client::leader_lease_report and Client::snapshot",
            request.method()
        ),
    )
}

pub(super) fn parts(response: Response) -> (ResponseHeader, ResponseBody) {
    (response.header, response.body)
}

/// How many unknown sessions a single write may meet before it fails.
const SESSIONS_MAX: u32 = 3;
