//! Tokens as an attacker would write them, and keys as an operator might.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};

use super::*;
use crate::api::{Error, ErrorKind};

/// The end of the tokens of these tests, in seconds since 1970, and a moment before it.
const END: u64 = 1_800_000_600;
const NOW_MS: u64 = 1_800_000_000_000;
const LEEWAY: Duration = Duration::from_secs(30);

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An issuer with a key of each kind.
struct World {
    folder: tempfile::TempDir,
    p256: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
    rsa: RsaKeyPair,
}

impl World {
    fn new() -> Self {
        let random = SystemRandom::new();
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let p256 = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let ed25519 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        // It opens nothing: ring makes no RSA keys.
        let rsa = include_str!("rsa_key_for_tests.b64").replace('\n', "");
        let rsa = STANDARD.decode(rsa).unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            p256: EcdsaKeyPair::from_pkcs8(kind, p256.as_ref(), &random).unwrap(),
            ed25519: Ed25519KeyPair::from_pkcs8(ed25519.as_ref()).unwrap(),
            rsa: RsaKeyPair::from_pkcs8(&rsa).unwrap(),
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        match kid {
            "ec" => {
                let (x, y) = self.p256.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": encoded(x), "y": encoded(y) })
            }
            "ed" => {
                let x = encoded(self.ed25519.public_key());
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x, "use": "sig" })
            }
            _ => {
                let key = RsaPublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
                let (n, e) = (encoded(key.n), encoded(key.e));
                json!({ "kty": "RSA", "kid": kid, "n": n, "e": e, "alg": "RS256" })
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("jwks.json")
    }

    fn write(&self, keys: &[Value]) {
        fs::write(self.path(), json!({ "keys": keys }).to_string()).unwrap();
    }

    fn config(&self) -> OidcConfig {
        OidcConfig {
            issuer: "https://login.example.org".to_owned(),
            audience: "leasehold".to_owned(),
            jwks_file: self.path(),
            user_claim: "sub".to_owned(),
            user_prefix: "oidc:".to_owned(),
            leeway: LEEWAY,
        }
    }

    fn issuer(&self) -> Arc<Issuer> {
        self.write(&[self.jwk("ec"), self.jwk("ed"), self.jwk("rs")]);
        Issuer::load(&self.config()).unwrap()
    }

    fn sign(&self, kid: &str, message: &str) -> Vec<u8> {
        let random = SystemRandom::new();
        let message = message.as_bytes();
        match kid {
            "ec" => self.p256.sign(&random, message).unwrap().as_ref().to_vec(),
            "ed" => self.ed25519.sign(message).as_ref().to_vec(),
            _ => {
                let mut signature = vec![0; self.rsa.public().modulus_len()];
                self.rsa
                    .sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .unwrap();
                signature
            }
        }
    }

    /// A token with this header and these claims, signed by the key `kid`.
    fn token(&self, kid: &str, header: &Value, claims: &Value) -> String {
        let signed = format!(
            "{}.{}",
            encoded(header.to_string()),
            encoded(claims.to_string())
        );
        let signature = encoded(self.sign(kid, &signed));
        format!("{signed}.{signature}")
    }
}

fn algorithm(kid: &str) -> &'static str {
    match kid {
        "ec" => "ES256",
        "ed" => "EdDSA",
        _ => "RS256",
    }
}

fn header(kid: &str) -> Value {
    json!({ "alg": algorithm(kid), "kid": kid, "typ": "JWT" })
}

fn claims() -> Value {
    json!({ "iss": "https://login.example.org", "aud": "leasehold", "sub": "anna", "exp": END })
}

/// These claims with `name` as `value`; without it, if that is null.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    let map = claims.as_object_mut().unwrap();
    match value {
        Value::Null => drop(map.remove(name)),
        value => drop(map.insert(name.to_owned(), value)),
    }
    claims
}

#[test]
fn a_token_of_each_algorithm_names_its_user_until_it_ends() {
    let world = World::new();
    let issuer = world.issuer();
    for kid in ["ec", "ed", "rs"] {
        let token = world.token(kid, &header(kid), &claims());
        assert!(is_jwt(token.as_bytes()));
        let verified = issuer.verify(token.as_bytes(), NOW_MS).unwrap();
        let name = "oidc:anna".to_owned();
        let identity = Identity {
            name,
            generation: None,
        };
        assert_eq!(verified.identity, identity);
        assert_eq!(verified.left, Duration::from_secs(600) + LEEWAY);
        let last_ms = END * 1_000 + 30_000;
        assert!(issuer.verify(token.as_bytes(), last_ms - 1).is_ok());
        let over = issuer.verify(token.as_bytes(), last_ms).unwrap_err();
        assert_eq!(over, TokenError::Expired);
        assert_eq!(Error::from(over).kind, ErrorKind::TokenExpired);
    }
}

