//! The access rules, compiled for checking.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::api::{AuthStatus, Error, ErrorKind, KeyRange, LeaseRef, ROOT, Secret};
use crate::kv::lease::Lease;
use crate::kv::store::{Space, View};
use crate::kv::{lease, meta};

use super::need::Need;
use super::ranges::Ranges;
use super::records::{NamedRecord, Role, User};
use super::{Identity, records};

/// How many keys of a lease without an owner are checked before another key is attached. Bounded so
/// that apply is not held up; with more keys, the client has to grant another lease.
const SHARED_LEASE_KEYS_MAX: usize = 1_000;

/// All rules of one state.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    status: AuthStatus,
    token_key: Option<Secret>,
    users: BTreeMap<String, Rules>,
}

/// What one user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    name: String,
    generation: u64,
    is_root: bool,
    /// Some role of the user permits something.
    has_any: bool,
    roles: Vec<String>,
    reads: Ranges,
    writes: Ranges,
}

impl Policy {
    /// The rules in `view`.
    ///
    /// # Errors
    /// The store's error, which is fatal for the reader.
    pub fn of<V: View>(view: &V) -> Result<Self, V::Error> {
        let status = meta::progress(view)?.access;
        if !status.enabled {
            return Ok(Self {
                status,
                ..Self::default()
            });
        }
        let roles: BTreeMap<String, Role> = Role::all(view)?.into_iter().collect();
        let users = User::all(view)?.into_iter().map(|(name, user)| {
            let rules = Rules::new(name.clone(), user, |role| roles.get(role).cloned());
            (name, rules)
        });
        Ok(Self {
            status,
            token_key: records::token_key(view)?,
            users: users.collect(),
        })
    }

    /// Whether access control is enabled, and the revision of its rules.
    pub fn status(&self) -> AuthStatus {
        self.status
    }

    /// The key that signs tokens.
    pub fn token_key(&self) -> Option<&Secret> {
        self.token_key.as_ref()
    }

    /// What `identity` may do.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`]: the user does not exist (any more), or the token is invalid.
    pub fn rules(&self, identity: &Identity) -> Result<&Rules, Error> {
        known(self.users.get(&identity.name), identity)
    }
}

/// `found`, if it is the user that `identity` names.
fn known<R: std::borrow::Borrow<Rules>>(found: Option<R>, identity: &Identity) -> Result<R, Error> {
    let name = &identity.name;
    let Some(found) = found else {
        return Err(unauthenticated(format!(
            "there is no user {name:?}: log in as an existing user, or add one with the name in \
             the certificate"
        )));
    };
    let rules = found.borrow();
    match identity.generation {
        Some(generation) if generation != rules.generation => Err(unauthenticated(format!(
            "{name:?} has another password, or was added again, since the token was given or shown: log \
             in again"
        ))),
        _ => Ok(found),
    }
}

impl Rules {
    fn new(name: String, user: User, role: impl Fn(&str) -> Option<Role>) -> Self {
        let is_root = user.roles.contains(ROOT);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for permission in user
            .roles
            .iter()
            .filter_map(|name| role(name))
            .flat_map(|role| role.permissions)
        {
            let bounds = permission.range.bounds(&permission.key);
            if permission.kind.reads() {
                reads.push(bounds.clone());
            }
            if permission.kind.writes() {
                writes.push(bounds);
            }
        }
        let (reads, writes) = (Ranges::new(reads), Ranges::new(writes));
        Self {
            name,
            generation: user.generation,
            is_root,
            has_any: is_root || !reads.is_empty() || !writes.is_empty(),
            roles: user.roles.into_iter().collect(),
            reads,
            writes,
        }
    }

    /// The rules for `identity` by what `view` holds now.
    pub(super) fn of<V: View>(
        view: &V,
        identity: &Identity,
    ) -> Result<Result<Self, Error>, V::Error> {
        let Some(user) = User::read(view, &identity.name)? else {
            return Ok(known(None, identity));
        };
        let mut roles = BTreeMap::new();
        for name in &user.roles {
            if let Some(role) = Role::read(view, name)? {
                roles.insert(name.clone(), role);
            }
        }
        let rules = Self::new(identity.name.clone(), user, |name| roles.get(name).cloned());
        Ok(known(Some(rules), identity))
    }

    /// The generation of the user's password; another one if the user was deleted and added again.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether `key` may be read.
    pub fn may_read(&self, key: &[u8]) -> bool {
        self.is_root || self.reads.hold_key(key)
    }

    /// The refusal to read `key`.
    pub fn read_denied(&self, key: &[u8]) -> Error {
        self.denied(format!("read {}", shown(key)))
    }

    fn may_write(&self, key: &[u8]) -> bool {
        self.is_root || self.writes.hold_key(key)
    }

    fn denied(&self, what: impl std::fmt::Display) -> Error {
        Error::not_applied(
            ErrorKind::PermissionDenied,
            format!(
                "the user {:?} may not {what}: none of its roles permits it",
                self.name
            ),
        )
    }

