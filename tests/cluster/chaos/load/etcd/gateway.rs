//! Reads and writes in JSON, by the gateway of a node's port, as clients make them that have no gRPC.

use base64::prelude::{BASE64_STANDARD, Engine};
use leasehold::bench::history::Observation;
use serde_json::{Value, json};

use super::{EtcdClient, Failure};
use crate::chaos::load::keys::{name, value_of};

/// How often one of their calls was answered.
pub(crate) const ANSWERED: &str = "requests of etcd's clients in JSON that were answered";

impl EtcdClient {
    /// What a read of a key finds.
    pub(super) async fn find_in_json(&mut self, key: u32) -> Result<Observation, Failure> {
        let asked = json!({"key": BASE64_STANDARD.encode(name(key))});
        let answer = self.ask_in_json("/v3/kv/range", &asked).await?;
        let kv = answer["kvs"].get(0);
        Ok(Observation {
            revision: revision_of(&answer),
            found: kv.map(|kv| (value_of(&bytes(&kv["value"])), number(&kv["mod_revision"]))),
        })
    }

    /// Writes a key; the revision, unless it was not as expected.
    pub(super) async fn swap_in_json(
        &mut self,
        key: u32,
        value: &[u8],
        expected: Option<i64>,
    ) -> Result<Option<i64>, Failure> {
        let key = BASE64_STANDARD.encode(name(key));
        let compare = expected.map(
            |revision| json!({"key": key, "target": "MOD", "mod_revision": revision.to_string()}),
        );
        let put = json!({"key": key, "value": BASE64_STANDARD.encode(value)});
        let txn = json!({
            "compare": compare.into_iter().collect::<Vec<_>>(),
            "success": [{"request_put": put}],
        });
        let answer = self.ask_in_json("/v3/kv/txn", &txn).await?;
        let succeeded = answer["succeeded"].as_bool().unwrap_or_default();
        Ok(succeeded.then(|| revision_of(&answer)))
    }

    async fn ask_in_json(&mut self, path: &str, asked: &Value) -> Result<Value, Failure> {
        let body = asked.to_string().into();
        let ended = self
            .call("application/json", path, body, self.timeout)
            .await?;
        let answer: Value = serde_json::from_slice(&ended.body).expect("an answer is JSON");
        match answer["code"].as_i64() {
            None => Ok(answer),
            Some(code) => Err(Failure::of_code(code.try_into().expect("a code"))),
        }
    }
}

fn revision_of(answer: &Value) -> i64 {
    number(&answer["header"]["revision"])
}

/// 64-bit numbers are texts.
fn number(of: &Value) -> i64 {
    let text = of.as_str().expect("a number that is there");
    text.parse().expect("a number")
}

fn bytes(of: &Value) -> Vec<u8> {
    let text = of.as_str().expect("a value that is there");
    BASE64_STANDARD.decode(text).expect("base64")
}
