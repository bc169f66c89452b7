use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use super::*;

/// A file that is complete; `extra` is put at its end.
fn complete(extra: &str) -> String {
    format!(
        r#"[node]
name = "n1"
data_dir = "data"
[cluster]
initial = ["n1=10.0.0.1:7401", "n2=10.0.0.2:7401", "n3=n3.example.org:7401"]
[tls.client]
cert_file = "pki/n1-server.pem"
key_file = "/etc/n1-server.key"
trusted_ca_file = "pki/client-ca.pem"
[tls.peer]
cert_file = "pki/n1-peer.pem"
key_file = "pki/n1-peer.key"
trusted_ca_file = "pki/peer-ca.pem"
{extra}"#
    )
}

/// The line on which `extra` of [`complete`] begins.
const EXTRA_LINE: usize = 14;

struct File {
    directory: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("leasehold.toml"), text).unwrap();
        Self { directory }
    }

    fn sources(&self) -> ConfigSources {
        ConfigSources {
            file: Some(self.directory.path().join("leasehold.toml")),
            ..ConfigSources::default()
        }
    }

    /// What is wrong with the file, with the directory's own name left out.
    fn complaint(&self, sources: ConfigSources) -> String {
        let error = Config::load(sources).expect_err("this must be refused");
        let directory = format!("{}/", self.directory.path().display());
        error.to_string().replace(&directory, "")
    }
}

fn load(text: &str) -> Config {
    Config::load(File::new(text).sources()).expect("this is valid")
}

