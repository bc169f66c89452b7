//! etcd's flags, as far as they have a meaning here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Flags that need no value.
const SWITCHES: &[&str] = &[
    "client-cert-auth",
    "peer-client-cert-auth",
    "auto-tls",
    "peer-auto-tls",
    "force-new-cluster",
    "enable-v2",
    "pre-vote",
    "debug",
    "enable-pprof",
    "strict-reconfig-check",
    "experimental-initial-corrupt-check",
];
/// Flags that say what is so here without them.
const IMPLIED: &[&str] = &[
    "snapshot-count",
    "heartbeat-interval",
    "election-timeout",
    "pre-vote",
    "logger",
    "log-level",
    "log-outputs",
    "strict-reconfig-check",
    "initial-advertise-peer-urls",
    "peer-cert-file",
    "peer-key-file",
    "peer-trusted-ca-file",
    "peer-client-cert-auth",
    "peer-auto-tls",
];

/// Hosts that clients' certificates have to be for.
const ALLOWED_HOSTS: &str = "client-cert-allowed-hostname";

/// The largest `etcd_compat.max_concurrent_streams`.
const STREAMS_MAX: u32 = 4_096;

/// A host, which may be a name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What the flags say.
#[derive(Debug)]
pub(crate) struct Flags {
    pub(crate) name: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) client: Address,
    pub(crate) peer: Address,
    /// Where clients reach this node.
    pub(crate) advertised: String,
    pub(crate) members: Vec<(String, Address)>,
    pub(crate) token: String,
    /// `new` or `join`.
    pub(crate) state: &'static str,
    pub(crate) quota_bytes: Option<u64>,
    pub(crate) token_ttl: Option<String>,
    /// Calls of a connection beside each other.
    pub(crate) streams_max: Option<u32>,
    /// Files of TLS for clients by the names of our settings; none in the clear.
    pub(crate) tls: Option<Vec<(&'static str, PathBuf)>>,
    pub(crate) wants_client_certificate: bool,
    /// Hosts of which clients' certificates have to be for one; if empty, they may be for any.
    pub(crate) allowed_hosts: Vec<String>,
    /// Flags, and parts of them, that were passed over.
    pub(crate) ignored: Vec<String>,
}

impl Flags {
    /// Reads them.
    ///
    /// # Errors
    /// A sentence about the flag that is wrong.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut given = given(arguments)?;
        let mut take = |name: &str| given.remove(name);
        let name = take("name").unwrap_or_else(|| "default".to_owned());
        let data_dir = take("data-dir").unwrap_or_else(|| format!("{name}.etcd"));
        let listens =
            take("listen-client-urls").unwrap_or_else(|| "http://localhost:2379".to_owned());
        let client_url = first(&listens);
        let peers = take("listen-peer-urls").unwrap_or_else(|| "http://localhost:2380".to_owned());
        let peer_url = first(&peers);
        let advertised = take("advertise-client-urls").unwrap_or_else(|| client_url.to_owned());
        let members = take("initial-cluster").unwrap_or_else(|| format!("{name}={peer_url}"));
        let members = members.split(',').map(member).collect::<Result<_, _>>()?;
        let state = match take("initial-cluster-state").as_deref() {
            None | Some("new") => "new",
            Some("existing") => "join",
            Some(other) => {
                return Err(format!(
                    "--initial-cluster-state is {other:?}: write new, or existing"
                ));
            }
        };
        let token = take("initial-cluster-token").filter(|token| !token.is_empty());
        let mut tls = Vec::new();
        for (flag, setting) in [
            ("cert-file", "cert_file"),
            ("key-file", "key_file"),
            ("trusted-ca-file", "trusted_ca_file"),
            ("client-crl-file", "crl_file"),
        ] {
            if let Some(path) = take(flag) {
                // A configuration file names files from where it lies itself.
                let path = std::path::absolute(&path).map_err(|error| error.to_string())?;
                tls.push((setting, path));
            }
        }
        let quota_bytes = take("quota-backend-bytes").and_then(|bytes| bytes.parse().ok());
        let mut token_ttl = take("auth-token-ttl").map(|seconds| format!("{seconds}s"));
        let tokens = tokens(&take("auth-token").unwrap_or_else(|| "simple".to_owned()))?;
        token_ttl = tokens.ttl.or(token_ttl);
        let streams_max = take("max-concurrent-streams").map(|count| streams(&count));
        let streams_max = streams_max.transpose()?;
        let wants_client_certificate = take("client-cert-auth").is_some_and(|is| is != "false");
        let asks_for_certificates = wants_client_certificate
            || tls.iter().any(|(setting, _)| *setting == "trusted_ca_file");
        let allowed_hosts = match client_url.starts_with("https://") && asks_for_certificates {
            true => take(ALLOWED_HOSTS).map(|hosts| hosts_of(&hosts)),
            // Without certificates of clients it means nothing to etcd, too, and is named with the others.
            false => None,
        };
        given.retain(|flag, _| !IMPLIED.contains(&flag.as_str()));
        let flags = given.into_keys().map(|flag| format!("--{flag}"));
        Ok(Self {
            data_dir: data_dir.into(),
            client: address(client_url)?,
            peer: address(peer_url)?,
            advertised: address(first(&advertised))?.to_string(),
            members,
            token: token.unwrap_or_else(|| "etcd-cluster".to_owned()),
            state,
            quota_bytes,
            token_ttl,
            streams_max,
            tls: client_url.starts_with("https://").then_some(tls),
            wants_client_certificate,
            allowed_hosts: allowed_hosts.unwrap_or_default(),
            ignored: flags.chain(tokens.ignored).collect(),
            name,
        })
    }
}

