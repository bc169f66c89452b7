//! Apply: the only function that changes the state.
//!
//! [`apply`] takes the entries of the log in order, each exactly once: the applied index is part of
//! the state, and an entry that does not follow it is a fault, because a second effect or a gap
//! could not be undone. The only other failures are those of the store. A command that is not
//! allowed gets a refusal as its reply, the same on every replica, and so does a command that
//! cannot be decoded.

use crate::api::{
    ClusterInfo, Error, ErrorKind, LeaseTarget, PutRequest, PutWithNewLeaseResponse, ResponseBody,
    SessionCall,
};
use crate::types::{BootstrapId, LogId, SessionId};

use super::access::Author;
use super::clients::Admission;
use super::command::{Command, Operation, Reply};
use super::hash::HashedStore;
use super::lease::{LeaseChange, LeaseGrant, LeaseTerms};
use super::meta::Progress;
use super::mvcc::Write;
use super::record_hash::ContentHash;
use super::store::{Fault, Space, Store};
use super::{access, alarms, clients, compaction, etcd_urls, lease, lease_end, meta, mvcc, txn};

/// Applies the entry `id` to `store`. `command` is `None` for entries that carry none: a leader's
/// no-op, a change of membership.
///
/// # Errors
/// Those of the store, and [`Fault::OutOfOrder`] if `id` does not follow the last applied entry.
/// After an error `store` may contain part of the entry's changes: discard it.
pub fn apply<S: Store>(
    store: &mut S,
    id: LogId,
    command: Option<&[u8]>,
) -> Result<Reply, S::Error> {
    let stored = meta::stored_progress(store)?;
    let before = meta::decode_progress(stored.clone())?;
    check_order(before.applied, id)?;
    let mut progress = before;
    progress.applied = id;

    let mut hashed = HashedStore::begin(store)?;
    let command = command.map(Command::decode);
    let is_check = matches!(command, Some(Ok(Command::CheckHash)));
    let mut reply = match command {
        None => silent(&progress, Ok(())),
        Some(Err(error)) => silent(&progress, Err(error.into())),
        Some(Ok(command)) => execute(&mut hashed, &mut progress, command)?,
    };
    check_progress(id, &before, &progress);
    let (key, record) = progress.record();
    match &stored {
        Some(stored) => hashed.replace(Space::Meta, key, stored, record),
        None => hashed.insert(Space::Meta, key, record),
    }
    reply.lease_keys = hashed.lease_keys();
    reply.hash = is_check.then(|| ContentHash(hashed.sum()));
    hashed.finish();
    if cfg!(debug_assertions) {
        let written = meta::progress(store)?;
        assert_eq!(
            written, progress,
            "the next entry reads what this one wrote"
        );
    }
    Ok(reply)
}

/// What one entry may do to the progress of a state, whatever its command is.
fn check_progress(id: LogId, before: &Progress, after: &Progress) {
    assert_eq!(after.applied, id, "an entry applies itself alone");
    assert!(
        after.revision >= before.revision,
        "the revision does not go back"
    );
    assert!(
        after.compact_revision >= before.compact_revision,
        "compacted history does not come back"
    );
    assert!(
        after.compact_revision == before.compact_revision
            || after.compact_revision <= after.revision,
        "only revisions that exist are compacted"
    );
    assert!(
        after.sessions <= before.sessions + 1,
        "an entry opens one session at most"
    );
    assert!(
        after.leases <= before.leases + 1,
        "an entry grants one lease at most"
    );
    assert!(
        after.raised_alarms.abs_diff(before.raised_alarms) <= 1,
        "an entry raises or clears one alarm at most"
    );
}

fn check_order(applied: LogId, id: LogId) -> Result<(), Fault> {
    let follows = id.index == applied.index.next();
    let is_later = id.term >= applied.term;
    if follows && is_later {
        Ok(())
    } else {
        Err(Fault::OutOfOrder { applied, given: id })
    }
}

