//! SPIFFE ids in clients' certificates, and the users they stand for.
//!
//! An id is `spiffe://trust-domain/path`, the one URI name of a certificate (an X.509-SVID). It is
//! judged by SPIFFE's rules alone, letter by letter: nothing is decoded, lowered or shortened, so
//! two ids are one only if their bytes are. An id that breaks a rule is refused by the name of the
//! rule, and never overlooked: a certificate with one has no other name to fall back on.

use std::fmt;
use std::str::FromStr;

use crate::api::ROOT;

/// The longest id, in bytes (SPIFFE-ID, section 2.3).
const ID_BYTES_MAX: usize = 2_048;
/// The longest trust domain, in bytes.
const TRUST_DOMAIN_BYTES_MAX: usize = 255;
/// The longest name of a user, in bytes.
const USER_BYTES_MAX: usize = 255;

const SCHEME: &str = "spiffe://";
/// Any one segment of a path; in a user, the segments that these stand for, in their order.
const ANY: &str = "*";

/// What is wrong with a SPIFFE id, or with the user it should stand for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeError {
    /// The certificate has other URI names beside it.
    #[error("the certificate has {0} URI names, and one with a SPIFFE id has exactly one")]
    SeveralNames(usize),
    /// The names of the certificate cannot be read.
    #[error("the certificate's alternative names cannot be read, so its SPIFFE id is not known")]
    UnreadableNames,
    /// It is too long.
    #[error("the SPIFFE id has {0} bytes, and at most {ID_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// It is not of the form `spiffe://trust-domain/path`.
    #[error("the SPIFFE id {0:?} does not begin with spiffe:// in small letters")]
    Scheme(String),
    /// It has a query or a fragment.
    #[error("the SPIFFE id {0:?} has a query or a fragment, which SPIFFE does not allow")]
    QueryOrFragment(String),
    /// It has a user or a port before the path.
    #[error("the SPIFFE id {0:?} has a user or a port, which SPIFFE does not allow")]
    UserOrPort(String),
    /// The trust domain is empty, too long, or has other characters.
    #[error(
        "the trust domain {0:?} is not valid: it has 1 to {TRUST_DOMAIN_BYTES_MAX} small letters, \
         digits, dots, dashes and underscores"
    )]
    TrustDomain(String),
    /// It has no path, as the id of an authority.
    #[error("the SPIFFE id {0:?} has no path, so it names a trust domain and no workload")]
    NoPath(String),
    /// A segment of its path is not allowed.
    #[error(
        "the SPIFFE id {id:?} has the segment {segment:?}: segments are not empty, not . or .., and \
         have letters, digits, dots, dashes and underscores"
    )]
    Segment {
        /// The id.
        id: String,
        /// The segment.
        segment: String,
    },
    /// It is of another trust domain.
    #[error(
        "the SPIFFE id {id:?} is of another trust domain than {accepted:?}, which is accepted here (tls.spiffe.trust_domain)"
    )]
    OtherTrustDomain {
        /// The id.
        id: String,
        /// The trust domain that is accepted.
        accepted: String,
    },
    /// No rule gives it a user.
    #[error("no entry of tls.spiffe.users gives the SPIFFE id {0:?} a user")]
    NoUser(String),
    /// The user's name would be too long.
    #[error(
        "the user of the SPIFFE id {0:?} would have a name of more than {USER_BYTES_MAX} bytes: give \
         it a shorter one in tls.spiffe.users"
    )]
    LongUser(String),
    /// Its segments would make it the user root, which no entry names.
    #[error(
        "the SPIFFE id {0:?} would be the user root by what stands in the place of a *: only an entry of \
         tls.spiffe.users that names root, as /ns/prod/sa/db=root does, makes an id root"
    )]
    Root(String),
}

/// A valid SPIFFE id of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpiffeId {
    text: String,
    /// Where the path begins, at its first slash.
    path_at: usize,
}