/// What `--auth-token` says of tokens, which are leasehold's own whatever it says: clients do not look into them.
#[derive(Debug, Default)]
struct Tokens {
    ttl: Option<String>,
    /// How another etcd would sign them.
    ignored: Vec<String>,
}

fn tokens(text: &str) -> Result<Tokens, String> {
    let mut options = text.split(',');
    let kind = options.next().unwrap_or_default();
    if !["simple", "jwt"].contains(&kind) {
        return Err(format!("--auth-token is {kind:?}: write simple, or jwt"));
    }
    let mut tokens = Tokens::default();
    let mut names = Vec::new();
    for option in options {
        let name = option.split_once('=').map(|(name, _)| name);
        match (kind, name) {
            ("jwt", Some("ttl")) => tokens.ttl = Some(option["ttl=".len()..].to_owned()),
            ("jwt", Some("pub-key" | "priv-key" | "sign-method")) => {
                tokens.ignored.push(format!("{option} of --auth-token"));
            }
            _ => return Err(format!("{option:?} in --auth-token is no option of {kind}")),
        }
        names.extend(name);
    }
    // Such an etcd takes tokens that somebody else signs, and makes none.
    if names.contains(&"pub-key") && !names.contains(&"priv-key") {
        return Err(
            "--auth-token has a pub-key and no priv-key: for tokens that others sign, see auth.oidc.issuer"
                .to_owned(),
        );
    }
    Ok(tokens)
}

/// As many as a node takes at most; etcd takes more. To the gRPC of Go, 0 is no limit.
fn streams(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Ok(STREAMS_MAX),
        Ok(count) => Ok(count.min(STREAMS_MAX)),
        Err(_) => Err(format!(
            "--max-concurrent-streams is {text:?}: write a number, or 0 for as many as there may be"
        )),
    }
}

/// The flags with their values, `true` for a switch.
fn given(arguments: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut given = BTreeMap::new();
    let mut arguments = arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix('-') else {
            return Err(format!("{argument:?} is no flag"));
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, value.to_owned()),
            None if SWITCHES.contains(&flag) => (flag, "true".to_owned()),
            None => {
                let value = arguments.next();
                (
                    flag,
                    value
                        .ok_or_else(|| format!("--{flag} needs a value"))?
                        .clone(),
                )
            }
        };
        given.insert(flag.to_owned(), value);
    }
    Ok(given)
}

/// Several from etcd 3.6 on.
fn hosts_of(text: &str) -> Vec<String> {
    let hosts = text.split(',').map(str::trim);
    hosts
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The first of several URLs: a node has one port here.
fn first(urls: &str) -> &str {
    urls.split(',').next().unwrap_or_default()
}

fn member(text: &str) -> Result<(String, Address), String> {
    let (name, url) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} in --initial-cluster is not NAME=URL"))?;
    Ok((name.to_owned(), address(url)?))
}

/// The host and port of a URL. A node listens on addresses, so `localhost` is one.
fn address(url: &str) -> Result<Address, String> {
    let wrong = || format!("{url:?} is no URL such as http://127.0.0.1:2379");
    let (_, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (host, port) = rest
        .trim_end_matches('/')
        .rsplit_once(':')
        .ok_or_else(wrong)?;
    let host = if host == "localhost" {
        "127.0.0.1"
    } else {
        host
    };
    Ok(Address {
        host: host.to_owned(),
        port: port.parse().map_err(|_| wrong())?,
    })
}
