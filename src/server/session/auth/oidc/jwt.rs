//! A JSON Web Token (RFC 7519) in the compact form of JWS (RFC 7515), taken apart and not yet believed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::TokenError;
use super::keys::Algorithm;

/// A token is longer than that only by mistake.
const TOKEN_BYTES_MAX: usize = crate::api::TOKEN_BYTES_MAX;
/// So much of what a token says is told back.
const SHOWN_CHARS_MAX: usize = 64;

/// A token whose header is good. Its signature is still to be checked.
#[derive(Debug)]
pub(super) struct Jwt<'t> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: String,
    /// What was signed.
    pub(super) signed: &'t [u8],
    pub(super) signature: Vec<u8>,
    payload: &'t str,
}

/// What of a header counts.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    #[serde(default, deserialize_with = "is_there")]
    crit: bool,
}

/// Also where it is null.
fn is_there<'de, D: serde::Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    serde::de::IgnoredAny::deserialize(value).map(|_| true)
}

impl<'t> Jwt<'t> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// It is none, or one that is never accepted.
    pub(super) fn parse(token: &'t [u8]) -> Result<Self, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Form);
        }
        let text = std::str::from_utf8(token).map_err(|_| TokenError::Form)?;
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Form)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Form)?;
        if payload.contains('.') {
            return Err(TokenError::Form);
        }
        let header: Header =
            serde_json::from_slice(&decoded(header)?).map_err(|_| TokenError::Header)?;
        let algorithm = Algorithm::named(&header.alg)
            .ok_or_else(|| TokenError::Algorithm(shortened(&header.alg)))?;
        if header.crit {
            return Err(TokenError::Critical);
        }
        if let Some(kind) = header.typ {
            let name = kind.to_ascii_lowercase();
            let name = name.strip_prefix("application/").unwrap_or(&name);
            if !matches!(name, "jwt" | "at+jwt") {
                return Err(TokenError::Type(shortened(&kind)));
            }
        }
        Ok(Self {
            algorithm,
            key_id: header.kid.ok_or(TokenError::NoKeyId)?,
            signed: signed.as_bytes(),
            signature: decoded(signature)?,
            payload,
        })
    }

    /// What it says, once its signature was checked.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub(super) fn claims(&self) -> Result<Claims, TokenError> {
        let claims = serde_json::from_slice(&decoded(self.payload)?);
        claims.map(Claims).map_err(|_| TokenError::Claims)
    }
}

/// What a token says.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The text of a claim.
    ///
    /// # Errors
    /// There is no such claim, or it is no text.
    pub(super) fn text(&self, name: &str) -> Result<&str, TokenError> {
        let text = self.get(name).and_then(Value::as_str);
        text.ok_or_else(|| TokenError::Claim(name.to_owned()))
    }

    /// The time of a claim, in milliseconds since 1970, if it is there.
    ///
    /// # Errors
    /// It is no time after 1970.
    pub(super) fn time_ms(&self, name: &str) -> Result<Option<u64>, TokenError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0);
        let seconds = seconds.ok_or_else(|| TokenError::Claim(name.to_owned()))?;
        // What no number holds is the largest one.
        Ok(Some((seconds * 1_000.0) as u64))
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Form)
}

/// Text of a token as it is told back.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
