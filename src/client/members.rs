//! Who the members of the cluster are, and how they are changed.

use super::Client;
use super::request::{parts, senseless};
use super::route::Errand;
use crate::api::{
    Consistency, Error, MemberAddRequest, MemberUpdateRequest, MembersResponse, Outcome, Request,
    ResponseBody, ResponseHeader, validate,
};
use crate::types::NodeId;

impl Client {
    /// Who the members are. A read like any other: with [`Consistency::Serializable`] it is what the
    /// asked node knows, otherwise it holds every change that was complete before.
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
            // What a node knows by itself may be less than what is known here.
            Consistency::Serializable | Consistency::MaxStaleness(_) if !is_leaders => {
                router.learn_more_members(&list);
            }
            _ => router.learn_members(&list),
        }
        Ok(list)
    }

    /// Takes a node in, perhaps in the place of another. Returns once that is committed: it has to be
    /// started and to catch up before it votes.
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
    /// nothing has changed. Outcome *unknown* if the answer got lost: see the list for what became of
    /// it.
    ///
    /// [`ErrorKind::MemberExists`]: crate::api::ErrorKind::MemberExists
    /// [`ErrorKind::UnsafeReconfiguration`]: crate::api::ErrorKind::UnsafeReconfiguration
    ///
    /// # Cancel safety
    /// Nothing breaks, but the change may be made after the future was dropped.
    pub async fn member_add(&self, add: MemberAddRequest) -> Result<MembersResponse, Error> {
        self.change_members(Request::MemberAdd(add)).await
    }

    /// Lets a member go. It stops once it hears of it.
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

    /// Makes a voter of a learner that has caught up.
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

    /// Notes down where a member is.
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

    /// Learns where the members are now, and from here on knows them beside the endpoints that it was
    /// given. A client does so by itself when leadership moves, a node cannot be reached, or
    /// [some time](crate::client::ConnectOptions::with_auto_sync_interval) has passed; whoever wants to be
    /// sure calls this after members were changed. [`Client::member_list`] does the same.
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

    /// The endpoints of members that this client has learned of by itself.
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
        other => Err(senseless(&other, outcome)),
    }
}
