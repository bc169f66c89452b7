//! The command line: any arguments, and any answer shown in every format.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use leasehold::api::ResponseBody;
use leasehold::cli;
use leasehold::cli::arguments::Format;
use leasehold::cli::print::{Parts, View};
use leasehold::cli::{SettingHelp, print};
use leasehold::server::config::SETTINGS;
use leasehold::wire::client::ServerFrame;
use leasehold::wire::{Frame, Kind};

use super::trace::say;

/// With an even first byte arguments, one on each line; with an odd one the reply of a server.
pub fn command_line(data: &[u8]) {
    match data.split_first() {
        Some((kind, rest)) if kind % 2 == 0 => arguments(rest),
        Some((_, rest)) => shown(rest),
        None => {}
    }
}

fn arguments(data: &[u8]) {
    let settings: Vec<_> = SETTINGS
        .iter()
        .map(|setting| SettingHelp {
            key: setting.key,
            default: setting.default,
            help: setting.help,
        })
        .collect();
    let words = data.split(|byte| *byte == b'\n');
    let words = words.map(|word| OsString::from_vec(word.to_vec()));
    let all = std::iter::once(OsString::from("leasehold")).chain(words);
    match cli::command(&settings).try_get_matches_from(all) {
        Ok(matches) => assert!(matches.subcommand_name().is_some()),
        Err(error) => say(format_args!("{error}")),
    }
}

/// Nothing that a server answers can stop its being shown, and what programs read is well formed.
fn shown(body: &[u8]) {
    let frame = Frame {
        kind: Kind::Reply,
        version: 1,
        body: Bytes::copy_from_slice(body),
    };
    let Ok(ServerFrame { result, .. }) = frame.decode() else {
        return;
    };
    let response = match result {
        Ok(response) => response,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for format in [Format::Simple, Format::Json, Format::Table, Format::Fields] {
        for hex in [false, true] {
            let view = View { format, hex };
            for parts in [Parts::All, Parts::Keys, Parts::Values, Parts::Count] {
                let mut out = Vec::new();
                let header = &response.header;
                let done = match &response.body {
                    ResponseBody::Range(range) => print::get(&mut out, view, parts, header, range),
                    ResponseBody::Put(put) => print::put(&mut out, view, header, put),
                    ResponseBody::DeleteRange(delete) => {
                        print::delete(&mut out, view, header, delete)
                    }
                    _ => return,
                };
                done.expect("memory takes everything");
                if format == Format::Json {
                    let read: Result<serde_json::Value, _> = serde_json::from_slice(&out);
                    assert!(read.is_ok_and(|value| value.is_object()));
                } else if hex {
                    // Escapes are what keeps a key from talking to the terminal.
                    let text = String::from_utf8(out).expect("escapes are text");
                    let quiet = |letter: char| !letter.is_control() || letter == '\n';
                    assert!(text.chars().all(quiet), "{text:?}");
                }
            }
        }
    }
}
