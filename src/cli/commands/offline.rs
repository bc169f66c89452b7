//! `leasehold offline`: what is done to the data of a node that does not run.

use std::io;
use std::io::Write;
use std::path::Path;

use crate::api::{RangeResponse, ResponseHeader};
use crate::cli::arguments::leader_lease::ClearArgs;
use crate::cli::arguments::offline::{
    ForceNewClusterArgs, NewClusterArgs, OfflineCommand, OfflineSnapshotCommand, RestoreArgs,
};
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::failure::Failure;
use crate::cli::panics::Ends;
use crate::cli::print::{Align, Parts, View};
use crate::cli::{panics, print};
use crate::server::disk::store::contains_panic;
use crate::server::run::offline;
use crate::server::run::offline::{Finding, NewMember, OfflineError, RestoredMember, StoppedNode};

/// Does it, and prints what came of it.
pub(super) fn run(
    command: &OfflineCommand,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // A damaged table may make the database panic: that is damage found, and no defect.
    panics::install(Ends::Process, contains_panic);
    match command {
        OfflineCommand::Check(arguments) => check(&open(&arguments.data_dir)?, global.output, out),
        OfflineCommand::Hashkv(arguments) => hash(&open(&arguments.data_dir)?, global.output, out),
        OfflineCommand::DumpKv(arguments) => keys(&open(&arguments.data_dir)?, global, out),
        OfflineCommand::DumpLog(arguments) => log(&open(&arguments.data_dir)?, global.output, out),
        OfflineCommand::Snapshot {
            command: OfflineSnapshotCommand::Restore(arguments),
        } => restore(arguments, global.output, out),
        OfflineCommand::ForceNewCluster(arguments) => force(arguments, global.output, out),
    }
}

fn open(data_dir: &Path) -> Result<StoppedNode, Failure> {
    StoppedNode::open(data_dir).map_err(refused)
}

fn refused(error: OfflineError) -> Failure {
    Failure::refused(error.to_string())
}

fn check(node: &StoppedNode, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    let findings = node.check();
    if format == Format::Table {
        let columns = [("VERDICT", Align::Left), ("FINDING", Align::Left)];
        let rows = findings
            .iter()
            .map(|finding| vec![verdict(finding).to_owned(), finding.text.clone()]);
        print::table(out, &columns, rows)?;
    }
    for finding in &findings {
        match format {
            Format::Json => writeln!(
                out,
                "{}",
                serde_json::json!({ "damaged": finding.is_damage, "finding": finding.text })
            )?,
            Format::Table => {}
            Format::Simple | Format::Fields => {
                writeln!(out, "{:<8} {}", verdict(finding), finding.text)?;
            }
        }
    }
    let damaged = findings.iter().filter(|finding| finding.is_damage).count();
    match damaged {
        0 => Ok(()),
        1 => Err(Failure::refused("something is damaged: see above")),
        more => Err(Failure::refused(format!(
            "{more} things are damaged: see above"
        ))),
    }
}

fn verdict(finding: &Finding) -> &'static str {
    match finding.is_damage {
        true => "DAMAGED",
        false => "ok",
    }
}

fn hash(node: &StoppedNode, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    let found = node.hash().map_err(refused)?;
    let document = serde_json::json!({
        "hash": found.hash.to_string(),
        "revision": found.revision,
        "compact_revision": found.compact_revision,
        "applied_index": found.applied.index.0,
        "applied_term": found.applied.term.0,
    });
    match format {
        Format::Json => writeln!(out, "{document}")?,
        Format::Fields => print::fields(out, &document)?,
        Format::Table => print::row(out, &document)?,
        Format::Simple => {
            writeln!(out, "{}, {}, {}", found.hash, found.revision, found.applied)?;
        }
    }
    Ok(())
}

fn keys(node: &StoppedNode, global: &GlobalArgs, out: &mut impl Write) -> Result<(), Failure> {
    if global.output == Format::Table {
        return Err(Failure::usage(
            "dump-kv prints keys as it reads them, and a table would hold all of them in memory              first: leave out `-o table`, or choose json or fields",
        ));
    }
    let view = View {
        format: global.output,
        hex: global.hex,
    };
    let header = ResponseHeader::default();
    let done = node.dump_keys(|kv| {
        let range = RangeResponse {
            kvs: vec![kv],
            more: false,
            count: 1,
        };
        match view.format {
            Format::Json => print::key_value_line(out, &range.kvs[0]),
            _ => print::get(out, view, Parts::All, &header, &range),
        }
    });
    Ok(done.map_err(refused)??)
}

fn log(node: &StoppedNode, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    if format == Format::Table {
        return Err(Failure::usage(
            "dump-log prints entries one after the other, and has no table: leave out `-o table`, \
             or choose json",
        ));
    }
    for entry in node.dump_log().map_err(refused)? {
        let (id, what, bytes) = (entry.id, entry.what, entry.bytes);
        let written: io::Result<()> = match format {
            Format::Json => writeln!(
                out,
                "{}",
                serde_json::json!({
                    "index": id.index.0, "term": id.term.0, "what": what, "bytes": bytes,
                })
            ),
            _ => writeln!(out, "{id} {what} {bytes}"),
        };
        written?;
    }
    Ok(())
}

