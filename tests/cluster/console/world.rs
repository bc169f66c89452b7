//! Nodes whose console is open to a browser.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::etcd::http::{Answer, Connection};
use crate::harness::{Cluster, PATIENCE, free_port};

/// A cluster of which every node has the port in the clear.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) ports: Vec<SocketAddr>,
    pub(crate) leader: usize,
}

impl World {
    /// Of `count` nodes, with these settings as environment variables.
    pub(crate) fn start(count: usize, settings: &[(&'static str, &str)]) -> Self {
        let mut cluster = Cluster::prepare(count);
        let mut ports = Vec::new();
        for node in &mut cluster.nodes {
            let port = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let own = [
                ("LEASEHOLD_LISTEN_ETCD", port.to_string()),
                ("LEASEHOLD_ETCD_COMPAT_INSECURE", "true".to_owned()),
            ];
            let settings = settings.iter();
            let settings = settings.map(|(name, value)| (*name, (*value).to_owned()));
            node.environment.extend(own.into_iter().chain(settings));
            ports.push(port);
        }
        let leader = cluster.start_and_settle();
        Self {
            cluster,
            ports,
            leader,
        }
    }

    /// A node that does not lead.
    pub(crate) fn follower(&self) -> usize {
        (self.leader + 1) % self.ports.len()
    }

    /// The address of a view at a node.
    pub(crate) fn page(&self, place: usize, view: &str) -> String {
        format!("http://{}/console/#{view}", self.ports[place])
    }

    pub(crate) fn ask(&self, place: usize, path: &str, token: &str, body: &Value) -> Answer {
        let headers = match token {
            "" => String::new(),
            token => format!("Authorization: {token}\r\n"),
        };
        let body = body.to_string();
        Connection::open(self.ports[place]).request("POST", path, &headers, &body)
    }

    /// A request that is answered well.
    pub(crate) fn must(&self, path: &str, token: &str, body: &Value) -> Value {
        let began = std::time::Instant::now();
        loop {
            let answer = self.ask(self.leader, path, token, body);
            if answer.status == 200 {
                return serde_json::from_str(&answer.body).unwrap();
            }
            // A leader may be elected, and rules be new to a node.
            assert!(began.elapsed() < PATIENCE / 4, "{path} {body}: {answer:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(crate) fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, lease: &str) {
        let put = json!({"key": wire(key), "value": wire(value), "lease": lease});
        self.must("/v3/kv/put", "", &put);
    }

    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let found = self.must("/v3/kv/range", "", &json!({"key": wire(key)}));
        let value = found["kvs"][0]["value"].as_str();
        let value = value.map(|value| STANDARD.decode(value).unwrap());
        value.map(|value| String::from_utf8(value).unwrap())
    }

    /// A lease of so many seconds.
    pub(crate) fn grant(&self, seconds: u32) -> String {
        let granted = self.must("/v3/lease/grant", "", &json!({"TTL": seconds}));
        granted["ID"].as_str().unwrap().to_owned()
    }
}

/// Bytes as they stand in JSON.
pub(crate) fn wire(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}
