//! Authentication of clients, and the part of authorization that is outside the state machine.
//!
//! A client is identified by its certificate, or by a token that it has shown on its connection
//! ([`Principal`]). The rules come from the state ([`Gate`]), and [`kv::access`](crate::kv::access) alone
//! judges requests by them. This module does what needs randomness, clocks or time to compute: passwords
//! ([`password`]), the delay after wrong ones ([`login_rate_limit`]), and tokens: those of this cluster
//! ([`token`]) and those of an issuer outside of it ([`oidc`]).
//!
//! The kind of a request decides when it is judged ([`AuthorizationPoint::of`]): a write when it is
//! applied, a read by the rules of the state that it has read, every other request before anything is
//! done. A write with a password that has to be hashed is judged before the hashing, too.

mod audit;
mod login_rate_limit;
mod oidc;
mod password;
mod token;
mod token_uses;

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Semaphore;

use crate::api::{
    AuthRequest, AuthResponse, Error, ErrorKind, Password, Request, RequestKind, Secret,
};
use crate::kv::access::{Author, Identity, Policy};
use crate::kv::{View, access};
use crate::server::disk::store::Gate;
use crate::server::metrics::stopwatch;
use crate::types::ClusterId;

pub(crate) use audit::{Audit, Note};
use login_rate_limit::LoginRateLimit;
pub(crate) use oidc::{Issuer, KeysError, is_jwt};
use oidc::{IssuerKey, VerifiedToken};
use token::{Signer, millis_since_1970, token_expired};
pub(crate) use token_uses::TokenUse;
use token_uses::TokenUses;

/// Passwords that are hashed at the same time: hashing is slow on purpose and must not take all CPUs.
const HASHING_MAX: usize = 1;

/// Access control of a node.
pub(crate) struct Access {
    gate: Arc<Gate>,
    cluster_id: ClusterId,
    token_ttl: Duration,
    hashing: Arc<Semaphore>,
    rate_limit: LoginRateLimit,
    token_uses: TokenUses,
    /// Whose tokens are good besides this cluster's.
    issuer: Option<Arc<Issuer>>,
}

/// The identity of the client of a connection.
#[derive(Debug)]
pub(crate) struct Principal {
    certificate: Arc<Identity>,
    address: IpAddr,
    token: ArcSwapOption<TokenIdentity>,
}

/// The identity that a token names, and its expiry.
#[derive(Clone, Debug)]
struct TokenIdentity {
    identity: Arc<Identity>,
    until: std::time::Instant,
    /// The key of an issuer that it rests on.
    key: Option<Weak<IssuerKey>>,
    /// It, or one before it on the connection, is of an issuer. Such a connection stays that of one user and
    /// ends with the token: its watches go on in the name in which they were opened.
    is_bound: bool,
}

impl TokenIdentity {
    fn is_good(&self) -> bool {
        let is_known = |key: &Weak<IssuerKey>| key.strong_count() > 0;
        stopwatch() < self.until && self.key.as_ref().is_none_or(is_known)
    }

    /// Whether `shown` may not take its place.
    fn refuses(&self, shown: &Self) -> bool {
        self.is_bound && self.identity.name != shown.identity.name
    }
}

