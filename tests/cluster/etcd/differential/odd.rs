//! Programs of requests with odd values: the ends of numbers, enums that have no such name, counts at and above what
//! is taken, members' URLs that are none, and names that are rarely given.
//!
//! What is drawn leaves out what differs on purpose (see docs/etcd.md: comparisons and permissions that there are none
//! of, which etcd takes for true and for no permission) and what ends the process of etcd 3.5.1: sorts by what there is
//! not, alarms and actions that there are none of, and URLs that are none in an update.

use bytes::Bytes;

use super::super::kv::{
    CompactionRequest, CompactionResponse, Compare, CompareUnion, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, RequestUnion, TxnRequest, TxnResponse,
};
use super::super::messages::{
    AuthDoneResponse, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGetRequest,
    AuthUserGetResponse, CampaignRequest, CampaignResponse, DowngradeRequest, DowngradeResponse,
    HashKvRequest, HashKvResponse, LeaderKey, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    LockRequest, LockResponse, MemberAddRequest, MemberAddResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MoveLeaderRequest,
    MoveLeaderResponse, ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse,
    UnlockRequest, UnlockResponse, WatchCreateRequest, WatchRequest, WatchRequestUnion,
    WatchResponse,
};
use super::services::{Services, place};
use super::{
    COMPACT, Draw, Ended, Kind, PUT, Pair, RANGE, STEPS, TXN, compare_programs, run_steps, same,
};
use crate::harness::PATIENCE;

