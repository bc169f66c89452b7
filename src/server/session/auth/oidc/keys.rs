//! The public keys of an issuer, from a file in the form of a JWKS (RFC 7517).
//!
//! Of each key exactly one algorithm is accepted, by its type. Keys of other types, or for other uses, are left
//! alone, as the format asks; one that is meant for this use and cannot be read is an error. Then no key is added,
//! but those that the file does not list any more are gone all the same: a mistake in one line must not keep what
//! another line takes back.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The longest file, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;
/// The bytes of a coordinate of P-256, and of a key of Ed25519.
const COORDINATE_BYTES: usize = 32;
/// The shortest and the longest RSA modulus, in bytes: 2,048 and 8,192 bits.
const MODULUS_BYTES_MIN: usize = 256;
const MODULUS_BYTES_MAX: usize = 1_024;
/// The longest public exponent of RSA, in bytes.
const EXPONENT_BYTES_MAX: usize = 5;

/// An algorithm that signatures are accepted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// RSA (PKCS #1 v1.5) with SHA-256.
    Rs256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// By its name in a header.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "ES256" => Some(Self::Es256),
            "RS256" => Some(Self::Rs256),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// A public key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IssuerKey {
    /// A point of P-256, uncompressed.
    P256(Vec<u8>),
    /// Modulus and exponent.
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    /// A point of Curve25519.
    Ed25519(Vec<u8>),
}

impl IssuerKey {
    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::P256(_) => Algorithm::Es256,
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Whether `signature` is that of its private half under `message`.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Self::Rsa { modulus, exponent } => RsaPublicKeyComponents {
                n: modulus,
                e: exponent,
            }
            .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature),
            Self::Ed25519(point) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }

    /// The key in `jwk`, of type `kind`; `None` if it is of a type or for a use that does not count here.
    fn read(kind: &str, jwk: &Map<String, Value>) -> Result<Option<Self>, &'static str> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| text(name).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let coordinate = |name: &str| {
            let bytes = bytes(name).filter(|bytes| bytes.len() == COORDINATE_BYTES);
            bytes.ok_or("a coordinate is not 32 bytes in base64url")
        };
        match (kind, text("crv")) {
            ("EC", Some("P-256")) => {
                let point = [&[4][..], &coordinate("x")?, &coordinate("y")?].concat();
                Ok(Some(Self::P256(point)))
            }
            ("OKP", Some("Ed25519")) => Ok(Some(Self::Ed25519(coordinate("x")?))),
            ("RSA", _) => {
                let modulus = bytes("n").ok_or("n is not in base64url")?;
                let exponent = bytes("e").ok_or("e is not in base64url")?;
                let trimmed = |bytes: Vec<u8>| -> Vec<u8> {
                    bytes.into_iter().skip_while(|byte| *byte == 0).collect()
                };
                let (modulus, exponent) = (trimmed(modulus), trimmed(exponent));
                if !(MODULUS_BYTES_MIN..=MODULUS_BYTES_MAX).contains(&modulus.len()) {
                    return Err("an RSA key has 2,048 to 8,192 bits");
                }
                // One means that everything is signed.
                let is_odd = exponent.last().is_some_and(|byte| byte % 2 == 1);
                if !is_odd || exponent == [1] || exponent.len() > EXPONENT_BYTES_MAX {
                    return Err("e is no public exponent");
                }
                Ok(Some(Self::Rsa { modulus, exponent }))
            }
            _ => Ok(None),
        }
    }
}

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("auth.oidc.jwks_file: {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It is too long.
    #[error(
        "auth.oidc.jwks_file: {path} has more than {FILE_BYTES_MAX} bytes: that is no file of keys"
    )]
    TooLong {
        /// The file.
        path: String,
    },
    /// It is not a JWKS.
    #[error("auth.oidc.jwks_file: {path} is not a JWKS, an object with a list of `keys`: {reason}")]
    Form {
        /// The file.
        path: String,
        /// The error of the parser.
        reason: String,
    },
    /// A key is secret.
    #[error(
        "auth.oidc.jwks_file: {path} has the private half of the key {key:?}, which signs tokens: give \
         the nodes the public half alone, and replace the key"
    )]
    Private {
        /// The file.
        path: String,
        /// The key's `kid`.
        key: String,
    },
    /// A key cannot be used.
    #[error("auth.oidc.jwks_file: {path}: the key {key:?} cannot be used: {reason}")]
    Key {
        /// The file.
        path: String,
        /// The key's `kid`.
        key: String,
        /// Why not.
        reason: &'static str,
    },
    /// No key can be used.
    #[error(
        "auth.oidc.jwks_file: {path} has no key for signatures by ES256, RS256 or EdDSA: write the keys \
         of the issuer there"
    )]
    Empty {
        /// The file.
        path: String,
    },
}

