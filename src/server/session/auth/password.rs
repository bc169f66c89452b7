//! Passwords, hashed: PBKDF2 with HMAC-SHA-256, as many rounds as OWASP asks for, from the crate that
//! does TLS here anyway.
//!
//! A hash contains its parameters, so that the rounds can be raised later and old hashes still be
//! checked: a byte of format, the rounds, the salt, the hash.

use std::num::NonZeroU32;

use ring::pbkdf2;
use ring::rand::{SecureRandom, SystemRandom};

use crate::api::{Error, ErrorKind, Secret};

static ALGORITHM: pbkdf2::Algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
const FORMAT: u8 = 1;
const ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).expect("it is not zero");
/// A hash that comes from elsewhere must not keep a node busy for minutes.
const ROUNDS_MAX: u32 = 10_000_000;
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
const ALL_BYTES: usize = 1 + 4 + SALT_BYTES + HASH_BYTES;

/// Hashes a password, with a salt of its own.
pub(super) fn hash(password: &Secret) -> Secret {
    let mut salt = [0; SALT_BYTES];
    fill(&mut salt);
    let mut hash = [0; HASH_BYTES];
    pbkdf2::derive(ALGORITHM, ROUNDS, &salt, password.reveal(), &mut hash);
    let mut all = Vec::with_capacity(ALL_BYTES);
    all.push(FORMAT);
    all.extend_from_slice(&ROUNDS.get().to_be_bytes());
    all.extend_from_slice(&salt);
    all.extend_from_slice(&hash);
    Secret::new(all)
}

/// Whether `password` is the one that `hash` was made of. Without a hash it is wrong, and found out no
/// sooner.
pub(super) fn verify(hash: Option<&Secret>, password: &Secret) -> bool {
    let Some(parts) = hash.and_then(|hash| parts(hash.reveal())) else {
        let mut nothing = [0; HASH_BYTES];
        pbkdf2::derive(
            ALGORITHM,
            ROUNDS,
            &[0; SALT_BYTES],
            password.reveal(),
            &mut nothing,
        );
        std::hint::black_box(&nothing);
        return false;
    };
    let (rounds, salt, hash) = parts;
    pbkdf2::verify(ALGORITHM, rounds, salt, password.reveal(), hash).is_ok()
}

/// Whether a hash that a client has sent is one that can be checked here.
pub(super) fn check_form(hash: &Secret) -> Result<(), Error> {
    match parts(hash.reveal()) {
        Some(_) => Ok(()),
        None => Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the password hash was not created by this release: send the password itself",
        )),
    }
}

fn parts(all: &[u8]) -> Option<(NonZeroU32, &[u8], &[u8])> {
    if all.len() != ALL_BYTES || all[0] != FORMAT {
        return None;
    }
    let (rounds, rest) = all[1..].split_first_chunk()?;
    let rounds = NonZeroU32::new(u32::from_be_bytes(*rounds))?;
    let (salt, hash) = rest.split_at(SALT_BYTES);
    (rounds.get() <= ROUNDS_MAX).then_some((rounds, salt, hash))
}

/// Fills `bytes` with secure random numbers.
pub(super) fn fill(bytes: &mut [u8]) {
    SystemRandom::new()
        .fill(bytes)
        .expect("a system without random bytes has no TLS either");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_known_by_its_hash_and_no_other_is() {
        let right = Secret::new("correct horse");
        let hashed = hash(&right);
        assert!(verify(Some(&hashed), &right));
        assert!(!verify(Some(&hashed), &Secret::new("correct horsf")));
        assert!(!verify(None, &right));
        assert_ne!(hash(&right), hashed, "every hash has a salt of its own");
        let text = String::from_utf8_lossy(hashed.reveal()).into_owned();
        assert!(!text.contains("horse"));
    }

    #[test]
    fn what_is_no_hash_of_ours_is_refused() {
        let good = hash(&Secret::new("x"));
        assert!(check_form(&good).is_ok());
        let with = |at: usize, byte: u8| {
            let mut bytes = good.reveal().to_vec();
            bytes[at] = byte;
            Secret::new(bytes)
        };
        assert!(check_form(&with(0, 2)).is_err(), "another format");
        assert!(check_form(&with(1, 0xff)).is_err(), "too many rounds");
        assert!(check_form(&Secret::new(&good.reveal()[1..])).is_err());
        assert!(!verify(Some(&Secret::new("short")), &Secret::new("x")));
    }
}
