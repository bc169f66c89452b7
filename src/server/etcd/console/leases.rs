//! Client leases, with what is left of each.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Consistency, LeaseInfo, LeaseListRequest, Request, ResponseBody};
use crate::etcd::errors::Method;
use crate::etcd::status::{Code, Status};
use crate::server::etcd::caller::Caller;
use crate::server::etcd::pages::unexpected;

/// Leases of one answer.
const PAGE_MAX: u32 = 500;

/// Where a page begins.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// The id of the last lease of the page before; absent for the first.
    after: Option<String>,
}

/// A page of leases in the order of their ids, as the leader knows them.
///
/// # Errors
/// The caller may not see them, or no leader answered.
pub(super) async fn page(caller: &Caller, query: &PageQuery) -> Result<Value, Status> {
    let after = query.after.as_deref().unwrap_or("0");
    let after = after.parse::<i64>().ok().filter(|after| *after >= 0);
    let after = after.ok_or(Status::new(
        Code::InvalidArgument,
        "`after` is no id of a lease: give `next` of the page before",
    ))?;
    let list = LeaseListRequest {
        after,
        limit: PAGE_MAX,
        ..LeaseListRequest::default()
    };
    let request = Request::LeaseList(list);
    // This node judges who asks; the leader knows how much time is left.
    let own = caller.ask(request.clone(), Consistency::Serializable, Method::Lease);
    own.await?;
    let asked = caller
        .sessions
        .ask_leader(request, Consistency::Linearizable, caller.left())
        .await;
    let response = asked.map_err(|error| caller.status_of(&error, Method::Lease))?;
    let ResponseBody::LeaseList(page) = response.body else {
        return Err(unexpected());
    };
    Ok(json!({
        "leases": page.leases.iter().map(of_lease).collect::<Vec<_>>(),
        "next": page.next.map(|next| next.to_string()),
    }))
}

fn of_lease(lease: &LeaseInfo) -> Value {
    json!({
        "id": lease.id.to_string(),
        "name": lease.name,
        "owner": lease.owner,
        "granted_ttl_ms": lease.granted_ttl_ms,
        "remaining_ms": lease.remaining_ms,
        "granted_at_ms": lease.granted_at_ms,
        "key_count": lease.key_count,
        "is_revoking": lease.is_revoking,
    })
}
