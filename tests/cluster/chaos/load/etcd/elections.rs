//! etcd's Election: candidates that lead for a few proclamations each, and observers at each node.
//!
//! The token of a leader is the revision at which its key was created. In the order of the store no proclamation comes
//! after one of a later leader; who asks for the leader is not told of one before the last that was known to lead when
//! it asked; and an observer is told of leaders in their order, with what they said.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::leases::Wanderer;
use super::locks::{TTL_S, TURN, WRITES};
use super::{EtcdClient, Failure, REFUSED};
use crate::chaos::load::locks::taken;
use crate::chaos::load::{AFTER_FAILURE, Book, PROBE_TIMEOUT, REST, open};
use crate::etcd::grpc::{Channel, Silence};
use crate::etcd::messages::kv::KeyValue;
use crate::etcd::messages::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};

const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";
const LEADER: &str = "/v3electionpb.Election/Leader";
const OBSERVE: &str = "/v3electionpb.Election/Observe";
const PROCLAIM: &str = "/v3electionpb.Election/Proclaim";
const RESIGN: &str = "/v3electionpb.Election/Resign";
/// The name of the election.
const NAME: &str = "election of etcd's clients";
/// How often an observer looks whether it is over.
const LOOK: Duration = Duration::from_millis(200);

/// How often the store took a word of a leader.
pub(crate) const PROCLAIMED: &str = "proclamations taken of leaders of etcd's Election";
/// How often an observer was told something.
pub(crate) const TOLD: &str = "words of leaders told to etcd's observers";

/// What was said, and what was heard.
#[derive(Default)]
pub(in crate::chaos::load) struct Account {
    /// The token of the last leader that is known to have led.
    latest: i64,
    /// Words of leaders that were acknowledged, by revision.
    said: BTreeMap<i64, Bytes>,
    /// Words that were told, by revision, each with who told it.
    heard: Vec<(i64, Bytes, String)>,
}

/// Leads over and over, each time with a lease of its own, at one node and then at another one.
pub(in crate::chaos::load) async fn run_for_office(
    book: Arc<Book>,
    ports: Vec<SocketAddr>,
    number: usize,
) {
    let mut wanderer = Wanderer::new(book.clone(), ports);
    let mut term = 0;
    while !book.is_over() {
        term += 1;
        let led = lead(&book, &mut wanderer, &format!("{number}-{term}")).await;
        let rest = match led {
            Ok(()) => REST,
            Err(_) => {
                wanderer.go_on();
                AFTER_FAILURE
            }
        };
        book.rest(rest).await;
    }
}

async fn lead(book: &Book, wanderer: &mut Wanderer, words: &str) -> Result<(), Failure> {
    ask_for_leader(book, &mut wanderer.client).await?;
    let lease = wanderer.grant(TTL_S).await?.id;
    let client = &mut wanderer.client;
    let asked = CampaignRequest {
        name: NAME.into(),
        lease,
        value: words.to_owned().into(),
    };
    let won: CampaignResponse = client.ask_within(TURN, CAMPAIGN, &asked).await?;
    let leader = won.leader.expect("who has won is told what it holds");
    book.count("elections won by etcd's clients");
    said(book, leader.rev, leader.rev, &asked.value);
    for number in 0..WRITES {
        let value = Bytes::from(format!("{words}-{number}"));
        match proclaim(client, &leader, &value).await {
            Ok(revision) => {
                taken(book, NAME, revision, leader.rev);
                said(book, leader.rev, revision, &value);
                book.count(PROCLAIMED);
            }
            // The lease has ended.
            Err(refused) if refused.code == REFUSED => return Ok(()),
            Err(failure) => return Err(failure),
        }
        book.rest(REST).await;
    }
    let resign = ResignRequest {
        leader: Some(leader.clone()),
    };
    let _: ResignResponse = client.ask(RESIGN, &resign).await?;
    match proclaim(client, &leader, &asked.value).await {
        Ok(revision) => book.violation(format!(
            "at revision {revision} the store took a word of a leader that had resigned"
        )),
        Err(refused) if refused.code == REFUSED => {
            book.count("late proclamations refused of leaders of etcd's Election");
        }
        Err(failure) => return Err(failure),
    }
    Ok(())
}

