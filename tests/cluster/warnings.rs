//! What is wrong is named alike by `endpoint status`, by `/readyz` and by `leasehold doctor`.

use std::fs;
use std::net::SocketAddr;

use crate::harness::{Cluster, Node, copy_folder, eventually, free_port, run};

/// What a node says of itself, by the three ways.
pub(crate) struct Said {
    status: String,
    ready: (u16, String),
    pub(crate) doctor: String,
}

impl Said {
    /// `None` if one of them did not answer in time.
    fn by(cluster: &Cluster, node: &Node) -> Option<Self> {
        let endpoint = format!("--endpoints={}", node.client);
        let mut flags = cluster.flags();
        flags.retain(|flag| !flag.starts_with("--endpoints") && !flag.starts_with("--timeout"));
        flags.extend([endpoint, "--timeout=2s".to_owned()]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (code, _, status) = run(&[&flags[..], &["endpoint", "status"]].concat());
        let (_, doctor, _) = run(&[&flags[..], &["doctor"]].concat());
        (code == 0).then_some(Self {
            status,
            ready: node.admin("/readyz?verbose")?,
            doctor,
        })
    }

    /// Whether all three have these parts, with nothing but a number between two of them.
    fn all_have(&self, parts: &[&str]) -> bool {
        let texts = [&self.status, &self.ready.1, &self.doctor];
        texts.into_iter().all(|text| has(text, parts))
    }
}

fn has(text: &str, parts: &[&str]) -> bool {
    let (first, rest) = parts.split_first().expect("there is one");
    text.match_indices(first).any(|(at, first)| {
        let mut left = &text[at + first.len()..];
        rest.iter().all(|part| {
            left = left.trim_start_matches(|c: char| c.is_ascii_digit());
            let found = left.strip_prefix(part);
            left = found.unwrap_or(left);
            found.is_some()
        })
    })
}

/// Waits until a node says this in all three ways. Returns the whole of it.
pub(crate) fn says(cluster: &Cluster, node: &Node, parts: &[&str]) -> Said {
    eventually(parts[0], || {
        let said = Said::by(cluster, node)?;
        said.all_have(parts).then_some(said)
    })
}

#[test]
fn who_does_not_answer_and_that_there_is_no_quorum_are_named() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let sound = eventually("it answers", || Said::by(&cluster, &cluster.nodes[leader]));
    for text in [&sound.status, &sound.ready.1] {
        assert!(!text.contains("UDP"), "{text}");
    }

    let [first, second] = [1, 2].map(|step| (leader + step) % 3);
    cluster.nodes[first].kill();
    let name = cluster.nodes[first].name.clone();
    let silent = [
        &format!("{name} has not answered this leader for ")[..],
        "s, and it is not connected: start it, or open its peer port (UDP)",
    ];
    // Who leads may change on a busy machine.
    let (said, other) = eventually(silent[0], || {
        let place = cluster.leader()?;
        let said = Said::by(&cluster, &cluster.nodes[place])?;
        let other = Said::by(&cluster, &cluster.nodes[leader + second - place])?;
        let is_settled = said.all_have(&silent) && cluster.leader()? == place;
        is_settled.then_some((said, other))
    });
    assert_eq!(said.ready.0, 200, "the others go on: {}", said.ready.1);
    assert!(!has(&other.status, &silent), "it does not lead");

    // Which one leads may have changed, and there is nobody left to lead.
    cluster.nodes[second].kill();
    let gone = match first < second {
        true => [first, second],
        false => [second, first],
    };
    let [one, two] = gone.map(|place| cluster.nodes[place].name.clone());
    let parts = [
        "no leader has been known for ",
        "s, and there is no quorum: this node is connected to ",
        " of ",
        " voters, itself included if it is one, and ",
        &format!(" are needed; start {one}, {two}, or open their peer ports (UDP)"),
    ];
    let said = says(&cluster, &cluster.nodes[leader], &parts);
    let check = "[-]leader_known failed: no leader has been known for ";
    assert!(said.ready.1.contains(check), "{}", said.ready.1);
    assert_eq!(said.ready.0, 503);
    assert!(
        said.status.contains("connected to 1 of 3 voters"),
        "{}",
        said.status
    );

