//! Requests to single nodes, and the transfer of leadership.

use super::endpoint::with_port;
use super::request::parts;
use super::response::unexpected_response;
use super::route::Errand;
use super::{Client, StatusResponse};
use crate::api::{
    Consistency, Error, LeaderLeaseReport, Outcome, Request, Response, ResponseBody, ResponseHeader,
};
use crate::types::NodeId;

impl Client {
    /// Returns the status of the node at `endpoint`, which need not be one of the configured
    /// endpoints.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// let endpoint = client.endpoints()[0].clone();
    /// let answer = client.status(endpoint).await?;
    /// println!("{} is a {}: {:?}", answer.status.name, answer.status.role, answer.status.warnings);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// The node cannot be reached within the default timeout.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn status(&self, endpoint: impl Into<String>) -> Result<StatusResponse, Error> {
        let reply = self.call_at(endpoint, Request::Status, Consistency::Serializable);
        let Response { header, body } = reply.await?;
        match body {
            ResponseBody::Status(status) => Ok(StatusResponse {
                header,
                status: *status,
            }),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }

    /// Returns what the leader lease depends on, as measured by the node at `endpoint`, which need
    /// not be one of the configured endpoints.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// let endpoint = client.endpoints()[0].clone();
    /// let report = client.leader_lease_report(endpoint).await?;
    /// println!("the longest pause of {} was {:?}", report.name, report.timer_delay.max());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// The node cannot be reached within the default timeout.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leader_lease_report(
        &self,
        endpoint: impl Into<String>,
    ) -> Result<LeaderLeaseReport, Error> {
        let asked = Request::LeaderLeaseReport;
        let reply = self.call_at(endpoint, asked, Consistency::Serializable);
        match reply.await?.body {
            ResponseBody::LeaderLeaseReport(report) => Ok(*report),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }

    /// Sends a request to the node at `endpoint` and to no other, whichever node is the leader. The
    /// endpoint need not be one of the configured ones. Intended for measurements of single nodes.
    /// A write carries no sequence number, so it is not retried where it might be applied twice.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::api::{Consistency, Request};
    ///
    /// // The members as this node knows them, leader or not:
    /// let endpoint = client.endpoints()[0].clone();
    /// let reply = client.call_at(endpoint, Request::MemberList, Consistency::Serializable).await?;
    /// println!("{:?}", reply.body);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::call`]; from a node that is not the leader,
    /// [`ErrorKind::NotLeader`](crate::api::ErrorKind::NotLeader) for every request that only the
    /// leader serves.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn call_at(
        &self,
        endpoint: impl Into<String>,
        request: Request,
        consistency: Consistency,
    ) -> Result<Response, Error> {
        let endpoint = with_port(&endpoint.into())?;
        let is_write = request.is_write();
        let errand = Errand {
            request: self.prepared(request)?,
            consistency,
            min_revision: 0,
            ticket: None,
            timeout: self.inner.options.timeout,
            only: Some(&endpoint),
            context: self.context,
        };
        let response = self.inner.router.run(errand).await;
        let response = response.map_err(|failed| failed.error)?;
        let outcome = match is_write {
            true => Outcome::Applied,
            false => Outcome::NotApplied,
        };
        let (header, body) = self.received(response, outcome)?;
        Ok(Response { header, body })
    }

    /// Transfers leadership to `target`, or to the most up-to-date voter.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// client.move_leader(None).await?; // To the most up-to-date voter.
    /// client.put("color", "green", None).await?; // The client follows.
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// Outcome *unknown* if the reply was lost: query a node's status.
    ///
    /// # Cancel safety
    /// The client stays usable, but leadership may move after the future was dropped.
    pub async fn move_leader(&self, target: Option<NodeId>) -> Result<ResponseHeader, Error> {
        let errand = Errand {
            request: Request::MoveLeader { target },
            consistency: Consistency::Linearizable,
            min_revision: 0,
            ticket: None,
            timeout: self.inner.options.timeout,
            only: None,
            context: self.context,
        };
        let (header, body) = parts(self.inner.router.run(errand).await.map_err(|f| f.error)?);
        match body {
            ResponseBody::MoveLeader => Ok(header),
            other => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }
}