fn restore(arguments: &RestoreArgs, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    let member = member(
        &arguments.cluster,
        &arguments.name,
        &arguments.data_dir,
        arguments.initial_cluster.clone(),
    )?;
    let restored =
        offline::restore(&arguments.file, &member, arguments.without_users).map_err(refused)?;
    show(&member, &restored, None, format, out)
}

/// Has a node forget that an assumption about clocks failed, if its operator says that it may.
pub(super) fn clear_leader_lease(
    arguments: &ClearArgs,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let node = open(&arguments.data_dir)?;
    let Some(mark) = node.tripwire() else {
        let folder = arguments.data_dir.display();
        let sentence = format!(
            "nothing to clear: no clock assumption was violated on the node with the data \
             directory {folder}"
        );
        return Ok(cleared(None, &sentence, format, out)?);
    };
    if !arguments.yes_the_cause_is_gone {
        asked(
            "This node once held a leader lease while another node was leader: its clocks, or \
             those of another member, violated what leases rely on. While the cause persists, \
             reads that it serves under a lease may be stale without any sign of it. The cluster \
             works without leased reads; reads take one round trip more.",
            CONSENT_TO_CLEAR,
        )?;
    }
    node.clear_tripwire().map_err(refused)?;
    let sentence = format!(
        "removed {}: the node may serve leased reads once it is started",
        mark.display()
    );
    Ok(cleared(Some(&mark), &sentence, format, out)?)
}

/// The mark that was removed, if there was one.
fn cleared(
    mark: Option<&Path>,
    sentence: &str,
    format: Format,
    out: &mut impl Write,
) -> io::Result<()> {
    let document = serde_json::json!({
        "cleared": mark.is_some(),
        "removed": mark.map(|mark| mark.display().to_string()),
    });
    match format {
        Format::Json => print::line(out, &document),
        Format::Fields => print::fields(out, &document),
        Format::Table => print::row(out, &document),
        Format::Simple => writeln!(out, "{sentence}"),
    }
}

/// What has to be typed.
const CONSENT_TO_CLEAR: &str = "clear";
const CONSENT: &str = "force";

/// Warns, and goes on if the word is typed.
fn asked(warning: &str, consent: &str) -> Result<(), Failure> {
    // A failing terminal is no consent either.
    let _ = write!(
        anstream::stderr(),
        "{warning}\nType {consent} to continue:  "
    );
    let mut typed = String::new();
    io::stdin().read_line(&mut typed)?;
    match typed.trim() == consent {
        true => Ok(()),
        false => Err(Failure::refused("nothing was changed")),
    }
}

fn force(
    arguments: &ForceNewClusterArgs,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let member = member(
        &arguments.cluster,
        &arguments.name,
        &arguments.new_data_dir,
        vec![arguments.name.clone()],
    )?;
    let survivor = open(&arguments.data_dir)?;
    if !arguments.yes_lose_what_others_had {
        asked(
            "This creates a new cluster from the data of this one member. Entries that only the \
             other members held are lost even if they were acknowledged. If a majority of the old \
             cluster can still be started, start it instead.",
            CONSENT,
        )?;
    }
    let may_be_damaged = arguments.yes_lose_what_is_damaged;
    let forced = offline::force_new_cluster(&survivor, &member, may_be_damaged).map_err(refused)?;
    for warning in &forced.warnings {
        let _ = writeln!(anstream::stderr(), "warning: {warning}");
    }
    show(&member, &forced.restored, Some(forced.entries), format, out)
}

fn member(
    cluster: &NewClusterArgs,
    name: &str,
    data_dir: &Path,
    members: Vec<String>,
) -> Result<NewMember, Failure> {
    let id = match (&cluster.cluster_id, &cluster.node_cert) {
        (Some(id), _) => *id,
        (None, Some(certificate)) => {
            offline::cluster_of_certificate(certificate, name).map_err(refused)?
        }
        (None, None) => return Err(Failure::usage("name the new cluster: --node-cert")),
    };
    Ok(NewMember {
        data_dir: data_dir.to_owned(),
        cluster: id,
        name: name.to_owned(),
        members,
        leap: match cluster.no_bump_revision {
            true => Some(0),
            false => cluster.bump_revision,
        },
    })
}

/// What a member begins with; `entries` of it came from a log.
fn show(
    member: &NewMember,
    restored: &RestoredMember,
    entries: Option<usize>,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut document = serde_json::json!({
        "member_id": restored.member.0,
        "cluster": member.cluster.to_string(),
        "applied_index": restored.base.index.0,
        "applied_term": restored.base.term.0,
        "revision": restored.revision,
        "keys": restored.keys,
        "leases": restored.leases,
        "hash": restored.hash.to_string(),
    });
    if let Some(entries) = entries {
        document["entries_from_log"] = entries.into();
    }
    match format {
        Format::Json => writeln!(out, "{document}")?,
        Format::Fields => print::fields(out, &document)?,
        Format::Table => print::row(out, &document)?,
        Format::Simple => {
            let of_log = match entries {
                Some(entries) => format!(", {entries} entries taken from the log"),
                None => " (the same on every member)".to_owned(),
            };
            writeln!(
                out,
                "{} of cluster {} made in {}: {} keys, {} leases, revision {}, content hash {}{of_log}",
                member.name,
                member.cluster,
                member.data_dir.display(),
                restored.keys,
                restored.leases,
                restored.revision,
                restored.hash,
            )?;
        }
    }
    Ok(())
}
