//! A node with a store of its own: a plain model of what a cluster does with keys, so that a test can
//! look at what a client made of it, and change it behind the client's back.

use std::collections::BTreeMap;

use super::*;
use crate::api::{
    Compare, Event, EventKind, LeaseTarget, RangePage, RangeRequest, TxnOp, TxnOpResponse,
    WatchRequest,
};

type Keys = BTreeMap<Bytes, KeyValue>;

/// All keys at every revision; the first revision is 1, of an empty store.
pub(super) struct Store {
    history: BTreeMap<i64, Keys>,
    compacted: i64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            history: BTreeMap::from([(1, Keys::new())]),
            compacted: 1,
        }
    }
}

impl Store {
    pub(super) fn shared() -> Arc<Mutex<Self>> {
        Arc::default()
    }

    pub(super) fn revision(&self) -> i64 {
        *self.history.last_key_value().unwrap().0
    }

    pub(super) fn keys(&self) -> &Keys {
        self.history.last_key_value().unwrap().1
    }

    pub(super) fn value(&self, key: &str) -> Option<String> {
        let kv = self.keys().get(key.as_bytes())?;
        Some(String::from_utf8(kv.value.to_vec()).unwrap())
    }

    pub(super) fn put(&mut self, key: &str, value: &str) -> i64 {
        let put = TxnOp::put(key.to_owned(), value.to_owned());
        self.write(&TxnRequest::new().and_then([put]));
        self.revision()
    }

    pub(super) fn delete(&mut self, key: &str) -> i64 {
        self.write(&TxnRequest::new().and_then([TxnOp::delete(key.to_owned())]));
        self.revision()
    }

    pub(super) fn compact(&mut self, revision: i64) {
        self.compacted = revision;
        self.history = self.history.split_off(&revision);
    }