fn complaint(text: &str) -> String {
    let file = File::new(text);
    file.complaint(file.sources())
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn complaint_about_flags(flags: &[(&str, &str)]) -> String {
    let file = File::new(&complete(""));
    file.complaint(ConfigSources {
        flags: pairs(flags),
        ..file.sources()
    })
}

#[test]
fn a_file_with_the_bare_necessities_has_the_documented_defaults() {
    let file = File::new(&complete(""));
    let config = Config::load(file.sources()).unwrap();
    let directory = file.directory.path();
    assert_eq!(config.node.name, "n1");
    assert_eq!(config.node.data_dir, directory.join("data"));
    assert_eq!(
        config.tls.client.cert_file,
        directory.join("pki/n1-server.pem")
    );
    assert_eq!(
        config.tls.client.key_file,
        PathBuf::from("/etc/n1-server.key")
    );
    assert_eq!(config.listen.client, "0.0.0.0:7400".parse().unwrap());
    assert_eq!(config.listen.peer, "0.0.0.0:7401".parse().unwrap());
    assert_eq!(config.listen.admin, "127.0.0.1:7480".parse().unwrap());
    assert_eq!(config.listen.metrics, None);
    assert_eq!(config.advertise.client.as_deref(), Some("10.0.0.1:7400"));
    assert_eq!(config.advertise.peer.as_deref(), Some("10.0.0.1:7401"));
    let names: Vec<_> = config
        .cluster
        .initial
        .iter()
        .map(|member| member.name.as_str())
        .collect();
    assert_eq!(names, ["n1", "n2", "n3"]);
    assert_eq!(config.timing.lease_duration, Duration::from_millis(500));
    assert_eq!(config.timing.max_clock_skew, Duration::from_millis(50));
    assert_eq!(config.timing.heartbeat_interval, Duration::from_millis(50));
    assert_eq!(
        config.timing.election_timeout_min,
        Duration::from_millis(550)
    );
    assert_eq!(
        config.timing.election_timeout_max,
        Duration::from_millis(1_000)
    );
    assert_eq!(config.timing.step_down_after, Duration::from_millis(750));
    assert_eq!(config.snapshots.entries, 10_000);
    assert_eq!(config.snapshots.catchup_entries, 5_000);
    assert_eq!(config.snapshots.log_bytes, 256 << 20);
    assert_eq!(config.snapshots.send_bytes_per_second, 64 << 20);
    assert_eq!(config.timing.max_drift_ppm, 20_000);
    assert!(config.timing.lease_enabled);
    assert!(!config.timing.read_lease_enabled);
    assert_eq!(config.limits, Limits::DEFAULT);
    assert_eq!(config.leases, LeaseOptions::DEFAULT);
    assert_eq!(config.work.in_flight_max, 4_096);
    assert_eq!(config.work, AdmissionOptions::DEFAULT);
    assert_eq!(config.connections, Admission::DEFAULT);
    let quota = QuotaConfig {
        bytes: 8 << 30,
        warn_ratio: 0.8,
    };
    assert_eq!(config.quota, quota);
    assert_eq!(config.storage.cache_bytes, 256 << 20);
    let retention = Duration::from_secs(3_600);
    let compaction = CompactionConfig {
        auto: AutoCompaction::Periodic { retention },
        batch_limit: 1000,
        sleep_interval: Duration::from_millis(10),
    };
    assert_eq!(config.compaction, compaction);
    assert_eq!(config.storage.segment_bytes, 64 << 20);
    assert_eq!(config.observability.log.format, LogFormat::Json);
    assert_eq!(config.observability.log.filter, "info");
    assert_eq!(
        config.observability.log.slow_request,
        Some(Duration::from_millis(100))
    );
    let untraced = TracingConfig {
        collector: None,
        sample_ratio: 0.0,
    };
    assert_eq!(config.observability.tracing, untraced);
    assert!(!config.observability.profiling);
}

#[test]
fn flags_beat_the_environment_which_beats_the_file_which_beats_the_default() {
    let extra =
        "[limits]\nmax_inflight = 1\nmax_key_bytes = \"1KiB\"\nmax_value_bytes = \"2KiB\"\n";
    let file = File::new(&complete(extra));
    let config = Config::load(ConfigSources {
        env: pairs(&[
            ("LEASEHOLD_LIMITS_MAX_INFLIGHT", "2"),
            ("LEASEHOLD_LIMITS_MAX_KEY_BYTES", "3KiB"),
            ("LEASEHOLD_TLS_PEER_CERT_FILE", "elsewhere.pem"),
        ]),
        flags: pairs(&[("limits.max_inflight", "3")]),
        ..file.sources()
    })
    .unwrap();
    assert_eq!(config.work.in_flight_max, 3);
    assert_eq!(config.limits.key_bytes_max, 3 << 10);
    assert_eq!(config.limits.value_bytes_max, 2 << 10);
    assert_eq!(config.limits.request_bytes_max, 1_536 << 10);
    // Only paths of the file start at its directory.
    assert_eq!(config.tls.peer.cert_file, PathBuf::from("elsewhere.pem"));
}

#[test]
fn paths_of_the_file_that_may_be_left_out_start_at_its_directory_too() {
    let file = File::new(&complete(
        "crl_file = \"pki/peer.crl\"\n[auth]\naudit_file = \"audit.log\"\n",
    ));
    let config = Config::load(file.sources()).unwrap();
    let directory = file.directory.path();
    assert_eq!(
        config.tls.peer.crl_file,
        Some(directory.join("pki/peer.crl"))
    );
    assert_eq!(config.auth.audit_file, Some(directory.join("audit.log")));
    assert_eq!(config.tls.client.crl_file, None);
}

#[test]
fn every_key_can_be_given_without_a_file() {
    let given = pairs(&[
        ("node.name", "n2"),
        ("node.data_dir", "/data"),
        ("node.vm_clock", "/dev/vmclock1"),
        ("listen.client", "127.0.0.1:0"),
        ("listen.peer", "10.0.0.2:1"),
        ("listen.admin", "[::1]:0"),
        ("listen.metrics", "0.0.0.0:9"),
        ("listen.etcd", "0.0.0.0:10"),
        ("advertise.client", "db.example.org:1"),
        ("advertise.peer", "10.0.0.2:1"),
        ("advertise.etcd", "db.example.org:2379"),
        ("cluster.initial", "n1=10.0.0.1:1, n2=10.0.0.2:1"),
        ("cluster.state", "join"),
        ("raft.heartbeat_interval", "100ms"),
        ("raft.election_timeout_min", "1100ms"),
        ("raft.election_timeout_max", "2s"),
        ("raft.step_down_after", "1500ms"),
        ("raft.snapshot_entries", "20"),
        ("raft.snapshot_catchup_entries", "10"),
        ("raft.snapshot_bytes", "8MiB"),
        ("raft.snapshot_send_rate", "1MiB"),
        ("leader_lease.enabled", "false"),
        ("read_lease.enabled", "true"),
        ("read_lease.max_write_delay", "80ms"),
        ("leader_lease.duration", "1s"),
        ("leader_lease.max_clock_skew", "100ms"),
        ("leader_lease.max_drift_ppm", "10000"),
        ("lease.min_ttl", "1s"),
        ("lease.max_ttl", "1d"),
        ("lease.max_keys", "6"),
        ("lease.max_per_user", "4"),
        ("lease.tick", "20ms"),
        ("lease.checkpoint_min_ttl", "10m"),
        ("lease.checkpoint_interval", "30s"),
        ("lease.max_leases", "5"),
        ("limits.max_request_bytes", "1MiB"),
        ("limits.max_key_bytes", "1KiB"),
        ("limits.max_value_bytes", "512KiB"),
        ("limits.max_inflight", "7"),
        ("limits.max_waiting", "100"),
        ("limits.memory_budget", "8MiB"),
        ("limits.connection_memory_budget", "7MiB"),
        ("limits.max_request_rate_per_user", "17"),
        ("limits.max_connections", "11"),
        ("limits.max_connections_per_client", "12"),
        ("limits.max_connections_per_address", "13"),
        ("limits.max_handshakes", "16"),
        ("limits.max_handshake_rate", "15"),
        ("quota.bytes", "1GiB"),
        ("quota.warn_ratio", "0.5"),
        ("compaction.mode", "revision"),
        ("compaction.retention", "5000"),
        ("compaction.batch_limit", "50"),
        ("compaction.sleep_interval", "3ms"),
        ("watch.progress_notify_interval", "1s"),
        ("lease.min_ttl", "1s"),
        ("lease.tick", "20ms"),
        ("lease.checkpoint_min_ttl", "10m"),
        ("lease.checkpoint_interval", "2m"),
        ("lease.max_leases", "5"),
        ("watch.max_per_connection", "9"),
        ("watch.memory_budget", "2MiB"),
        ("storage.cache_bytes", "8MiB"),
        ("storage.corruption_check_interval", "10s"),
        ("storage.segment_bytes", "8MiB"),
        ("tls.client.cert_file", "a"),
        ("tls.client.key_file", "b"),
        ("tls.client.trusted_ca_file", "c"),
        ("tls.reload_interval", "1m"),
        ("tls.peer.cert_file", "d"),
        ("tls.peer.key_file", "e"),
        ("tls.peer.trusted_ca_file", "f"),
        ("tls.client.crl_file", "g"),
        ("tls.client.allowed_sans", "billing, ops"),
        ("tls.etcd.cert_file", "j"),
        ("tls.etcd.key_file", "k"),
        ("tls.etcd.trusted_ca_file", "l"),
        ("tls.etcd.crl_file", "m"),
        ("tls.etcd.allowed_sans", "web"),
        ("tls.etcd.client_cert_auth", "true"),
        ("etcd_compat.insecure", "false"),
        ("etcd_compat.emulated_version", "3.5.13"),
        ("etcd_compat.max_reply_bytes", "4MiB"),
        ("etcd_compat.max_concurrent_streams", "7"),
        ("etcd_compat.http_gateway", "false"),
        ("console.enabled", "false"),
        ("tls.peer.crl_file", "h"),
        ("tls.peer.allowed_sans", "n1"),
        ("tls.spiffe.trust_domain", "example.org"),
        ("tls.spiffe.users", "/db=root, /ns/*/sa/*=*/*"),
        ("cluster.discovery_srv", "example.org"),
        ("cluster.discovery_srv_name", "blue"),
        ("cluster.discovery_size", "5"),
        ("cluster.discovery_dns", "10.0.0.53:53"),
        ("auth.token_ttl", "7m"),
        ("auth.audit_file", "i"),
        ("auth.oidc.issuer", "https://login.example.org"),
        ("auth.oidc.audience", "leasehold"),
        ("auth.oidc.jwks_file", "n"),
        ("auth.oidc.user_claim", "email"),
        ("auth.oidc.user_prefix", "sso:"),
        ("auth.oidc.leeway", "1m"),
        ("backup.schedule", "6h"),
        ("backup.dir", "/backups"),
        ("backup.keep", "3"),
        ("admin.profiling", "true"),
        ("log.format", "text"),
        ("log.filter", "debug"),
        ("log.slow_request", "0s"),
        ("tracing.otlp_endpoint", "http://otel.example.org:4318"),
        ("tracing.sample_ratio", "0.25"),
    ]);
    let keys: BTreeSet<_> = given.iter().map(|(key, _)| key.as_str()).collect();
    let table: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.key).collect();
    assert_eq!(keys, table, "this test names every key");
    let by_flags = Config::load(ConfigSources {
        flags: given.clone(),
        ..ConfigSources::default()
    })
    .unwrap();
    let as_variable = |(key, value): (String, String)| (environment_variable(&key), value);
    let by_environment = Config::load(ConfigSources {
        env: given.into_iter().map(as_variable).collect(),
        ..ConfigSources::default()
    })
    .unwrap();
    assert_eq!(by_flags, by_environment);
    assert_eq!(by_flags.timing.lease_duration, Duration::from_secs(1));
    assert!(!by_flags.timing.lease_enabled);
    assert!(by_flags.timing.read_lease_enabled);
    assert_eq!(by_flags.leases.leases_max, 5);
    assert_eq!(by_flags.leases.keys_max, 6);
    assert_eq!(by_flags.leases.ttl_max, Duration::from_secs(24 * 3_600));
    assert_eq!(by_flags.leases.tick, Duration::from_millis(20));
    assert_eq!(by_flags.listen.metrics, Some("0.0.0.0:9".parse().unwrap()));
    assert_eq!(
        by_flags.advertise.client.as_deref(),
        Some("db.example.org:1")
    );
    assert_eq!(by_flags.observability.log.format, LogFormat::Text);
    assert_eq!(by_flags.observability.log.slow_request, None);
    let connections = Admission {
        connections_max: 11,
        per_identity_max: 12,
        per_address_max: 13,
        handshakes_before_retry: 4,
        handshakes_max: 16,
        per_network_per_second_max: 15,
    };
    assert_eq!(by_flags.connections, connections);
    let work = AdmissionOptions {
        in_flight_max: 7,
        waiting_max: 100,
        bytes_max: 8 << 20,
        connection_bytes_max: 7 << 20,
        user_rate_max: 17,
    };
    assert_eq!(by_flags.work, work);
    let quota = QuotaConfig {
        bytes: 1 << 30,
        warn_ratio: 0.5,
    };
    assert_eq!(by_flags.quota, quota);
    assert_eq!(by_flags.auth.token_ttl, Duration::from_secs(7 * 60));
    assert_eq!(by_flags.tls.client.allowed_sans, ["billing", "ops"]);
    assert_eq!(by_flags.tls.peer.crl_file, Some(PathBuf::from("h")));
    let oidc = OidcConfig {
        issuer: "https://login.example.org".to_owned(),
        audience: "leasehold".to_owned(),
        jwks_file: "n".into(),
        user_claim: "email".to_owned(),
        user_prefix: "sso:".to_owned(),
        leeway: Duration::from_secs(60),
    };
    assert_eq!(by_flags.auth.oidc, Some(oidc));
    let spiffe = by_flags.tls.client.spiffe.clone().unwrap();
    assert_eq!(
        (spiffe.trust_domain.as_str(), spiffe.rules.len()),
        ("example.org", 2)
    );
    assert_eq!(by_flags.tls.peer.spiffe, None);
    let etcd = by_flags.tls.etcd.unwrap();
    let files = TlsFiles {
        cert_file: "j".into(),
        key_file: "k".into(),
        trusted_ca_file: "l".into(),
        crl_file: Some("m".into()),
        allowed_sans: vec!["web".to_owned()],
        spiffe: by_flags.tls.client.spiffe.clone(),
    };
    let tls = EtcdTlsConfig {
        files,
        client_cert_auth: true,
    };
    let expected = EtcdConfig {
        address: "0.0.0.0:10".parse().unwrap(),
        tls: Some(tls),
        emulated_version: "3.5.13".to_owned(),
        max_reply_bytes: 4 << 20,
        max_concurrent_streams: 7,
        http_gateway: false,
        console: false,
    };
    assert_eq!(etcd, expected);
    let backup = by_flags.backup.unwrap();
    assert_eq!(backup.interval, Duration::from_secs(6 * 3_600));
    assert_eq!((backup.dir, backup.keep), (PathBuf::from("/backups"), 3));
    let collector = by_flags.observability.tracing.collector.unwrap();
    assert_eq!(
        collector.to_string(),
        "http://otel.example.org:4318/v1/traces"
    );
    assert_eq!(by_flags.observability.tracing.sample_ratio, 0.25);
    assert!(by_flags.observability.profiling);
}

