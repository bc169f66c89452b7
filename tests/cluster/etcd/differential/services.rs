//! Programs over all services but the streams: leases, locks, elections, users and roles, members and
//! maintenance, beside a few requests for keys.
//!
//! Every second program has access control: it begins with a user root and one who may do less, and each request
//! is made by one of them, by nobody, or with a token that was never given out. What is drawn leaves out what
//! differs on purpose (see docs/etcd.md), where it says so, and what waits for others.

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;

use super::super::json::Json;
use super::super::kv::{
    CompactionRequest, CompactionResponse, DeleteRangeResponse, KeyValue, PutResponse,
    RangeRequest, RangeResponse, TxnResponse,
};
use super::super::messages::{
    ALARM_NO_SPACE, AlarmAction, AlarmRequest, AlarmResponse, CampaignRequest, CampaignResponse,
    DefragmentRequest, DefragmentResponse, DowngradeAction, DowngradeRequest, DowngradeResponse,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, LeaderKey, LeaderRequest,
    LeaderResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest, LeaseLeasesResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    LockRequest, LockResponse, MemberAddRequest, MemberAddResponse, MemberListRequest,
    MemberListResponse, MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest,
    MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse, MoveLeaderRequest,
    MoveLeaderResponse, ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse,
    StatusRequest, StatusResponse, UnlockRequest, UnlockResponse,
};
use super::access::{Access, UNAUTHENTICATED};
use super::texts::{sorted, without_fields, without_values};
use super::{
    COMPACT, DELETE, Draw, Ended, Kind, Masked, PUT, Pair, RANGE, STEPS, TXN, compare_programs,
    done, mask_headers, masked, masked_text, run_steps,
};

const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// Of a lease that is revoked in the step that grants it, so short it is.
const SHORT: i64 = 9;

mask_headers!(
    AlarmResponse,
    CampaignResponse,
    DefragmentResponse,
    DowngradeResponse,
    LeaderResponse,
    LockResponse,
    MoveLeaderResponse,
    ProclaimResponse,
    ResignResponse,
    UnlockResponse
);

impl Masked for HashResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.hash = 0;
        self
    }

    fn masked_text(text: &str) -> String {
        without_values(&masked_text(text), "hash")
    }
}

impl Masked for HashKvResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.hash = 0;
        // etcd has it from 3.6 on.
        self.hash_revision = 0;
        self
    }

    fn masked_text(text: &str) -> String {
        let text = without_values(&masked_text(text), "hash");
        without_fields(&text, "hash_revision")
    }
}