const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// Enums whose names end below have no name there.
const ODD_ENUMS: [i32; 6] = [-1, 6, 7, 100, i32::MIN, i32::MAX];
/// Names that are taken and rarely given.
const ODD_NAMES: [&str; 5] = ["a b", "a/b", "\u{e9}", ".", "a%2f"];
/// None of them is the URLs of a member.
const ODD_URLS: [&[&str]; 8] = [
    &[],
    &["n9"],
    &[" "],
    &["https://n9@127.0.0.1"],
    &["https://n9@127.0.0.1:1/x"],
    &["https://n9@127.0.0.1:x"],
    &["https://n9@[::1:80"],
    &["https://n9@127.0.0.1:1", "n9"],
];

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_odd_requests_get_the_answers_that_etcd_gives() {
    compare_programs::<Odd>(false, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_odd_requests_in_json_get_the_answers_that_etcd_s_gateway_gives() {
    compare_programs::<Odd>(true, 10).await;
}

struct Odd(Services);

impl Kind for Odd {
    const STEPS: u64 = STEPS;
    const FOUND: &'static [(u64, &'static [u64])] = &[];

    fn new(pair: Pair) -> Self {
        Self(Services::new(pair))
    }

    fn pair(&self) -> &Pair {
        &self.0.pair
    }

    async fn run(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended> {
        self.0.clear().await?;
        let begun = self.0.pair.empty_and_compact().await?;
        let step = async |_, draw: &mut Draw| self.step(draw).await;
        run_steps(program, steps, begun, step).await
    }
}

impl Odd {
    async fn step(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        match draw.below(16) {
            0 | 1 => self.range(draw).await,
            2 => self.put(draw).await,
            3..6 => self.txn(draw).await,
            6 => self.compact(draw).await,
            7 | 8 => self.lease(draw).await,
            9 => self.hash(draw).await,
            10 => self.watch(draw).await,
            11 | 12 => self.name(draw).await,
            13 => self.line(draw).await,
            14 => self.member(draw).await,
            _ => self.server(draw).await,
        }
        .map(drop)
    }

    async fn range(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let mut range = draw.range();
        let number = odd(draw);
        let field = match draw.below(6) {
            0 => &mut range.limit,
            1 => &mut range.revision,
            2 => &mut range.min_mod_revision,
            3 => &mut range.max_mod_revision,
            4 => &mut range.min_create_revision,
            _ => &mut range.max_create_revision,
        };
        *field = number;
        self.0.ask::<_, RangeResponse>(RANGE, &range).await
    }

    async fn put(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let lease = match draw.one_in(3) {
            true => odd(draw),
            false => 0,
        };
        let put = PutRequest {
            lease,
            ..draw.put()
        };
        self.0.ask::<_, PutResponse>(PUT, &put).await
    }

    async fn txn(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let txn = match draw.below(3) {
            0 => many(draw),
            1 => nested(draw),
            _ => {
                let mut txn = draw.txn(2);
                txn.compare = (0..2).map(|_| comparison(draw)).collect();
                txn
            }
        };
        self.0.ask::<_, TxnResponse>(TXN, &txn).await
    }

    async fn compact(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let compaction = CompactionRequest {
            revision: odd(draw),
            physical: draw.one_in(2),
        };
        self.0
            .ask::<_, CompactionResponse>(COMPACT, &compaction)
            .await
    }

    async fn lease(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let id = odd(draw);
        match draw.below(4) {
            0 => {
                // Those that we take are positive, and without one each chooses its own.
                let id = id.checked_abs().unwrap_or(i64::MAX).max(1);
                let grant = LeaseGrantRequest { ttl: 100_000, id };
                let path = "/etcdserverpb.Lease/LeaseGrant";
                self.0.ask::<_, LeaseGrantResponse>(path, &grant).await
            }
            1 => {
                let ttl = odd(draw);
                self.0.grant_and_revoke(ttl).await.map(|()| 0)
            }
            2 => {
                let path = "/etcdserverpb.Lease/LeaseRevoke";
                let revoke = LeaseRevokeRequest { id };
                self.0.ask::<_, LeaseRevokeResponse>(path, &revoke).await
            }
            _ => {
                let path = "/etcdserverpb.Lease/LeaseTimeToLive";
                let keys = draw.one_in(2);
                let asked = LeaseTimeToLiveRequest { id, keys };
                self.0.ask::<_, LeaseTimeToLiveResponse>(path, &asked).await
            }
        }
    }

    /// As messages in any case: etcd's gateway has no path for it before 3.6.
    async fn hash(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let in_json = self.0.pair.in_json.take();
        let path = "/etcdserverpb.Maintenance/HashKV";
        let number = odd(draw);
        let asked = HashKvRequest {
            // At the compact revision itself etcd tells it from 3.6 on.
            revision: match number.abs_diff(draw.begun) < 2 {
                true => 0,
                false => number,
            },
        };
        let hash = self.0.ask::<_, HashKvResponse>(path, &asked).await;
        self.0.pair.in_json = in_json;
        hash
    }

    /// What is said first of a watch, as a message in any case.
    async fn watch(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let filters = [&[7][..], &[-1], &[0, 1], &[1, 1], &[i32::MAX]];
        let filters = filters[usize::try_from(draw.below(5)).unwrap()].to_vec();
        let asked = WatchCreateRequest {
            key: draw.key(),
            range_end: draw.range_end(),
            start_revision: odd(draw).max(0),
            filters,
            watch_id: odd(draw),
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest {
            request: Some(WatchRequestUnion::CreateRequest(asked.clone())),
        };
        let mut told = Vec::new();
        for channel in [&self.0.pair.etcd, &self.0.pair.ours] {
            let mut stream = channel.begin(WATCH, &[]).await;
            stream.send(&request);
            let first = tokio::time::timeout(PATIENCE / 2, stream.next::<WatchResponse>()).await;
            let first = first.map_err(|_| Ended::Differs("nothing came".to_owned()))?;
            told.push(first.map(super::Masked::masked));
        }
        same(&told[1], &told[0], WATCH, &asked)?;
        Ok(0)
    }

    async fn name(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let name = ODD_NAMES[usize::try_from(draw.below(5)).unwrap()].to_owned();
        let add = AuthUserAddRequest {
            name: name.clone(),
            password: "pw".to_owned(),
            ..AuthUserAddRequest::default()
        };
        let path = "/etcdserverpb.Auth/UserAdd";
        self.0.ask::<_, AuthDoneResponse>(path, &add).await?;
        let asked = AuthUserGetRequest { name: name.clone() };
        let path = "/etcdserverpb.Auth/UserGet";
        self.0.ask::<_, AuthUserGetResponse>(path, &asked).await?;
        let path = "/etcdserverpb.Auth/RoleAdd";
        let add = AuthRoleAddRequest { name };
        self.0.ask::<_, AuthDoneResponse>(path, &add).await
    }

    /// Locks and elections by leases and revisions that there are none of.
    async fn line(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let name = Bytes::from_static(b"l");
        // Without a lease each chooses one.
        let lease = Some(odd(draw)).filter(|lease| *lease != 0).unwrap_or(-1);
        let leader = Some(LeaderKey {
            name: name.clone(),
            key: place(draw),
            rev: odd(draw),
            lease,
        });
        let value = draw.value();
        match draw.below(5) {
            0 => {
                let lock = LockRequest { name, lease };
                let path = "/v3lockpb.Lock/Lock";
                self.0.ask::<_, LockResponse>(path, &lock).await
            }
            1 => {
                let key = draw.range_end();
                let path = "/v3lockpb.Lock/Unlock";
                self.0
                    .ask::<_, UnlockResponse>(path, &UnlockRequest { key })
                    .await
            }
            2 => {
                let campaign = CampaignRequest { name, lease, value };
                let path = "/v3electionpb.Election/Campaign";
                self.0.ask::<_, CampaignResponse>(path, &campaign).await
            }
            3 => {
                let proclaim = ProclaimRequest { leader, value };
                let path = "/v3electionpb.Election/Proclaim";
                self.0.ask::<_, ProclaimResponse>(path, &proclaim).await
            }
            _ => {
                let path = "/v3electionpb.Election/Resign";
                self.0
                    .ask::<_, ResignResponse>(path, &ResignRequest { leader })
                    .await
            }
        }
    }

    async fn member(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let id = odd(draw).cast_unsigned();
        match draw.below(4) {
            0 => {
                let path = "/etcdserverpb.Cluster/MemberPromote";
                let asked = MemberPromoteRequest { id };
                self.0.ask::<_, MemberPromoteResponse>(path, &asked).await
            }
            1 => {
                let path = "/etcdserverpb.Cluster/MemberRemove";
                let asked = MemberRemoveRequest { id };
                self.0.ask::<_, MemberRemoveResponse>(path, &asked).await
            }
            _ => {
                let urls = ODD_URLS[usize::try_from(draw.below(8)).unwrap()];
                let asked = MemberAddRequest {
                    peer_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
                    is_learner: draw.one_in(2),
                };
                let path = "/etcdserverpb.Cluster/MemberAdd";
                self.0.ask::<_, MemberAddResponse>(path, &asked).await
            }
        }
    }

    async fn server(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        if draw.one_in(2) {
            let target_id = odd(draw).cast_unsigned();
            let path = "/etcdserverpb.Maintenance/MoveLeader";
            let asked = MoveLeaderRequest { target_id };
            return self.0.ask::<_, MoveLeaderResponse>(path, &asked).await;
        }
        let asked = DowngradeRequest {
            action: enum_of(draw),
            version: "3.1.0".to_owned(),
        };
        let path = "/etcdserverpb.Maintenance/Downgrade";
        self.0.ask::<_, DowngradeResponse>(path, &asked).await
    }
}

/// The ends of numbers, and what is beside them and beside the current revision.
fn odd(draw: &mut Draw) -> i64 {
    let beyond_32_bits = 1_i64 << 32;
    let numbers = [
        i64::MIN,
        i64::MIN + 1,
        -beyond_32_bits,
        i64::from(i32::MIN),
        -1,
        0,
        1,
        draw.begun,
        draw.begun + 1,
        i64::from(i32::MAX),
        beyond_32_bits,
        i64::MAX - 1,
        i64::MAX,
    ];
    numbers[usize::try_from(draw.below(13)).unwrap()]
}

fn enum_of(draw: &mut Draw) -> i32 {
    ODD_ENUMS[usize::try_from(draw.below(6)).unwrap()]
}

/// With a number at an end, or one that the target does not look at.
fn comparison(draw: &mut Draw) -> Compare {
    let number = odd(draw);
    let given = match draw.below(4) {
        0 => CompareUnion::Version(number),
        1 => CompareUnion::CreateRevision(number),
        2 => CompareUnion::ModRevision(number),
        _ => CompareUnion::Lease(number),
    };
    Compare {
        target_union: Some(given),
        ..draw.comparison()
    }
}

fn read() -> RequestOp {
    RequestOp {
        request: Some(RequestUnion::RequestRange(RangeRequest {
            key: Bytes::from_static(b"a"),
            ..RangeRequest::default()
        })),
    }
}

/// As many operations or comparisons as are taken, or one more.
fn many(draw: &mut Draw) -> TxnRequest {
    let count = usize::try_from(127 + draw.below(3)).unwrap();
    let mut txn = TxnRequest::default();
    match draw.below(3) {
        0 => {
            let compare = Compare {
                key: Bytes::from_static(b"a"),
                ..Compare::default()
            };
            txn.compare = vec![compare; count];
        }
        1 => txn.success = vec![read(); count],
        _ => txn.failure = vec![read(); count],
    }
    txn
}

/// Operations beside those of a transaction within: both count together.
fn nested(draw: &mut Draw) -> TxnRequest {
    let outer = usize::try_from(120 + draw.below(8)).unwrap();
    let inner = TxnRequest {
        success: vec![read(); usize::try_from(draw.below(9)).unwrap()],
        ..TxnRequest::default()
    };
    let mut success = vec![read(); outer];
    success.push(RequestOp {
        request: Some(RequestUnion::RequestTxn(inner)),
    });
    TxnRequest {
        success,
        ..TxnRequest::default()
    }
}