    /// Decides needs that require no read of the store; `None` for the others.
    fn judge(&self, need: &Need<'_>) -> Option<Result<(), Error>> {
        let in_range = |ranges: &Ranges, key: &Bytes, range: &KeyRange| {
            let (from, until) = range.bounds(key);
            ranges.hold(&from, until.as_deref())
        };
        let verdict = match need {
            Need::Nothing => Ok(()),
            _ if self.is_root => Ok(()),
            Need::Anything if self.has_any => Ok(()),
            Need::Anything => Err(self.denied("do anything")),
            Need::AnyWrite if !self.writes.is_empty() => Ok(()),
            Need::AnyWrite => Err(self.denied("grant leases, for which it has to write some key")),
            Need::Root => Err(self.denied("do what only the role root may")),
            Need::User(name) if **name == *self.name => Ok(()),
            Need::User(_) => Err(self.denied("see other users")),
            Need::Role(name) if self.roles.iter().any(|role| role == name) => Ok(()),
            Need::Role(_) => Err(self.denied("see roles of others")),
            Need::Read(key, range) if in_range(&self.reads, key, range) => Ok(()),
            Need::Read(key, range) => Err(self.denied(format!("read {}", extent(key, range)))),
            Need::Write(key, range) if in_range(&self.writes, key, range) => Ok(()),
            Need::Write(key, range) => Err(self.denied(format!("write {}", extent(key, range)))),
            Need::LeaseUse(_)
            | Need::LeaseAttach(_)
            | Need::LeaseAttachNamed(_)
            | Need::LeaseEnd(_)
            | Need::LeaseKeys(_) => return None,
        };
        Some(verdict)
    }

    /// Like [`judge`], for needs that require no read of the store; others are refused.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`].
    pub fn judge_at_once(&self, needs: &[Need<'_>]) -> Result<(), Error> {
        needs.iter().try_for_each(|need| {
            self.judge(need)
                .unwrap_or_else(|| Err(self.denied("use leases this way")))
        })
    }
}

/// Whether `rules` satisfy all of `needs`; leases are looked up in `view`.
///
/// # Errors
/// The outer error is the store's and is fatal for the reader. Inside,
/// [`ErrorKind::PermissionDenied`].
pub fn judge<V: View>(
    view: &V,
    rules: &Rules,
    needs: &[Need<'_>],
) -> Result<Result<(), Error>, V::Error> {
    let mut attached_to = BTreeSet::new();
    for need in needs {
        // A transaction may attach thousands of keys to one lease.
        if let Need::LeaseAttach(lease) = need
            && !attached_to.insert(*lease)
        {
            continue;
        }
        let verdict = match rules.judge(need) {
            Some(verdict) => verdict,
            None => judge_lease(view, rules, need)?,
        };
        if verdict.is_err() {
            return Ok(verdict);
        }
    }
    Ok(Ok(()))
}

/// Decides needs about leases. A lease that does not exist passes: the operation itself reports
/// that it is missing.
fn judge_lease<V: View>(
    view: &V,
    rules: &Rules,
    need: &Need<'_>,
) -> Result<Result<(), Error>, V::Error> {
    let (id, found) = match need {
        Need::LeaseUse(lease) | Need::LeaseAttach(lease) | Need::LeaseEnd(lease) => {
            (lease.id, Lease::find(view, *lease)?)
        }
        Need::LeaseKeys(id) => (*id, Lease::find(view, LeaseRef::id(*id))?),
        Need::LeaseAttachNamed(name) => match view.get(Space::LeaseNames, name.as_bytes())? {
            Some(id) => {
                let id = lease::named_id(&id)?;
                (id, Lease::read(view, id)?)
            }
            None => return Ok(Ok(())),
        },
        _ => return Ok(Ok(())),
    };
    if !rules.has_any {
        return Ok(Err(rules.denied("use leases")));
    }
    let Some(found) = found else {
        return Ok(Ok(()));
    };
    let is_own = found.creator == rules.name;
    let is_shared = found.creator.is_empty();
    if !is_own && !is_shared && !matches!(need, Need::LeaseKeys(_)) {
        return Ok(Err(Error::not_applied(
            ErrorKind::PermissionDenied,
            format!(
                "the lease {id:016x} was granted to {:?}, and {:?} may not use it",
                found.creator, rules.name
            ),
        )));
    }
    let writes = |key: &[u8]| rules.may_write(key);
    match need {
        // A lease with an owner needs no check of its keys: the owner or root has attached them all.
        Need::LeaseAttach(_) | Need::LeaseAttachNamed(_) if is_shared => {
            if found.keys > SHARED_LEASE_KEYS_MAX as u64 {
                return Ok(Err(rules.denied(format!(
                    "use the lease {id:016x}, which was granted before access control was enabled \
                     and has more than {SHARED_LEASE_KEYS_MAX} keys"
                ))));
            }
            all_attached(view, rules, id, "write", writes)
        }
        Need::LeaseEnd(_) => all_attached(view, rules, id, "write", writes),
        Need::LeaseKeys(_) => {
            let reads = |key: &[u8]| rules.may_read(key);
            all_attached(view, rules, id, "read", reads)
        }
        _ => Ok(Ok(())),
    }
}

/// Whether all keys of the lease `id` pass. A key that does not is named only to users who may read
/// it, because another user may have attached it.
fn all_attached<V: View>(
    view: &V,
    rules: &Rules,
    id: i64,
    what: &str,
    passes: impl Fn(&[u8]) -> bool,
) -> Result<Result<(), Error>, V::Error> {
    let refused = lease::find_attached(view, id, |key| !passes(key))?;
    Ok(match refused {
        None => Ok(()),
        Some(key) => {
            let which = match rules.may_read(&key) {
                true => format!("{}, which is attached", shown(&key)),
                false => "a key that is attached".to_owned(),
            };
            Err(rules.denied(format!("{what} {which} to the lease {id:016x}")))
        }
    })
}

fn unauthenticated(detail: String) -> Error {
    Error::not_applied(ErrorKind::Unauthenticated, detail)
}

fn extent(key: &Bytes, range: &KeyRange) -> String {
    match range {
        KeyRange::Single => shown(key),
        KeyRange::Prefix => format!("all keys with the prefix {}", shown(key)),
        KeyRange::Until(end) => format!("the keys from {} to {}", shown(key), shown(end)),
        KeyRange::From => format!("the keys from {} on", shown(key)),
    }
}

fn shown(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}
