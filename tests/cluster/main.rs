//! Integration tests: separate processes on loopback, with real certificates, disks and sockets.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, in real time"
)]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
#![expect(clippy::print_stderr, reason = "figures are reported, never asserted")]

mod access;
mod admin;
mod backup;
mod bad_input;
mod bench;
mod blocking;
mod caches;
mod certificates;
mod chaos;
mod chaos_command;
mod clocks;
mod compaction;
mod consistency;
mod console;
mod contexts;
mod crashes;
mod damage;
mod data_model;
mod dev_clusters;
mod discovery;
mod diverged;
mod doctor;
mod embed;
mod embedded;
mod etcd;
mod examples;
mod forwarded;
mod harness;
mod hostile;
mod hostile_many;
mod lease_limits;
mod lease_metrics;
mod lease_storm;
mod leases;
mod life;
mod lockout;
mod locks;
mod members;
mod metrics;
mod mirrors;
mod mixed_copies;
mod monitoring;
mod namespaces;
mod oidc;
mod once;
mod pins;
mod priorities;
mod quota;
mod quotas;
mod read_leases;
mod reads;
mod recipes;
mod recorded;
mod remedies;
mod rolling;
mod slow;
mod snapshots;
mod spiffe;
mod streams;
mod supervised;
mod tables;
mod traces;
mod transactions;
mod tutorial;
mod verify;
mod warnings;
mod watches;
