# Three circles of tests, `fast`, `full` and `soak`; CONTRIBUTING.md says what each proves, and has the table of variables.
# Each name is also a profile of nextest (.config/nextest.toml). Nothing here is needed to test: `cargo test` runs what `full` does.

# What can be run.
default:
    @just --list --unsorted

# The pure core, its log and state machine, and the checks of the tree: about a minute once it is built.
fast *ARGS:
    cargo nextest run --profile fast --locked --no-default-features --lib --test tidy --test dependencies {{ ARGS }}

# Everything: simulator, models, processes, damage, chaos, monitoring, and the examples of the documentation.
full *ARGS:
    cargo nextest run --profile full --locked {{ ARGS }}
    cargo test --locked --doc

# What decides about a change: full, lints, features, planted bugs, interleavings, fuzzing.
gate:
    .ci/run

# Hours of everything, one after the other. Each variable can be set in the environment.
soak: sim models planted storm strangers rotations damage power chaos installs arm64 package api

sim_seeds := env("SIM_SEEDS", "20000")
sim_first_seed := env("SIM_FIRST_SEED", "1")
models_depth := env("MODELS_DEPTH", "0")
lease_storm_seconds := env("LEASE_STORM_SECONDS", "600")
lease_storm_leases := env("LEASE_STORM_LEASES", "10000")
hostile_connections := env("HOSTILE_CONNECTIONS", "10000")
certificate_rotations := env("CERTIFICATE_ROTATIONS", "50")
damage_directories := env("DAMAGE_DIRECTORIES", "10000")
damage_workers := env("DAMAGE_WORKERS", "8")
power_cuts := env("POWER_CUTS", "200")
chaos_seconds := env("CHAOS_SECONDS", "3600")
chaos_seed := env("CHAOS_SEED", "1")
install_kills := env("INSTALL_KILLS", "40")

# Whole replicas by the thousand seeds, with faults of every kind.
sim:
    SIM_SEEDS={{ sim_seeds }} SIM_FIRST_SEED={{ sim_first_seed }} cargo test --locked --profile dist --no-default-features --features jemalloc --test sim seeds -- --nocapture

# One seed: a trace to read. `just replay 0x1f3a`
replay SEED:
    SIM_SEED={{ SEED }} cargo sim replay --nocapture

# The small models, each to its end; gigabytes of memory.
models:
    MODELS_DEPTH={{ models_depth }} cargo test --locked --release --no-default-features --test models -- --nocapture

# Every planted bug is found.
planted:
    RUST_BACKTRACE=0 RUSTC_WORKSPACE_WRAPPER="$PWD/.ci/with-bugs" cargo test --locked --lib -- planted bugs --nocapture
    RUST_BACKTRACE=0 RUSTC_WORKSPACE_WRAPPER="$PWD/.ci/with-bugs" cargo test --locked --release --target-dir target/bugs --no-default-features --test sim --test models -- planted bugs --nocapture

# Leases that are kept while one leader after the other is killed.
storm:
    LEASE_STORM_SECONDS={{ lease_storm_seconds }} LEASE_STORM_LEASES={{ lease_storm_leases }} cargo test --locked --release --test cluster storm -- --nocapture

# Honest clients beside thousands of hostile connections.
strangers:
    HOSTILE_CONNECTIONS={{ hostile_connections }} cargo test --locked --release --test cluster strangers -- --nocapture

# Certificates and authorities replaced under load.
rotations:
    CERTIFICATE_ROTATIONS={{ certificate_rotations }} cargo test --locked --release --test cluster certificates_and -- --nocapture

# Nodes that lose their power at any change of their files.
power:
    POWER_CUTS={{ power_cuts }} cargo test --locked --release --test cluster damage::power -- --nocapture

# Nodes on damaged data directories.
damage:
    DAMAGE_DIRECTORIES={{ damage_directories }} DAMAGE_WORKERS={{ damage_workers }} cargo test --locked --release --test cluster damage:: -- --nocapture

# Real processes that are killed, paused, cut off and starved; as root, with strace and libfaketime.
chaos:
    CHAOS_SECONDS={{ chaos_seconds }} CHAOS_SEED={{ chaos_seed }} cargo test --locked --release --test cluster chaos:: -- --nocapture --skip any_step

# What a release consists of, into target/dist-files: binary, package for Debian, SBOM, checksums. Of a commit.
dist *OUT:
    deploy/package/dist {{ OUT }}

# Both: a release is made, and its package tried.
package: dist
    deploy/package/try "${CARGO_TARGET_DIR:-target}"/dist-files/leasehold_*.deb

# That package installed, run, upgraded and removed on a Debian of its own; as root, with debootstrap and systemd-nspawn.
try-deb DEB:
    deploy/package/try {{ DEB }}

# What the SDK offers, held to tests/pins/public-api.txt, so that a diff shows what a change adds, alters or takes away;
# `UPDATE_PINS=1 just api` writes it. Then, once there is a release or a revision is given, whether the number may change
# as little as it does. Needs cargo-public-api and cargo-semver-checks.
api *SINCE:
    tests/api {{ SINCE }}

# The SDK is checked for systems that are not this one. Nothing is linked, so no C compiler for them is needed: what
# would compile C for them writes empty files instead.
elsewhere:
    #!/usr/bin/env bash
    set -euo pipefail
    mkdir -p target/elsewhere
    printf '%s\n' '#!/bin/sh' 'while [ $# -gt 0 ]; do case "$1" in -o) : >"$2"; shift ;; -o*) : >"${1#-o}" ;; esac; shift; done' \
        >target/elsewhere/cc
    chmod +x target/elsewhere/cc
    for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
        rustup target add "$target"
        env "CC_${target//-/_}=$PWD/target/elsewhere/cc" "AR_${target//-/_}=true" cargo check --target-dir target/elsewhere \
            --locked --no-default-features --features client --target "$target"
    done

# Built for arm64, and run under qemu; as root, or with gcc-aarch64-linux-gnu and qemu-user.
arm64:
    deploy/package/arm64

# Others' clients and tests, against leasehold.
etcd-suites:
    tests/suites/run

# A kill at each step of a state that is sent; as root, with strace.
installs:
    INSTALL_KILLS={{ install_kills }} cargo test --locked --test cluster any_step -- --nocapture

# Which lines the tests of the pure core reach, by folder and file (docs/testing.md). `just coverage` for the fast
# circle; `just coverage --all-features --lib` and the like for others. Needs cargo-llvm-cov and rustup's llvm-tools.
coverage *ARGS="--no-default-features --lib":
    CARGO_TARGET_DIR=target/coverage cargo llvm-cov --locked --lcov --output-path target/coverage.lcov {{ ARGS }}
    tests/coverage target/coverage.lcov

mutants_files := env("MUTANTS_FILES", "src/leader_lease.rs src/node/leased_read.rs src/node/lease_tracker/*.rs src/kv/lease*.rs src/raft/**/*.rs")

# Changes one operator or result after the other and sees whether the fast circle notices (docs/testing.md). Hours;
# `MUTANTS_FILES='src/leader_lease.rs' just mutants`. Needs cargo-mutants.
mutants *ARGS:
    #!/usr/bin/env bash
    set -euo pipefail -o noglob
    files=()
    for file in {{ mutants_files }}; do files+=(--file "$file"); done
    CARGO_PROFILE_DEV_DEBUG=0 cargo mutants --no-default-features --jobs 1 --output target "${files[@]}" {{ ARGS }} -- --locked --lib