#[test]
fn what_the_claims_must_say() {
    let world = World::new();
    let issuer = world.issuer();
    let verify = |claims: &Value| {
        let token = world.token("ec", &header("ec"), claims);
        issuer
            .verify(token.as_bytes(), NOW_MS)
            .map(|it| it.identity.name)
    };
    let missing = |name: &str| TokenError::Claim(name.to_owned());
    let now = NOW_MS / 1_000;
    for (name, value, wanted) in [
        (
            "iss",
            json!("https://login.example.org/"),
            TokenError::Issuer,
        ),
        ("iss", json!("https://evil.example.org"), TokenError::Issuer),
        ("iss", json!(["https://login.example.org"]), missing("iss")),
        ("iss", Value::Null, missing("iss")),
        ("aud", json!("leasehold2"), TokenError::Audience),
        ("aud", json!(["a", "b"]), TokenError::Audience),
        ("aud", json!([]), TokenError::Audience),
        ("aud", json!([["leasehold"]]), TokenError::Audience),
        ("aud", json!({ "leasehold": true }), missing("aud")),
        ("aud", Value::Null, missing("aud")),
        ("exp", json!(now - 30), TokenError::Expired),
        ("exp", json!(0), TokenError::Expired),
        ("exp", json!(-1), missing("exp")),
        ("exp", json!(END.to_string()), missing("exp")),
        ("exp", Value::Null, missing("exp")),
        ("nbf", json!(now + 31), TokenError::NotYet),
        ("nbf", json!(1e300), TokenError::NotYet),
        ("nbf", json!("soon"), missing("nbf")),
        ("sub", json!(""), TokenError::User),
        ("sub", json!("anna\nroot"), TokenError::User),
        ("sub", json!("x".repeat(251)), TokenError::User),
        ("sub", json!(7), missing("sub")),
        ("sub", Value::Null, missing("sub")),
    ] {
        assert_eq!(
            verify(&with(name, value.clone())),
            Err(wanted),
            "{name} {value}"
        );
    }
    for (name, value) in [
        ("aud", json!(["other", "leasehold"])),
        ("exp", json!(now as f64 - 29.5)),
        ("exp", json!(1e300)),
        ("nbf", json!(now + 30)),
        ("iat", json!(now + 1_000_000)),
        ("jku", json!("https://evil.example.org/jwks.json")),
    ] {
        assert_eq!(
            verify(&with(name, value.clone())).as_deref(),
            Ok("oidc:anna"),
            "{name} {value}"
        );
    }
    // The prefix keeps the issuer from naming this cluster's own root.
    assert_eq!(
        verify(&with("sub", json!("root"))).as_deref(),
        Ok("oidc:root")
    );
}

#[test]
fn an_address_counts_only_if_the_issuer_has_verified_it() {
    let world = World::new();
    drop(world.issuer());
    let mut config = world.config();
    config.user_claim = "email".to_owned();
    config.user_prefix = String::new();
    let issuer = Issuer::load(&config).unwrap();
    for (verified, is_good) in [
        (json!(true), true),
        (json!(false), false),
        (json!("true"), false),
        (json!(1), false),
        (Value::Null, false),
    ] {
        let mut claims = with("email_verified", verified.clone());
        claims["email"] = json!("anna@example.org");
        let token = world.token("ed", &header("ed"), &claims);
        let found = issuer
            .verify(token.as_bytes(), NOW_MS)
            .map(|it| it.identity.name);
        let wanted = match is_good {
            true => Ok("anna@example.org".to_owned()),
            false => Err(TokenError::EmailNotVerified),
        };
        assert_eq!(found, wanted, "{verified}");
    }
}