fn execute<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    command: Command,
) -> Result<Reply, S::Error> {
    match command {
        Command::Write { author: None, .. } | Command::OpenSession { author: None, .. }
            if progress.access.enabled =>
        {
            Ok(answer(progress, Err(anonymous())))
        }
        Command::Write {
            author,
            session,
            operation,
        } => write_for(store, progress, author.as_ref(), session, operation),
        Command::OpenSession {
            author,
            sessions_max,
        } => open_for(store, progress, author.as_ref(), sessions_max),
        Command::Bootstrap(info) => {
            let result = bootstrap(store, &info, BootstrapId::default())?;
            Ok(silent(progress, result))
        }
        Command::BootstrapAs {
            bootstrap: drawn,
            info,
        } => {
            let result = bootstrap(store, &info, drawn)?;
            Ok(silent(progress, result))
        }
        Command::ForgetSessions {
            sessions,
            unused_since,
        } => {
            for id in sessions {
                clients::forget(store, id, unused_since, &mut progress.sessions)?;
            }
            Ok(silent(progress, Ok(())))
        }
        Command::ExpireLeases { term, leases } => {
            let mut changes = Vec::new();
            lease_end::expire(store, progress, term, leases, &mut changes)?;
            Ok(silent(progress, Ok(())).with(changes))
        }
        Command::MarkLeases { term, marks } => {
            let mut changes = Vec::new();
            lease_end::mark(store, progress, term, marks, &mut changes)?;
            Ok(silent(progress, Ok(())).with(changes))
        }
        Command::ContinueLeaseEnds { leases } => {
            let mut changes = Vec::new();
            lease_end::go_on(store, progress, leases, &mut changes)?;
            Ok(silent(progress, Ok(())).with(changes))
        }
        Command::CheckHash => Ok(silent(progress, Ok(()))),
        Command::SetSpaceAlarm(alarm) => {
            progress.space_alarm = alarm;
            Ok(silent(progress, Ok(())))
        }
        Command::SetEtcdUrls(members) => {
            etcd_urls::set(store, members)?;
            Ok(silent(progress, Ok(())))
        }
        Command::RaiseVersion { version } => {
            raise_version(store, version)?;
            Ok(silent(progress, Ok(())))
        }
    }
}

fn raise_version<S: Store>(store: &mut HashedStore<'_, S>, version: u16) -> Result<(), S::Error> {
    if version > meta::cluster_version(store)? {
        let (key, record) = meta::version_record(version);
        store.put(Space::Meta, key, record)?;
    }
    Ok(())
}

/// Opens a session, if its author may have one.
fn open_for<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    author: Option<&Author>,
    sessions_max: u32,
) -> Result<Reply, S::Error> {
    let mut owner = "";
    if progress.access.enabled
        && let Some(Author::Client(identity)) = author
    {
        if let Err(refusal) = access::permit_session(store, identity)? {
            return Ok(answer(progress, Err(refusal)));
        }
        owner = &identity.name;
    }
    let bootstrap = meta::bootstrap(store)?;
    let opened = progress.applied.index;
    let id = SessionId::new(opened, bootstrap.unwrap_or_default());
    let result = clients::open(
        store,
        id,
        opened,
        &mut progress.sessions,
        sessions_max,
        owner,
    );
    Ok(answer(progress, result))
}

/// A write of any author. A write with a session is applied unless its number has been decided
/// before. A refusal by access control does not decide the number: the client may retry it once it
/// has the permission or has authenticated.
fn write_for<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    author: Option<&Author>,
    session: Option<SessionCall>,
    operation: Operation,
) -> Result<Reply, S::Error> {
    let mut changes = Vec::new();
    let Some(call) = session else {
        if let Err(refusal) = permit(store, progress, author, &operation)? {
            return Ok(answer(progress, Err(refusal)));
        }
        let result = write(store, progress, author, operation, &mut changes)?;
        return Ok(answer(progress, result).with(changes));
    };
    let owner = author.filter(|_| progress.access.enabled).map(Author::name);
    let index = progress.applied.index;
    match clients::admit(store, index, call, progress.revision, owner)? {
        Admission::Settled(reply) => Ok(reply),
        Admission::First(admitted) => {
            if let Err(refusal) = permit(store, progress, author, &operation)? {
                admitted.leave(store);
                return Ok(answer(progress, Err(refusal)));
            }
            let result = write(store, progress, author, operation, &mut changes)?;
            admitted.settle(store, progress.revision, &result);
            Ok(answer(progress, result).with(changes))
        }
    }
}

/// Whether `author` may do that, by the rules at this entry.
fn permit<S: Store>(
    store: &HashedStore<'_, S>,
    progress: &Progress,
    author: Option<&Author>,
    operation: &Operation,
) -> Result<Result<(), Error>, S::Error> {
    match author {
        Some(Author::Client(identity)) if progress.access.enabled => {
            access::permit(store, identity, operation)
        }
        _ => Ok(Ok(())),
    }
}

/// A leader that did not know yet that access control is enabled has proposed it.
fn anonymous() -> Error {
    Error::not_applied(
        ErrorKind::Unavailable,
        "access control was enabled while the write was in flight: send it again",
    )
}