#[test]
fn a_share_of_requests_is_traced_by_a_collector_that_can_be_spoken_to() {
    let given = |line: &str| complete(&format!("[tracing]\n{line}\n"));
    for (ratio, share) in [("0", 0.0), ("0.001", 0.001), ("1", 1.0)] {
        let config = load(&given(&format!("sample_ratio = {ratio}")));
        assert_eq!(config.observability.tracing.sample_ratio, share);
    }
    for wrong in ["-0.1", "1.5", "nan", "\"10%\""] {
        let said = complaint(&given(&format!("sample_ratio = {wrong}")));
        assert!(said.contains("tracing.sample_ratio"), "{wrong}: {said}");
    }
    assert_eq!(
        complaint(&given("otlp_endpoint = \"https://otel:4318\"")),
        format!(
            "leasehold.toml:{}: tracing.otlp_endpoint = `https://otel:4318`: traces are sent in \
             plain HTTP: run a collector on this machine that forwards them over TLS, and name it \
             here, for example http://127.0.0.1:4318",
            EXTRA_LINE + 1
        )
    );
}

#[test]
fn the_port_for_etcd_s_clients_is_off_and_under_tls_unless_that_is_asked_for() {
    let given = |more: &str| complete(more);
    assert_eq!(load(&given("")).tls.etcd, None);
    let with = |more: &str| format!("[etcd_compat]\n{more}\n[tls.etcd]\nclient_cert_auth = true\n");
    assert_eq!(load(&given(&with(""))).tls.etcd, None);
    let listening = |more: &str| {
        given(&with(more)).replacen("[node]", "[listen]\netcd = \"127.0.0.1:2379\"\n[node]", 1)
    };
    let config = load(&listening(""));
    let etcd = config.tls.etcd.unwrap();
    // The certificates of the native port, unless others are named.
    let tls = etcd.tls.unwrap();
    assert_eq!(tls.files.cert_file, config.tls.client.cert_file);
    assert_eq!(tls.files.trusted_ca_file, config.tls.client.trusted_ca_file);
    assert!(tls.client_cert_auth);
    let in_the_clear = load(&listening("insecure = true")).tls.etcd.unwrap();
    assert_eq!(in_the_clear.tls, None);
    for wrong in ["3.6", "3.6.x", "3.6.14.1", "v3.6.14", "-3.6.1"] {
        let said = complaint(&listening(&format!("emulated_version = \"{wrong}\"")));
        assert!(said.contains("three numbers"), "{wrong}: {said}");
    }
}