#[test]
fn nothing_but_the_key_of_the_file_says_how_it_is_signed() {
    let world = World::new();
    let issuer = world.issuer();
    let verify = |token: &str| issuer.verify(token.as_bytes(), NOW_MS).map(drop);
    // Unsigned, in every spelling.
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        let header = json!({ "alg": alg, "kid": "rs" });
        let signed = format!(
            "{}.{}",
            encoded(header.to_string()),
            encoded(claims().to_string())
        );
        let refused = Err(TokenError::Algorithm(alg.to_owned()));
        assert_eq!(verify(&format!("{signed}.")), refused);
        assert_eq!(verify(&world.token("rs", &header, &claims())), refused);
    }
    // Signed with the public key as if it were a secret one, in the forms in which it could be taken for one.
    let rsa = world.rsa.public().as_ref().to_vec();
    for secret in [
        rsa,
        fs::read(world.path()).unwrap(),
        world.jwk("rs").to_string().into_bytes(),
        vec![],
    ] {
        for alg in ["HS256", "RS256"] {
            let header = json!({ "alg": alg, "kid": "rs" });
            let signed = format!(
                "{}.{}",
                encoded(header.to_string()),
                encoded(claims().to_string())
            );
            let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            let mac = hmac::sign(&key, signed.as_bytes());
            let refused = verify(&format!("{signed}.{}", encoded(mac)));
            let wanted = match alg {
                "HS256" => TokenError::Algorithm(alg.to_owned()),
                _ => TokenError::Signature,
            };
            assert_eq!(refused, Err(wanted));
        }
    }
    // Every algorithm with every key, whichever has signed.
    for named in ["ec", "ed", "rs"] {
        for alg in ["ec", "ed", "rs"].map(algorithm) {
            for signer in ["ec", "ed", "rs"] {
                let header = json!({ "alg": alg, "kid": named });
                let verified = verify(&world.token(signer, &header, &claims()));
                let wanted = match (alg == algorithm(named), signer == named) {
                    (true, true) => Ok(()),
                    (true, false) => Err(TokenError::Signature),
                    (false, _) => Err(TokenError::OtherAlgorithm),
                };
                assert_eq!(verified, wanted, "{alg} {named} {signer}");
            }
        }
    }
    for alg in [
        "HS384", "HS512", "RS384", "RS512", "PS256", "ES384", "ES512", "ES256K", "es256", "EDDSA",
    ] {
        let token = world.token("ec", &json!({ "alg": alg, "kid": "ec" }), &claims());
        assert_eq!(verify(&token), Err(TokenError::Algorithm(alg.to_owned())));
    }
}

#[test]
fn a_header_brings_no_key_and_wants_nothing_more() {
    let world = World::new();
    let issuer = world.issuer();
    let verify = |header: &Value| {
        let token = world.token("ec", header, &claims());
        issuer.verify(token.as_bytes(), NOW_MS).map(drop)
    };
    // A stranger's key in the header of a token that it has signed is not looked at.
    let stranger = World::new();
    for name in ["jwk", "x5c", "jku", "x5u"] {
        let mut header = header("ec");
        header[name] = stranger.jwk("ec");
        let token = stranger.token("ec", &header, &claims());
        let refused = issuer.verify(token.as_bytes(), NOW_MS).unwrap_err();
        assert_eq!(refused, TokenError::Signature, "{name}");
    }
    for (header, wanted) in [
        (json!({ "alg": "ES256" }), TokenError::NoKeyId),
        (
            json!({ "alg": "ES256", "kid": "other" }),
            TokenError::UnknownKey("other".to_owned()),
        ),
        (
            json!({ "alg": "ES256", "kid": "../ec" }),
            TokenError::UnknownKey("../ec".to_owned()),
        ),
        (json!({ "alg": "ES256", "kid": 7 }), TokenError::Header),
        (
            json!({ "alg": "ES256", "kid": "ec", "crit": ["b64"], "b64": false }),
            TokenError::Critical,
        ),
        (
            json!({ "alg": "ES256", "kid": "ec", "crit": null }),
            TokenError::Critical,
        ),
        (
            json!({ "alg": "ES256", "kid": "ec", "typ": "dpop+jwt" }),
            TokenError::Type("dpop+jwt".to_owned()),
        ),
        (json!({ "alg": ["ES256"], "kid": "ec" }), TokenError::Header),
        (json!(["ES256"]), TokenError::Header),
        (json!(null), TokenError::Header),
    ] {
        assert_eq!(verify(&header), Err(wanted), "{header}");
    }
    for kind in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
        assert_eq!(
            verify(&json!({ "alg": "ES256", "kid": "ec", "typ": kind })),
            Ok(()),
            "{kind}"
        );
    }
    let long = "k".repeat(1_000);
    let refused = verify(&json!({ "alg": "ES256", "kid": long }));
    assert_eq!(
        refused,
        Err(TokenError::UnknownKey("k".repeat(64))),
        "it is told back in short"
    );
}