/// Executes `operation`; the revision rises if it changed something. Its effects on leases are
/// appended to `changes`.
fn write<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    author: Option<&Author>,
    operation: Operation,
    changes: &mut Vec<LeaseChange>,
) -> Result<Result<ResponseBody, Error>, S::Error> {
    if let Some(refusal) = no_space(progress).filter(|_| operation.takes_room()) {
        return Ok(Err(refusal));
    }
    // A lease granted by an authenticated user belongs to that user.
    let creator = author.filter(|_| progress.access.enabled);
    let creator = creator.map_or("", Author::name);
    let main = progress.revision + 1;
    let mut write = Write::new(main);
    let result = match operation {
        Operation::Put(request) => mvcc::put(store, &mut write, request)?.map(ResponseBody::Put),
        Operation::DeleteRange(request) => {
            mvcc::delete_range(store, &mut write, &request)?.map(ResponseBody::DeleteRange)
        }
        Operation::Txn(request) => {
            txn::execute(store, &mut write, &request)?.map(ResponseBody::Txn)
        }
        Operation::Compact(request) => {
            compaction::compact(progress, &request).map(|()| ResponseBody::Compact)
        }
        Operation::LeaseGrant(request) => {
            let index = progress.applied.index;
            let granted = lease::grant(store, index, &mut progress.leases, &request, creator)?;
            granted.map(|(response, terms)| {
                changes.push(LeaseChange::Granted(terms));
                ResponseBody::LeaseGrant(response)
            })
        }
        Operation::LeaseRevoke(lease) => {
            lease_end::revoke(store, progress, lease, changes)?.map(ResponseBody::LeaseRevoke)
        }
        Operation::LeaseUpdateTtl { lease, ttl_ms } => lease::update_ttl(store, lease, ttl_ms)?
            .map(|terms| {
                changes.push(LeaseChange::Changed(terms));
                ResponseBody::LeaseUpdateTtl {
                    ttl_ms: terms.ttl_ms,
                }
            }),
        Operation::PutWithNewLease { grant, put } => {
            let done = put_with_new_lease(store, progress, &mut write, &grant, put, creator)?;
            done.map(|(both, terms)| {
                changes.push(LeaseChange::Granted(terms));
                ResponseBody::PutWithNewLease(Box::new(both))
            })
        }
        Operation::Auth(request) => {
            access::change(store, &mut progress.access, author, &request)?.map(ResponseBody::Auth)
        }
        Operation::SetAlarm { member, is_raised } => {
            let count = &mut progress.raised_alarms;
            alarms::set(store, count, member, is_raised)?.map(ResponseBody::Alarms)
        }
    };
    if write.has_changed() {
        progress.revision = main;
    }
    Ok(result)
}

/// Why the state must not grow, if it must not: by measure or by an operator's word.
fn no_space(progress: &Progress) -> Option<Error> {
    match progress.space_alarm {
        Some(alarm) => Some(alarm.refusal()),
        None if progress.raised_alarms > 0 => Some(alarms::raised_refusal()),
        None => None,
    }
}

/// Grants a lease and attaches a key to it: both or neither.
fn put_with_new_lease<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    write: &mut Write,
    grant: &LeaseGrant,
    put: PutRequest,
    creator: &str,
) -> Result<Result<(PutWithNewLeaseResponse, LeaseTerms), Error>, S::Error> {
    let index = progress.applied.index;
    let mut leases = progress.leases;
    let done = txn::whole(store, write, |above, draft| {
        let (grant, terms) = match lease::grant(above, index, &mut leases, grant, creator)? {
            Ok(granted) => granted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let put = PutRequest {
            lease: LeaseTarget::Lease(terms.lease),
            ..put
        };
        let put = mvcc::put(above, draft, put)?;
        Ok(put.map(|put| (PutWithNewLeaseResponse { grant, put }, terms)))
    })?;
    if done.is_ok() {
        progress.leases = leases;
    }
    Ok(done)
}

fn bootstrap<S: Store>(
    store: &mut HashedStore<'_, S>,
    info: &ClusterInfo,
    drawn: BootstrapId,
) -> Result<Result<(), Error>, S::Error> {
    match meta::cluster_info(store)? {
        None => {
            let (key, record) = meta::cluster_record(info);
            store.insert(Space::Meta, key, record);
            if drawn != BootstrapId::default() {
                let (key, record) = meta::bootstrap_record(drawn);
                store.insert(Space::Meta, key, record);
            }
            Ok(Ok(()))
        }
        // Where two leaders of a new cluster have both proposed it, the first stands.
        Some(set) if set == *info => Ok(Ok(())),
        Some(set) => Ok(Err(Error::not_applied(
            ErrorKind::ClusterMismatch,
            format!(
                "the identity of the cluster is {} and cannot change",
                set.cluster_id
            ),
        ))),
    }
}

fn answer(progress: &Progress, result: Result<ResponseBody, Error>) -> Reply {
    Reply {
        revision: progress.revision,
        result: result.map(Some),
        leases: Vec::new(),
        is_repeat: false,
        lease_keys: 0,
        hash: None,
    }
}

/// The reply to an entry that no client waits for.
fn silent(progress: &Progress, result: Result<(), Error>) -> Reply {
    Reply {
        revision: progress.revision,
        result: result.map(|()| None),
        leases: Vec::new(),
        is_repeat: false,
        lease_keys: 0,
        hash: None,
    }
}

impl Reply {
    fn with(self, leases: Vec<LeaseChange>) -> Self {
        Self { leases, ..self }
    }
}
