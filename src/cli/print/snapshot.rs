//! Backups as text.

use std::io;
use std::io::Write;

use serde::Serialize;

use super::json;
use super::status::size;
use super::table::table_of_one;
use crate::cli::arguments::Format;
use crate::wire::state::StateSummary;

/// What `snapshot status` says. The names of the first four are etcdctl's.
#[derive(Serialize)]
struct Document {
    hash: String,
    revision: i64,
    #[serde(rename = "totalKey")]
    total_key: u64,
    #[serde(rename = "totalSize")]
    total_size: u64,
    compact_revision: i64,
    leases: u64,
    applied_index: u64,
    raft_term: u64,
    cluster: String,
    member_id: u64,
    chunks: u64,
    records: u64,
    file_hash: String,
}

impl Document {
    fn new(summary: &StateSummary, bytes: u64) -> Self {
        let header = &summary.header;
        Self {
            hash: header.hash.to_string(),
            revision: header.revision,
            total_key: summary.keys(),
            total_size: bytes,
            compact_revision: header.compact_revision,
            leases: header.leases,
            applied_index: header.base.id.index.0,
            raft_term: header.base.id.term.0,
            cluster: header.cluster.to_string(),
            member_id: header.member.0,
            chunks: summary.chunks,
            records: summary.records.iter().sum(),
            file_hash: format!("{:032x}", summary.hash),
        }
    }

    /// The beginning of the hash: enough to tell two backups apart.
    fn short_hash(&self) -> &str {
        &self.hash[..8]
    }
}

/// What a backup holds.
///
/// # Errors
/// Those of `out`.
pub fn status(
    out: &mut impl Write,
    format: Format,
    summary: &StateSummary,
    bytes: u64,
) -> io::Result<()> {
    let document = Document::new(summary, bytes);
    match format {
        Format::Simple => writeln!(
            out,
            "{}, {}, {}, {}",
            document.short_hash(),
            document.revision,
            document.total_key,
            size(bytes)
        ),
        Format::Json => json::line(out, &document),
        Format::Fields => fields(out, &document),
        Format::Table => row(out, &document, bytes),
    }
}

/// That a backup is what was written.
///
/// # Errors
/// Those of `out`.
pub fn verified(
    out: &mut impl Write,
    format: Format,
    file: &str,
    summary: &StateSummary,
    bytes: u64,
) -> io::Result<()> {
    let document = Document::new(summary, bytes);
    match format {
        Format::Table => row(out, &document, bytes),
        Format::Simple => writeln!(
            out,
            "{file}: sound, {} chunks, {} records, revision {}, content hash {}",
            document.chunks, document.records, document.revision, document.hash
        ),
        Format::Json => json::line(out, &document),
        Format::Fields => fields(out, &document),
    }
}

/// That a backup was written.
///
/// # Errors
/// Those of `out`.
pub fn saved(
    out: &mut impl Write,
    format: Format,
    file: &str,
    summary: &StateSummary,
    bytes: u64,
) -> io::Result<()> {
    let document = Document::new(summary, bytes);
    match format {
        Format::Table => row(out, &document, bytes),
        Format::Simple => writeln!(
            out,
            "snapshot of revision {} saved to {file}: {} keys, {}, hash {}",
            document.revision,
            document.total_key,
            size(bytes),
            document.short_hash()
        ),
        Format::Json => json::line(out, &document),
        Format::Fields => fields(out, &document),
    }
}

fn row(out: &mut impl Write, document: &Document, bytes: u64) -> io::Result<()> {
    table_of_one(
        out,
        &[
            ("HASH", document.short_hash().to_owned()),
            ("REVISION", document.revision.to_string()),
            ("TOTAL KEYS", document.total_key.to_string()),
            ("TOTAL SIZE", size(bytes)),
        ],
    )
}

fn fields(out: &mut impl Write, document: &Document) -> io::Result<()> {
    let document = serde_json::to_value(document).expect("a document of plain values");
    json::fields(out, &document)
}