/// Says something as the leader; the revision of it.
async fn proclaim(
    client: &mut EtcdClient,
    leader: &LeaderKey,
    value: &Bytes,
) -> Result<i64, Failure> {
    let proclaim = ProclaimRequest {
        leader: Some(leader.clone()),
        value: value.clone(),
    };
    let answer: ProclaimResponse = client.ask(PROCLAIM, &proclaim).await?;
    Ok(answer.header.expect("an answer has a header").revision)
}

/// The leader with this token said something at this revision, be it as a candidate.
fn said(book: &Book, token: i64, revision: i64, value: &Bytes) {
    let account = &mut open(&book.elections);
    account.latest = account.latest.max(token);
    account.said.insert(revision, value.clone());
}

/// Who leads is not one before the last that was known to lead.
async fn ask_for_leader(book: &Book, client: &mut EtcdClient) -> Result<(), Failure> {
    let known = open(&book.elections).latest;
    let asked = LeaderRequest { name: NAME.into() };
    match client.ask::<LeaderResponse>(LEADER, &asked).await {
        Ok(told) => {
            let leader = told.kv.expect("a leader has a key");
            if leader.create_revision < known {
                book.violation(format!(
                    "the leader is said to be that of {}, after that of {known}",
                    leader.create_revision
                ));
            }
            heard(book, &leader, "Leader");
            Ok(())
        }
        // There is none.
        Err(refused) if refused.code == REFUSED => Ok(()),
        Err(failure) => Err(failure),
    }
}

fn heard(book: &Book, leader: &KeyValue, by: &str) {
    let account = &mut open(&book.elections);
    account.latest = account.latest.max(leader.create_revision);
    let value = leader.value.clone();
    account
        .heard
        .push((leader.mod_revision, value, by.to_owned()));
}

/// Observes at `port`, over as many streams as it takes.
pub(in crate::chaos::load) async fn observe(book: Arc<Book>, port: SocketAddr) {
    let name = format!("the observer at {port}");
    let mut client = EtcdClient::new(book.clone(), port, PROBE_TIMEOUT);
    // A leader, and its last word.
    let mut last = (0, 0);
    while !book.is_over() {
        if let Ok(channel) = client.connection().await {
            book.count("streams of etcd's observers");
            follow(&book, &channel, &name, &mut last).await;
        }
        tokio::time::sleep(AFTER_FAILURE).await;
    }
}

/// Writes down what comes on one stream, until it ends or is silent, or it is over.
async fn follow(book: &Book, channel: &Channel, name: &str, last: &mut (i64, i64)) {
    let begun = channel.try_begin(OBSERVE, &[]);
    let Ok(Ok(mut stream)) = tokio::time::timeout(PROBE_TIMEOUT, begun).await else {
        return;
    };
    stream.send_last(&LeaderRequest { name: NAME.into() });
    let mut heard_at = Instant::now();
    while !book.is_over() && heard_at.elapsed() < PROBE_TIMEOUT {
        let next = tokio::time::timeout(LOOK, stream.try_next::<LeaderResponse>()).await;
        let Ok(told) = next else { continue };
        heard_at = Instant::now();
        match told {
            Ok(told) => {
                let leader = told.kv.expect("a leader has a key");
                let told = (leader.create_revision, leader.mod_revision);
                // On another stream, the last word comes again.
                if told < *last {
                    book.violation(format!("{name} was told {told:?} after {last:?}"));
                }
                *last = told;
                book.count(TOLD);
                heard(book, &leader, name);
            }
            // No leader, or no room for one more; or the node stops.
            Err(Silence::Ended((8 | 14, _)) | Silence::Lost(_)) => return,
            Err(Silence::Ended(status)) => {
                return book.violation(format!("{name} ended: {status:?}"));
            }
        }
    }
}

/// What was heard at a revision is what was said then.
pub(in crate::chaos::load) fn settle(book: &Book) {
    let account = open(&book.elections);
    for (revision, value, by) in &account.heard {
        if account.said.get(revision).is_some_and(|said| said != value) {
            book.violation(format!("{by} told {value:?} of revision {revision}"));
        }
    }
}
