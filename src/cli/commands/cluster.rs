//! `endpoint status`, `alarm list` and `move-leader`.

use std::io::Write;
use std::time::Duration;

use super::request::{StatusAnswer, any_status, members, note, status_of, statuses_of};
use super::{elsewhere, member};
use crate::api;
use crate::api::{DRAINED, Member, Request, ResponseHeader, StatusResponse};
use crate::cli::arguments::lease::read_id;
use crate::cli::arguments::{EndpointCommand, MoveLeaderArgs, StatusArgs};
use crate::cli::connection::{Connection, Target};
use crate::cli::failure::Failure;
use crate::cli::print::{self, EndpointHealth, EndpointStatus, View};
use crate::types::{NodeId, Role};

/// How often a new leader is looked for.
const LEADER_POLL: Duration = Duration::from_millis(50);

/// A question to single nodes.
pub(super) async fn endpoint(
    command: &EndpointCommand,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match command {
        EndpointCommand::Status(arguments) => {
            status(arguments, connection, target, view, out).await
        }
        EndpointCommand::Health(arguments) => {
            health(arguments, connection, target, view, out).await
        }
        EndpointCommand::Hashkv(_) => Err(Failure::usage(elsewhere::HASHES)),
    }
}

async fn status(
    arguments: &StatusArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let endpoints = endpoints_of(arguments, connection, target).await?;
    let (answers, errors) = ask_all(connection, endpoints).await;
    print::status(out, view.format, &answers)?;
    out.flush()?;
    let warnings = answers.iter().flat_map(|answer| {
        let name = &answer.status.name;
        answer.status.warnings.iter().map(move |text| (name, text))
    });
    for (name, text) in warnings {
        note(&format!("{name}: {text}"));
    }
    let Some((_, first)) = errors.first() else {
        return Ok(());
    };
    let lines: Vec<_> = errors
        .iter()
        .map(|(endpoint, failure)| {
            let why = without(endpoint, &failure.message);
            format!("{endpoint}: {why}")
        })
        .collect();
    Err(Failure::new(first.exit, lines.join("\n")))
}

/// What went wrong at `endpoint`, where that stands before it already.
fn without<'a>(endpoint: &str, message: &'a str) -> &'a str {
    let at_once = message.strip_prefix(endpoint);
    let later = || {
        message
            .strip_prefix("no answer from ")?
            .strip_prefix(endpoint)
    };
    let rest = at_once.or_else(later);
    rest.map_or(message, |rest| rest.trim_start_matches([':', ' ']))
}

/// Those that are to be asked.
async fn endpoints_of(
    arguments: &StatusArgs,
    connection: &impl Connection,
    target: &Target,
) -> Result<Vec<String>, Failure> {
    match arguments.cluster {
        false => Ok(target.endpoints.clone()),
        true => members(connection, target).await,
    }
}

/// Whether each endpoint serves.
async fn health(
    arguments: &StatusArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let endpoints = endpoints_of(arguments, connection, target).await?;
    let asked = statuses_of(connection, endpoints).await;
    let all: Vec<_> = asked.into_iter().map(health_of).collect();
    print::health(out, view.format, &all)?;
    match all.iter().filter(|one| one.problem.is_some()).count() {
        0 => Ok(()),
        ill => Err(Failure::refused(format!(
            "{ill} of {} endpoints are unhealthy",
            all.len()
        ))),
    }
}

fn health_of(asked: StatusAnswer) -> EndpointHealth {
    let StatusAnswer {
        endpoint,
        took,
        answer,
    } = asked;
    let (header, problem) = match answer {
        Ok((header, status)) => {
            let problem = problem_of(&header, &status);
            (Some(header), problem)
        }
        Err(failure) => (None, Some(without(&endpoint, &failure.message).to_owned())),
    };
    EndpointHealth {
        endpoint,
        took,
        header,
        problem,
    }
}

