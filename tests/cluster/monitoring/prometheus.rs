//! A Prometheus of our own, as Debian packages it, and what it says.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{eventually, free_port};
use crate::monitoring::dashboards::{list, text};

/// Whether its programs are there; says loudly if not, or fails if they must be.
pub(crate) fn is_installed(test: &str) -> bool {
    let runs = |program: &str| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if runs("prometheus") && runs("promtool") {
        return true;
    }
    assert!(
        std::env::var_os("LEASEHOLD_REQUIRE_PROMETHEUS").is_none(),
        "prometheus and promtool are not on the path: install Debian's package `prometheus`"
    );
    // Past the capture of the test's output, so that it is seen.
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(
        stderr,
        "##### SKIPPED: {test}: no `prometheus` here, install Debian's package of that name #####"
    );
    false
}

/// Runs promtool with `input` and demands success.
pub(crate) fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "promtool {}: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A running Prometheus.
pub(crate) struct Prometheus {
    address: SocketAddr,
    process: Child,
    log: PathBuf,
}

impl Prometheus {
    /// Starts it in `folder`, with this configuration, and waits until it answers.
    pub(crate) fn start(folder: &Path, config: &str, lookback: Duration) -> Self {
        let file = folder.join("prometheus.yml");
        fs::write(&file, config).unwrap();
        promtool(&["check", "config", file.to_str().unwrap()], "");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let log = folder.join("prometheus.log");
        // One of five at a time, with little to keep.
        let process = Command::new("prometheus")
            .env("GOGC", "400")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--query.lookback-delta={}ms", lookback.as_millis()))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let prometheus = Self {
            address,
            process,
            log,
        };
        eventually("a Prometheus that is ready", || {
            let (status, _) = prometheus.get("/-/ready")?;
            (status == 200).then_some(())
        });
        prometheus
    }

    /// What it complained of.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The value of every series that an expression gives.
    pub(crate) fn query(&self, expression: &str) -> Vec<(BTreeMap<String, String>, f64)> {
        let path = format!("/api/v1/query?query={}", percent_encoded(expression));
        let answer = self.data(&path, expression);
        if answer["resultType"] == "scalar" {
            return vec![(BTreeMap::new(), number(&answer["result"][1]))];
        }
        let series = |one: &Value| {
            let labels = one["metric"].as_object().unwrap().iter();
            let labels = labels.map(|(name, value)| (name.clone(), text(value)));
            (labels.collect(), number(&one["value"][1]))
        };
        list(&answer["result"]).iter().map(series).collect()
    }

    /// The alerts that fire, as `name severity`, each with its annotations.
    pub(crate) fn firing(&self) -> BTreeMap<String, String> {
        let answer = self.data("/api/v1/alerts", "the alerts");
        let firing = |alert: &&Value| alert["state"] == "firing";
        let told = |alert: &Value| {
            let labels = &alert["labels"];
            let name = format!(
                "{} {}",
                text(&labels["alertname"]),
                text(&labels["severity"])
            );
            let annotations = &alert["annotations"];
            let said = format!(
                "{}: {}",
                text(&annotations["summary"]),
                text(&annotations["description"])
            );
            (name, said)
        };
        list(&answer["alerts"])
            .iter()
            .filter(firing)
            .map(told)
            .collect()
    }

    fn data(&self, path: &str, what: &str) -> Value {
        let (status, body) = eventually("an answer of Prometheus", || self.get(path));
        let mut answer: Value = serde_json::from_str(&body)
            .unwrap_or_else(|error| panic!("{what}: {status} {error}: {body}"));
        assert_eq!(answer["status"], "success", "{what}: {body}");
        answer["data"].take()
    }

    /// One request; HTTP/1.0, so that the answer comes in one piece and the connection ends.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn number(value: &Value) -> f64 {
    text(value).parse().unwrap_or(f64::NAN)
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
