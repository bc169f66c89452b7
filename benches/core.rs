//! How fast the pure core is: three nodes that hand each other messages in memory, with a state
//! machine in memory and disks that are done at once.
//!
//! `cargo bench --bench core`

#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant as Stopwatch};

use leasehold::api::{Call, Consistency, Limits, PutRequest, Request};
use leasehold::kv::{MemStore, apply};
use leasehold::node::{Input, Node, NodeOptions, Output};
use leasehold::raft::{Configuration, Payload, RestoredState, Timing};
use leasehold::time::Instant;
use leasehold::types::{BootstrapId, ClusterId, NodeId, RequestId, Role};

const NODES: u64 = 3;
const WRITES: u64 = 200_000;

struct World {
    nodes: BTreeMap<NodeId, (Node, MemStore)>,
    inputs: VecDeque<(NodeId, Input)>,
    now: Instant,
    steps: u64,
    answered: u64,
}

impl World {
    fn new() -> Self {
        let ids: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
        let now = Instant::from_nanos(1_000_000_000);
        let restored = RestoredState {
            base_configuration: Configuration {
                voters: ids.iter().copied().collect(),
                ..Configuration::default()
            },
            ..RestoredState::default()
        };
        let node = |id: NodeId| {
            let options = NodeOptions {
                cluster_id: ClusterId(1),
                id,
                members: Vec::new(),
                timing: Timing::default(),
                limits: Limits::DEFAULT,
                waiting_max: 65_536,
                sessions_max: 1000,
                session_idle_max: Duration::from_secs(3600),
                leases: leasehold::node::LeaseOptions::DEFAULT,
                auto_compaction: leasehold::node::AutoCompaction::Off,
                check_interval: None,
                seed: id.0,
                bootstrap: BootstrapId(1),
            };
            (
                id,
                (
                    Node::new(options, restored.clone(), None, 1, now),
                    MemStore::new(),
                ),
            )
        };
        Self {
            nodes: ids.into_iter().map(node).collect(),
            inputs: VecDeque::new(),
            now,
            steps: 0,
            answered: 0,
        }
    }

    /// Handles everything that is on its way, and what follows from it: like the driver, a batch
    /// of inputs first, then their effects.
    fn settle(&mut self) {
        while !self.inputs.is_empty() {
            for (id, input) in std::mem::take(&mut self.inputs) {
                let (node, _) = self.nodes.get_mut(&id).expect("messages go to members");
                node.handle(self.now, input);
                self.steps += 1;
            }
            for id in 1..=NODES {
                self.carry(NodeId(id));
            }
        }
    }

    fn carry(&mut self, id: NodeId) {
        let (node, store) = self.nodes.get_mut(&id).expect("it was just handled");
        while let Some(output) = node.poll_output() {
            match output {
                Output::Persist(ticket, _) => self.inputs.push_back((id, Input::Persisted(ticket))),
                Output::Send(envelope) => {
                    self.inputs
                        .push_back((envelope.to, Input::Message(envelope)));
                }
                Output::Apply(entries) => {
                    let replies = entries
                        .iter()
                        .map(|entry| {
                            let command = match &entry.payload {
                                Payload::Command(bytes) => Some(bytes.as_ref()),
                                _ => None,
                            };
                            (
                                entry.id,
                                apply(store, entry.id, command).expect("memory holds"),
                            )
                        })
                        .collect();
                    self.inputs.push_back((id, Input::Applied(replies)));
                }
                Output::Read(..)
                | Output::CaughtUp(_)
                | Output::ReadLeases(..)
                | Output::SendSnapshot(_)
                | Output::Install(_)
                | Output::DiscardSnapshot(_) => {
                    unreachable!("logs are whole here")
                }
                Output::Reply(..) => self.answered += 1,
                Output::FindIdleSessions { .. } => {}
            }
        }
    }

    fn tick(&mut self, passed: Duration) {
        self.now = self.now + passed;
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            self.inputs.push_back((id, Input::Tick));
        }
        self.settle();
    }

    fn elect(&mut self) -> NodeId {
        loop {
            self.tick(Duration::from_millis(10));
            let leader = self.nodes.iter().find(|(_, (node, _))| {
                let status = node.status();
                status.role == Role::Leader && status.ready
            });
            if let Some((id, _)) = leader {
                return *id;
            }
        }
    }
}

fn put(number: u64, value: &bytes::Bytes) -> Call {
    Call {
        timeout_ms: 10_000,
        consistency: Consistency::default(),
        min_revision: 0,
        session: None,
        request: Request::Put(PutRequest {
            key: format!("key{:05}", number % 10_000).into(),
            value: value.clone(),
            prev_kv: false,
            ..PutRequest::default()
        }),
    }
}

fn run(batch: u64) {
    let mut world = World::new();
    let leader = world.elect();
    let value = bytes::Bytes::from(vec![7; 256]);
    let (steps, answered) = (world.steps, world.answered);
    let started = Stopwatch::now();
    let mut number = 0;
    while number < WRITES {
        for _ in 0..batch {
            let input = Input::Request(RequestId(number), put(number, &value), None);
            world.inputs.push_back((leader, input));
            number += 1;
        }
        world.settle();
        world.tick(Duration::from_millis(1));
    }
    let took = started.elapsed().as_secs_f64();
    assert_eq!(
        world.answered - answered,
        number,
        "every write was answered"
    );
    let steps = (world.steps - steps) as f64;
    println!(
        "{batch:>4} writes at a time: {:>9.0} steps/s, {:>8.0} writes/s through all {NODES} nodes, {:>5.2} µs of \
         one core per write",
        steps / took,
        number as f64 / took,
        took / number as f64 * 1e6,
    );
}

fn main() {
    println!(
        "core: {WRITES} puts of 256 bytes over 10,000 keys, three nodes and their state machines on \
         one core, no socket and no disk.\nA step is one input handled by one node. This is what \
         consensus and the state machine cost by themselves; the rest of a write is disk and network."
    );
    for batch in [1, 16, 256] {
        run(batch);
    }
}
