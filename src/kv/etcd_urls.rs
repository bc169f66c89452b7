//! Where etcd's clients reach each member, as that said last: etcd's clients dial all members of a list, and a node
//! that starts while another is down has heard nothing of it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::types::NodeId;

use super::hash::HashedStore;
use super::store::{Fault, Space, Store, View};

const KEY: &[u8] = b"etcd_urls";

/// The URLs in `view`, of members that have any.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn etcd_urls<V: View>(view: &V) -> Result<BTreeMap<NodeId, String>, V::Error> {
    let Some(record) = view.get(Space::Meta, KEY)? else {
        return Ok(BTreeMap::new());
    };
    let urls = postcard::from_bytes(&record).map_err(|_| Fault::Damaged {
        space: Space::Meta,
        what: "a record of URLs that does not read",
    })?;
    Ok(urls)
}

/// The members are these from here on, each with what it has said since the leader heard of it: its URL, or that
/// it has none. Of one that has said nothing the URL stays that is there.
pub(super) fn set<S: Store>(
    store: &mut HashedStore<'_, S>,
    members: Vec<(NodeId, Option<String>)>,
) -> Result<(), S::Error> {
    let old = etcd_urls(store)?;
    let url_of = |(id, said): (NodeId, Option<String>)| {
        let url = said.or_else(|| old.get(&id).cloned());
        url.filter(|url| !url.is_empty()).map(|url| (id, url))
    };
    let new: BTreeMap<NodeId, String> = members.into_iter().filter_map(url_of).collect();
    if new == old {
        return Ok(());
    }
    let key = key();
    if new.is_empty() {
        return store.take(Space::Meta, &key).map(drop);
    }
    let record = postcard::to_extend(&new, Vec::new())
        .expect("a vector grows without bound and the types serialize without fail");
    store.put(Space::Meta, key, record.into())
}

/// The key of the record.
pub(super) fn key() -> Bytes {
    Bytes::from_static(KEY)
}
