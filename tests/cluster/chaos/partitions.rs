//! Partitions by the kernel: each node in a network namespace of its own, with a wire to a bridge that
//! the others and all clients are on. A wire that is pulled says nothing, to either side: no refusal,
//! no message that nobody listens there, nothing that a process on the same machine would get.
//!
//! The judges are those of the long run. What is not done here: loss and delay in part, which
//! [`crate::chaos::wires`] does.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::chaos::fleet::Fleet;
use crate::chaos::schedule::{PATIENT_LEADER, ReadLeases};
use crate::chaos::tools::left_out;
use crate::chaos::trial::{Trial, Verdict};

/// An address of hardware that nobody has.
const NOBODY: &str = "02:00:00:00:00:01";
/// The wire's end inside a namespace.
const INSIDE: &str = "lease0";
/// How long a partition lasts, once it has had its effect.
const LASTS: Duration = Duration::from_secs(2);

/// Namespaces on a bridge. Everything in it is named after this process and its place, and goes with it.
pub(crate) struct Net {
    /// Which of this process's nets it is.
    place: u8,
    bridge: String,
    spaces: Vec<String>,
    /// What was made of the root namespace's devices.
    wires: Vec<String>,
}

/// Runs `ip` to its end.
fn ip(arguments: &[&str]) -> bool {
    let ended = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ended.is_ok_and(|status| status.success())
}

/// The same, where it has worked before.
fn must(arguments: &[&str]) {
    assert!(ip(arguments), "ip {}", arguments.join(" "));
}

/// How many nets a process may have, one after the other or at a time.
const NETS_MAX: u8 = 4;

/// The address of the one with this number, on a net of this process's own; 0 is the bridge.
fn address(place: u8, number: usize) -> Ipv4Addr {
    let process = std::process::id();
    let [_, _, high, low] = process.to_be_bytes();
    // Nothing is routed: it need only be unlike what this machine has, and other processes'.
    let host = u8::try_from(number + 1).expect("there are few nodes");
    Ipv4Addr::new(
        10,
        128 | high >> 1,
        low,
        (high & 1) << 7 | place << 5 | host,
    )
}

impl Net {
    /// Lays one for `nodes` nodes; none where that is not possible. What was begun goes with it.
    pub(crate) fn lay(nodes: usize) -> Option<Self> {
        static LAID: AtomicU8 = AtomicU8::new(0);
        let process = std::process::id();
        let place = LAID.fetch_add(1, Ordering::Relaxed);
        assert!(place < NETS_MAX, "there are addresses for {NETS_MAX} nets");
        let mut net = Self {
            place,
            bridge: format!("lh{process}b{place}"),
            spaces: Vec::new(),
            wires: Vec::new(),
        };
        let bridge = net.bridge.clone();
        let own = format!("{}/27", address(place, 0));
        let is_laid = ip(&["link", "add", &bridge, "type", "bridge"])
            && ip(&["addr", "add", &own, "dev", &bridge])
            && ip(&["link", "set", &bridge, "up"])
            && (0..nodes).all(|number| net.add(number));
        is_laid.then_some(net)
    }

    fn add(&mut self, number: usize) -> bool {
        let process = std::process::id();
        let (space, wire) = (
            format!("lh{process}n{}{number}", self.place),
            format!("lh{process}w{}{number}", self.place),
        );
        let own = format!("{}/27", address(self.place, number + 1));
        if !ip(&["netns", "add", &space]) {
            return false;
        }
        self.spaces.push(space.clone());
        let peer = ["peer", "name", INSIDE, "netns", &space];
        if !ip(&[["link", "add", &wire, "type", "veth"].as_slice(), &peer].concat()) {
            return false;
        }
        self.wires.push(wire.clone());
        ip(&["link", "set", &wire, "master", &self.bridge, "up"])
            && ip(&["-n", &space, "addr", "add", &own, "dev", INSIDE])
            && ip(&["-n", &space, "link", "set", "lo", "up"])
            && ip(&["-n", &space, "link", "set", INSIDE, "up"])
    }

    /// How many nodes it is for.
    pub(crate) fn nodes(&self) -> usize {
        self.spaces.len()
    }

    /// Where a node listens at this port.
    pub(crate) fn socket(&self, node: usize, port: u16) -> SocketAddr {
        SocketAddr::from((address(self.place, node + 1), port))
    }

