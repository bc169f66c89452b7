//! Who the members of the cluster are, and how they are changed.

use super::Client;
use super::Errand;
use super::parts;
use super::senseless;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::MemberAddRequest;
use crate::api::MemberUpdateRequest;
use crate::api::MembersResponse;
use crate::api::Outcome;
use crate::api::Request;
use crate::api::ResponseBody;
use crate::api::ResponseHeader;
use crate::api::validate;
use crate::types::NodeId;

impl Client {
    /// Who the members are. A read like any other: with [`Consistency::Serializable`] it is what the
    /// asked node knows, otherwise it holds every change that was complete before.
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn member_list(&self, consistency: Consistency) -> Result<MembersResponse, Error> {
        let listed = self.read(Request::MemberList, consistency, 0, None).await?;
        members(listed, Outcome::NotApplied)
    }

    /// Takes a node in, perhaps in the place of another. Returns once that is committed: it has to be
    /// started and to catch up before it votes.
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
    /// given. A client does so by itself when leadership moves or a node cannot be reached; whoever
    /// wants to be sure calls this after members were changed.
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn sync_endpoints(&self) -> Result<(), Error> {
        let list = self.member_list(Consistency::Linearizable).await?;
        self.inner.router.learn_members(&list);
        Ok(())
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
