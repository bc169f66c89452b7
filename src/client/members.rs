//! The member list and membership changes.

use super::Client;
use super::request::parts;
use super::response::unexpected_response;
use super::route::Errand;
use crate::api::{
    Consistency, Error, MemberAddRequest, MemberUpdateRequest, MembersResponse, Outcome, Request,
    ResponseBody, ResponseHeader, validate,
};
use crate::types::NodeId;

impl Client {
    /// The members of the cluster. A read like any other: with [`Consistency::Serializable`] it
    /// returns what the node that answers knows, otherwise it includes every change that was
    /// complete before.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::api::Consistency;
    ///
    /// for member in client.member_list(Consistency::Linearizable).await?.members {
    ///     println!("{} is at {}: {:?}", member.info.name, member.info.peer_address, member.membership);
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn member_list(&self, consistency: Consistency) -> Result<MembersResponse, Error> {
        let listed = self.read(Request::MemberList, consistency, 0, None).await?;
        let is_leaders = listed.0.leader_id == Some(listed.0.member_id);
        let list = members(listed, Outcome::NotApplied)?;
        let router = &self.inner.router;
        match consistency {
            // A node's local list may be older than the one this client already has.
            Consistency::Serializable | Consistency::MaxStaleness(_) if !is_leaders => {
                router.learn_more_members(&list);
            }
            _ => router.learn_members(&list),
        }
        Ok(list)
    }

    /// Adds a node, optionally replacing another. Returns once the change is committed: the node
    /// must then be started, and must catch up before it votes.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
    /// use leasehold::api::MemberAddRequest;
    ///
    /// let n4 = MemberAddRequest {
    ///     name: "n4".to_owned(),
    ///     peer_address: "10.0.0.4:7401".to_owned(),
    ///     ..MemberAddRequest::default()
    /// };
    /// let changed = client.member_add(n4).await?;
    /// println!("{:?} may be started now", changed.changed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::MemberExists`], or [`ErrorKind::UnsafeReconfiguration`] with the reason: then
    /// nothing has changed. Outcome *unknown* if the reply was lost: the member list shows whether
    /// the change was made.
    ///
    /// [`ErrorKind::MemberExists`]: crate::api::ErrorKind::MemberExists
    /// [`ErrorKind::UnsafeReconfiguration`]: crate::api::ErrorKind::UnsafeReconfiguration
    ///
    /// # Cancel safety
    /// The client stays usable, but the change may be made after the future was dropped.
    pub async fn member_add(&self, add: MemberAddRequest) -> Result<MembersResponse, Error> {
        self.change_members(Request::MemberAdd(add)).await
    }

    /// Removes a member. Its process stops once it learns of its removal.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
    /// use leasehold::api::Consistency;
    ///
    /// let list = client.member_list(Consistency::Linearizable).await?;
    /// let gone = list.members.iter().find(|member| member.info.name == "n2").expect("it is a member");
    /// client.member_remove(gone.info.id).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::member_add`], and [`MemberNotFound`](crate::api::ErrorKind::MemberNotFound).
    ///
    /// # Cancel safety
    /// As [`Client::member_add`].
    pub async fn member_remove(&self, id: NodeId) -> Result<MembersResponse, Error> {
        self.change_members(Request::MemberRemove { id }).await
    }

    /// Promotes a learner that has caught up to a voter.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
    /// use leasehold::api::Consistency;
    ///
    /// let list = client.member_list(Consistency::Linearizable).await?;
    /// let learner = list.members.iter().find(|member| member.info.name == "n4").expect("it is a member");
    /// client.member_promote(learner.info.id).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::member_remove`], and
    /// [`LearnerNotReady`](crate::api::ErrorKind::LearnerNotReady).
    ///
    /// # Cancel safety
    /// As [`Client::member_add`].
    pub async fn member_promote(&self, id: NodeId) -> Result<MembersResponse, Error> {
        self.change_members(Request::MemberPromote { id }).await
    }

    /// Updates the recorded addresses of a member.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
    /// use leasehold::api::{Consistency, MemberUpdateRequest};
    ///
    /// let list = client.member_list(Consistency::Linearizable).await?;
    /// let moved = list.members.iter().find(|member| member.info.name == "n4").expect("it is a member");
    /// let update = MemberUpdateRequest {
    ///     id: moved.info.id,
    ///     peer_address: Some("10.0.0.9:7401".to_owned()),
    ///     client_address: None,
    /// };
    /// client.member_update(update).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::member_remove`].
    ///
    /// # Cancel safety
    /// As [`Client::member_add`].
    pub async fn member_update(
        &self,
        update: MemberUpdateRequest,
    ) -> Result<MembersResponse, Error> {
        self.change_members(Request::MemberUpdate(update)).await
    }

    /// Updates the member addresses that this client uses in addition to its configured endpoints.
    /// A client does so by itself when leadership moves, when a node cannot be reached, or after
    /// [an interval](crate::client::ConnectOptions::with_auto_sync_interval); call this after a
    /// membership change to be sure. [`Client::member_list`] has the same effect.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// client.sync_endpoints().await?;
    /// println!("beside {:?}: {:?}", client.endpoints(), client.learned_endpoints());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn sync_endpoints(&self) -> Result<(), Error> {
        self.member_list(Consistency::Linearizable).await.map(drop)
    }

    /// The endpoints of members that this client has discovered.
    pub fn learned_endpoints(&self) -> Vec<String> {
        self.inner.router.learned().to_vec()
    }

    pub(super) async fn change_members(&self, request: Request) -> Result<MembersResponse, Error> {
        let options = &self.inner.options;
        validate(&request, &options.limits)?;
        let errand = Errand {
            request,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            ticket: None,
            timeout: options.timeout,
            only: None,
            context: self.context,
        };
        let changed = parts(self.inner.router.run(errand).await.map_err(|f| f.error)?);
        let members = members(changed, Outcome::Unknown)?;
        self.inner.router.learn_members(&members);
        Ok(members)
    }
}

fn members(
    (_, body): (ResponseHeader, ResponseBody),
    outcome: Outcome,
) -> Result<MembersResponse, Error> {
    match body {
        ResponseBody::Members(members) => Ok(*members),
        other => Err(unexpected_response(&other, outcome)),
    }
}