#[test]
fn spiffe_ids_are_accepted_of_one_trust_domain_by_rules_that_can_be_meant() {
    let with = |lines: &str| complaint(&complete(&format!("[tls.spiffe]\n{lines}\n")));
    let said = with("trust_domain = \"Example.org\"");
    assert!(
        said.contains("the trust domain \"Example.org\" is not valid"),
        "{said}"
    );
    let said = with("users = [\"/a=b\"]");
    assert!(said.contains("tls.spiffe.trust_domain is not"), "{said}");
    let said = with("trust_domain = \"a\"\nusers = [\"/a=b\", \"/*/*=*-*\"]");
    assert!(
        said.contains("`/*/*=*-*`: between two * of the user"),
        "{said}"
    );
    let config = load(&complete("[tls.spiffe]\ntrust_domain = \"a\"\n"));
    assert!(config.tls.client.spiffe.is_some());
    assert_eq!(config.tls.peer.spiffe, None);
}

#[test]
fn an_issuer_of_tokens_needs_an_audience_and_keys() {
    let with = |lines: &str| complaint(&complete(&format!("[auth.oidc]\n{lines}\n")));
    let said = with("issuer = \"https://a\"");
    assert!(said.contains("auth.oidc.audience is not"), "{said}");
    let said = with("issuer = \"https://a\"\naudience = \"b\"");
    assert!(said.contains("auth.oidc.jwks_file is not"), "{said}");
    for alone in ["audience = \"b\"", "jwks_file = \"c\""] {
        let said = with(alone);
        assert!(said.contains("auth.oidc.issuer is not set"), "{said}");
    }
    let said = with("leeway = \"6m\"");
    assert!(said.contains("at most 5m"), "{said}");
    let lines = "issuer = \"https://a\"\naudience = \"b\"\njwks_file = \"c\"\n";
    let oidc = load(&complete(&format!("[auth.oidc]\n{lines}")))
        .auth
        .oidc
        .unwrap();
    assert_eq!(
        (oidc.user_claim.as_str(), oidc.user_prefix.as_str()),
        ("sub", "oidc:")
    );
    let bare = load(&complete(&format!(
        "[auth.oidc]\n{lines}user_prefix = \"\"\n"
    )));
    assert_eq!(bare.auth.oidc.unwrap().user_prefix, "");
}

