//! Tokens of an issuer outside of the cluster (OpenID Connect): who shows one is the user that it names.
//!
//! A token is a JWT ([`jwt`]), signed with a key of which the public half is in a file ([`keys`]). The file is
//! read again when it changes; nothing is asked of the network. A key that is taken out of the file ends what
//! rests on it at once: an identity refers to the key, and not to a copy.
//!
//! What a token says of its own key (`jku`, `jwk`, `x5c`) is never looked at, and its algorithm is that of the
//! key, so that neither can be chosen by who sends it.

mod error;
mod jwt;
mod keys;

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

use self::error::{TokenError, USER_BYTES_MAX};
use self::jwt::{Claims, Jwt};
pub(crate) use self::keys::{IssuerKey, KeysError};
use self::keys::{KeyList, KeySet};
use crate::kv::access::Identity;
use crate::server::config::OidcConfig;

/// A token is good for no longer, whatever it says: a time that every clock can add.
const LEFT_MAX: Duration = Duration::from_secs(3_650 * 24 * 3_600);

/// An issuer whose tokens are good here.
pub(crate) struct Issuer {
    config: OidcConfig,
    keys: ArcSwap<KeySet>,
}

/// What a token that is good says.
#[derive(Debug)]
pub(crate) struct VerifiedToken {
    /// The user.
    pub(crate) identity: Identity,
    /// How long it is still good.
    pub(crate) left: Duration,
    /// The key that it rests on.
    pub(crate) key: Weak<IssuerKey>,
}

/// Whether `token` is meant as one of an issuer: those of this cluster begin with another byte.
pub(crate) fn is_jwt(token: &[u8]) -> bool {
    // A JSON object in base64 without spaces.
    token.starts_with(b"ey")
}

impl Issuer {
    /// Reads the keys.
    ///
    /// # Errors
    /// They cannot be used, or there is none.
    pub(crate) fn load(config: &OidcConfig) -> Result<Arc<Self>, KeysError> {
        let keys = KeySet::load(&config.jwks_file)?;
        Ok(Arc::new(Self {
            config: config.clone(),
            keys: ArcSwap::from_pointee(keys),
        }))
    }

    /// Reads the keys again; says how many there are now, if they are others. That may be none: so the issuer
    /// takes all of them back.
    ///
    /// # Errors
    /// The file cannot be read: the keys before stay. Or one of its keys cannot be used: those before stay that
    /// it still lists.
    pub(crate) fn reload(&self) -> Result<Option<usize>, KeysError> {
        let known = self.keys.load_full();
        let KeyList { keys, complaint } = KeyList::read(&self.config.jwks_file, &known)?;
        let keys = match complaint {
            None => keys,
            Some(_) => keys.retain(&known),
        };
        let count = (keys != *known).then_some(keys.len());
        if count.is_some() {
            self.keys.store(Arc::new(keys));
        }
        complaint.map_or(Ok(count), Err)
    }

    /// Checks `token` at `now_ms`, in milliseconds since 1970.
    ///
    /// # Errors
    /// It is no good. Nothing of it is believed before its signature was checked.
    pub(crate) fn verify(&self, token: &[u8], now_ms: u64) -> Result<VerifiedToken, TokenError> {
        let jwt = Jwt::parse(token)?;
        let keys = self.keys.load();
        let key = keys
            .get(&jwt.key_id)
            .ok_or_else(|| TokenError::UnknownKey(jwt::shortened(&jwt.key_id)))?;
        if key.algorithm() != jwt.algorithm {
            return Err(TokenError::OtherAlgorithm);
        }
        if !key.has_signed(jwt.signed, &jwt.signature) {
            return Err(TokenError::Signature);
        }
        let claims = jwt.claims()?;
        let left = self.judge(&claims, now_ms)?;
        Ok(VerifiedToken {
            identity: Identity {
                name: self.user(&claims)?,
                generation: None,
            },
            left: left.min(LEFT_MAX),
            key: Arc::downgrade(key),
        })
    }

    /// Whether the token is of this issuer, for this cluster and good now, and how long it still is.
    fn judge(&self, claims: &Claims, now_ms: u64) -> Result<Duration, TokenError> {
        let is_audience = |value: &Value| value.as_str() == Some(self.config.audience.as_str());
        if claims.text("iss")? != self.config.issuer {
            return Err(TokenError::Issuer);
        }
        let is_ours = match claims.get("aud") {
            Some(Value::Array(all)) => all.iter().any(is_audience),
            Some(Value::String(_)) => claims.get("aud").is_some_and(is_audience),
            _ => return Err(TokenError::Claim("aud".to_owned())),
        };
        if !is_ours {
            return Err(TokenError::Audience);
        }
        let leeway_ms = u64::try_from(self.config.leeway.as_millis()).unwrap_or(u64::MAX);
        let end_ms = claims
            .time_ms("exp")?
            .ok_or_else(|| TokenError::Claim("exp".to_owned()))?
            .saturating_add(leeway_ms);
        if let Some(begin_ms) = claims.time_ms("nbf")?
            && now_ms.saturating_add(leeway_ms) < begin_ms
        {
            return Err(TokenError::NotYet);
        }
        match end_ms.saturating_sub(now_ms) {
            0 => Err(TokenError::Expired),
            left_ms => Ok(Duration::from_millis(left_ms)),
        }
    }

    fn user(&self, claims: &Claims) -> Result<String, TokenError> {
        let claim = self.config.user_claim.as_str();
        // Who leaves it out may give anyone any address.
        let is_verified = claims.get("email_verified") == Some(&Value::Bool(true));
        if claim == "email" && !is_verified {
            return Err(TokenError::EmailNotVerified);
        }
        let named = claims.text(claim)?;
        let name = format!("{}{named}", self.config.user_prefix);
        match !named.is_empty() && name.len() <= USER_BYTES_MAX && !name.contains(char::is_control)
        {
            true => Ok(name),
            false => Err(TokenError::User),
        }
    }
}

#[cfg(test)]
mod tests;
