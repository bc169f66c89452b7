//! What is asked for, what is printed, and what commands are run with.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;

use super::*;
use crate::api;
use crate::api::{Error, EventKind, KeyRange, KeyValue, Request, Response, WatchRequest};
use crate::cli::arguments::{Cli, Command as Typed};
use crate::cli::failure::Exit;
use crate::client::Watcher;

/// A cluster that tells a watch what was written for it, and then nothing more.
#[derive(Default)]
struct ScriptedWatch {
    tells: RefCell<Vec<Result<WatchEvent, Error>>>,
    asked: RefCell<Option<WatchRequest>>,
}

impl ScriptedWatch {
    fn new(tells: impl IntoIterator<Item = WatchEvent>) -> Self {
        Self {
            tells: RefCell::new(tells.into_iter().map(Ok).collect()),
            asked: RefCell::default(),
        }
    }
}

impl Connection for ScriptedWatch {
    async fn call(&self, _: Request, _: api::Consistency) -> Result<Response, Error> {
        panic!("a watch asks for nothing else")
    }

    async fn status(&self, _: &str) -> Result<Response, Error> {
        panic!("a watch asks for nothing else")
    }

    async fn watch(&self, key: Bytes, options: WatchOptions) -> Result<Watcher, Error> {
        *self.asked.borrow_mut() = Some(options.request(&key).unwrap());
        Ok(Watcher::telling(self.tells.take()))
    }

    async fn close(self) {}
}

/// Runs `leasehold watch` with these words: what it printed, and how it ended.
fn watch(told: &ScriptedWatch, words: &[&str]) -> (String, Result<(), Failure>) {
    let words = ["leasehold", "watch"].iter().chain(words);
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let Typed::Watch(arguments) = cli.command else {
        panic!("this is no watch");
    };
    let view = View {
        format: cli.global.output,
        hex: cli.global.hex,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut out = Vec::new();
    let ended = runtime.block_on(async {
        let running = run(arguments, told, view, &mut out);
        tokio::time::timeout(Duration::from_secs(60), running).await
    });
    let text = String::from_utf8(out).unwrap();
    (text, ended.expect("what was told has an end"))
}

fn kv(key: &'static [u8], value: &'static [u8], revision: i64) -> KeyValue {
    KeyValue {
        key: Bytes::from_static(key),
        value: Bytes::from_static(value),
        create_revision: 2,
        mod_revision: revision,
        version: revision - 1,
        lease: 0,
    }
}

fn put(key: &'static [u8], value: &'static [u8], revision: i64) -> Event {
    Event {
        kind: EventKind::Put,
        kv: kv(key, value, revision),
        prev_kv: None,
    }
}

fn events(revision: i64, events: impl IntoIterator<Item = Event>) -> WatchEvent {
    WatchEvent::Events {
        revision,
        events: events.into_iter().collect(),
    }
}

/// A put over an older value, and the delete of a key, in one revision; and all that is no event.
fn everything() -> [WatchEvent; 6] {
    let overwritten = Event {
        prev_kv: Some(kv(b"foo", b"old", 2)),
        ..put(b"foo", b"bar", 3)
    };
    let deleted = Event {
        kind: EventKind::Delete,
        kv: KeyValue {
            key: "gone".into(),
            mod_revision: 3,
            ..KeyValue::default()
        },
        prev_kv: None,
    };
    let cause = || Error::not_applied(ErrorKind::ConnectionLost, "the wire was cut");
    [
        WatchEvent::Created { revision: 2 },
        WatchEvent::State {
            kvs: vec![kv(b"foo", b"old", 2)],
        },
        WatchEvent::Synced { revision: 2 },
        events(3, [overwritten, deleted]),
        WatchEvent::Resumed {
            from: 4,
            cause: cause(),
        },
        WatchEvent::Progress { revision: 9 },
    ]
}

#[test]
fn a_watch_asks_for_what_was_typed() {
    let asked = |words: &[&str]| {
        let told = ScriptedWatch::default();
        watch(&told, words).1.unwrap();
        told.asked.take().unwrap()
    };
    let of = |key: &'static str, range| WatchRequest {
        key: key.into(),
        range,
        ..WatchRequest::default()
    };
    assert_eq!(asked(&["k"]), of("k", KeyRange::Single));
    assert_eq!(asked(&["k", "z"]), of("k", KeyRange::Until("z".into())));
    assert_eq!(asked(&["--prefix", "k"]), of("k", KeyRange::Prefix));
    assert_eq!(asked(&["--from-key", "k"]), of("k", KeyRange::From));
    let much = [
        "k",
        "--rev",
        "7",
        "--prev-kv",
        "--progress-notify",
        "--no-put",
    ];
    assert_eq!(
        asked(&much),
        WatchRequest {
            start_revision: 7,
            prev_kv: true,
            progress_notify: true,
            no_put: true,
            ..of("k", KeyRange::Single)
        }
    );
    let listed = WatchRequest {
        initial_state: true,
        no_delete: true,
        ..of("k", KeyRange::Single)
    };
    assert_eq!(asked(&["k", "--initial-state", "--no-delete"]), listed);
    for bad in [
        &["k", "--rev", "-1"][..],
        &["k", "--no-put", "--no-delete"],
        &["k", "--rev", "3", "--initial-state"],
        &[],
    ] {
        let words = ["leasehold", "watch"].iter().chain(bad);
        assert!(Cli::try_parse_from(words).is_err(), "{bad:?}");
    }
}

