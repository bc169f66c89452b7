//! The services of locks and elections: etcd's recipes, carried out by the node.
//!
//! Both are lines below a prefix ([`line`]): who was there first has the lock, or leads.

mod election;
mod line;
mod lock;

use super::caller::Caller;
use crate::etcd::errors::of_recipe;
use crate::etcd::proto::{
    CampaignRequest, CampaignResponse, LeaderRequest, LeaderResponse, LockRequest, LockResponse,
    ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse, UnlockRequest,
    UnlockResponse,
};
use crate::etcd::status::Status;

pub(super) use election::observe;

macro_rules! recipes {
    ($($of:ident $name:ident: $Request:ident $Answer:ident;)*) => {
        $(pub(super) async fn $name(caller: Caller, request: $Request) -> Result<$Answer, Status> {
            $of::$name(caller, request).await.map_err(of_recipe)
        })*
    };
}

recipes! {
    lock lock: LockRequest LockResponse;
    lock unlock: UnlockRequest UnlockResponse;
    election campaign: CampaignRequest CampaignResponse;
    election proclaim: ProclaimRequest ProclaimResponse;
    election leader: LeaderRequest LeaderResponse;
    election resign: ResignRequest ResignResponse;
}