    /// What a leader named `name` answers.
    pub(super) fn answer(&mut self, name: &str, frame: &ClientFrame) -> Result<Response, Error> {
        let body = match &frame.call.request {
            Request::Range(range) => ResponseBody::Range(self.range(range)?),
            Request::RangePage(range) => {
                let found = self.range(range)?;
                let read_at = range.revision;
                ResponseBody::RangePage(RangePage {
                    revision: if read_at == 0 {
                        self.revision()
                    } else {
                        read_at
                    },
                    kvs: found.kvs,
                    next: None,
                })
            }
            Request::Put(put) => {
                let txn = TxnRequest::new().and_then([TxnOp::Put(put.clone())]);
                match self.write(&txn).responses.pop() {
                    Some(TxnOpResponse::Put(put)) => ResponseBody::Put(put),
                    other => panic!("{other:?}"),
                }
            }
            Request::DeleteRange(delete) => {
                let txn = TxnRequest::new().and_then([TxnOp::DeleteRange(delete.clone())]);
                match self.write(&txn).responses.pop() {
                    Some(TxnOpResponse::DeleteRange(delete)) => ResponseBody::DeleteRange(delete),
                    other => panic!("{other:?}"),
                }
            }
            Request::Txn(txn) if txn.is_read_only() => {
                let mut keys = self.keys().clone();
                ResponseBody::Txn(self.carry_out(txn, &self.keys().clone(), &mut keys)?)
            }
            Request::Txn(txn) => ResponseBody::Txn(self.write(txn)),
            _ => answer(name, frame)?.body,
        };
        let mut response = answer(name, frame)?;
        response.header.revision = self.revision();
        response.body = body;
        Ok(response)
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Error> {
        self.range_in(request, self.keys())
    }

    fn range_in(&self, request: &RangeRequest, now: &Keys) -> Result<RangeResponse, Error> {
        let keys = match request.revision {
            0 => now,
            old if old < self.compacted => {
                let compact_revision = self.compacted;
                let kind = ErrorKind::Compacted { compact_revision };
                return Err(Error::not_applied(kind, "it is compacted"));
            }
            at => &self.history[&at],
        };
        let mut kvs: Vec<KeyValue> = within(keys, &request.key, &request.range);
        let count = kvs.len() as u64;
        kvs.retain(|kv| request.admits(kv));
        let more = request.limit > 0 && kvs.len() as u64 > request.limit;
        if more {
            kvs.truncate(request.limit as usize);
        }
        if request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        if request.is_count_only() {
            kvs.clear();
        }
        Ok(RangeResponse { kvs, more, count })
    }

    pub(super) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// What a watch is told of a revision.
    pub(super) fn changes(&self, revision: i64, watch: &WatchRequest) -> Vec<Event> {
        let (before, after) = (&self.history[&(revision - 1)], &self.history[&revision]);
        let (before, after) = (
            within(before, &watch.key, &watch.range),
            within(after, &watch.key, &watch.range),
        );
        let puts = after.iter().filter(|kv| kv.mod_revision == revision);
        let puts = puts.map(|kv| (EventKind::Put, kv.clone()));
        let is_gone = |kv: &&KeyValue| after.iter().all(|other| other.key != kv.key);
        let deletes = before.iter().filter(is_gone).map(|kv| {
            let gone = KeyValue {
                key: kv.key.clone(),
                mod_revision: revision,
                ..KeyValue::default()
            };
            (EventKind::Delete, gone)
        });
        let event = |(kind, kv)| Event {
            kind,
            kv,
            prev_kv: None,
        };
        puts.chain(deletes).map(event).collect()
    }

    pub(super) fn write(&mut self, txn: &TxnRequest) -> TxnResponse {
        let mut keys = self.keys().clone();
        let before = keys.clone();
        let done = self.carry_out(txn, &before, &mut keys).unwrap();
        if keys != before {
            self.history.insert(self.revision() + 1, keys);
        }
        done
    }

    fn carry_out(
        &self,
        txn: &TxnRequest,
        before: &Keys,
        keys: &mut Keys,
    ) -> Result<TxnResponse, Error> {
        let holds = |compare: &Compare| match compare.range {
            KeyRange::Single => compare.holds(before.get(&compare.key)),
            ref range => {
                let kvs = within(before, &compare.key, range);
                kvs.iter().all(|kv| compare.holds(Some(kv)))
            }
        };
        let succeeded = txn.compare.iter().all(holds);
        let ops = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        let mut responses = Vec::new();
        for op in ops {
            responses.push(match op {
                TxnOp::Range(range) => TxnOpResponse::Range(self.range_in(range, keys)?),
                TxnOp::Put(put) => TxnOpResponse::Put(self.put_in(put, keys)),
                TxnOp::DeleteRange(delete) => {
                    let gone = within(keys, &delete.key, &delete.range);
                    gone.iter().for_each(|kv| {
                        keys.remove(&kv.key);
                    });
                    TxnOpResponse::DeleteRange(DeleteRangeResponse {
                        deleted: gone.len() as u64,
                        prev_kvs: if delete.prev_kv { gone } else { Vec::new() },
                    })
                }
                TxnOp::Txn(txn) => TxnOpResponse::Txn(self.carry_out(txn, before, keys)?),
            });
        }
        Ok(TxnResponse {
            succeeded,
            responses,
        })
    }

    fn put_in(&self, put: &PutRequest, keys: &mut Keys) -> PutResponse {
        let revision = self.revision() + 1;
        let before = keys.get(&put.key).cloned();
        let lease = match &put.lease {
            LeaseTarget::Lease(lease) => lease.id,
            _ => 0,
        };
        let kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create_revision: before.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: before.as_ref().map_or(1, |kv| kv.version + 1),
            lease,
        };
        keys.insert(put.key.clone(), kv);
        PutResponse {
            prev_kv: before.filter(|_| put.prev_kv),
        }
    }
}

fn within(keys: &Keys, key: &Bytes, range: &KeyRange) -> Vec<KeyValue> {
    let (start, end) = range.bounds(key);
    let from = keys.range(start..);
    let until = from.take_while(|(key, _)| end.as_ref().is_none_or(|end| *key < end));
    until.map(|(_, kv)| kv.clone()).collect()
}

/// A leader with this store.
pub(super) fn storing(
    store: &Arc<Mutex<Store>>,
) -> impl Fn(usize, &ClientFrame) -> Reaction + Send + Sync + use<> {
    let store = Arc::clone(store);
    move |_, frame| reply(store.lock().unwrap().answer("n1", frame))
}