impl SpiffeId {
    /// Whether a URI name is meant as a SPIFFE id, well formed or not.
    pub(crate) fn is_meant_by(uri: &str) -> bool {
        let scheme = "spiffe:";
        uri.get(..scheme.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
    }

    /// Parses an id of a workload.
    ///
    /// # Errors
    /// The first rule of SPIFFE's that it breaks.
    pub fn parse(uri: &str) -> Result<Self, SpiffeError> {
        if uri.len() > ID_BYTES_MAX {
            return Err(SpiffeError::TooLong(uri.len()));
        }
        let id = || uri.to_owned();
        let Some(rest) = uri.strip_prefix(SCHEME) else {
            return Err(SpiffeError::Scheme(id()));
        };
        if uri.contains(['?', '#']) {
            return Err(SpiffeError::QueryOrFragment(id()));
        }
        let (trust_domain, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if trust_domain.contains(['@', ':']) {
            return Err(SpiffeError::UserOrPort(id()));
        }
        check_trust_domain(trust_domain)?;
        let Some(segments) = path.strip_prefix('/') else {
            return Err(SpiffeError::NoPath(id()));
        };
        if let Some(bad) = segments.split('/').find(|segment| !is_segment(segment)) {
            return Err(SpiffeError::Segment {
                id: id(),
                segment: bad.to_owned(),
            });
        }
        Ok(Self {
            text: id(),
            path_at: SCHEME.len() + trust_domain.len(),
        })
    }

    /// Its trust domain.
    pub fn trust_domain(&self) -> &str {
        &self.text[SCHEME.len()..self.path_at]
    }

    /// Its path, from the first slash on.
    pub fn path(&self) -> &str {
        &self.text[self.path_at..]
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Checks the name of a trust domain.
///
/// # Errors
/// It is not valid.
pub(crate) fn check_trust_domain(name: &str) -> Result<(), SpiffeError> {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    match !name.is_empty() && name.len() <= TRUST_DOMAIN_BYTES_MAX && name.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(SpiffeError::TrustDomain(name.to_owned())),
    }
}

fn is_segment(segment: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !matches!(segment, "" | "." | "..") && segment.bytes().all(is_allowed)
}

/// Which SPIFFE ids are accepted, and the users they stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpiffeUsers {
    /// The trust domain whose ids are accepted.
    pub trust_domain: String,
    /// The users of ids, by path: the first rule that fits decides, and an id that none fits is
    /// refused. Without rules, the user has the name of the whole id.
    pub rules: Vec<SpiffeRule>,
}

impl SpiffeUsers {
    /// The user that `id` stands for.
    ///
    /// # Errors
    /// It is of another trust domain, or stands for none.
    pub fn user(&self, id: &SpiffeId) -> Result<String, SpiffeError> {
        if id.trust_domain() != self.trust_domain {
            return Err(SpiffeError::OtherTrustDomain {
                id: id.to_string(),
                accepted: self.trust_domain.clone(),
            });
        }
        let user = match self.rules.as_slice() {
            [] => id.to_string(),
            rules => {
                let fits = |rule: &SpiffeRule| Some((rule.names_user(), rule.user(id)?));
                let (is_named, user) = rules
                    .iter()
                    .find_map(fits)
                    .ok_or_else(|| SpiffeError::NoUser(id.to_string()))?;
                // Who may call a workload as it likes must not be root by that.
                if user == ROOT && !is_named {
                    return Err(SpiffeError::Root(id.to_string()));
                }
                user
            }
        };
        match user.len() <= USER_BYTES_MAX {
            true => Ok(user),
            false => Err(SpiffeError::LongUser(id.to_string())),
        }
    }
}

/// A path, in which `*` is any one segment, and the name of the user of such ids: `/ns/prod/sa/*=prod/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpiffeRule {
    path: Vec<String>,
    /// What stands between the segments that are taken over.
    user: Vec<String>,
}

impl SpiffeRule {
    /// Whether the user's name is that of the rule, whatever the id.
    fn names_user(&self) -> bool {
        self.user.len() == 1
    }

    fn user(&self, id: &SpiffeId) -> Option<String> {
        let segments: Vec<&str> = id.path().split('/').skip(1).collect();
        if segments.len() != self.path.len() {
            return None;
        }
        let mut taken = Vec::new();
        for (wanted, found) in self.path.iter().zip(segments) {
            match wanted == ANY {
                true => taken.push(found),
                false if wanted == found => {}
                false => return None,
            }
        }
        let (first, rest) = self.user.split_first()?;
        let mut user = first.clone();
        for (segment, text) in taken.into_iter().zip(rest) {
            user.push_str(segment);
            user.push_str(text);
        }
        Some(user)
    }
}

/// Why an entry gives no rule, and what would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeRuleError {
    /// It has not both parts.
    #[error("write a path and a user, for example /ns/prod/sa/*=prod/*")]
    Form,
    /// The path can be none of a SPIFFE id.
    #[error(
        "the path is /segment/segment, each of letters, digits, dots, dashes and underscores, or a * \
         for any one segment"
    )]
    Path,
    /// The user's name is empty or too long, or has control characters.
    #[error("the user has 1 to {USER_BYTES_MAX} bytes without control characters")]
    User,
    /// The user has more stars than the path.
    #[error("the user has more * than the path, so there is nothing to put there")]
    Stars,
    /// Two segments would meet in the user's name, so that two ids could have the same.
    #[error(
        "between two * of the user there is a character that no segment has, such as / or :, or two \
         ids would be one user"
    )]
    Ambiguous,
}