/// The keys of a file, by their `kid`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeySet(BTreeMap<String, Arc<IssuerKey>>);

/// What a list of keys says.
#[derive(Debug)]
pub(super) struct KeyList {
    /// The keys that can be used.
    pub(super) keys: KeySet,
    /// What is wrong with the first of the others.
    pub(super) complaint: Option<KeysError>,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Map<String, Value>>,
}

impl KeySet {
    /// The keys in a file, all of which can be used, and of which there is one at least.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(super) fn load(path: &Path) -> Result<Self, KeysError> {
        let KeyList { keys, complaint } = KeyList::read(path, &Self::default())?;
        match complaint {
            Some(error) => Err(error),
            None if keys.0.is_empty() => Err(KeysError::Empty {
                path: path.display().to_string(),
            }),
            None => Ok(keys),
        }
    }

    pub(super) fn get(&self, key_id: &str) -> Option<&Arc<IssuerKey>> {
        self.0.get(key_id)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Without those that are not in `others`.
    pub(super) fn retain(mut self, others: &Self) -> Self {
        self.0
            .retain(|key_id, key| others.get(key_id).is_some_and(|other| other == key));
        self
    }
}

impl KeyList {
    /// The keys in a file. Those that are in `known` are the same, so that what rests on them stays.
    ///
    /// # Errors
    /// There is no list.
    pub(super) fn read(path: &Path, known: &KeySet) -> Result<Self, KeysError> {
        let name = || path.display().to_string();
        let text = read_file(path, FILE_BYTES_MAX).map_err(|source| KeysError::Unreadable {
            path: name(),
            source,
        })?;
        match text.len() > FILE_BYTES_MAX {
            true => Err(KeysError::TooLong { path: name() }),
            false => Self::parse(&text, &name(), known),
        }
    }

    fn parse(text: &[u8], path: &str, known: &KeySet) -> Result<Self, KeysError> {
        let document: Document = serde_json::from_slice(text).map_err(|error| KeysError::Form {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let mut keys = BTreeMap::new();
        let mut complaint = None;
        for jwk in &document.keys {
            let text = |name: &str| jwk.get(name).and_then(Value::as_str);
            let key_id = text("kid").unwrap_or_default().to_owned();
            let unusable = |reason| KeysError::Key {
                path: path.to_owned(),
                key: key_id.clone(),
                reason,
            };
            if text("kty") != Some("oct") && jwk.contains_key("d") {
                complaint.get_or_insert_with(|| KeysError::Private {
                    path: path.to_owned(),
                    key: key_id.clone(),
                });
            }
            match usable(jwk) {
                Ok(None) => {}
                Ok(Some(key)) => {
                    let same = known.get(&key_id).filter(|known| ***known == key);
                    if keys.contains_key(&key_id) {
                        complaint.get_or_insert_with(|| unusable("another key has the same kid"));
                    }
                    match same {
                        Some(same) => drop(keys.insert(key_id, Arc::clone(same))),
                        None => drop(keys.entry(key_id).or_insert_with(|| Arc::new(key))),
                    }
                }
                Err(reason) => {
                    complaint.get_or_insert_with(|| unusable(reason));
                }
            }
        }
        Ok(Self {
            keys: KeySet(keys),
            complaint,
        })
    }
}

/// The key in `jwk`, if it is meant for signatures of tokens.
fn usable(jwk: &Map<String, Value>) -> Result<Option<IssuerKey>, &'static str> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    if !is_for_signatures(jwk) {
        return Ok(None);
    }
    let Some(key) = IssuerKey::read(text("kty").unwrap_or_default(), jwk)? else {
        return Ok(None);
    };
    if jwk.contains_key("alg") && text("alg") != Some(key.algorithm().name()) {
        return Ok(None);
    }
    match text("kid") {
        None | Some("") => Err("it has no kid, by which tokens name their key"),
        Some(_) => Ok(Some(key)),
    }
}

/// What is in a file; of a longer one than `bytes_max`, more than that.
fn read_file(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    // What is no file may never end, or never begin.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    fs::File::open(path)?
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut text)?;
    Ok(text)
}

/// Whether nothing says that a key is for something else.
fn is_for_signatures(jwk: &Map<String, Value>) -> bool {
    let verifies = |operations: &Value| {
        let operations = operations.as_array();
        operations.is_some_and(|all| all.iter().any(|one| one == "verify"))
    };
    jwk.get("use").is_none_or(|use_| use_ == "sig") && jwk.get("key_ops").is_none_or(verifies)
}
