//! A node without data asks the cluster who it is.
//!
//! Its name is in its certificate; which life of its data begins now, and whether it is a member at
//! all, the cluster decides. Any member may be asked. One that lacks the latest change knows
//! of an earlier incarnation at most, and of those that answer the one whose configuration is the newest is
//! believed. Were all of them behind, the node would begin an earlier life: as one that has lost
//! everything, which does not vote before it is complete (A23), and its peers would report that it was
//! replaced.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::server::config::Config;
use crate::server::peers::ask_standing;
use crate::transport::{
    Admission, BindError, CloseCode, Endpoint, Port, Tls, TransportStats, resolve,
};
use crate::types::{Incarnation, LogIndex};
use crate::wire::FrameLimits;
use crate::wire::peer::MemberStanding;

/// How long one member is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two rounds of questions.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Between two log lines that say the same.
const SAY_EVERY: u32 = 60;
/// Between two addresses of one member.
const STAGGER: Duration = Duration::from_millis(250);

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberIdentity {
    /// The life of its data that begins now.
    pub(crate) incarnation: Incarnation,
    /// The initial members, if the member that answered knows them.
    pub(crate) initial_members: Vec<String>,
}

/// Asks the members of `cluster.initial` until one says that this node is a member.
///
/// # Errors
/// No port can be had.
///
/// # Cancel safety
/// Safe: nothing has been decided.
pub(crate) async fn ask(config: &Config, tls: &Tls) -> Result<MemberIdentity, BindError> {
    // A port of its own: that of the node is opened when there is a node.
    let bind = SocketAddr::new(config.listen.peer.ip(), 0);
    let limits = FrameLimits::of(&config.limits);
    let stats = Arc::new(TransportStats::default());
    let endpoint = Endpoint::listen(bind, Port::Peer, tls, limits, Admission::DEFAULT, stats)?;
    let mut rounds: u32 = 0;
    let told = loop {
        match newest(answers(config, &endpoint, &limits).await) {
            Some((_, Some(incarnation), initial_members)) => {
                break MemberIdentity {
                    incarnation,
                    initial_members,
                };
            }
            Some((index, None, _)) if rounds.is_multiple_of(SAY_EVERY) => tracing::warn!(
                node = %config.node.name,
                configuration = %index,
                "waiting to become a member of the cluster: add this node with `leasehold member \
                 add {}` or, if it lost its data, with `leasehold member replace {}`",
                config.node.name,
                config.node.name,
            ),
            None if rounds.is_multiple_of(SAY_EVERY) => tracing::warn!(
                node = %config.node.name,
                "waiting for a member of cluster.initial to answer: this node has no data and \
                 cluster.state is not \"new\", so it must learn its identity from a member"
            ),
            _ => {}
        }
        rounds = rounds.wrapping_add(1);
        tokio::time::sleep(ASK_EVERY).await;
    };
    endpoint.close(CloseCode::Done);
    tracing::info!(
        node = %config.node.name,
        incarnation = %told.incarnation,
        "this node is a member of the cluster"
    );
    Ok(told)
}

type Answer = (LogIndex, Option<Incarnation>, Vec<String>);

/// The answer that rests on the newest configuration.
fn newest(answers: Vec<Answer>) -> Option<Answer> {
    answers.into_iter().max_by_key(|(index, ..)| *index)
}

/// Asks every member that is configured, all at once.
async fn answers(config: &Config, endpoint: &Endpoint, limits: &FrameLimits) -> Vec<Answer> {
    let mut asking = tokio::task::JoinSet::new();
    let others = config.cluster.initial.iter();
    let others = others.filter(|member| member.name != config.node.name);
    for address in others.filter_map(|member| member.address.clone()) {
        let (endpoint, limits) = (endpoint.clone(), *limits);
        asking.spawn(async move {
            let asked = async {
                let addresses = resolve(&address).await.ok()?;
                let connection = endpoint.connect_any(&addresses, STAGGER).await.ok()?;
                match ask_standing(&connection, &limits).await? {
                    MemberStanding::Known {
                        index,
                        incarnation,
                        initial_members,
                    } => Some((index, incarnation, initial_members)),
                    MemberStanding::Ask => None,
                }
            };
            tokio::time::timeout(ANSWER_WITHIN, asked).await.ok()?
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = asking.join_next().await {
        answers.extend(answer.ok().flatten());
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_answers_the_newest_counts() {
        let answer = |index, life: Option<u64>| (LogIndex(index), life.map(Incarnation), vec![]);
        assert_eq!(newest(vec![]), None);
        let behind = answer(5, None);
        let newer = answer(9, Some(8));
        assert_eq!(newest(vec![newer.clone(), behind]), Some(newer.clone()));
        // It was removed since.
        let newest_of_all = answer(20, None);
        assert_eq!(
            newest(vec![newer, newest_of_all.clone()]),
            Some(newest_of_all)
        );
    }
}
