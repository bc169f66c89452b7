//! The service of members.

use hyper::Response as HttpResponse;

use super::body::RequestBody;
use super::caller::Caller;
use super::grpc::{Reply, failure};
use super::pages::unexpected;
use super::unary::unary;
use super::unknown::unknown;
use crate::api;
use crate::api::{Consistency, MembersResponse, Membership, Request, ResponseBody};
use crate::etcd::convert;
use crate::etcd::errors::{MEMBER_EXISTS, Method, PEER_URL_EXISTS};
use crate::etcd::proto;
use crate::etcd::proto::{Member, MemberListResponse};
use crate::etcd::status::Status;
use crate::kv;
use crate::types::NodeId;

/// Where its methods are.
pub(super) const SERVICE: &str = "/etcdserverpb.Cluster/";

/// Answers a call of one of its methods.
pub(super) async fn call(caller: Caller, body: RequestBody, path: &str) -> HttpResponse<Reply> {
    let any = |_: &[u8]| Ok(());
    match path.strip_prefix(SERVICE).unwrap_or_default() {
        "MemberList" => unary(caller, body, any, member_list).await,
        "MemberAdd" => unary(caller, body, convert::check_member_add, member_add).await,
        "MemberRemove" => unary(caller, body, any, member_remove).await,
        "MemberUpdate" => unary(caller, body, convert::check_member_update, member_update).await,
        "MemberPromote" => unary(caller, body, any, member_promote).await,
        _ => failure(&unknown(path)),
    }
}

/// MemberList: all members, with the URLs that clients dial.
async fn member_list(
    caller: Caller,
    list: proto::MemberListRequest,
) -> Result<MemberListResponse, Status> {
    let consistency = caller.consistency(!list.linearizable);
    let (header, list) = ask(&caller, Request::MemberList, consistency, Method::Node).await?;
    Ok(MemberListResponse {
        header: Some(header),
        members: members(&caller, list).await?,
    })
}

/// MemberAdd.
async fn member_add(
    caller: Caller,
    add: proto::MemberAddRequest,
) -> Result<proto::MemberAddResponse, Status> {
    let request = convert::member_add(&add)?;
    let address = request.peer_address.clone();
    let added = change(&caller, Request::MemberAdd(request), Method::Member).await;
    let (header, list) = match added {
        // The name is in use, or the address.
        Err(status) if status == PEER_URL_EXISTS => {
            let is_known = is_address_of_a_member(&caller, &address).await?;
            return Err(match is_known {
                true => PEER_URL_EXISTS,
                false => MEMBER_EXISTS,
            });
        }
        added => added?,
    };
    let changed = list.changed;
    let members = members(&caller, list).await?;
    let is_new = |member: &&Member| Some(NodeId(member.id)) == changed;
    Ok(proto::MemberAddResponse {
        header: Some(header),
        member: members.iter().find(is_new).cloned(),
        members,
    })
}

/// MemberRemove.
async fn member_remove(
    caller: Caller,
    remove: proto::MemberRemoveRequest,
) -> Result<proto::MemberRemoveResponse, Status> {
    let request = Request::MemberRemove {
        id: NodeId(remove.id),
    };
    let (header, list) = change(&caller, request, Method::Member).await?;
    Ok(proto::MemberRemoveResponse {
        header: Some(header),
        members: members(&caller, list).await?,
    })
}

/// MemberUpdate: where its peers reach a member. Its name stays.
async fn member_update(
    caller: Caller,
    update: proto::MemberUpdateRequest,
) -> Result<proto::MemberUpdateResponse, Status> {
    let request = Request::MemberUpdate(api::MemberUpdateRequest {
        id: NodeId(update.id),
        peer_address: Some(convert::peer_address(&update.peer_urls)?),
        client_address: None,
    });
    let (header, list) = change(&caller, request, Method::Member).await?;
    Ok(proto::MemberUpdateResponse {
        header: Some(header),
        members: members(&caller, list).await?,
    })
}

/// MemberPromote.
async fn member_promote(
    caller: Caller,
    promote: proto::MemberPromoteRequest,
) -> Result<proto::MemberPromoteResponse, Status> {
    let request = Request::MemberPromote {
        id: NodeId(promote.id),
    };
    let (header, list) = change(&caller, request, Method::MemberPromote).await?;
    Ok(proto::MemberPromoteResponse {
        header: Some(header),
        members: members(&caller, list).await?,
    })
}

async fn is_address_of_a_member(caller: &Caller, address: &str) -> Result<bool, Status> {
    let consistency = Consistency::Linearizable;
    let (_, list) = ask(caller, Request::MemberList, consistency, Method::Node).await?;
    let mut members = list.members.iter();
    Ok(members.any(|member| member.info.peer_address == address))
}

/// Each with the URL that it said last: to this node, else to one that led.
async fn members(caller: &Caller, list: MembersResponse) -> Result<Vec<Member>, Status> {
    let recorded = caller.look(kv::etcd_urls).await?;
    let directory = &caller.sessions.node.directory;
    let members = list.members.into_iter().map(|member| {
        let id = member.info.id;
        let url = directory
            .etcd_url(id)
            .or_else(|| recorded.get(&id).cloned());
        Member {
            id: id.0,
            client_urls: url.into_iter().filter(|url| !url.is_empty()).collect(),
            peer_urls: vec![format!("https://{}", member.info.peer_address)],
            is_learner: member.membership != Membership::Voter,
            name: member.info.name,
        }
    });
    Ok(members.collect())
}

async fn change(
    caller: &Caller,
    request: Request,
    method: Method,
) -> Result<(proto::ResponseHeader, MembersResponse), Status> {
    ask(caller, request, Consistency::Linearizable, method).await
}

async fn ask(
    caller: &Caller,
    request: Request,
    consistency: Consistency,
    method: Method,
) -> Result<(proto::ResponseHeader, MembersResponse), Status> {
    let response = caller.ask(request, consistency, method).await?;
    match response.body {
        // As in etcd, the header names no revision.
        ResponseBody::Members(list) => Ok((caller.header_at(&response.header, 0), *list)),
        _ => Err(unexpected()),
    }
}
