//! The file that names the state's format: one digit of it decides whether a node takes its state for another
//! release's.

use std::fs;
use std::path::Path;

use leasehold::api::Consistency;
use leasehold::client::GetOptions;

use super::{Outcome, Subject, TIMINGS};
use crate::harness::{Cluster, copy_folder, eventually, files_below};

const FIRST: &str = "leasehold_raft_log_first_index";
const WITHOUT_STATE: &str = "leasehold_raft_without_state";

/// Keys that are written, more than a log keeps.
const KEYS: usize = 120;

/// What may become of the file in the folder of a state.
type Blow = fn(&Path);

fn flip(format: &Path, at: usize, bit: u8) {
    let mut bytes = fs::read(format).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(format, bytes).unwrap();
}

/// Where the digit stands.
const DIGIT: usize = "leasehold state ".len();

#[test]
fn a_format_that_is_damaged_does_not_pass_for_another_release() {
    let blows: [(&str, Blow); 8] = [
        ("a digit of the next format", |format| {
            flip(format, DIGIT, 0)
        }),
        ("a digit of a later one", |format| flip(format, DIGIT, 2)),
        ("a digit that no format has", |format| {
            flip(format, DIGIT, 1)
        }),
        ("its title", |format| flip(format, 3, 5)),
        ("its checksum", |format| flip(format, DIGIT + 14, 1)),
        ("no text", |format| flip(format, DIGIT, 7)),
        ("nothing in it", |format| fs::write(format, "").unwrap()),
        ("gone", |format| fs::remove_file(format).unwrap()),
    ];
    let mut subject = Subject::prepare();
    for (what, blow) in blows {
        let (_, outcome) = subject.start_on(0, |data_dir| blow(&data_dir.join("state/format")));
        let text = subject.cluster.nodes[0].log_text();
        assert_eq!(outcome, Outcome::Mended, "{what}: {text}");
        assert!(text.contains("its `format` file"), "{what}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_a_damaged_format_sets_its_state_aside_whole_and_gets_one_from_the_leader() {
    let mut cluster = Cluster::prepare(3);
    let few = TIMINGS.replace(
        "[raft]\n",
        "[raft]\nsnapshot_entries = 40\nsnapshot_catchup_entries = 10\n",
    );
    cluster.write_configs(&few);
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    for number in 0..KEYS {
        let key = format!("key/{number}");
        client.put(key, "value", None).await.unwrap();
    }
    let damaged = (leader + 1) % 3;
    eventually("a log that was cut", || {
        (cluster.nodes[damaged].metric(FIRST) > 1.0).then_some(())
    });
    assert_eq!(cluster.nodes[damaged].stop(), 0);
    let data_dir = cluster.nodes[damaged].data_dir.clone();
    // One that a peer has sent it is in use where it came in, until the next start.
    let in_use = fs::read_to_string(data_dir.join("state.current"));
    let in_use = data_dir.join(in_use.as_deref().unwrap_or("state").trim());
    flip(&in_use.join("format"), DIGIT, 0);
    let before = cluster.folder.path().join("before");
    copy_folder(&in_use, &before);

    cluster.nodes[damaged].start();
    eventually("a state that came from the leader", || {
        let node = &cluster.nodes[damaged];
        let has_one = node.admin("/readyz").is_some_and(|(code, _)| code == 200);
        (has_one && node.metric(WITHOUT_STATE) == 0.0).then_some(())
    });
    let said = cluster.nodes[damaged].log_text();
    assert!(
        said.contains("its `format` file does not read as it was written"),
        "{said}"
    );
    assert!(said.contains("snapshot installed"), "{said}");
    let alone = cluster.client_at(&[damaged]).await;
    let all = GetOptions::new()
        .with_prefix()
        .with_consistency(Consistency::Serializable);
    assert_eq!(alone.get("key/", Some(all)).await.unwrap().kvs.len(), KEYS);

    // Nothing of the old one is gone.
    let aside = data_dir.join("state.damaged-1");
    for file in files_below(&before) {
        let name = file.strip_prefix(&before).unwrap();
        assert_eq!(
            fs::read(aside.join(name)).unwrap(),
            fs::read(&file).unwrap(),
            "{}",
            name.display()
        );
    }
}