#[test]
fn members_may_be_found_by_dns_where_they_are_not_given() {
    let text = |lines: &str| {
        complete("").replace("[cluster]\ninitial", &format!("[cluster]\n{lines}\nold"))
    };
    let without = |lines: &str| {
        let text = text(lines);
        let others = text.lines().filter(|line| !line.starts_with("old"));
        others.collect::<Vec<_>>().join("\n")
    };
    let named = "discovery_srv = \"example.org\"\ndiscovery_srv_name = \"blue\"";
    let cluster = load(&without(named)).cluster;
    let found = cluster.discovery.unwrap();
    assert_eq!(found.service, "_leasehold-server-blue._udp.example.org");
    assert_eq!((found.size, found.dns), (3, None));
    let cluster = load(&complete("").replace("[cluster]", &format!("[cluster]\n{named}"))).cluster;
    assert_eq!(cluster.discovery, None, "what is given is not looked for");
    assert_eq!(cluster.initial.len(), 3);
    let said = complaint(&without("discovery_srv = \"a b\""));
    assert!(said.contains("is not a domain"), "{said}");
    let said = complaint(&without("discovery_srv_name = \"blue\""));
    assert!(said.contains("cluster.discovery_srv is not"), "{said}");
    let said = complaint(&without("discovery_srv = \"a\"\ndiscovery_size = 0"));
    assert!(said.contains("discovery_size"), "{said}");
}

#[test]
fn a_ratio_is_a_part_of_a_whole() {
    let given = |ratio: &str| complete(&format!("[quota]\nwarn_ratio = {ratio}\n"));
    assert_eq!(load(&given("0.95")).quota.warn_ratio, 0.95);
    assert_eq!(load(&given("1")).quota.warn_ratio, 1.0);
    for wrong in ["0", "1.01", "-0.5", "nan", "0.0"] {
        let said = complaint(&given(wrong));
        assert!(said.contains("quota.warn_ratio"), "{wrong}: {said}");
    }
    let said = complaint(&given("\"80%\""));
    assert!(said.contains("0.8, without quotes"), "{said}");
}

#[test]
fn backups_need_a_schedule_and_a_place() {
    let plain = complete("");
    assert_eq!(load(&plain).backup, None);
    let nowhere = complaint(&complete("[backup]\nschedule = \"1h\"\n"));
    assert!(nowhere.contains("backup.dir"), "{nowhere}");
    let never = complaint(&complete("[backup]\ndir = \"b\"\n"));
    assert!(never.contains("backup.schedule"), "{never}");
    let too_often = complaint(&complete("[backup]\nschedule = \"1ms\"\ndir = \"b\"\n"));
    assert!(too_often.contains("backup.schedule"), "{too_often}");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
    let line = EXTRA_LINE + 2;
    assert_eq!(
        complaint(&complete(
            "[raft]\nheartbeat_interval = \"50ms\"\nelection_timeout = \"1s\"\n"
        )),
        format!(
            "leasehold.toml:{}: unknown key `raft.election_timeout`: did you mean \
             `raft.election_timeout_min`?",
            line
        )
    );
    assert_eq!(
        complaint(&complete("[raft]\nmax_clock_skew = \"50ms\"\n")),
        format!(
            "leasehold.toml:{}: unknown key `raft.max_clock_skew`: did you mean \
             `leader_lease.max_clock_skew`?",
            line - 1
        )
    );
    assert_eq!(
        complaint(&complete("[proxy]\nupstream_pool = true\n")),
        format!(
            "leasehold.toml:{}: unknown key `proxy.upstream_pool`: `leasehold serve --help` \
             lists all keys",
            line - 1
        )
    );
    assert_eq!(
        complaint(&complete("[proxy]\n")),
        format!(
            "leasehold.toml:{EXTRA_LINE}: unknown key `proxy`: `leasehold serve --help` \
             lists all keys"
        )
    );
    assert!(
        complaint(&format!("name = \"n1\"\n{}", complete("")))
            .starts_with("leasehold.toml:1: unknown key `name`: did you mean `node.name`?")
    );
}