#[test]
fn one_letter_changed_anywhere_and_it_is_none() {
    let world = World::new();
    let issuer = world.issuer();
    let token = world.token("ec", &header("ec"), &claims());
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(issuer.verify(&bytes, NOW_MS).is_err(), "letter {at}");
        assert!(
            issuer.verify(&token.as_bytes()[..at], NOW_MS).is_err(),
            "{at} letters"
        );
    }
    for more in ["A", "=", ".", ".e30", " ", "\n"] {
        assert!(
            issuer
                .verify(format!("{token}{more}").as_bytes(), NOW_MS)
                .is_err(),
            "{more:?}"
        );
    }
    let long = world.token(
        "ec",
        &header("ec"),
        &with("groups", json!("g".repeat(9 << 10))),
    );
    assert_eq!(
        issuer.verify(long.as_bytes(), NOW_MS).unwrap_err(),
        TokenError::Form
    );
    let deep = format!("{}1{}", "[".repeat(3_000), "]".repeat(3_000));
    let signed = format!("{}.{}", encoded(header("ec").to_string()), encoded(deep));
    let token = format!("{signed}.{}", encoded(world.sign("ec", &signed)));
    assert_eq!(
        issuer.verify(token.as_bytes(), NOW_MS).unwrap_err(),
        TokenError::Claims
    );
}

#[test]
fn a_key_that_is_taken_out_ends_what_rests_on_it_and_others_stay() {
    let world = World::new();
    let issuer = world.issuer();
    let verified = ["ec", "ed"].map(|kid| {
        let token = world.token(kid, &header(kid), &claims());
        issuer.verify(token.as_bytes(), NOW_MS).unwrap()
    });
    assert_eq!(issuer.reload().unwrap(), None, "nothing has changed");
    world.write(&[world.jwk("ed")]);
    assert_eq!(issuer.reload().unwrap(), Some(1));
    assert_eq!(verified[0].key.strong_count(), 0);
    assert!(verified[1].key.strong_count() > 0);
    // Another key under the same name is another one.
    let mut other = World::new().jwk("ed");
    other["kid"] = json!("ed");
    world.write(&[other]);
    assert_eq!(issuer.reload().unwrap(), Some(1));
    assert_eq!(verified[1].key.strong_count(), 0);
    // A file that cannot be read changes nothing.
    for text in ["", "{", "[]", "{\"keys\":{}}"] {
        fs::write(world.path(), text).unwrap();
        assert!(issuer.reload().is_err(), "{text}");
    }
    let stranger = world.token("ed", &header("ed"), &claims());
    let refused = issuer.verify(stranger.as_bytes(), NOW_MS).unwrap_err();
    assert_eq!(refused, TokenError::Signature);
}

#[test]
fn all_keys_can_be_taken_out_of_a_file_but_none_is_no_beginning() {
    let world = World::new();
    let issuer = world.issuer();
    let token = world.token("ec", &header("ec"), &claims());
    let verified = issuer.verify(token.as_bytes(), NOW_MS).unwrap();
    world.write(&[]);
    assert_eq!(issuer.reload().unwrap(), Some(0));
    assert_eq!(verified.key.strong_count(), 0);
    let refused = issuer.verify(token.as_bytes(), NOW_MS).unwrap_err();
    assert_eq!(refused, TokenError::UnknownKey("ec".to_owned()));
    assert_eq!(issuer.reload().unwrap(), None, "it stays so");
    let refused = Issuer::load(&world.config()).map(drop).unwrap_err();
    assert!(matches!(refused, KeysError::Empty { .. }), "{refused}");
    world.write(&[world.jwk("ec")]);
    assert_eq!(issuer.reload().unwrap(), Some(1));
    assert!(issuer.verify(token.as_bytes(), NOW_MS).is_ok());
}

#[test]
fn a_key_that_is_wrong_does_not_keep_one_that_is_taken_out() {
    let world = World::new();
    let mut short = world.jwk("ec");
    short["kid"] = json!("short");
    short["x"] = json!("AAAA");
    let mut private = world.jwk("rs");
    private["kid"] = json!("private");
    private["d"] = json!("AQAB");
    let mut again = world.jwk("ed");
    again["x"] = World::new().jwk("ed")["x"].clone();
    for wrong in [short, private, again] {
        let issuer = world.issuer();
        let verified = ["ec", "ed"].map(|kid| {
            let token = world.token(kid, &header(kid), &claims());
            issuer.verify(token.as_bytes(), NOW_MS).unwrap()
        });
        let mut other = world.jwk("rs");
        other["kid"] = json!("other");
        world.write(&[other, world.jwk("ed"), wrong.clone()]);
        assert!(issuer.reload().is_err(), "{wrong}");
        assert_eq!(verified[0].key.strong_count(), 0, "{wrong}: gone");
        assert!(verified[1].key.strong_count() > 0, "{wrong}: still there");
        for kid in ["other", "private", "rs"] {
            let header = json!({ "alg": "RS256", "kid": kid });
            let token = world.token("rs", &header, &claims());
            let refused = issuer.verify(token.as_bytes(), NOW_MS).unwrap_err();
            assert_eq!(refused, TokenError::UnknownKey(kid.to_owned()), "{wrong}");
        }
        assert!(issuer.reload().is_err(), "{wrong}: it is still wrong");
    }
}