impl Masked for StatusResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.errors.sort();
        Self {
            header: self.header,
            errors: self.errors,
            is_learner: self.is_learner,
            ..Self::default()
        }
    }

    fn masked_text(text: &str) -> String {
        let measured = [
            "version",
            "dbSize",
            "leader",
            "raftIndex",
            "raftTerm",
            "raftAppliedIndex",
            "dbSizeInUse",
        ];
        let text = sorted(&masked_text(text), "errors");
        let text = measured
            .iter()
            .fold(text, |text, it| without_values(&text, it));
        // etcd has them from 3.6 on.
        let newer = ["storageVersion", "dbSizeQuota", "downgradeInfo"];
        newer
            .iter()
            .fold(text, |text, it| without_fields(&text, it))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_over_all_services_get_the_answers_that_etcd_gives() {
    compare_programs::<Services>(false, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_over_all_services_in_json_get_the_answers_that_etcd_s_gateway_gives() {
    compare_programs::<Services>(true, 10).await;
}

/// Both, and who makes requests of them.
pub(super) struct Services {
    pub(super) pair: Pair,
    pub(super) access: Access,
    /// The newest compaction.
    compacted: i64,
}

impl Kind for Services {
    const STEPS: u64 = STEPS;
    const FOUND: &'static [(u64, &'static [u64])] = &[
        // A campaign for a key that was put there without its lease depended on the lease.
        (2_000_025, &[3, 23]),
    ];

    fn new(pair: Pair) -> Self {
        Self {
            pair,
            access: Access::default(),
            compacted: 0,
        }
    }

    fn pair(&self) -> &Pair {
        &self.pair
    }

    async fn run(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended> {
        self.clear().await?;
        let begun = self.pair.empty_and_compact().await?;
        self.compacted = begun;
        let step = async |step, draw: &mut Draw| match program.is_multiple_of(2)
            && self.set_up(step).await?
        {
            true => Ok(()),
            false => self.step(draw).await,
        };
        run_steps(program, steps, begun, step).await
    }
}

impl Services {
    /// Takes away what a program may have left: access control, users, roles, alarms and leases.
    pub(super) async fn clear(&mut self) -> Result<(), Ended> {
        self.clear_access().await?;
        for channel in [&self.pair.etcd, &self.pair.ours] {
            let listed = channel.ask(ALARM, &AlarmRequest::default()).await;
            let listed: AlarmResponse = done(listed)?;
            for alarm in listed.alarms {
                let request = AlarmRequest {
                    action: AlarmAction::Deactivate as i32,
                    member_id: alarm.member_id,
                    alarm: alarm.alarm,
                };
                done(channel.ask::<AlarmResponse>(ALARM, &request).await)?;
            }
            let listed = channel.ask(LEASES, &LeaseLeasesRequest {}).await;
            let listed: LeaseLeasesResponse = done(listed)?;
            for lease in listed.leases {
                let revoke = LeaseRevokeRequest { id: lease.id };
                done(channel.ask::<LeaseRevokeResponse>(REVOKE, &revoke).await)?;
            }
        }
        Ok(())
    }

    async fn step(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        match draw.below(20) {
            0..4 => self.keys(draw).await,
            4..7 => self.lease(draw).await,
            7..10 => self.lock(draw).await,
            10..13 => self.election(draw).await,
            13..18 => self.users(draw).await,
            _ => self.maintenance(draw).await,
        }
    }

    /// Asks both, as who asks now, and compares their answers; their code.
    pub(super) async fn ask<Q, A>(&mut self, path: &str, question: &Q) -> Result<i32, Ended>
    where
        Q: Message + Json + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        let asked = [question, question];
        self.ask_each::<Q, A>(path, asked).await
    }

    /// The same with a question for each.
    async fn ask_each<Q, A>(&mut self, path: &str, questions: [&Q; 2]) -> Result<i32, Ended>
    where
        Q: Message + Json + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        let tokens = self.tokens().await?;
        let tokens = tokens.each_ref().map(Option::as_deref);
        let asked = self.pair.differ_in_names::<Q, A>(path, questions, tokens);
        let code = asked
            .await
            .map_err(|ended| ended.at(&self.access.asker()))?;
        self.access.heard(code);
        Ok(code)
    }

    /// The records in a range, as ours has them.
    async fn look(&mut self, range: RangeRequest) -> Result<Vec<KeyValue>, Ended> {
        let mut found = self.look_once(&range).await?;
        if matches!(found, Err((UNAUTHENTICATED, _))) {
            self.forget_root().await?;
            found = self.look_once(&range).await?;
        }
        Ok(done(found)?.kvs)
    }

    async fn look_once(
        &mut self,
        range: &RangeRequest,
    ) -> Result<Result<RangeResponse, (i32, String)>, Ended> {
        let token = self.tokens_of_root().await?[1].clone();
        let header: Vec<_> = token.iter().map(|it| ("token", it.as_str())).collect();
        Ok(self.pair.ours.ask_with(RANGE, range, &header).await)
    }

    async fn keys(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        self.choose(draw).await?;
        match draw.below(10) {
            0..4 => {
                let mut put = draw.put();
                if draw.one_in(4) {
                    put.key = place(draw);
                }
                // Leases belong to who granted them, and here that is root or nobody.
                put.lease = match self.access.is_limited() {
                    true => 0,
                    false if draw.one_in(2) => lease(draw),
                    false => put.lease,
                };
                self.ask::<_, PutResponse>(PUT, &put).await?;
            }
            4..6 => {
                self.ask::<_, RangeResponse>(RANGE, &draw.range()).await?;
            }
            6 | 7 => {
                let mut delete = draw.delete();
                if draw.one_in(3) {
                    delete.key = place(draw);
                }
                self.ask::<_, DeleteRangeResponse>(DELETE, &delete).await?;
            }
            8 => {
                // One needs the permissions of all that is in it, in etcd only of what is carried out. And with an
                // alarm etcd takes puts in a transaction within another.
                self.as_root();
                self.ask::<_, TxnResponse>(TXN, &draw.txn(2)).await?;
            }
            _ => {
                // Compactions need root.
                self.as_root();
                let compaction = CompactionRequest {
                    revision: (draw.begun - 5 + draw.below(40)).max(1),
                    physical: draw.one_in(2),
                };
                let asked = self.ask::<_, CompactionResponse>(COMPACT, &compaction);
                if asked.await? == 0 {
                    self.compacted = compaction.revision;
                }
            }
        }
        Ok(())
    }

    async fn lease(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        // Of others each has its own, and etcd grants them to anybody.
        self.as_root();
        let id = match draw.one_in(12) {
            true => -1,
            false => lease(draw),
        };
        match draw.below(12) {
            0..5 => {
                let ttl = [300, 1_000, 100_000, 9_000_000_000, 9_000_000_001];
                // Of two faults etcd names an alarm first, and we name the time.
                let kinds = if self.access.alarms.is_empty() { 5 } else { 4 };
                let ttl = ttl[usize::try_from(draw.below(5).min(kinds - 1)).unwrap()];
                // Without an id each chooses one, and those that we take are positive.
                let grant = LeaseGrantRequest { ttl, id: id.abs() };
                self.ask::<_, LeaseGrantResponse>(GRANT, &grant).await?;
            }
            5 => {
                let ttl = draw.below(8) - 4;
                self.grant_and_revoke(ttl).await?;
            }
            6 | 7 => {
                let revoke = LeaseRevokeRequest { id };
                self.ask::<_, LeaseRevokeResponse>(REVOKE, &revoke).await?;
            }
            8..11 => {
                let path = "/etcdserverpb.Lease/LeaseTimeToLive";
                let keys = draw.one_in(2);
                let asked = LeaseTimeToLiveRequest { id, keys };
                self.ask::<_, LeaseTimeToLiveResponse>(path, &asked).await?;
            }
            _ => {
                let asked = LeaseLeasesRequest {};
                self.ask::<_, LeaseLeasesResponse>(LEASES, &asked).await?;
            }
        }
        Ok(())
    }

    /// Grants a lease that may be short, and takes it away.
    pub(super) async fn grant_and_revoke(&mut self, ttl: i64) -> Result<(), Ended> {
        let grant = LeaseGrantRequest { ttl, id: SHORT };
        let granted = self.ask::<_, LeaseGrantResponse>(GRANT, &grant).await;
        let revoke = LeaseRevokeRequest { id: SHORT };
        let tokens = self.tokens().await?;
        for (channel, token) in [&self.pair.etcd, &self.pair.ours].iter().zip(&tokens) {
            let header: Vec<_> = token.iter().map(|it| ("token", it.as_str())).collect();
            // It may have ended by itself, or was not granted.
            let _: Result<LeaseRevokeResponse, _> =
                channel.ask_with(REVOKE, &revoke, &header).await;
        }
        granted.map(drop)
    }

    async fn lock(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        self.choose(draw).await?;
        if draw.below(3) < 2 {
            // Leases belong to who granted them.
            self.without_leases_as_root();
            let (name, lease) = (name(draw), lease(draw));
            // Without a lease each chooses one.
            let lock = LockRequest { name, lease };
            if self.is_free(&lock.name, lease).await? {
                let path = "/v3lockpb.Lock/Lock";
                self.ask::<_, LockResponse>(path, &lock).await?;
            }
            return Ok(());
        }
        let key = match draw.below(8) {
            0 => Bytes::new(),
            1 => draw.key(),
            _ => place(draw),
        };
        let path = "/v3lockpb.Lock/Unlock";
        let unlock = UnlockRequest { key };
        self.ask::<_, UnlockResponse>(path, &unlock).await?;
        Ok(())
    }

    /// Whether a place in the line of this name is the first, or would be.
    async fn is_free(&mut self, name: &[u8], lease: i64) -> Result<bool, Ended> {
        let first = self.first(name).await?;
        let own = [name, format!("/{lease:x}").as_bytes()].concat();
        Ok(first.is_none_or(|first| first.key == own))
    }

    /// Who is first in the line of this name.
    pub(super) async fn first(&mut self, name: &[u8]) -> Result<Option<KeyValue>, Ended> {
        let range = RangeRequest {
            key: [name, b"/"].concat().into(),
            range_end: [name, b"0"].concat().into(),
            sort_target: 2,
            sort_order: 1,
            ..RangeRequest::default()
        };
        Ok(self.look(range).await?.into_iter().next())
    }

    async fn election(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        self.choose(draw).await?;
        let name = name(draw);
        let method = draw.below(10);
        if method < 7 {
            self.without_leases_as_root();
        }
        match method {
            0..4 => {
                let campaign = CampaignRequest {
                    name,
                    lease: lease(draw),
                    value: draw.value(),
                };
                if self.is_free(&campaign.name, campaign.lease).await? {
                    let path = "/v3electionpb.Election/Campaign";
                    self.ask::<_, CampaignResponse>(path, &campaign).await?;
                }
            }
            4..7 => {
                let proclaim = ProclaimRequest {
                    leader: self.leader_key(draw, name).await?,
                    value: draw.value(),
                };
                let path = "/v3electionpb.Election/Proclaim";
                self.ask::<_, ProclaimResponse>(path, &proclaim).await?;
            }
            7 | 8 => {
                let path = "/v3electionpb.Election/Leader";
                let asked = LeaderRequest { name: name.clone() };
                self.ask::<_, LeaderResponse>(path, &asked).await?;
                self.observe(draw, name).await?;
            }
            _ => {
                let leader = self.leader_key(draw, name).await?;
                let path = "/v3electionpb.Election/Resign";
                let resign = ResignRequest { leader };
                self.ask::<_, ResignResponse>(path, &resign).await?;
            }
        }
        Ok(())
    }

    /// What the leader holds, or nearly so.
    async fn leader_key(
        &mut self,
        draw: &mut Draw,
        name: Bytes,
    ) -> Result<Option<LeaderKey>, Ended> {
        let first = self.first(&name).await?.unwrap_or_default();
        let mut key = LeaderKey {
            name,
            key: first.key,
            rev: first.create_revision,
            lease: first.lease,
        };
        match draw.below(16) {
            0 => return Ok(None),
            1 => key.rev += 1,
            2 => key.lease = lease(draw),
            3 => key.name = Bytes::new(),
            4 => key.key = place(draw),
            _ => {}
        }
        // Without a lease, etcd grants one that it forgets.
        if key.lease == 0 {
            key.lease = lease(draw);
        }
        Ok(Some(key))
    }

    async fn maintenance(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        // etcd tells everybody of the members and the status, and who raises an alarm needs root here. With a token that
        // is not void: what needs one is asked first.
        self.as_root();
        let nothing = RangeRequest {
            key: Bytes::from_static(b"nothing"),
            ..RangeRequest::default()
        };
        self.ask::<_, RangeResponse>(RANGE, &nothing).await?;
        match draw.below(20) {
            0..7 => self.alarm(draw).await,
            7..9 => {
                self.health().await?;
                if draw.one_in(2) {
                    self.snapshot().await?;
                }
                self.ask::<_, StatusResponse>(STATUS, &StatusRequest {})
                    .await
            }
            9..13 => self.hash(draw).await,
            13 | 14 => self.move_leader(draw).await,
            15 => self.downgrade(draw).await,
            16 => {
                let path = "/etcdserverpb.Maintenance/Defragment";
                let asked = DefragmentRequest {};
                self.ask::<_, DefragmentResponse>(path, &asked).await
            }
            _ => self.members(draw).await,
        }
        .map(drop)
    }

    /// As messages in any case: etcd's gateway has a path for HashKV from 3.6 on, and one for both before.
    async fn hash(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let in_json = self.pair.in_json.take();
        let asked = match draw.one_in(4) {
            true => {
                let path = "/etcdserverpb.Maintenance/Hash";
                self.ask::<_, HashResponse>(path, &HashRequest {}).await
            }
            false => {
                let revision = match draw.below(5) {
                    0 => draw.below(60) - 5,
                    1..4 => draw.begun - 5 + draw.below(40),
                    _ => 0,
                };
                let path = "/etcdserverpb.Maintenance/HashKV";
                let mut asked = HashKvRequest { revision };
                // At the compact revision itself etcd tells it from 3.6 on.
                if revision == self.compacted {
                    asked.revision = 0;
                }
                self.ask::<_, HashKvResponse>(path, &asked).await
            }
        };
        self.pair.in_json = in_json;
        asked
    }

    async fn alarm(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let mut request = AlarmRequest {
            action: [0, 0, 0, 1, 2, 2, 2][usize::try_from(draw.below(7)).unwrap()],
            member_id: u64::try_from(draw.below(2) * 5).unwrap(),
            alarm: i32::try_from(draw.below(3)).unwrap(),
        };
        // What is found out cannot be claimed.
        if request.action == AlarmAction::Activate as i32 {
            request.alarm = request.alarm.min(ALARM_NO_SPACE);
        }
        let code = self.ask::<_, AlarmResponse>(ALARM, &request).await?;
        if code == 0 && request.alarm == ALARM_NO_SPACE {
            match request.action == AlarmAction::Activate as i32 {
                true => self.access.alarms.insert(request.member_id),
                false if request.action == AlarmAction::Deactivate as i32 => {
                    self.access.alarms.remove(&request.member_id)
                }
                false => false,
            };
        }
        Ok(code)
    }

    /// To itself, or to no member.
    async fn move_leader(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let path = "/etcdserverpb.Maintenance/MoveLeader";
        if draw.one_in(2) {
            let target_id = u64::try_from(draw.below(3)).unwrap();
            let asked = MoveLeaderRequest { target_id };
            return self.ask::<_, MoveLeaderResponse>(path, &asked).await;
        }
        let tokens = self.tokens().await?;
        let mut asked = Vec::new();
        for (channel, token) in [&self.pair.etcd, &self.pair.ours].iter().zip(&tokens) {
            let header: Vec<_> = token.iter().map(|it| ("token", it.as_str())).collect();
            let status = channel.ask_with(STATUS, &StatusRequest {}, &header).await;
            let status: StatusResponse = done(status)?;
            asked.push(MoveLeaderRequest {
                target_id: status.header.unwrap().member_id,
            });
        }
        self.ask_each::<_, MoveLeaderResponse>(path, [&asked[0], &asked[1]])
            .await
    }

    async fn downgrade(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        // Not to the version before its own, to which etcd would go.
        let versions = [
            "3.9.0",
            "2.0.0",
            "3.5",
            "3.1.7-rc.1",
            "",
            "3",
            "x.y.z",
            "3.1.2.3",
        ];
        let asked = DowngradeRequest {
            action: match draw.one_in(2) {
                true => DowngradeAction::Cancel as i32,
                false => DowngradeAction::Validate as i32,
            },
            version: versions[usize::try_from(draw.below(8)).unwrap()].to_owned(),
        };
        let path = "/etcdserverpb.Maintenance/Downgrade";
        self.ask::<_, DowngradeResponse>(path, &asked).await
    }

    /// Lists members, and what is refused about others.
    async fn members(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let id = u64::try_from(draw.below(3)).unwrap();
        let url = |text: &str| vec![text.to_owned()];
        match draw.below(7) {
            0..3 => {
                let linearizable = draw.one_in(2);
                let asked = MemberListRequest { linearizable };
                let path = "/etcdserverpb.Cluster/MemberList";
                self.ask::<_, MemberListResponse>(path, &asked).await
            }
            3 => {
                let path = "/etcdserverpb.Cluster/MemberRemove";
                let asked = MemberRemoveRequest { id };
                self.ask::<_, MemberRemoveResponse>(path, &asked).await
            }
            4 => {
                let peer_urls = url("https://n9@127.0.0.1:9");
                let path = "/etcdserverpb.Cluster/MemberUpdate";
                let asked = MemberUpdateRequest { id, peer_urls };
                self.ask::<_, MemberUpdateResponse>(path, &asked).await
            }
            5 => {
                let path = "/etcdserverpb.Cluster/MemberPromote";
                let asked = MemberPromoteRequest { id };
                self.ask::<_, MemberPromoteResponse>(path, &asked).await
            }
            _ => {
                let urls = ["", "nothing", "ftp://n9@127.0.0.1:9", "https://127.0.0.1"];
                let asked = MemberAddRequest {
                    peer_urls: url(urls[usize::try_from(draw.below(4)).unwrap()]),
                    is_learner: draw.one_in(2),
                };
                let path = "/etcdserverpb.Cluster/MemberAdd";
                self.ask::<_, MemberAddResponse>(path, &asked).await
            }
        }
    }
}

/// The id of a lease: few, so that they meet.
fn lease(draw: &mut Draw) -> i64 {
    10 + draw.below(3)
}

/// The name of a lock or an election, which share their lines.
fn name(draw: &mut Draw) -> Bytes {
    let names: [&'static [u8]; 4] = [b"l", b"e", b"e\xff", b""];
    let at = [0, 0, 0, 1, 1, 1, 2, 3][usize::try_from(draw.below(8)).unwrap()];
    Bytes::from_static(names[at])
}

/// A place in one of those lines.
pub(super) fn place(draw: &mut Draw) -> Bytes {
    let (name, lease) = (name(draw), lease(draw));
    [&name[..], format!("/{lease:x}").as_bytes()]
        .concat()
        .into()
}