#[test]
fn an_unknown_flag_or_variable_is_named_with_the_nearest_key() {
    assert_eq!(
        complaint_about_flags(&[("raft.hartbeat_interval", "50ms")]),
        "flag --raft.hartbeat_interval: unknown key `raft.hartbeat_interval`: did you mean \
         `raft.heartbeat_interval`?"
    );
    let file = File::new(&complete(""));
    let sources = ConfigSources {
        env: pairs(&[("LEASEHOLD_RAFT_HEARTBEAT", "50ms")]),
        ..file.sources()
    };
    assert_eq!(
        file.complaint(sources),
        "environment variable LEASEHOLD_RAFT_HEARTBEAT: unknown key `LEASEHOLD_RAFT_HEARTBEAT`: \
         did you mean `raft.heartbeat_interval`?"
    );
}

#[test]
fn variables_of_the_client_and_of_container_platforms_are_left_alone() {
    let file = File::new(&complete(""));
    let loaded = Config::load(ConfigSources {
        env: pairs(&[
            ("PATH", "/bin"),
            ("LEASEHOLD_ENDPOINTS", "10.0.0.1:7400"),
            ("LEASEHOLD_SERVICE_HOST", "10.0.0.1"),
            ("LEASEHOLD_NODE_SERVICE_HOST", "10.0.0.1"),
            ("LEASEHOLD_NODE_SERVICE_PORT_PEER", "7401"),
            ("LEASEHOLD_NODE_PORT", "udp://10.0.0.1:7400"),
            ("LEASEHOLD_NODE_PORT_7400_UDP_ADDR", "10.0.0.1"),
        ]),
        ..file.sources()
    });
    assert!(loaded.is_ok(), "{loaded:?}");
}

#[test]
fn a_file_that_is_missing_or_is_not_toml_is_named_with_the_line() {
    let missing = Config::load(ConfigSources {
        file: Some("/nonexistent/leasehold.toml".into()),
        ..ConfigSources::default()
    });
    assert_eq!(
        missing.unwrap_err().to_string(),
        "cannot read the configuration file /nonexistent/leasehold.toml: No such file or \
         directory (os error 2)"
    );
    let broken = complaint("[node]\nname = n1\n");
    assert!(broken.starts_with("leasehold.toml:2: "), "{broken}");
    let twice = complaint("[node]\nname = \"n1\"\nname = \"n2\"\n");
    assert!(twice.starts_with("leasehold.toml:3: "), "{twice}");
}

#[test]
fn wrong_durations_sizes_numbers_and_types_are_refused_with_what_would_be_right() {
    let line = EXTRA_LINE + 1;
    for (extra, expected) in [
        (
            "[raft]\nheartbeat_interval = \"50 parsecs\"\n",
            "raft.heartbeat_interval = `50 parsecs`: write a number and a unit, for example 50ms \
             or 1s",
        ),
        (
            "[raft]\nheartbeat_interval = 50\n",
            "raft.heartbeat_interval is a number, and must be a duration such as \"50ms\"",
        ),
        (
            "[raft]\nstep_down_after = \"2h\"\n",
            "raft.step_down_after = `2h`: at most 1h is allowed",
        ),
        (
            "[limits]\nmax_value_bytes = \"1 megabyte\"\n",
            "limits.max_value_bytes = `1 megabyte`: write a number and a unit, for example 8KiB, \
             1.5MiB or 1GiB",
        ),
        (
            "[limits]\nmax_key_bytes = \"17KiB\"\n",
            "limits.max_key_bytes = `17KiB`: choose between 1B and 16KiB",
        ),
        (
            "[limits]\nmax_inflight = 0\n",
            "limits.max_inflight = `0`: choose a whole number between 1 and 65536",
        ),
        (
            "[leader_lease]\nmax_drift_ppm = 20001\n",
            "leader_lease.max_drift_ppm = `20001`: choose a whole number between 1 and 20000",
        ),
        (
            "[watch]\nprogress_notify_interval = \"0s\"\n",
            "watch.progress_notify_interval = `0s`: choose at least 100ms",
        ),
        (
            "[limits]\nmax_inflight = \"many\"\n",
            "limits.max_inflight is a string, and must be a whole number, without quotes",
        ),
        (
            "[leader_lease]\nenabled = \"yes\"\n",
            "leader_lease.enabled is a string, and must be true or false, without quotes",
        ),
        (
            "[log]\nformat = \"xml\"\n",
            "log.format = `xml`: choose json or text",
        ),
        (
            "[log]\nfilter = 1.5\n",
            "log.filter is a number with a fraction, and must be a string in quotes",
        ),
        (
            "[listen]\nclient = \"localhost:7400\"\n",
            "listen.client = `localhost:7400`: write an IP address and a port, for example \
             0.0.0.0:7400 or [::1]:7400",
        ),
        (
            "[advertise]\nclient = \"0.0.0.0:7400\"\n",
            "advertise.client = `0.0.0.0:7400`: `0.0.0.0:7400` stands for all addresses of \
             this machine and cannot be dialled: give the one by which others reach it",
        ),
        (
            "[advertise]\nclient = \"10.0.0.1:0\"\n",
            "advertise.client = `10.0.0.1:0`: `10.0.0.1:0` has port 0, which cannot be \
             dialled: give the actual port",
        ),
        (
            "[listen]\nadmin = \"0.0.0.0:7480\"\n",
            "listen.admin = `0.0.0.0:7480`: the admin port can change the node and is only served \
             on loopback: use an address such as 127.0.0.1:7480 here, and listen.metrics for \
             probes and metrics from other machines",
        ),
    ] {
        assert_eq!(
            complaint(&complete(extra)),
            format!("leasehold.toml:{line}: {expected}")
        );
    }
}