#[test]
fn a_file_of_keys_is_told_what_is_wrong_with_it() {
    let world = World::new();
    let read = |keys: &[Value]| {
        world.write(keys);
        KeySet::load(&world.path()).map_err(|error| error.to_string())
    };
    let changed = |kid: &str, name: &str, value: Value| {
        let mut key = world.jwk(kid);
        match value {
            Value::Null => drop(key.as_object_mut().unwrap().remove(name)),
            value => key[name] = value,
        }
        key
    };
    let short_modulus = encoded([[0x80].as_slice(), &[1; 127]].concat());
    for (key, wanted) in [
        (changed("ec", "kid", Value::Null), "it has no kid"),
        (
            changed("ec", "x", json!("AAAA")),
            "a coordinate is not 32 bytes",
        ),
        (
            changed("ec", "y", Value::Null),
            "a coordinate is not 32 bytes",
        ),
        (
            changed("ed", "x", json!("!")),
            "a coordinate is not 32 bytes",
        ),
        (
            changed("rs", "n", json!(short_modulus)),
            "2,048 to 8,192 bits",
        ),
        (changed("rs", "e", json!("AQ")), "no public exponent"),
        (changed("rs", "e", json!("Ag")), "no public exponent"),
        (changed("rs", "e", json!("")), "no public exponent"),
        (
            changed("rs", "d", json!("AQAB")),
            "the private half of the key \"rs\"",
        ),
        (
            changed("ec", "d", json!("AQAB")),
            "the private half of the key \"ec\"",
        ),
        (changed("ed", "use", json!("enc")), "no key for signatures"),
        (
            changed("ed", "key_ops", json!(["sign"])),
            "no key for signatures",
        ),
        (
            changed("ec", "crv", json!("P-384")),
            "no key for signatures",
        ),
        (
            changed("rs", "alg", json!("RS512")),
            "no key for signatures",
        ),
        (
            changed("rs", "alg", json!("HS256")),
            "no key for signatures",
        ),
        (
            json!({ "kty": "oct", "kid": "a", "k": "AAAA" }),
            "no key for signatures",
        ),
    ] {
        let said = read(std::slice::from_ref(&key)).unwrap_err();
        assert!(
            said.contains(wanted) && said.contains("jwks.json"),
            "{key}: {said}"
        );
        if wanted.contains("no key for") {
            assert!(read(&[key, world.jwk("ec")]).is_ok(), "it is left alone");
        }
    }
    let said = read(&[world.jwk("ec"), world.jwk("ec")]).unwrap_err();
    assert!(said.contains("another key has the same kid"), "{said}");
    fs::write(world.path(), vec![b' '; (1 << 20) + 1]).unwrap();
    let said = KeySet::load(&world.path()).unwrap_err();
    assert!(matches!(said, KeysError::TooLong { .. }), "{said}");
    fs::remove_file(world.path()).unwrap();
    let said = KeySet::load(&world.path()).unwrap_err();
    assert!(matches!(said, KeysError::Unreadable { .. }), "{said}");
    let said = KeySet::load(world.folder.path()).unwrap_err().to_string();
    assert!(said.contains("it is not a regular file"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_panic_and_none_are_a_token(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Jwt::parse(&bytes).is_err());
        let parts: Vec<String> = bytes.chunks(100).map(encoded).collect();
        let _ = Jwt::parse(parts.join(".").as_bytes());
    }

    #[test]
    fn no_header_or_claims_panic(header in "\\{[\"a-z:,0-9 \\[\\]{}]{0,60}", claims in "[\"a-z:,0-9.e{}-]{0,60}") {
        let token = format!("{}.{}.AAAA", encoded(header), encoded(&claims));
        if let Ok(jwt) = Jwt::parse(token.as_bytes()) {
            let _ = jwt.claims();
        }
        let token = format!("{}.{}.AAAA", encoded(r#"{"alg":"ES256","kid":"a"}"#), encoded(claims));
        if let Ok(claims) = Jwt::parse(token.as_bytes()).unwrap().claims() {
            let _ = (claims.time_ms("exp"), claims.text("sub"));
        }
    }
}
