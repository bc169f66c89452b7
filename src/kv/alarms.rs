//! The alarms that operators raise: a set of members, each of which has no space by their word.
//!
//! They stand beside the alarm that is measured ([`SpaceAlarm`](super::SpaceAlarm)) and have its effect, while
//! there is any. No member sees to its own, and an id need not be a member's: as in etcd, the set is a record
//! of what was said. It lies in one record, and how many it has also in the progress, which every write reads.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::api::{AlarmsResponse, Error, ErrorKind};
use crate::types::NodeId;

use super::hash::HashedStore;
use super::meta;
use super::store::{Fault, Space, Store, View};

const KEY: &[u8] = b"alarms";
const ID_BYTES: usize = 8;

/// More members have none raised. A cluster has far fewer, and the record is read and written whole.
pub const RAISED_ALARMS_MAX: usize = 256;

/// The alarms in `view`.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn alarms<V: View>(view: &V) -> Result<AlarmsResponse, V::Error> {
    Ok(AlarmsResponse {
        measured: meta::progress(view)?.space_alarm.is_some(),
        members: raised(view)?,
    })
}

/// The refusal of a write that would make the state grow, while an operator's alarm is raised.
pub fn raised_refusal() -> Error {
    Error::not_applied(
        ErrorKind::NoSpace { used: 0, quota: 0 },
        "an operator has raised the alarm NOSPACE: writes are accepted again once it is cleared (`etcdctl alarm \
         disarm`)",
    )
}

/// Raises or clears the alarm of `member`, of the `count` that are raised. The reply names it if it is raised
/// now, or was before it was cleared.
pub(super) fn set<S: Store>(
    store: &mut HashedStore<'_, S>,
    count: &mut u16,
    member: NodeId,
    is_raised: bool,
) -> Result<Result<AlarmsResponse, Error>, S::Error> {
    let mut members = raised(store)?;
    let place = members.binary_search(&member);
    let was_raised = place.is_ok();
    match (place, is_raised) {
        (Err(_), true) if members.len() >= RAISED_ALARMS_MAX => {
            return Ok(Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                format!("alarms of {RAISED_ALARMS_MAX} members are raised: clear one before"),
            )));
        }
        (Err(place), true) => members.insert(place, member),
        (Ok(place), false) => {
            members.remove(place);
        }
        (Ok(_), true) | (Err(_), false) => {}
    }
    if is_raised != was_raised {
        let mut record = BytesMut::with_capacity(members.len() * ID_BYTES);
        members.iter().for_each(|member| record.put_u64(member.0));
        let key = Bytes::from_static(KEY);
        match members.is_empty() {
            true => drop(store.take(Space::Meta, &key)?),
            false => store.put(Space::Meta, key, record.freeze())?,
        }
        *count = u16::try_from(members.len()).expect("there are no more than RAISED_ALARMS_MAX");
    }
    Ok(Ok(AlarmsResponse {
        measured: false,
        members: Vec::from_iter((is_raised || was_raised).then_some(member)),
    }))
}

/// The members whose alarm is raised, in order.
fn raised<V: View>(view: &V) -> Result<Vec<NodeId>, V::Error> {
    let Some(mut record) = view.get(Space::Meta, KEY)? else {
        return Ok(Vec::new());
    };
    let sizes = ID_BYTES..=RAISED_ALARMS_MAX * ID_BYTES;
    match sizes.contains(&record.len()) && record.len().is_multiple_of(ID_BYTES) {
        true => {
            let mut members = Vec::with_capacity(record.len() / ID_BYTES);
            while record.has_remaining() {
                members.push(NodeId(record.get_u64()));
            }
            Ok(members)
        }
        false => Err(Fault::Damaged {
            space: Space::Meta,
            what: "a record of alarms of the wrong size",
        })?,
    }
}