impl FromStr for SpiffeRule {
    type Err = SpiffeRuleError;

    fn from_str(text: &str) -> Result<Self, SpiffeRuleError> {
        let (path, user) = text.split_once('=').ok_or(SpiffeRuleError::Form)?;
        let segments = path.strip_prefix('/').ok_or(SpiffeRuleError::Path)?;
        let path: Vec<String> = segments.split('/').map(str::to_owned).collect();
        if !path
            .iter()
            .all(|segment| segment == ANY || is_segment(segment))
        {
            return Err(SpiffeRuleError::Path);
        }
        if user.is_empty() || user.len() > USER_BYTES_MAX || user.contains(char::is_control) {
            return Err(SpiffeRuleError::User);
        }
        let user: Vec<String> = user.split(ANY).map(str::to_owned).collect();
        let stars = path.iter().filter(|segment| *segment == ANY).count();
        if user.len() - 1 > stars {
            return Err(SpiffeRuleError::Stars);
        }
        let between = user.iter().skip(1).take(user.len().saturating_sub(2));
        for text in between {
            let separates = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-' | '_');
            if !text.contains(separates) {
                return Err(SpiffeRuleError::Ambiguous);
            }
        }
        Ok(Self { path, user })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_has_a_trust_domain_and_a_path() {
        for (text, trust_domain, path) in [
            ("spiffe://example.org/a", "example.org", "/a"),
            (
                "spiffe://e_x-1/ns/Prod/sa/web.1",
                "e_x-1",
                "/ns/Prod/sa/web.1",
            ),
            ("spiffe://1.2.3.4/...", "1.2.3.4", "/..."),
        ] {
            let id = SpiffeId::parse(text).unwrap();
            assert_eq!((id.trust_domain(), id.path()), (trust_domain, path));
            assert_eq!(id.to_string(), text);
        }
        let longest = format!("spiffe://a/{}", "x".repeat(ID_BYTES_MAX - 11));
        assert!(SpiffeId::parse(&longest).is_ok());
        let longer = SpiffeId::parse(&format!("{longest}x"));
        assert_eq!(longer, Err(SpiffeError::TooLong(ID_BYTES_MAX + 1)));
    }

    #[test]
    fn each_rule_that_an_id_breaks_has_a_name() {
        let name = |text: &str| match SpiffeId::parse(text).unwrap_err() {
            SpiffeError::Scheme(_) => "scheme",
            SpiffeError::QueryOrFragment(_) => "query",
            SpiffeError::UserOrPort(_) => "port",
            SpiffeError::TrustDomain(_) => "domain",
            SpiffeError::NoPath(_) => "path",
            SpiffeError::Segment { .. } => "segment",
            other => panic!("{text}: {other}"),
        };
        for (text, wanted) in [
            ("", "scheme"),
            ("SPIFFE://a/b", "scheme"),
            ("spiffe:/a/b", "scheme"),
            ("https://a/b", "scheme"),
            (" spiffe://a/b", "scheme"),
            ("spiffe://a/b?c", "query"),
            ("spiffe://a/b#c", "query"),
            ("spiffe://a?/b", "query"),
            ("spiffe://a:8443/b", "port"),
            ("spiffe://me@a/b", "port"),
            ("spiffe:///b", "domain"),
            ("spiffe://A/b", "domain"),
            ("spiffe://a%20/b", "domain"),
            ("spiffe://ä/b", "domain"),
            ("spiffe://a b/c", "domain"),
            ("spiffe://a", "path"),
            ("spiffe://a/", "segment"),
            ("spiffe://a/b/", "segment"),
            ("spiffe://a//b", "segment"),
            ("spiffe://a/./b", "segment"),
            ("spiffe://a/b/..", "segment"),
            ("spiffe://a/b%2fc", "segment"),
            ("spiffe://a/b*", "segment"),
            ("spiffe://a/b\0", "segment"),
            ("spiffe://a/ö", "segment"),
        ] {
            assert_eq!(name(text), wanted, "{text}");
        }
        let long = format!("spiffe://{}/b", "a".repeat(TRUST_DOMAIN_BYTES_MAX + 1));
        assert_eq!(name(&long), "domain");
    }

    fn users(rules: &[&str]) -> SpiffeUsers {
        SpiffeUsers {
            trust_domain: "example.org".to_owned(),
            rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        }
    }

    fn user(users: &SpiffeUsers, id: &str) -> Result<String, SpiffeError> {
        users.user(&SpiffeId::parse(id).unwrap())
    }

    #[test]
    fn without_rules_the_user_is_the_whole_id_which_is_nobody_elses_name() {
        let id = "spiffe://example.org/root";
        assert_eq!(user(&users(&[]), id).unwrap(), id);
        let long = format!("spiffe://example.org/{}", "x".repeat(240));
        assert_eq!(user(&users(&[]), &long), Err(SpiffeError::LongUser(long)));
    }

    #[test]
    fn the_first_rule_that_fits_gives_the_user_and_without_one_there_is_none() {
        let users = users(&[
            "/ns/prod/sa/db=root",
            "/ns/prod/sa/*=prod",
            "/ns/*/sa/*=*/*",
            "/a/*=x-*",
        ]);
        let of = |path: &str| user(&users, &format!("spiffe://example.org{path}"));
        assert_eq!(of("/ns/prod/sa/db").unwrap(), "root");
        assert_eq!(of("/ns/prod/sa/web").unwrap(), "prod");
        assert_eq!(of("/ns/test/sa/web").unwrap(), "test/web");
        assert_eq!(of("/a/b").unwrap(), "x-b");
        for none in [
            "/ns/prod/sa",
            "/ns/prod/sa/db/x",
            "/NS/prod/sa/db",
            "/a",
            "/b/c",
        ] {
            assert!(matches!(of(none), Err(SpiffeError::NoUser(_))), "{none}");
        }
    }

    #[test]
    fn no_segment_makes_an_id_root_but_an_entry_may() {
        let users = users(&["/a/root=root", "/b/*=root", "/*=*", "/x/*=ro*", "/y/*/*=*"]);
        let of = |path: &str| user(&users, &format!("spiffe://example.org{path}"));
        assert_eq!(of("/a/root").unwrap(), "root");
        assert_eq!(of("/b/any").unwrap(), "root");
        assert_eq!(of("/Root").unwrap(), "Root");
        for path in ["/root", "/x/ot", "/y/root/z"] {
            assert!(matches!(of(path), Err(SpiffeError::Root(_))), "{path}");
        }
    }

    #[test]
    fn an_id_of_another_trust_domain_is_none_of_ours() {
        for other in [
            "example.com",
            "xexample.org",
            "example.org.evil",
            "sub.example.org",
        ] {
            let refused = user(&users(&[]), &format!("spiffe://{other}/a"));
            assert!(
                matches!(refused, Err(SpiffeError::OtherTrustDomain { .. })),
                "{other}"
            );
        }
    }

    #[test]
    fn a_rule_that_says_too_little_is_refused() {
        for (text, wanted) in [
            ("", SpiffeRuleError::Form),
            ("/a", SpiffeRuleError::Form),
            ("a=b", SpiffeRuleError::Path),
            ("/=b", SpiffeRuleError::Path),
            ("/a/=b", SpiffeRuleError::Path),
            ("/a/b*=b", SpiffeRuleError::Path),
            ("/..=b", SpiffeRuleError::Path),
            ("/a=", SpiffeRuleError::User),
            ("/a=b\n", SpiffeRuleError::User),
            ("/a=*", SpiffeRuleError::Stars),
            ("/*=*/*", SpiffeRuleError::Stars),
            ("/*/*=**", SpiffeRuleError::Ambiguous),
            ("/*/*=*-*", SpiffeRuleError::Ambiguous),
        ] {
            assert_eq!(text.parse::<SpiffeRule>(), Err(wanted), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_panics_and_what_is_taken_keeps_the_rules(text in "(spiffe://)?[a-c@:%/.*?#=]{0,24}") {
            let _ = text.parse::<SpiffeRule>();
            if let Ok(id) = SpiffeId::parse(&text) {
                prop_assert_eq!(format!("spiffe://{}{}", id.trust_domain(), id.path()), text);
                prop_assert!(!id.path().ends_with('/'));
            }
        }

        #[test]
        fn two_ids_are_two_users_where_every_star_is_taken_over(
            a in ("[a.-]{1,3}", "[a.-]{1,3}"), b in ("[a.-]{1,3}", "[a.-]{1,3}"),
        ) {
            let users = users(&["/*/*=*:*"]);
            let of = |(x, y): &(String, String)| {
                let id = SpiffeId::parse(&format!("spiffe://example.org/{x}/{y}")).ok()?;
                users.user(&id).ok()
            };
            if let (Some(first), Some(second)) = (of(&a), of(&b)) {
                prop_assert_eq!(first == second, a == b);
            }
        }
    }
}
