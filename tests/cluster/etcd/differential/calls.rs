//! Calls of many answers in programs over all services, and health: what is compared of each is what both have.
//!
//! As messages in any case. In JSON each of them is the same call behind a translation that other tests look at.

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;
use ring::digest::{SHA256, digest};

use super::super::grpc::{Channel, Stream};
use super::super::messages::{
    HealthCheckRequest, HealthCheckResponse, LeaderKey, LeaderRequest, LeaderResponse,
    ProclaimRequest, ProclaimResponse, SnapshotRequest, SnapshotResponse,
};
use super::services::Services;
use super::{Draw, Ended, Masked, same};
use crate::harness::PATIENCE;

const HEALTH: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const OBSERVE: &str = "/v3electionpb.Election/Observe";
const PROCLAIM: &str = "/v3electionpb.Election/Proclaim";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";

/// Of a snapshot, what does not depend on how each lays its file out.
#[derive(Debug, PartialEq)]
struct Shape {
    /// All blobs but the last of the file.
    has_full_blobs: bool,
    has_whole_sectors: bool,
    /// What each says that is left is left.
    counts_down: bool,
    ends_with_its_hash: bool,
}

impl Services {
    /// Who leads, as an Observe is told at first, and once more after the leader has proclaimed something. Whoever may
    /// not read it sees how it ends.
    pub(super) async fn observe(&mut self, draw: &mut Draw, name: Bytes) -> Result<(), Ended> {
        // Without a leader nothing is told.
        let Some(first) = self.first(&name).await? else {
            return Ok(());
        };
        let asked = LeaderRequest { name: name.clone() };
        let mut streams = self.begin(OBSERVE, &asked).await?;
        let is_told = next::<LeaderResponse>(&mut streams, OBSERVE, &asked).await?;
        // Without a lease, etcd grants one that it forgets.
        if !is_told || first.lease == 0 {
            return Ok(());
        }
        // Leases belong to who granted them.
        self.as_root();
        let leader = Some(LeaderKey {
            name,
            key: first.key,
            rev: first.create_revision,
            lease: first.lease,
        });
        let value = draw.value();
        let proclaim = ProclaimRequest { leader, value };
        let code = self.ask::<_, ProclaimResponse>(PROCLAIM, &proclaim).await?;
        match code {
            0 => next::<LeaderResponse>(&mut streams, OBSERVE, &proclaim)
                .await
                .map(drop),
            _ => Ok(()),
        }
    }

    /// Of the server, and of a service that it has not.
    pub(super) async fn health(&mut self) -> Result<(), Ended> {
        for service in ["", "nothing"] {
            let service = service.to_owned();
            let asked = HealthCheckRequest { service };
            let pair = &self.pair;
            let theirs = pair.etcd.ask::<HealthCheckResponse>(HEALTH, &asked).await;
            let own = pair.ours.ask::<HealthCheckResponse>(HEALTH, &asked).await;
            same(&own, &theirs, HEALTH, &asked)?;
            let mut streams = self.begin(HEALTH_WATCH, &asked).await?;
            next::<HealthCheckResponse>(&mut streams, HEALTH_WATCH, &asked).await?;
        }
        Ok(())
    }

    pub(super) async fn snapshot(&mut self) -> Result<(), Ended> {
        let [mut etcd, mut ours] = self.begin(SNAPSHOT, &SnapshotRequest {}).await?;
        let theirs = shape(&mut etcd).await;
        same(&shape(&mut ours).await, &theirs, SNAPSHOT, &())
    }

    /// A call at each, with the only request of it, by who asks now.
    async fn begin(&mut self, path: &str, asked: &impl Message) -> Result<[Stream; 2], Ended> {
        let tokens = self.tokens().await?;
        let begin = async |channel: &Channel, token: &Option<String>| {
            let header: Vec<_> = token.iter().map(|it| ("token", it.as_str())).collect();
            let mut stream = channel.begin(path, &header).await;
            stream.send_last(asked);
            stream
        };
        Ok([
            begin(&self.pair.etcd, &tokens[0]).await,
            begin(&self.pair.ours, &tokens[1]).await,
        ])
    }
}

/// The next answers of both, or how the calls ended, are equal; whether there were any.
async fn next<A: Message + Default + Masked + PartialEq + Debug>(
    [etcd, ours]: &mut [Stream; 2],
    path: &str,
    asked: &impl Debug,
) -> Result<bool, Ended> {
    let theirs = told::<A>(etcd).await?;
    same(&told::<A>(ours).await?, &theirs, path, asked)?;
    Ok(theirs.is_ok())
}

async fn told<A: Message + Default + Masked>(
    stream: &mut Stream,
) -> Result<Result<A, (i32, String)>, Ended> {
    let next = tokio::time::timeout(PATIENCE / 2, stream.next::<A>()).await;
    let next = next.map_err(|_| Ended::Differs("nothing came".to_owned()))?;
    Ok(next.map(Masked::masked))
}

/// The shape of a snapshot, or how the call ended.
async fn shape(stream: &mut Stream) -> Result<Shape, (i32, String)> {
    const BLOB_BYTES: usize = 32 << 10;
    let mut blobs: Vec<SnapshotResponse> = Vec::new();
    loop {
        match stream.next().await {
            Ok(blob) => blobs.push(blob),
            Err((0, _)) => break,
            Err(ended) => return Err(ended),
        }
    }
    let hash = blobs.pop().unwrap_or_default();
    let file: Vec<u8> = blobs.iter().flat_map(|it| it.blob.to_vec()).collect();
    let mut left = file.len() as u64;
    let counts_down = blobs.iter().all(|it| {
        left -= it.blob.len() as u64;
        it.remaining_bytes == left
    });
    let full = blobs.split_last().map_or(&blobs[..], |(_, full)| full);
    Ok(Shape {
        has_full_blobs: full.iter().all(|it| it.blob.len() == BLOB_BYTES),
        has_whole_sectors: !file.is_empty() && file.len().is_multiple_of(512),
        counts_down: counts_down && hash.remaining_bytes == 0,
        ends_with_its_hash: hash.blob == digest(&SHA256, &file).as_ref(),
    })
}

impl Masked for HealthCheckResponse {
    fn masked(self) -> Self {
        self
    }
}