/// Why a node that answers does not serve.
fn problem_of(header: &ResponseHeader, status: &StatusResponse) -> Option<String> {
    if status.is_drained() {
        return Some(DRAINED.to_owned());
    }
    match (status.role, header.leader_id) {
        (Role::Leader | Role::Follower | Role::Learner, Some(_)) if status.quota.no_space => {
            Some("the alarm NOSPACE is raised".to_owned())
        }
        (Role::Leader | Role::Follower | Role::Learner, Some(_)) => None,
        (Role::Quarantined, _) => Some("it is quarantined: it copies all data anew".to_owned()),
        (role, _) => Some(format!("it is a {role} and knows no leader")),
    }
}

pub(super) async fn move_leader(
    arguments: &MoveLeaderArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (before, body) = any_status(connection, target).await?;
    let successor = match &arguments.target {
        None => None,
        Some(text) => Some(find_member(text, &body)?),
    };
    if successor.is_some() && successor == before.leader_id {
        let text = arguments.target.as_deref().unwrap_or_default();
        return Err(Failure::refused(format!(
            "{text} is the leader already: name another node, or none to let the leader choose"
        )));
    }
    let listed = member::ask(connection, Request::MemberList, api::Consistency::default());
    let (_, listed) = listed.await?;
    let votes = |member: &&Member| member.membership.votes();
    if listed.members.iter().filter(votes).count() == 1 {
        return Err(Failure::refused(
            "this cluster has one voter: there is no other node that could lead",
        ));
    }
    let request = Request::MoveLeader { target: successor };
    let response = connection
        .call(request, api::Consistency::default())
        .await?;
    let from = response.header.member_id;
    let to = match successor {
        Some(successor) => Some(successor),
        None => new_leader(connection, target, from).await,
    };
    Ok(print::moved(out, view.format, &response.header, to)?)
}

/// The leader after `former`, if one is elected within the time of one request.
async fn new_leader(
    connection: &impl Connection,
    target: &Target,
    former: NodeId,
) -> Option<NodeId> {
    let search = async {
        loop {
            for endpoint in &target.endpoints {
                let Ok((header, _)) = status_of(connection, endpoint).await else {
                    continue;
                };
                if let Some(leader) = header.leader_id.filter(|leader| *leader != former) {
                    return leader;
                }
            }
            tokio::time::sleep(LEADER_POLL).await;
        }
    };
    tokio::time::timeout(target.timeout, search).await.ok()
}

/// The alarms of every member.
pub(super) async fn alarms(
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let endpoints = members(connection, target).await?;
    let (answers, errors) = ask_all(connection, endpoints).await;
    print::alarms(out, view.format, &answers)?;
    out.flush()?;
    match errors.into_iter().next() {
        Some((_, failure)) => Err(failure),
        None => Ok(()),
    }
}

/// What each endpoint says of itself, and of those that say nothing why.
async fn ask_all(
    connection: &impl Connection,
    endpoints: Vec<String>,
) -> (Vec<EndpointStatus>, Vec<(String, Failure)>) {
    let (mut answers, mut errors) = (Vec::new(), Vec::new());
    for asked in statuses_of(connection, endpoints).await {
        let endpoint = asked.endpoint;
        match asked.answer {
            Ok((header, status)) => answers.push(EndpointStatus {
                endpoint,
                header,
                status,
            }),
            Err(failure) => errors.push((endpoint, failure)),
        }
    }
    (answers, errors)
}

/// A member by its name or by its id in hexadecimal.
fn find_member(text: &str, status: &StatusResponse) -> Result<NodeId, Failure> {
    let by_name = status.members.iter().find(|member| member.name == text);
    let by_id = || {
        let id = NodeId(read_id(text)?);
        status.members.iter().find(|member| member.id == id)
    };
    by_name
        .or_else(by_id)
        .map(|member| member.id)
        .ok_or_else(|| {
            let members: Vec<_> = status
                .members
                .iter()
                .map(|member| format!("{} ({:016x})", member.name, member.id.0))
                .collect();
            Failure::usage(format!(
                "there is no member {text}: choose one of {}",
                members.join(", ")
            ))
        })
}
