//! Programs of members: one is added as a learner, may not vote yet, moves, and is removed again.
//!
//! It never starts, so that one voter decides alone on either side. There is one at most: etcd takes no second.
//! Ours shows every URL as `https` and gives a member its name from the start, so of both there is only as much
//! compared as that they are there. A learner that has moved is a voter in the lists of etcd 3.5.1 and waits to be one
//! no more: which it is, is not compared, and it is removed at once.

use super::super::EtcdCluster;
use super::super::http::masked as masked_text;
use super::super::kv::ResponseHeader;
use super::super::messages::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use super::texts::{sorted, without_fields, without_values};
use super::{Draw, Ended, Kind, Masked, PATIENT, Pair, compare_programs, done, masked, run_steps};
use crate::harness::PATIENCE;

const ADD: &str = "/etcdserverpb.Cluster/MemberAdd";
const LIST: &str = "/etcdserverpb.Cluster/MemberList";
const PROMOTE: &str = "/etcdserverpb.Cluster/MemberPromote";
const REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";
const UPDATE: &str = "/etcdserverpb.Cluster/MemberUpdate";

/// The id of no member.
const NO_MEMBER: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_members_get_the_answers_that_etcd_gives() {
    compare_programs::<Members>(false, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_members_in_json_get_the_answers_that_etcd_s_gateway_gives() {
    compare_programs::<Members>(true, 6).await;
}

struct Members {
    pair: Pair,
    /// At etcd and at ours: the only voter, the learner if there is one, and the id of the last that was removed.
    voter: [Known; 2],
    learner: Option<[Known; 2]>,
    removed: [u64; 2],
    /// Changes that were made by both.
    made: usize,
    /// The ports that members had. Nothing listens there.
    ports: u16,
}

/// A member as one of the two lists it.
#[derive(Clone, Default)]
struct Known {
    id: u64,
    url: String,
}

impl Known {
    fn of(member: &Member) -> Self {
        Self {
            id: member.id,
            url: member.peer_urls[0].clone(),
        }
    }
}

fn ids(of: &[Known; 2]) -> [u64; 2] {
    of.each_ref().map(|known| known.id)
}

/// The URLs of these members, as a request gives them: to ours with a name, which its lists do not show.
fn urls(of: &[Known; 2]) -> [Vec<String>; 2] {
    let ours = of[1].url.replace("https://", "https://n9@");
    [vec![of[0].url.clone()], vec![ours]]
}

impl Kind for Members {
    const STEPS: u64 = 20;
    const FOUND: &'static [(u64, &'static [u64])] = &[];

    fn new(pair: Pair) -> Self {
        Self {
            pair,
            voter: Default::default(),
            learner: None,
            removed: [NO_MEMBER; 2],
            made: 0,
            ports: 0,
        }
    }

    /// One that may bootstrap alone takes no others.
    fn start() -> EtcdCluster {
        let mut ours = EtcdCluster::start(1, PATIENT);
        assert_eq!(ours.cluster.nodes[0].stop(), 0);
        ours.cluster.says_that_the_cluster_exists(0);
        ours.cluster.start_and_settle();
        ours
    }

    fn pair(&self) -> &Pair {
        &self.pair
    }

    async fn run(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended> {
        self.pair.asked.lock().unwrap().clear();
        self.clear().await?;
        self.look().await?;
        let step = async |_, draw: &mut Draw| self.step(draw).await;
        run_steps(program, steps, 0, step).await
    }

    fn end(self) {
        assert!(self.made > 0, "no change of members was made by both");
    }
}

impl Members {
    /// Removes the learner that a program may have left, which only one of the two may have taken.
    async fn clear(&mut self) -> Result<(), Ended> {
        self.remove_learners().await?;
        self.settle().await?;
        // etcd takes none in its first seconds.
        let began = std::time::Instant::now();
        loop {
            let first = MemberAddRequest {
                peer_urls: self.new_url(),
                is_learner: true,
            };
            let added = self.pair.etcd.ask::<MemberAddResponse>(ADD, &first).await;
            match added {
                Err((_, text)) if text.contains("unhealthy cluster") => {}
                added => break done(added).map(drop)?,
            }
            assert!(began.elapsed() < PATIENCE, "etcd takes no member");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        self.remove_learners().await
    }

    async fn remove_learners(&self) -> Result<(), Ended> {
        let list = MemberListRequest { linearizable: true };
        for channel in [&self.pair.etcd, &self.pair.ours] {
            let found: MemberListResponse = done(channel.ask(LIST, &list).await)?;
            // A learner that has moved is listed as a voter by etcd, and has never started.
            let has_started = |it: &Member| !it.name.is_empty() || !it.client_urls.is_empty();
            let others = found.members.iter();
            for learner in others.filter(|it| it.is_learner || !has_started(it)) {
                let remove = MemberRemoveRequest { id: learner.id };
                done(channel.ask::<MemberRemoveResponse>(REMOVE, &remove).await)?;
            }
        }
        Ok(())
    }

    async fn step(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        let some = match draw.below(7) {
            0 => [NO_MEMBER; 2],
            1 => ids(&self.voter),
            2 => self.removed,
            _ => self.learner.as_ref().map_or([NO_MEMBER; 2], ids),
        };
        match draw.below(14) {
            0..3 => self.add().await,
            3 => self.add_again(draw).await,
            4..8 => self.update(draw).await,
            8..11 => {
                let asked = some.map(|id| MemberPromoteRequest { id });
                self.change::<_, MemberPromoteResponse>(PROMOTE, asked)
                    .await
            }
            11 => match some == ids(&self.voter) {
                true => Ok(()),
                false => self.remove(some).await,
            },
            _ => {
                let linearizable = draw.one_in(2);
                let asked = MemberListRequest { linearizable };
                let pair = &self.pair;
                pair.differ::<_, MemberListResponse>(LIST, &asked).await
            }
        }
    }

    /// One at the URL of the voter, which is refused.
    async fn add_again(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        let is_learner = draw.one_in(2);
        let asked = urls(&self.voter).map(|peer_urls| MemberAddRequest {
            peer_urls,
            is_learner,
        });
        self.change::<_, MemberAddResponse>(ADD, asked).await
    }

    /// Moves a member: one that is not there, the voter to where it is, one to where the other is, or the learner.
    async fn update(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        let moved = |ids: [u64; 2], urls: [Vec<String>; 2]| {
            let [theirs, ours] = urls;
            [(ids[0], theirs), (ids[1], ours)]
                .map(|(id, peer_urls)| MemberUpdateRequest { id, peer_urls })
        };
        let url = self.new_url();
        let elsewhere = [url.clone(), url];
        let voter = ids(&self.voter);
        let asked = match (&self.learner, draw.below(5)) {
            (_, 0) => moved([NO_MEMBER; 2], elsewhere),
            (_, 1) => moved(self.removed, elsewhere),
            (None, _) => moved(voter, urls(&self.voter)),
            (Some(learner), 2) => moved(voter, urls(learner)),
            (Some(learner), 3) => moved(ids(learner), urls(&self.voter)),
            (Some(learner), _) => {
                let ids = ids(learner);
                let asked = moved(ids, elsewhere);
                let asked = asked.each_ref();
                let pair = &self.pair;
                let code = pair.differ_in_names::<_, Moved>(UPDATE, asked, [None; 2]);
                self.made += usize::from(code.await? == 0);
                self.settle().await?;
                return self.remove(ids).await;
            }
        };
        self.change::<_, MemberUpdateResponse>(UPDATE, asked).await
    }

    async fn add(&mut self) -> Result<(), Ended> {
        // etcd has no second learner.
        if self.learner.is_some() {
            return Ok(());
        }
        let asked = MemberAddRequest {
            peer_urls: self.new_url(),
            is_learner: true,
        };
        let asked = [asked.clone(), asked];
        self.change::<_, MemberAddResponse>(ADD, asked).await
    }

    /// Of a member that is not there yet. To etcd, one that comes to the URL of another in the same second is that one,
    /// and was removed.
    fn new_url(&mut self) -> Vec<String> {
        self.ports = self.ports % 60_000 + 1;
        vec![format!("https://n9@127.0.0.1:{}", self.ports)]
    }

    async fn remove(&mut self, ids: [u64; 2]) -> Result<(), Ended> {
        let asked = ids.map(|id| MemberRemoveRequest { id });
        let made = self.made;
        self.change::<_, MemberRemoveResponse>(REMOVE, asked)
            .await?;
        if self.made > made {
            self.removed = ids;
        }
        Ok(())
    }

    async fn change<Q, A>(&mut self, path: &str, asked: [Q; 2]) -> Result<(), Ended>
    where
        Q: prost::Message + super::super::json::Json + std::fmt::Debug,
        A: prost::Message + Default + Masked + PartialEq + std::fmt::Debug,
    {
        let asked = asked.each_ref();
        let code = self
            .pair
            .differ_in_names::<Q, A>(path, asked, [None; 2])
            .await?;
        self.made += usize::from(code == 0);
        self.look().await
    }

    /// Waits until etcd takes the next change: one that comes while its Raft has yet to note that the one before is
    /// applied, it makes an empty entry of, and its client waits until its own deadline. A linearizable read comes
    /// after that note.
    async fn settle(&self) -> Result<(), Ended> {
        let list = MemberListRequest { linearizable: true };
        let listed = self.pair.etcd.ask::<MemberListResponse>(LIST, &list).await;
        done(listed).map(drop)
    }

    /// Who is there by now, of whom each has its own ids.
    async fn look(&mut self) -> Result<(), Ended> {
        let list = MemberListRequest { linearizable: true };
        let mut listed = Vec::new();
        for channel in [&self.pair.etcd, &self.pair.ours] {
            let found: MemberListResponse = done(channel.ask(LIST, &list).await)?;
            listed.push(found.members);
        }
        let known = |is_learner: bool| {
            let of = |members: &[Member]| {
                let found = members.iter().find(|it| it.is_learner == is_learner);
                found.map(Known::of)
            };
            Some([of(&listed[0])?, of(&listed[1])?])
        };
        self.voter = known(false).expect("a voter");
        self.learner = known(true);
        Ok(())
    }
}

/// The answer to an update of a learner.
#[derive(Clone, PartialEq, prost::Message)]
struct Moved {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

impl Masked for Moved {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        masked_members(&mut self.members);
        for member in &mut self.members {
            member.is_learner = false;
        }
        self.members.sort_by_key(|member| member.client_urls.len());
        self
    }

    fn masked_text(text: &str) -> String {
        masked_members_text(&without_fields(text, "isLearner"))
    }
}

/// Without ids, names and URLs, of which each has its own, and in an order that does not depend on them.
pub(super) fn masked_members(members: &mut [Member]) {
    for member in members.iter_mut() {
        *member = masked_member(member);
    }
    members.sort_by_key(|member| member.is_learner);
}

fn masked_member(member: &Member) -> Member {
    Member {
        peer_urls: vec![String::new(); member.peer_urls.len()],
        client_urls: vec![String::new(); member.client_urls.len()],
        is_learner: member.is_learner,
        ..Member::default()
    }
}

/// The same of their text in JSON.
pub(super) fn masked_members_text(text: &str) -> String {
    let values = ["ID", "peerURLs", "clientURLs"];
    let text = values
        .iter()
        .fold(masked_text(text), |text, it| without_values(&text, it));
    sorted(&without_fields(&text, "name"), "members")
}

/// Answers with a header and all members.
macro_rules! mask_members {
    ($($Answer:ty),*) => {
        $(impl Masked for $Answer {
            fn masked(mut self) -> Self {
                masked(&mut self.header);
                masked_members(&mut self.members);
                self
            }

            fn masked_text(text: &str) -> String {
                masked_members_text(text)
            }
        })*
    };
}

mask_members!(
    MemberListResponse,
    MemberPromoteResponse,
    MemberRemoveResponse,
    MemberUpdateResponse
);

impl Masked for MemberAddResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.member = self.member.as_ref().map(masked_member);
        masked_members(&mut self.members);
        self
    }

    fn masked_text(text: &str) -> String {
        masked_members_text(text)
    }
}