    /// What makes a command run in a node's namespace.
    pub(crate) fn enter(&self, node: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.spaces[node]]
            .map(str::to_owned)
            .to_vec()
    }

    /// Pulls a node's wire out of the bridge, or puts it back.
    fn plug(&self, node: usize, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        must(&["link", "set", &self.wires[node], state]);
    }

    /// Switches a node's own end of the wire off or on: it is told that it has no network.
    fn switch(&self, node: usize, is_on: bool) {
        let state = if is_on { "up" } else { "down" };
        must(&["-n", &self.spaces[node], "link", "set", INSIDE, state]);
    }

    /// What `from` sends to `to` goes to hardware that is not there; or no more. Neither is told.
    fn misdirect(&self, from: usize, to: usize, is_begun: bool) {
        let (space, to) = (&self.spaces[from], address(self.place, to + 1).to_string());
        match is_begun {
            true => must(&[
                "-n",
                space,
                "neigh",
                "replace",
                &to,
                "lladdr",
                NOBODY,
                "dev",
                INSIDE,
                "nud",
                "permanent",
            ]),
            false => must(&["-n", space, "neigh", "del", &to, "dev", INSIDE]),
        }
    }

    /// `from` has no way to `to`, and is told so by its own kernel; or has one again.
    fn blackhole(&self, from: usize, to: usize, is_begun: bool) {
        let to = format!("{}/32", address(self.place, to + 1));
        let verb = if is_begun { "add" } else { "del" };
        must(&["-n", &self.spaces[from], "route", verb, "blackhole", &to]);
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // A namespace takes its end of the wire with it, and that the other end.
        for space in &self.spaces {
            ip(&["netns", "del", space]);
        }
        for wire in &self.wires {
            ip(&["link", "del", wire]);
        }
        ip(&["link", "del", &self.bridge]);
    }
}

/// What is done to the net.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The wire is pulled.
    Unplugged,
    /// Its own end of the wire is off.
    SwitchedOff,
    /// The others do not hear it, and nobody says so.
    Unheard,
    /// It has no way to the others, and hears them.
    NoWayOut,
    /// The others have no way to it, and hear it.
    NoWayIn,
}

impl Cut {
    fn set(self, net: &Net, node: usize, is_begun: bool) {
        let others = (0..net.nodes()).filter(|other| *other != node);
        match self {
            Self::Unplugged => net.plug(node, !is_begun),
            Self::SwitchedOff => net.switch(node, !is_begun),
            Self::Unheard => others.for_each(|other| net.misdirect(node, other, is_begun)),
            Self::NoWayOut => others.for_each(|other| net.blackhole(node, other, is_begun)),
            Self::NoWayIn => others.for_each(|other| net.blackhole(other, node, is_begun)),
        }
    }
}

/// Cuts off the leader, or a follower, in these ways, one after the other, and judges. None where that is not possible.
fn over(cuts: &[(Cut, bool)], read_leases: &ReadLeases) -> Option<Verdict> {
    let Some(net) = Net::lay(3) else {
        left_out("hard partitions: need network namespaces and veth, as root");
        return None;
    };
    let fleet = Fleet::start_apart(net, 3, read_leases);
    let mut trial = Trial::begin(fleet, 3);
    let client = trial.client();
    for &(cut, is_leader) in cuts {
        let leader = match read_leases.are_everywhere() {
            true => trial.leader_of_holders(),
            false => trial.leader_beside(&[]).0,
        };
        let node = match is_leader {
            true => leader,
            false => (leader + 1) % 3,
        };
        let set = |trial: &Trial, is_begun| {
            let net = trial.fleet.net.as_ref().expect("it was started on one");
            cut.set(net, node, is_begun);
        };
        set(&trial, true);
        // Whoever leads then, it is a node that the majority hears, and clients find it.
        let took = match is_leader {
            true => trial.leader_beside(&[node]).1,
            false => Duration::ZERO,
        };
        let wrote = trial.write_on(&client);
        trial.go_on(LASTS);
        set(&trial, false);
        let (_, back) = trial.until("the node counts again", |fleet| {
            let ready = fleet.cluster.nodes[node].admin("/readyz")?;
            (ready.0 == 200).then_some(())
        });
        let whom = if is_leader {
            "the leader"
        } else {
            "a follower"
        };
        eprintln!(
            "{cut:?}, {whom}: another leads after {took:?}; {wrote:?} for the first writes; ready {back:?} after it"
        );
    }
    let verdict = trial.end();
    assert_eq!(
        verdict.counts["processes started"], 3,
        "a cut ends no process"
    );
    Some(verdict)
}

#[test]
fn clients_are_told_the_truth_over_partitions_that_nobody_is_told_of() {
    let cuts = [
        (Cut::Unplugged, true),
        (Cut::SwitchedOff, false),
        (Cut::NoWayOut, true),
        (Cut::Unheard, false),
        (Cut::NoWayIn, true),
        (Cut::SwitchedOff, true),
        (Cut::Unheard, true),
        (Cut::Unplugged, false),
    ];
    if let Some(verdict) = over(&cuts, &ReadLeases::nowhere(3)) {
        verdict.demand();
    }
}

#[test]
fn holders_of_read_leases_that_are_cut_off_tell_nothing_stale_and_hold_writes_up_for_a_while_only()
{
    let cuts = [
        (Cut::NoWayIn, false),
        (Cut::Unplugged, false),
        (Cut::Unplugged, true),
        (Cut::Unheard, false),
        (Cut::NoWayIn, true),
        (Cut::NoWayOut, false),
    ];
    if let Some(verdict) = over(&cuts, &ReadLeases::everywhere(3, PATIENT_LEADER)) {
        verdict.demand_read_leases();
    }
}
