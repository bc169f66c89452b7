//! Tokens: an identity, its expiry, and a signature that every node can check.
//!
//! A token is not stored. It is signed with a key that is part of the state, so each node can check the
//! tokens of all others, and a token needs no entry of the log. It names the generation of the password
//! that it was given for: when the password changes or the user is deleted, the token is void. All tokens
//! are void when access control is turned off.
//!
//! Each node decides by its own wall clock whether a token has expired, as it does for certificates.

use std::time::Duration;

use ring::hmac;

use crate::api::{Error, ErrorKind, Secret};
use crate::kv::access::{Identity, Policy};
use crate::types::ClusterId;

use super::password::fill;

const FORMAT: u8 = 1;
const KEY_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
/// Format, generation, and when it ends.
const FRONT_BYTES: usize = 1 + 8 + 8;

/// A new key to sign tokens with.
pub(super) fn new_key() -> Secret {
    let mut key = vec![0; KEY_BYTES];
    fill(&mut key);
    Secret::new(key)
}

/// Signs tokens and checks them.
pub(super) struct Signer {
    key: hmac::Key,
    cluster_id: ClusterId,
}

impl Signer {
    /// That of a state with these rules.
    ///
    /// # Errors
    /// The state has no key, which only one has where access is not controlled.
    pub(super) fn of(policy: &Policy, cluster_id: ClusterId) -> Result<Self, Error> {
        match policy.token_key() {
            Some(key) => Ok(Self::new(key, cluster_id)),
            None => Err(Error::not_applied(
                ErrorKind::Unavailable,
                "this node does not have the token key yet: use another node",
            )),
        }
    }

    fn new(key: &Secret, cluster_id: ClusterId) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key.reveal()),
            cluster_id,
        }
    }

    /// A token for `identity`, good for `ttl`.
    pub(super) fn sign(&self, identity: &Identity, ttl: Duration) -> Secret {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.sign_until(identity, millis_since_1970().saturating_add(ttl_ms))
    }

    fn sign_until(&self, identity: &Identity, until_ms: u64) -> Secret {
        let mut token = vec![FORMAT];
        token.extend_from_slice(&identity.generation.unwrap_or(0).to_be_bytes());
        token.extend_from_slice(&until_ms.to_be_bytes());
        token.extend_from_slice(identity.name.as_bytes());
        let mac = hmac::sign(&self.key, &self.signed(&token));
        token.extend_from_slice(mac.as_ref());
        Secret::new(token)
    }

    /// The identity that `token` names, and how long it is still valid. `revision` is that of this
    /// node's rules.
    pub(super) fn check(
        &self,
        token: &Secret,
        revision: u64,
    ) -> Result<(Identity, Duration), Error> {
        let (identity, left) = self.read(token, revision)?;
        match left.is_zero() {
            true => Err(token_expired()),
            false => Ok((identity, left)),
        }
    }

    /// As [`Signer::check`], of one that may have expired: then nothing is left of it.
    pub(super) fn read(
        &self,
        token: &Secret,
        revision: u64,
    ) -> Result<(Identity, Duration), Error> {
        let refused = || {
            Error::not_applied(
                ErrorKind::Unauthenticated,
                "this token is not valid in this cluster, or was issued before access control was \
                 last enabled: log in again",
            )
        };
        let token = token.reveal();
        let at = token.len().checked_sub(MAC_BYTES).ok_or_else(refused)?;
        let (front, mac) = token.split_at(at);
        hmac::verify(&self.key, &self.signed(front), mac).map_err(|_| refused())?;
        // From here on it is what some node has written.
        if front.len() < FRONT_BYTES || front[0] != FORMAT {
            return Err(refused());
        }
        let number = |at: usize| {
            let bytes = front[at..at + 8].try_into().expect("there are eight");
            u64::from_be_bytes(bytes)
        };
        let (generation, until_ms) = (number(1), number(9));
        let name = std::str::from_utf8(&front[FRONT_BYTES..]).map_err(|_| refused())?;
        if generation > revision {
            return Err(Error::not_applied(
                ErrorKind::Unavailable,
                "this node has not applied the change of the user's password yet: use another \
                 node, or retry shortly",
            ));
        }
        let left_ms = until_ms.saturating_sub(millis_since_1970());
        let identity = Identity {
            name: name.to_owned(),
            generation: Some(generation),
        };
        Ok((identity, Duration::from_millis(left_ms)))
    }

    /// What is signed: of another cluster with the same key, as a restored one has, nothing is good.
    fn signed(&self, token: &[u8]) -> Vec<u8> {
        let mut bytes = b"leasehold token".to_vec();
        bytes.extend_from_slice(&self.cluster_id.0.to_be_bytes());
        bytes.extend_from_slice(token);
        bytes
    }
}

pub(super) fn token_expired() -> Error {
    Error::not_applied(
        ErrorKind::TokenExpired,
        "the token has expired: log in again",
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "shown in the audit file, and tokens end by the wall clock, as certificates do; no lease hangs on it"
)]
pub(super) fn millis_since_1970() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(key: u8, cluster: u128) -> Signer {
        Signer::new(&Secret::new(vec![key; KEY_BYTES]), ClusterId(cluster))
    }

    fn anna() -> Identity {
        Identity {
            name: "anna".into(),
            generation: Some(7),
        }
    }

    #[test]
    fn a_token_names_whom_it_was_given_to_on_every_node_and_in_no_other_cluster() {
        let token = signer(1, 1).sign(&anna(), Duration::from_secs(3600));
        let (identity, left) = signer(1, 1).check(&token, 7).unwrap();
        assert_eq!(identity, anna());
        assert!(left <= Duration::from_secs(3600));
        for other in [signer(2, 1), signer(1, 2)] {
            let refused = other.check(&token, 7).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Unauthenticated);
        }
        let behind = signer(1, 1).check(&token, 6).unwrap_err();
        assert_eq!(behind.kind, ErrorKind::Unavailable);
    }

    #[test]
    fn one_byte_changed_anywhere_and_it_is_none() {
        let token = signer(1, 1).sign(&anna(), Duration::from_secs(3600));
        for at in 0..token.reveal().len() {
            let mut bytes = token.reveal().to_vec();
            bytes[at] ^= 1;
            let refused = signer(1, 1).check(&Secret::new(bytes), 7).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Unauthenticated, "byte {at}");
        }
        for bytes in 0..token.reveal().len() {
            let cut = Secret::new(&token.reveal()[..bytes]);
            assert!(signer(1, 1).check(&cut, 7).is_err(), "{bytes} bytes");
        }
    }

    #[test]
    fn a_token_that_has_had_its_time_says_so() {
        let signer = signer(1, 1);
        let old = signer.sign_until(&anna(), 1_000);
        assert_eq!(
            signer.check(&old, 7).unwrap_err().kind,
            ErrorKind::TokenExpired
        );
    }
}