impl Principal {
    /// A client with the certificate of this name, at this address.
    pub(crate) fn new(name: &str, address: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            certificate: Arc::new(Identity {
                name: name.to_owned(),
                generation: None,
            }),
            address,
            token: ArcSwapOption::empty(),
        })
    }

    /// A client whose token was checked: this user. How long that is good is for its caller to know.
    pub(crate) fn of_token(identity: Identity, address: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            certificate: Arc::new(identity),
            address,
            token: ArcSwapOption::empty(),
        })
    }

    /// The identity in force now.
    ///
    /// # Errors
    /// [`ErrorKind::TokenExpired`]: the token has expired. The name in the certificate does not take
    /// its place: a client that logged in wants to act as that user.
    pub(crate) fn identity(&self) -> Result<Arc<Identity>, Error> {
        match &*self.token.load() {
            None => Ok(Arc::clone(&self.certificate)),
            Some(token) if token.is_good() => Ok(Arc::clone(&token.identity)),
            Some(_) => Err(token_expired()),
        }
    }

    /// Whether it was known by the token of an issuer, and the token that it has now is over.
    pub(crate) fn is_outlived(&self) -> bool {
        let token = self.token.load();
        token
            .as_ref()
            .is_some_and(|token| token.is_bound && !token.is_good())
    }

    /// From now on it is who `shown` names.
    ///
    /// # Errors
    /// It was another one by the token of an issuer: it would outlive that by its watches.
    fn becomes(&self, shown: &TokenIdentity) -> Result<(), Error> {
        // Tokens may be shown on several streams at once, so the check and the exchange are one.
        let before = self.token.rcu(|held| match held {
            Some(held) if held.refuses(shown) => Some(Arc::clone(held)),
            held => Some(Arc::new(TokenIdentity {
                is_bound: shown.is_bound || held.as_ref().is_some_and(|held| held.is_bound),
                ..shown.clone()
            })),
        });
        match before.filter(|held| held.refuses(shown)) {
            None => Ok(()),
            Some(held) => Err(Error::not_applied(
                ErrorKind::Unauthenticated,
                format!(
                    "this connection is that of {:?} by the token of an issuer, and cannot become another \
                     user's: open another connection for {:?}",
                    held.identity.name, shown.identity.name
                ),
            )),
        }
    }

    /// The name under which its requests are written down and counted (audit log, slow log, requests a second),
    /// even if the token has expired.
    pub(crate) fn name(&self) -> String {
        match &*self.token.load() {
            None => self.certificate.name.clone(),
            Some(token) => token.identity.name.clone(),
        }
    }
}

/// When a request is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthorizationPoint {
    /// By the state machine, when it is applied.
    AtApply,
    /// By the rules of the state that was read.
    AtLook,
    /// Before anything is done, by the rules alone.
    AtOnce,
    /// Before anything is done, by the rules and the store.
    AfterLook,
}

impl AuthorizationPoint {
    /// When requests of `kind` are.
    pub(crate) fn of(kind: RequestKind) -> Self {
        match kind {
            RequestKind::Write => Self::AtApply,
            RequestKind::Read | RequestKind::LeaseRead => Self::AtLook,
            RequestKind::KeepAlive => Self::AfterLook,
            // The members are not part of the state.
            RequestKind::MemberList
            | RequestKind::MemberChange
            | RequestKind::Transfer
            | RequestKind::Watch
            | RequestKind::Node
            | RequestKind::Login => Self::AtOnce,
        }
    }
}

impl Access {
    pub(crate) fn new(
        gate: Arc<Gate>,
        cluster_id: ClusterId,
        token_ttl: Duration,
        issuer: Option<Arc<Issuer>>,
    ) -> Self {
        Self {
            issuer,
            gate,
            cluster_id,
            token_ttl,
            hashing: Arc::new(Semaphore::new(HASHING_MAX)),
            rate_limit: LoginRateLimit::default(),
            token_uses: TokenUses::new(token_ttl),
        }
    }

    /// Whether tokens of an issuer are good.
    pub(crate) fn has_issuer(&self) -> bool {
        self.issuer.is_some()
    }

    /// The rules, if access is controlled. Load them after reading the state.
    pub(crate) fn rules(&self) -> Option<Arc<Policy>> {
        self.gate.rules()
    }

    /// The permits for hashing a password.
    pub(crate) fn hashing(&self) -> Arc<Semaphore> {
        Arc::clone(&self.hashing)
    }

    /// Whether `principal` may make a request that is judged at once.
    ///
    /// # Errors
    /// Permission is denied.
    pub(crate) fn admit_at_once(
        &self,
        principal: &Principal,
        request: &Request,
    ) -> Result<(), Error> {
        match self.gate.rules() {
            None => Ok(()),
            Some(policy) => {
                let needs = access::needs(request);
                // A client that renews its token has an expired one.
                if needs == [access::Need::Nothing] {
                    return Ok(());
                }
                let identity = principal.identity()?;
                policy.rules(&identity)?.judge_at_once(&needs)
            }
        }
    }

