//! A leased get allocates nothing that it does not hand out.

use allocation_counter::{AllocationInfo, measure};

use super::*;

const KEYS: [&str; 4] = ["one", "two", "three", "four"];
const VALUE: usize = 256;

/// What `count` leased gets of one batch allocate on their way from frames to encoded replies. Every
/// one is served under the lease.
fn allocated(world: &mut World, count: usize) -> AllocationInfo {
    let frames: Vec<Frame> = (0..count)
        .map(|number| world.frame(Consistency::LeaseOnly, get(KEYS[number % KEYS.len()])))
        .collect();
    let mut reads = Vec::with_capacity(count);
    let info = measure(|| {
        world.session.dispatch_batch(&frames, &mut reads).unwrap();
        assert_eq!(world.session.read_round(&frames, &reads).unwrap(), count);
        world.session.submit();
    });
    let replies = world.replies();
    assert_eq!(replies.len(), count);
    for reply in replies {
        let response = reply.result.unwrap();
        assert_eq!(
            (value(&response).len(), path(&response)),
            (VALUE, ReadPath::Lease)
        );
    }
    info
}

#[test]
fn a_leased_get_allocates_nothing_but_its_reply() {
    let mut world = World::new();
    for key in KEYS {
        world.put(key, vec![7; VALUE]);
    }
    // What is kept for the next batch is allocated by the first.
    allocated(&mut world, BATCH_MAX);
    // A few of these are measured for the metrics, which may take a block of samples.
    let fewest = |world: &mut World, count| {
        let rounds = (0..8).map(|_| allocated(world, count));
        rounds.min_by_key(|info| info.count_total).unwrap()
    };
    let one = fewest(&mut world, 1);
    let many = fewest(&mut world, BATCH_MAX);
    assert_eq!(
        many.count_total, one.count_total,
        "a batch of {BATCH_MAX} allocates as often as a batch of one"
    );
    assert!(
        one.count_total <= 3,
        "the replies' buffer and header: {one:?}"
    );
    let replies = (BATCH_MAX * (VALUE + 160)) as u64;
    assert!(many.bytes_total <= replies, "replies and no more: {many:?}");
}