    cluster.nodes[first].start();
    cluster.wait_for_lease();
    eventually("a node that has a leader and says nothing of it", || {
        let said = Said::by(&cluster, &cluster.nodes[leader])?;
        (!said.status.contains("no leader")).then_some(())
    });
}

#[test]
fn a_quarantined_node_is_named_with_the_reason() {
    let mut cluster = Cluster::start(3);
    for node in &mut cluster.nodes {
        assert_eq!(node.stop(), 0);
    }
    // Nobody is there to copy the data from, so it stays what it is.
    let lost = &mut cluster.nodes[2];
    fs::remove_dir_all(lost.data_dir.join("log")).unwrap();
    fs::remove_file(lost.data_dir.join("vote")).unwrap();
    lost.start();
    let parts = [
        "the log of this node is damaged (its log and its votes are gone, and it was a member \
         before): it is quarantined and neither votes nor serves; it copies all data from its peers",
    ];
    let said = says(&cluster, &cluster.nodes[2], &parts);
    let check = "[-]log_whole failed: the log of this node is damaged";
    assert!(said.ready.1.contains(check), "{}", said.ready.1);
    assert_eq!(said.ready.1.matches(parts[0]).count(), 1, "said once");
}

#[test]
fn two_processes_with_one_identity_are_named_by_their_peers_and_by_themselves() {
    let mut cluster = Cluster::start(3);
    let double = (cluster.wait_for_lease() + 1) % 3;
    let initial = cluster.initial();
    let name = cluster.nodes[double].name.clone();
    assert_eq!(cluster.nodes[double].stop(), 0);
    let folder = cluster.folder.path();
    let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
    let copy = Node {
        name: name.clone(),
        client: address(),
        peer: address(),
        admin: address(),
        data_dir: folder.join("copy"),
        config: folder.join("copy.toml"),
        log: folder.join("copy.log"),
        process: None,
        environment: Vec::new(),
        hosts: None,
    };
    copy_folder(&cluster.nodes[double].data_dir, &copy.data_dir);
    let addresses = [cluster.nodes[double].peer, copy.peer];
    cluster.nodes.push(copy);
    cluster.write_config(3, &initial, "");
    for place in [double, 3] {
        cluster.nodes[place].start();
    }

    let stop = "stop one of the two at once, because both vote";
    for place in [double, 3] {
        let own = format!("another process runs as {name}, too, and takes this one's place at n");
        let said = says(&cluster, &cluster.nodes[place], &[&own]);
        let check = format!("[-]sole_process failed: {own}");
        assert!(said.ready.1.contains(&check), "{}", said.ready.1);
        assert!(said.status.contains(stop), "{}", said.status);
        assert_eq!(said.ready.0, 503);
    }
    for place in (0..3).filter(|place| *place != double) {
        let [one, two] = addresses;
        let said = eventually("a peer that names both", || {
            let said = Said::by(&cluster, &cluster.nodes[place])?;
            let named = |a: SocketAddr, b: SocketAddr| {
                format!(
                    "two processes run as {name}, at {a} and {b}: a copy of its data directory is \
                     in use; {stop}"
                )
            };
            let is_named =
                |text: &String| text.contains(&named(one, two)) || text.contains(&named(two, one));
            let texts = [&said.status, &said.ready.1, &said.doctor];
            let is_named_by_all = texts.into_iter().all(is_named);
            is_named_by_all.then_some(said)
        });
        let names_itself = said.ready.1.contains("[-]sole_process");
        assert!(!names_itself, "{}", said.ready.1);
    }
}