    /// Whether `principal` may see what `view` holds for `request`. Called after the view was opened.
    ///
    /// # Errors
    /// Outside, the store's own. Inside, permission is denied.
    pub(crate) fn admit<V: View>(
        &self,
        principal: &Principal,
        view: &V,
        request: impl FnOnce() -> Request,
    ) -> Result<Result<(), Error>, V::Error> {
        let Some(policy) = self.gate.rules() else {
            return Ok(Ok(()));
        };
        let request = request();
        let needs = access::needs(&request);
        if needs == [access::Need::Nothing] {
            return Ok(Ok(()));
        }
        let identity = match principal.identity() {
            Ok(identity) => identity,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match policy.rules(&identity) {
            Ok(rules) => access::judge(view, rules, &needs),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Whether the author of a request that another node has admitted may make it by the rules of this node:
    /// those of the other may be older. Of what is judged by the rules alone.
    ///
    /// # Errors
    /// Permission is denied.
    pub(crate) fn admit_author(
        &self,
        author: Option<&Author>,
        request: &Request,
    ) -> Result<(), Error> {
        let Some(policy) = self.gate.rules() else {
            return Ok(());
        };
        match named(author)? {
            Author::Node => Ok(()),
            Author::Client(identity) => {
                let rules = policy.rules(identity)?;
                rules.judge_at_once(&access::needs(request))
            }
        }
    }

    /// [`Access::admit_author`] of what is judged by the rules and what `view` holds. Called after the view
    /// was opened.
    ///
    /// # Errors
    /// Outside, the store's own. Inside, permission is denied.
    pub(crate) fn admit_author_of<V: View>(
        &self,
        author: Option<&Author>,
        view: &V,
        request: &Request,
    ) -> Result<Result<(), Error>, V::Error> {
        let Some(policy) = self.gate.rules() else {
            return Ok(Ok(()));
        };
        let identity = match named(author) {
            Ok(Author::Node) => return Ok(Ok(())),
            Ok(Author::Client(identity)) => identity,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match policy.rules(identity) {
            Ok(rules) => access::judge(view, rules, &access::needs(request)),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// The author by whose rules the state machine judges `request`, if it does, or the leader what is forwarded
    /// to it.
    ///
    /// # Errors
    /// The token has expired.
    pub(crate) fn author(
        &self,
        principal: &Principal,
        request: &Request,
    ) -> Result<Option<Author>, Error> {
        let is_asked = matches!(request, Request::Auth(_)) || self.gate.rules().is_some();
        let kind = request.spec().kind;
        let is_judged_elsewhere = AuthorizationPoint::of(kind) == AuthorizationPoint::AtApply
            || matches!(
                kind,
                RequestKind::MemberChange | RequestKind::Transfer | RequestKind::KeepAlive
            );
        if !is_asked || !is_judged_elsewhere {
            return Ok(None);
        }
        let identity = principal.identity()?;
        Ok(Some(Author::Client(Identity::clone(&identity))))
    }

    /// From now on `principal` is the user that `token` names.
    ///
    /// # Errors
    /// The token is neither one of this cluster nor of its issuer, is void, or has expired; or the connection
    /// is that of another user by the token of an issuer.
    pub(crate) fn use_token(
        &self,
        principal: &Principal,
        token: &Secret,
    ) -> Result<AuthResponse, Error> {
        let Some(policy) = self.gate.rules() else {
            return Ok(AuthResponse::NotEnabled);
        };
        let (identity, left, key) = match self.of_issuer(token)? {
            Some(VerifiedToken {
                identity,
                left,
                key,
            }) => (identity, left, Some(key)),
            None => {
                let signer = Signer::of(&policy, self.cluster_id)?;
                let (identity, left) = signer.check(token, policy.status().revision)?;
                (identity, left, None)
            }
        };
        principal.becomes(&TokenIdentity {
            identity: Arc::new(as_of_now(&policy, identity)?),
            until: stopwatch() + left,
            is_bound: key.is_some(),
            key,
        })?;
        Ok(AuthResponse::Done)
    }

    /// What a token of the issuer says; `None` if it is meant as another one.
    ///
    /// # Errors
    /// It is no good.
    fn of_issuer(&self, token: &Secret) -> Result<Option<VerifiedToken>, Error> {
        match &self.issuer {
            _ if !is_jwt(token.reveal()) => Ok(None),
            Some(issuer) => Ok(Some(issuer.verify(token.reveal(), millis_since_1970())?)),
            None => Err(Error::not_applied(
                ErrorKind::Unauthenticated,
                "this is the token of an issuer, and this cluster trusts none: set auth.oidc.issuer, or \
                 log in with a password",
            )),
        }
    }

    /// The identity that `token` names by these rules, and its uses, of which this is one. A token that
    /// is in use at this node outlives its time to live ([`token_uses`]).
    ///
    /// # Errors
    /// The token is not one of this cluster, is void, or has expired; [`ErrorKind::Unavailable`] if this
    /// node has not applied yet what the token is from.
    pub(crate) fn identity_of(
        &self,
        policy: &Policy,
        token: &Secret,
    ) -> Result<(Identity, Arc<TokenUse>), Error> {
        if let Some(verified) = self.of_issuer(token)? {
            let used = TokenUse::of_issuer(stopwatch() + verified.left, verified.key);
            let identity = as_of_now(policy, verified.identity)?;
            return Ok((identity, Arc::new(used)));
        }
        let signer = Signer::of(policy, self.cluster_id)?;
        let (identity, left) = signer.read(token, policy.status().revision)?;
        policy.rules(&identity)?;
        let used = self.token_uses.of(token, left, stopwatch());
        Ok((identity, used.ok_or_else(token_expired)?))
    }

    /// Whether a password that `principal` gives for the user `name` would be checked now.
    ///
    /// # Errors
    /// [`ErrorKind::SlowDown`]: there were wrong passwords; it contains the delay.
    pub(crate) fn may_try(&self, principal: &Principal, name: &str) -> Result<(), Error> {
        if self.gate.rules().is_none() {
            return Ok(());
        }
        let admitted = self
            .rate_limit
            .admit(stopwatch(), name, self.source(principal));
        admitted.map_err(|wait| {
            // Rounded up, so that an attempt after that time is not too early.
            let wait_ms = wait.as_micros().div_ceil(1_000);
            let retry_after_ms = u32::try_from(wait_ms).unwrap_or(u32::MAX);
            Error::not_applied(
                ErrorKind::SlowDown { retry_after_ms },
                "too many wrong passwords for this user or from this certificate and address: wait \
                 before the next attempt",
            )
        })
    }

    fn source(&self, principal: &Principal) -> login_rate_limit::Source {
        self.rate_limit
            .source(&principal.certificate.name, principal.address)
    }

    /// Exchanges a password for a token. Slow on purpose: call it on a thread that may block.
    ///
    /// # Errors
    /// Outside, the store's own. Inside, name and password are not those of a user, or as
    /// [`Access::may_try`].
    pub(crate) fn authenticate<V: View>(
        &self,
        principal: &Principal,
        view: &V,
        name: &str,
        given: &Secret,
    ) -> Result<Result<AuthResponse, Error>, V::Error> {
        let found = access::password_hash(view, name)?;
        let Some(policy) = self.gate.rules() else {
            return Ok(Ok(AuthResponse::NotEnabled));
        };
        // Other attempts may have failed since this one was admitted.
        if let Err(refusal) = self.may_try(principal, name) {
            return Ok(Err(refusal));
        }
        let source = self.source(principal);
        // An unknown name takes as long as a wrong password.
        let is_right = password::verify(found.as_ref().map(|(hash, _)| hash), given);
        let Some((_, generation)) = found.filter(|_| is_right) else {
            self.rate_limit.failed(stopwatch(), name, source);
            return Ok(Err(Error::not_applied(
                ErrorKind::Unauthenticated,
                "wrong user name or password",
            )));
        };
        self.rate_limit.succeeded(stopwatch(), name, source);
        let identity = Identity {
            name: name.to_owned(),
            generation: Some(generation),
        };
        Ok(
            Signer::of(&policy, self.cluster_id).map(|signer| AuthResponse::Token {
                token: signer.sign(&identity, self.token_ttl),
                ttl_ms: u64::try_from(self.token_ttl.as_millis()).unwrap_or(u64::MAX),
            }),
        )
    }
}

/// `identity` as the user of that name that there is now: what is opened for one who is then deleted ends, even
/// if a user of that name is added again.
///
/// # Errors
/// There is none, or the token is void.
fn as_of_now(policy: &Policy, mut identity: Identity) -> Result<Identity, Error> {
    let generation = policy.rules(&identity)?.generation();
    identity.generation.get_or_insert(generation);
    Ok(identity)
}

/// The author that another node has named, which it does once it knows that access is controlled.
fn named(author: Option<&Author>) -> Result<&Author, Error> {
    author.ok_or_else(|| {
        Error::not_applied(
            ErrorKind::Unavailable,
            "the node that was asked did not know yet that access control is enabled: send the \
             request again",
        )
    })
}

/// Whether a password in `request` has to be hashed before it goes any further.
pub(crate) fn has_plain_password(request: &AuthRequest) -> bool {
    matches!(
        request,
        AuthRequest::UserAdd {
            password: Password::Plain(_),
            ..
        } | AuthRequest::UserChangePassword {
            password: Password::Plain(_),
            ..
        }
    )
}

/// Puts the hash in the place of a password. Takes a while.
///
/// # Errors
/// A hash that was given is none of ours.
pub(crate) fn prepare(request: &mut AuthRequest) -> Result<(), Error> {
    if let AuthRequest::Enable { token_key } = request {
        *token_key = token::new_key();
    }
    match request.password_mut() {
        Some(password @ Password::Plain(_)) => {
            let Password::Plain(plain) = std::mem::take(password) else {
                return Ok(());
            };
            *password = Password::Hashed(password::hash(&plain));
            Ok(())
        }
        Some(Password::Hashed(hash)) => password::check_form(hash),
        Some(Password::None) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures::every_request;
    use crate::kv::access::Need;

    #[test]
    fn every_request_is_judged_where_what_it_needs_can_be_known() {
        for request in every_request() {
            let method = request.method();
            let judged = AuthorizationPoint::of(request.spec().kind);
            let needs = access::needs(&request);
            assert!(
                !needs.is_empty(),
                "{method} needs something, if only nothing"
            );
            let looks = needs.iter().any(|need| {
                matches!(
                    need,
                    Need::LeaseUse(_)
                        | Need::LeaseAttach(_)
                        | Need::LeaseAttachNamed(_)
                        | Need::LeaseEnd(_)
                        | Need::LeaseKeys(_)
                )
            });
            assert!(
                judged != AuthorizationPoint::AtOnce || !looks,
                "{method} needs a look"
            );
        }
    }

    #[test]
    fn whoever_shows_a_token_is_the_user_of_the_token_until_it_ends() {
        let principal = Principal::new("certificate", [127, 0, 0, 1].into());
        assert_eq!(principal.identity().unwrap().name, "certificate");
        let bind = |until| {
            principal.token.store(Some(Arc::new(TokenIdentity {
                identity: Arc::new(Identity {
                    name: "anna".into(),
                    generation: Some(3),
                }),
                until,
                key: None,
                is_bound: false,
            })));
        };
        bind(stopwatch() + Duration::from_secs(3600));
        assert_eq!(principal.identity().unwrap().name, "anna");
        bind(stopwatch());
        let ended = principal.identity().unwrap_err();
        assert_eq!(
            ended.kind,
            ErrorKind::TokenExpired,
            "not the certificate's again"
        );
    }

    #[test]
    fn a_connection_that_an_issuer_vouched_for_stays_that_users_and_ends_with_the_token() {
        let shown = |name: &str, left, is_bound| TokenIdentity {
            identity: Arc::new(Identity {
                name: name.into(),
                generation: None,
            }),
            until: stopwatch() + left,
            key: None,
            is_bound,
        };
        let hour = Duration::from_secs(3600);
        let principal = Principal::new("certificate", [127, 0, 0, 1].into());
        // By tokens of the cluster itself it may be one after the other.
        for name in ["anna", "bert", "anna"] {
            principal.becomes(&shown(name, hour, false)).unwrap();
            assert_eq!(principal.identity().unwrap().name, name);
        }
        principal.becomes(&shown("anna", hour, true)).unwrap();
        for is_bound in [false, true] {
            let refused = principal
                .becomes(&shown("bert", hour, is_bound))
                .unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Unauthenticated);
            assert_eq!(principal.identity().unwrap().name, "anna");
        }
        // The same user by a token of the cluster takes nothing of that away.
        principal.becomes(&shown("anna", hour, false)).unwrap();
        assert!(!principal.is_outlived());
        principal
            .becomes(&shown("bert", hour, false))
            .expect_err("it is anna's");
        principal
            .becomes(&shown("anna", Duration::ZERO, false))
            .unwrap();
        assert!(principal.is_outlived());
        principal
            .becomes(&shown("bert", hour, true))
            .expect_err("over, and anna's");
        assert!(principal.is_outlived());
    }
}