#[test]
fn a_watch_prints_as_etcdctl_does() {
    let told = ScriptedWatch::new(everything());
    let (printed, ended) = watch(&told, &["foo"]);
    ended.unwrap();
    assert_eq!(
        printed,
        "foo\nold\nsynced: 2\nPUT\nfoo\nold\nfoo\nbar\nDELETE\ngone\n\nprogress notify: 9\n"
    );
    let told = ScriptedWatch::new(everything());
    let (printed, ended) = watch(&told, &["foo", "-o", "table"]);
    assert_eq!(printed, "", "it is not what was asked for");
    let refused = ended.unwrap_err();
    assert!(
        refused.message.contains("leave out `-o table`"),
        "{refused}"
    );
}

#[test]
fn the_fields_of_a_watch_name_all_there_is() {
    let told = ScriptedWatch::new(everything());
    let (printed, ended) = watch(&told, &["foo", "-o", "fields"]);
    ended.unwrap();
    assert_eq!(
        printed,
        r#""Key" : "foo"
"CreateRevision" : 2
"ModRevision" : 2
"Version" : 1
"Value" : "old"
"Lease" : 0
"SyncedRevision" : 2
"Type" : "PUT"
"PrevKey" : "foo"
"PrevCreateRevision" : 2
"PrevModRevision" : 2
"PrevVersion" : 1
"PrevValue" : "old"
"PrevLease" : 0
"Key" : "foo"
"CreateRevision" : 2
"ModRevision" : 3
"Version" : 2
"Value" : "bar"
"Lease" : 0
"Type" : "DELETE"
"Key" : "gone"
"CreateRevision" : 0
"ModRevision" : 3
"Version" : 0
"Value" : ""
"Lease" : 0
"ProgressRevision" : 9
"#
    );
}

#[test]
fn hexadecimal_covers_keys_values_and_what_was_there_before() {
    let told = ScriptedWatch::new(everything());
    let (printed, _) = watch(&told, &["foo", "--hex"]);
    let (foo, old, bar) = (r"\x66\x6f\x6f", r"\x6f\x6c\x64", r"\x62\x61\x72");
    let gone = r"\x67\x6f\x6e\x65";
    assert_eq!(
        printed,
        format!(
            "{foo}\n{old}\nsynced: 2\nPUT\n{foo}\n{old}\n{foo}\n{bar}\nDELETE\n{gone}\n\n\
             progress notify: 9\n"
        )
    );
    let told = ScriptedWatch::new([events(3, [put(b"\xff\0", b"\n", 3)])]);
    let (printed, _) = watch(&told, &["x", "--hex", "-o", "fields"]);
    assert!(printed.contains("\"Key\" : \"\\xff\\x00\"\n"), "{printed}");
    assert!(printed.contains("\"Value\" : \"\\x0a\"\n"), "{printed}");
}

#[test]
fn the_lines_of_json_are_one_for_each_revision_and_notice() {
    let told = ScriptedWatch::new(everything());
    let (printed, _) = watch(&told, &["foo", "-o", "json"]);
    let lines: Vec<serde_json::Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let notices: Vec<&str> = lines
        .iter()
        .map(|line| line["notice"].as_str().unwrap_or("events"))
        .collect();
    assert_eq!(
        notices,
        [
            "created", "state", "synced", "events", "resumed", "progress"
        ]
    );
    let changes = &lines[3];
    assert_eq!(changes["revision"], 3);
    assert_eq!(changes["events"][0]["type"], "PUT");
    assert_eq!(changes["events"][0]["prev_kv"]["value"], "b2xk");
    assert_eq!(changes["events"][1]["type"], "DELETE");
    assert_eq!(lines[4]["revision"], 4);
    assert_eq!(lines[5]["revision"], 9);
}

#[test]
fn a_command_is_run_for_each_event_in_order_and_nothing_else_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let script = format!(
        "echo \"$LEASEHOLD_WATCH_EVENT_TYPE $LEASEHOLD_WATCH_REVISION $LEASEHOLD_WATCH_KEY \
         $LEASEHOLD_WATCH_VALUE $1\" >> {}; test $LEASEHOLD_WATCH_VALUE != fails",
        ran.display()
    );
    let told = ScriptedWatch::new(everything().into_iter().chain([
        // One that fails, and one that no environment can hold: the others are run all the same.
        events(4, [put(b"a", b"fails", 4), put(b"b\0", b"x", 4)]),
        events(5, [put(b"c", b"with words", 5)]),
    ]));
    let (printed, ended) = watch(&told, &["foo", "--", "sh", "-c", &script, "name", "word"]);
    ended.unwrap();
    assert_eq!(printed, "");
    assert_eq!(
        std::fs::read_to_string(ran).unwrap(),
        "PUT 3 foo bar word\nDELETE 3 gone  word\nPUT 4 a fails word\nPUT 5 c with words word\n"
    );
}

#[test]
fn a_command_that_does_not_exist_ends_the_watch_with_its_name() {
    let told = ScriptedWatch::new([events(3, [put(b"a", b"1", 3)])]);
    let (_, ended) = watch(&told, &["foo", "--", "/no/such/program"]);
    let failure = ended.unwrap_err();
    assert_eq!(failure.exit, Exit::Refused);
    assert!(
        failure.message.starts_with("cannot run /no/such/program: "),
        "{failure}"
    );
}

#[test]
fn a_watch_that_fell_behind_a_compaction_says_what_is_left() {
    let told = ScriptedWatch::new([events(3, [put(b"a", b"1", 3)])]);
    let gone = ErrorKind::Compacted {
        compact_revision: 41,
    };
    let error = Error::not_applied(gone, "it is gone");
    told.tells.borrow_mut().push(Err(error));
    let (printed, ended) = watch(&told, &["foo"]);
    assert_eq!(printed, "PUT\na\n1\n");
    let failure = ended.unwrap_err();
    assert_eq!(failure.exit, Exit::Refused);
    assert!(
        failure
            .message
            .contains("the oldest available revision is 41"),
        "{failure}"
    );
}
