//! Members, whose peers are URLs in etcd and a name with an address here.

use std::net::IpAddr;

use crate::api::MemberAddRequest;
use crate::etcd::errors::BAD_MEMBER_URLS;
use crate::etcd::proto;
use crate::etcd::status::Status;

/// Before a request to add a member is decoded: that it has no more URLs than one. Empty ones would take ten
/// times their length in memory.
///
/// # Errors
/// As [`member_add`].
pub(crate) fn check_member_add(encoded: &[u8]) -> Result<(), Status> {
    check_urls(encoded, 1)
}

/// The same for a request to update one.
///
/// # Errors
/// As [`member_add`].
pub(crate) fn check_member_update(encoded: &[u8]) -> Result<(), Status> {
    check_urls(encoded, 2)
}

/// `field` has the URLs.
fn check_urls(encoded: &[u8], field: u64) -> Result<(), Status> {
    let urls = proto::Fields(encoded).filter(|(number, _)| *number == field);
    match urls.count() > 1 {
        true => Err(BAD_MEMBER_URLS),
        false => Ok(()),
    }
}

/// The new member of `add`. etcd's request has no name, so the URL brings it: as the user of the
/// URL (`https://n4@host:7401`), else as the first label of its host.
///
/// # Errors
/// As etcd refuses URLs; there is exactly one here, and it has a name. Whether that can be one is
/// found by who checks requests.
pub(crate) fn member_add(add: &proto::MemberAddRequest) -> Result<MemberAddRequest, Status> {
    let url = PeerUrl::of(&add.peer_urls)?;
    Ok(MemberAddRequest {
        name: url.name().ok_or(BAD_MEMBER_URLS)?.to_owned(),
        peer_address: url.address.to_owned(),
        client_address: String::new(),
        learner: add.is_learner,
        replaces: None,
    })
}

/// The address in the URLs of a member that has a name already.
///
/// # Errors
/// As [`member_add`].
pub(crate) fn peer_address(urls: &[String]) -> Result<String, Status> {
    Ok(PeerUrl::of(urls)?.address.to_owned())
}

/// The URL of a member.
struct PeerUrl<'a> {
    user: Option<&'a str>,
    /// `host:port`.
    address: &'a str,
}

impl<'a> PeerUrl<'a> {
    fn of(urls: &'a [String]) -> Result<Self, Status> {
        let [url] = urls else {
            return Err(BAD_MEMBER_URLS);
        };
        let (scheme, rest) = url.trim().split_once("://").ok_or(BAD_MEMBER_URLS)?;
        if !matches!(scheme, "http" | "https") {
            return Err(BAD_MEMBER_URLS);
        }
        let (user, address) = match rest.split_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, rest),
        };
        // What else may be wrong with an address is found by who checks requests.
        let has_more = address.contains(['/', '?', '#', '@']);
        let (host, port) = address.rsplit_once(':').ok_or(BAD_MEMBER_URLS)?;
        // In a URL, an address of version 6 has brackets.
        let is_bare = !host.starts_with('[') && host.contains(':');
        match has_more || is_bare || port.parse::<u16>().is_err() {
            true => Err(BAD_MEMBER_URLS),
            false => Ok(Self { user, address }),
        }
    }

    fn name(&self) -> Option<&'a str> {
        if let Some(user) = self.user {
            return Some(user);
        }
        let (host, _) = self.address.rsplit_once(':')?;
        if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
            return None;
        }
        host.split('.').next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(urls: &[&str]) -> Result<(String, String), Status> {
        let add = proto::MemberAddRequest {
            peer_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            is_learner: true,
        };
        let added = member_add(&add)?;
        assert!(added.learner);
        Ok((added.name, added.peer_address))
    }

    #[test]
    fn a_url_has_the_name_and_the_address_of_a_member() {
        let is = |url: &str, name: &str, address: &str| {
            assert_eq!(
                added(&[url]),
                Ok((name.to_owned(), address.to_owned())),
                "{url}"
            );
        };
        is("https://n4@10.0.0.4:7401", "n4", "10.0.0.4:7401");
        is("http://n4@[::1]:7401", "n4", "[::1]:7401");
        is("https://n4.example.com:7401", "n4", "n4.example.com:7401");
        is(" https://n4:7401", "n4", "n4:7401");
    }

    #[test]
    fn many_urls_are_not_decoded() {
        let request = |field: u8, count| [field << 3 | 2, 1, b'x'].repeat(count);
        for (check, field) in [
            (check_member_add as fn(&[u8]) -> _, 1),
            (check_member_update, 2),
        ] {
            assert_eq!(check(&request(field, 0)), Ok(()));
            assert_eq!(check(&request(field, 1)), Ok(()));
            assert_eq!(check(&request(field, 2)), Err(BAD_MEMBER_URLS));
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for urls in [
            &[][..],
            &["https://a:1", "https://b:1"],
            &["a:1"],
            &["unix://a:1"],
            &["https://a"],
            &["https://a:x"],
            &["https://a:70000"],
            &["https://a:1/path"],
            &["https://10.0.0.4:7401"],
            &["https://[::1]:7401"],
            &["https://n4@::1:7401"],
        ] {
            assert_eq!(added(urls), Err(BAD_MEMBER_URLS), "{urls:?}");
        }
        let moved = peer_address(&["https://10.0.0.4:7401".to_owned()]);
        assert_eq!(moved.as_deref(), Ok("10.0.0.4:7401"));
    }
}