#[test]
fn what_is_needed_and_missing_is_named_with_the_three_ways_to_give_it() {
    assert_eq!(
        complaint(""),
        "node.name is not set. Name of this node, as in its certificates. Set it in the \
         configuration file, in LEASEHOLD_NODE_NAME or with --node.name"
    );
    let without = complete("").replace("key_file = \"pki/n1-peer.key\"\n", "");
    assert_eq!(
        complaint(&without),
        "tls.peer.key_file is not set. Private key of tls.peer.cert_file (PEM). Set it in the \
         configuration file, in LEASEHOLD_TLS_PEER_KEY_FILE or with --tls.peer.key_file"
    );
}

#[test]
fn a_cluster_is_refused_whose_names_or_addresses_do_not_add_up() {
    let with = |initial: &str| {
        complaint(&complete("").replace(
            "initial = [\"n1=10.0.0.1:7401\", \"n2=10.0.0.2:7401\", \"n3=n3.example.org:7401\"]",
            &format!("initial = [{initial}]"),
        ))
    };
    assert_eq!(
        with("\"n1=10.0.0.1:7401\",\n\"n2=10.0.0.2:7401\",\n\"n2=10.0.0.3:7401\""),
        "leasehold.toml:7: cluster.initial names `n2` twice: every node needs a name of its own"
    );
    assert_eq!(
        with("\"n1=10.0.0.1:7401\",\n\"n2=10.0.0.1:7401\""),
        "leasehold.toml:6: cluster.initial gives `n1` and `n2` the same address 10.0.0.1:7401: \
         every node needs an address of its own"
    );
    assert_eq!(
        with("\"n2=10.0.0.2:7401\", \"n3=10.0.0.3:7401\""),
        "leasehold.toml:5: cluster.initial does not list this node: node.name is `n1`, the members \
         are n2, n3; correct the name, or add `n1=host:port`"
    );
    assert_eq!(
        with("\"n1=10.0.0.1:7401\", \"n2\""),
        "leasehold.toml:5: cluster.initial = `n2`: write name=host:port, for example \
         n1=10.0.0.1:7401"
    );
    assert_eq!(
        with("\"n1=10.0.0.1\""),
        "leasehold.toml:5: cluster.initial = `n1=10.0.0.1`: `10.0.0.1` is not an address: write \
         host:port, for example 10.0.0.1:7401, [fd00::1]:7401 or db1.example.org:7401"
    );
    assert_eq!(
        with("\"n1=10.0.0.1:7401\", \"n/2=10.0.0.2:7401\""),
        "leasehold.toml:5: cluster.initial = `n/2=10.0.0.2:7401`: `n/2` is not a valid node name: a \
         name has 1 to 64 of a-z A-Z 0-9 . _ - and starts with a letter or digit"
    );
    assert_eq!(
        with("1"),
        "leasehold.toml:5: cluster.initial is a number, and must be a list of strings in quotes"
    );
    assert_eq!(
        complaint_about_flags(&[("node.name", "n 1")]),
        "flag --node.name: node.name = `n 1`: a name has 1 to 64 of a-z A-Z 0-9 . _ - and starts \
         with a letter or digit"
    );
}

#[test]
fn sockets_and_addresses_that_contradict_each_other_are_refused() {
    assert_eq!(
        complaint_about_flags(&[("listen.peer", "127.0.0.1:7400")]),
        "flag --listen.peer: listen.client and listen.peer are both 127.0.0.1:7400: give each a \
         port of its own"
    );
    assert_eq!(
        complaint_about_flags(&[("listen.metrics", "0.0.0.0:7480")]),
        "flag --listen.metrics: listen.admin and listen.metrics are both 0.0.0.0:7480: give each a \
         port of its own"
    );
    assert_eq!(
        complaint_about_flags(&[("listen.peer", "127.0.0.1:0")]),
        "flag --listen.peer: listen.peer = `127.0.0.1:0`: other nodes cannot know a port chosen by \
         the system: use the port in cluster.initial"
    );
    assert_eq!(
        complaint_about_flags(&[("advertise.peer", "10.0.0.9:7401")]),
        "flag --advertise.peer: advertise.peer = `10.0.0.9:7401`: cluster.initial gives the other \
         nodes 10.0.0.1:7401: use the same address in both, or omit advertise.peer"
    );
}

#[test]
fn where_the_cluster_exists_the_initial_members_are_those_that_can_be_asked() {
    let others = "initial = [\"n2=10.0.0.2:7401\", \"n3=10.0.0.3:7401\"]";
    let with = |state: &str| {
        let all =
            "initial = [\"n1=10.0.0.1:7401\", \"n2=10.0.0.2:7401\", \"n3=n3.example.org:7401\"]";
        complete("").replace(all, &format!("state = \"{state}\"\n{others}"))
    };
    for state in ["existing", "join"] {
        let config = load(&with(state));
        assert_eq!(config.cluster.state, ClusterState::Existing);
        assert_eq!(config.cluster.initial.len(), 2);
    }
    assert!(complaint(&with("new")).contains("does not list this node"));
    assert!(complaint(&with("old")).contains("choose new, existing or join"));
}

