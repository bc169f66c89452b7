//! Ranges read page by page are the ranges read at once.

use super::*;
use crate::api::RangePage;

const SMALL: Limits = Limits {
    key_bytes_max: 16,
    value_bytes_max: 100,
    reply_bytes_max: 512 + 16 + 1_200,
    ..Limits::DEFAULT
};

fn request(key: &str, range: KeyRange) -> RangeRequest {
    RangeRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range,
        ..RangeRequest::default()
    }
}

/// All pages; between them `meanwhile` may change the store.
fn pages(
    machine: &mut Machine,
    mut request: RangeRequest,
    mut meanwhile: impl FnMut(&mut Machine),
) -> Result<Vec<RangePage>, ErrorKind> {
    let (_, end) = request.range.bounds(&request.key);
    let mut pages = Vec::new();
    loop {
        let page = page(&machine.store, &request, &SMALL)
            .unwrap()
            .map_err(|error| error.kind)?;
        request.revision = page.revision;
        let next = page.next.clone();
        pages.push(page);
        let Some(next) = next else { return Ok(pages) };
        request.key = next;
        request.range = end.clone().map_or(KeyRange::From, KeyRange::Until);
        meanwhile(machine);
        assert!(pages.len() < 10_000, "it gets on");
    }
}

fn keys(pages: &[RangePage]) -> Vec<Bytes> {
    let kvs = pages.iter().flat_map(|page| &page.kvs);
    kvs.map(|kv| kv.key.clone()).collect()
}

#[test]
fn pages_together_are_the_range_at_one_revision_whatever_happens_meanwhile() {
    let mut machine = Machine::default();
    for number in 0..500 {
        machine.put(&format!("k{number:03}"), &"v".repeat(number % 100));
    }
    machine.put("other", "");
    for range in [
        request("k", KeyRange::Prefix),
        request("k1", KeyRange::Until("k3".into())),
        request("k250", KeyRange::From),
        request("", KeyRange::Prefix),
        request("k250", KeyRange::Single),
        request("none", KeyRange::Prefix),
    ] {
        let whole = range_of(&machine, &range);
        let mut turn = 0;
        let read = pages(&mut machine, range.clone(), |machine| {
            turn += 1;
            machine.put(&format!("k{:03}", turn * 7 % 500), "changed");
            machine.delete(&format!("k{:03}", turn * 13 % 500), KeyRange::Single);
            machine.put(&format!("k{turn:03}x"), "new");
        })
        .unwrap();
        assert!(read.iter().all(|page| page.revision == read[0].revision));
        let found: Vec<KeyValue> = read.iter().flat_map(|page| page.kvs.clone()).collect();
        assert_eq!(found, whole, "{range:?}");
        let is_large = whole.len() > 100;
        assert_eq!(read.len() > 10, is_large, "{} pages", read.len());
        for page in &read {
            let bytes: usize = page
                .kvs
                .iter()
                .map(|kv| kv.key.len() + kv.value.len())
                .sum();
            assert!(bytes <= SMALL.reply_bytes_max);
        }
    }
}

fn range_of(machine: &Machine, request: &RangeRequest) -> Vec<KeyValue> {
    let limits = Limits {
        reply_bytes_max: usize::MAX,
        ..Limits::DEFAULT
    };
    range(&machine.store, request, &limits)
        .unwrap()
        .unwrap()
        .kvs
}

#[test]
fn a_page_is_bounded_in_what_it_looks_at_and_not_only_in_what_it_finds() {
    let mut machine = Machine::default();
    for number in 0..40_000 {
        machine.put(&format!("k{number:05}"), "");
    }
    let last = machine.progress().revision;
    let filtered = RangeRequest {
        min_mod_revision: last,
        ..request("k", KeyRange::Prefix)
    };
    let read = pages(&mut machine, filtered, |_| {}).unwrap();
    assert_eq!(keys(&read), ["k39999"]);
    assert_eq!(read.len(), 3);
    assert!(read[0].kvs.is_empty() && read[0].next.is_some());
}

/// Room was once left in every page for the largest record that there may be, which is all of it where the
/// limits are as they come.
#[test]
fn a_page_is_filled_whatever_the_largest_record_may_be_and_holds_that_one_too() {
    let limits = Limits::DEFAULT;
    let mut machine = Machine::default();
    for number in 0..1_000 {
        machine.put(&format!("k{number:03}"), &"v".repeat(1_000));
    }
    machine.put("k500", &"v".repeat(limits.value_bytes_max));
    let longest = format!("k{}", "y".repeat(limits.key_bytes_max - 1));
    machine.put(&longest, "");
    let mut asked = request("k", KeyRange::Prefix);
    let mut found = Vec::new();
    loop {
        let page = page(&machine.store, &asked, &limits).unwrap().unwrap();
        let encoded = postcard::to_allocvec(&page).unwrap();
        assert!(encoded.len() + 64 <= limits.reply_bytes_max + limits.key_bytes_max);
        found.push(page.kvs.len());
        let Some(next) = page.next else { break };
        asked.key = next;
        asked.range = KeyRange::Until("l".into());
    }
    assert_eq!(found, [500, 1, 499 + 1]);
}

#[test]
fn a_limit_ends_the_pages_and_values_may_be_left_out() {
    let mut machine = Machine::default();
    for number in 0..50 {
        machine.put(&format!("k{number:02}"), &"v".repeat(100));
    }
    let asked = RangeRequest {
        limit: 3,
        keys_only: true,
        ..request("k", KeyRange::Prefix)
    };
    let read = pages(&mut machine, asked, |_| {}).unwrap();
    assert_eq!(keys(&read), ["k00", "k01", "k02"]);
    assert!(
        read.iter()
            .all(|page| page.kvs.iter().all(|kv| kv.value.is_empty()))
    );
}

#[test]
fn pages_of_a_revision_that_is_given_up_or_not_there_are_refused() {
    let mut machine = Machine::default();
    for number in 0..200 {
        machine.put(&format!("k{number:03}"), &"v".repeat(100));
    }
    let ahead = RangeRequest {
        revision: 1_000,
        ..request("k", KeyRange::Prefix)
    };
    let error = pages(&mut machine, ahead, |_| {}).unwrap_err();
    assert_eq!(error, ErrorKind::FutureRevision);
    let error = pages(&mut machine, request("k", KeyRange::Prefix), |machine| {
        machine.put("k", "1");
        let revision = machine.progress().revision;
        machine.write(Operation::Compact(CompactionRequest::at(revision)));
    })
    .unwrap_err();
    assert!(matches!(error, ErrorKind::Compacted { .. }));
}