#[test]
fn a_node_without_a_cluster_is_a_cluster_of_one() {
    let text = complete("").replace("initial = [", "# initial = [");
    let config = load(&text);
    assert_eq!(config.cluster.initial.len(), 1);
    assert_eq!(
        config.cluster.initial[0].address.as_deref(),
        Some("127.0.0.1:7401")
    );
    assert_eq!(config.advertise.client.as_deref(), Some("127.0.0.1:7400"));
    let ports =
        "[listen]\nclient = \"127.0.0.1:0\"\npeer = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";
    let config = load(&format!("{text}{ports}"));
    assert_eq!(config.cluster.initial[0].address, None);
    assert_eq!(
        (config.advertise.client, config.advertise.peer),
        (None, None)
    );
}

#[test]
fn timing_that_could_not_work_is_refused_with_the_reason_and_what_would() {
    let line = EXTRA_LINE + 1;
    for (extra, expected) in [
        (
            "[raft]\nelection_timeout_min = \"500ms\"\n",
            "raft.election_timeout_min (500ms) is not above leader_lease.duration (500ms): voters \
             would campaign before their promise is over and be refused; choose more than 500ms",
        ),
        (
            "[raft]\nelection_timeout_max = \"550ms\"\nstep_down_after = \"520ms\"\n",
            "raft.election_timeout_max (550ms) is not above raft.election_timeout_min (550ms): \
             timeouts must differ between nodes, or votes split; choose more than 550ms",
        ),
        (
            "[raft]\nheartbeat_interval = \"151ms\"\n",
            "raft.heartbeat_interval (151ms) is too long for a leader lease of 450ms \
             (leader_lease.duration less leader_lease.max_clock_skew): two heartbeats may be lost, \
             so choose at most 150ms",
        ),
        (
            "[raft]\nstep_down_after = \"499ms\"\n",
            "raft.step_down_after (499ms) must lie between leader_lease.duration (500ms) and \
             raft.election_timeout_max (1s)",
        ),
        (
            "[leader_lease]\nmax_clock_skew = \"500ms\"\n",
            "leader_lease.max_clock_skew (500ms) leaves nothing of leader_lease.duration (500ms): \
             choose a skew below the lease duration, or a longer lease",
        ),
        (
            "[leader_lease]\nmax_clock_skew = \"21ms\"\n",
            "leader_lease.max_clock_skew (21ms) is too small for leader_lease.duration (500ms): \
             clocks that drift by 20000 ppm and read in steps of 1ms need at least 22ms",
        ),
        // A6: 50 ms of margin with a promise of 10 s.
        (
            "[leader_lease]\nduration = \"10s\"\n",
            "leader_lease.max_clock_skew (50ms) is too small for leader_lease.duration (10s): \
             clocks that drift by 20000 ppm and read in steps of 1ms need at least 402ms",
        ),
    ] {
        assert_eq!(
            complaint(&complete(extra)),
            format!("leasehold.toml:{line}: {expected}")
        );
    }
}

#[test]
fn timing_at_the_very_bounds_is_taken() {
    for extra in [
        "[leader_lease]\nmax_clock_skew = \"22ms\"\n",
        "[raft]\nheartbeat_interval = \"150ms\"\n",
        "[raft]\nelection_timeout_min = \"501ms\"\n",
        "[raft]\nelection_timeout_max = \"750ms\"\n",
        "[raft]\nstep_down_after = \"500ms\"\n",
        "[raft]\nstep_down_after = \"1s\"\n",
    ] {
        load(&complete(extra));
    }
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    assert_eq!(
        complaint_about_flags(&[("limits.max_request_bytes", "1MiB")]),
        "flag --limits.max_request_bytes: a put of limits.max_key_bytes = 16384 and \
         limits.max_value_bytes = 1555456 does not fit limits.max_request_bytes = 1048576: choose \
         a request size of at least 1572864"
    );
    assert_eq!(
        complaint_about_flags(&[("storage.segment_bytes", "5MiB")]),
        "flag --storage.segment_bytes: storage.segment_bytes = 5242880 is below four times \
         limits.max_request_bytes: a segment must hold several of the largest entries; choose at \
         least 6291456"
    );
}

#[test]
fn a_value_with_an_underscore_or_in_another_base_is_read_as_toml_means_it() {
    let config = load(&complete("[limits]\nmax_inflight = 1_000\n"));
    assert_eq!(config.work.in_flight_max, 1_000);
    assert_eq!(
        complaint(&complete("[limits]\nmax_inflight = 0x10\n")),
        format!(
            "leasehold.toml:{}: limits.max_inflight is a number that is not decimal, and must be a \
             whole number, without quotes",
            EXTRA_LINE + 1
        )
    );
}

#[test]
fn a_retention_is_a_time_or_a_number_as_the_mode_says() {
    let with = |mode, retention| {
        complaint_about_flags(&[
            ("compaction.mode", mode),
            ("compaction.retention", retention),
        ])
    };
    for (mode, retention, words) in [
        ("never", "1h", "choose periodic, revision or off"),
        ("periodic", "5000", "a number and a unit"),
        ("periodic", "1ms", "at least 1s is required"),
        ("periodic", "20years", "is allowed"),
        ("revision", "1h", "number of revisions"),
        ("revision", "0", "number of revisions"),
    ] {
        let complaint = with(mode, retention);
        assert!(complaint.contains(words), "{mode} {retention}: {complaint}");
    }
}
