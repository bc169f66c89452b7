//! The page of `-o json`, made from the documents that a real cluster gave: a verb without a
//! document, or a field without a meaning, fails the test that makes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use leasehold::cli;
use serde_json::Value;

use super::meanings::{MEANINGS, NOTES};
use super::shape;

/// What a command printed.
pub(super) struct Seen {
    /// The verb, and behind a comma what is special about this run of it.
    pub(super) what: String,
    pub(super) documents: String,
}

impl Seen {
    pub(super) fn new(what: &str, documents: String) -> Self {
        let what = what.to_owned();
        Self { what, documents }
    }

    fn verb(&self) -> &str {
        self.what.split(", ").next().unwrap_or_default()
    }
}

const STORY: &str = "\
# JSON of the command line

*Made by `UPDATE_PINS=1 cargo test --test cluster pins` from what the commands print; the same test holds it.*

`-o json` prints one document in one line, or a document in each line where that is said below. A program that reads
it must ignore fields that it does not know ([versions.md](../guide/versions.md#what-may-change)); errors are sentences
on standard error, with an [exit code](errors.md#exit-codes). `-o fields` prints a line for each leaf of the same document, except
where etcdctl has names of its own (`get`, `put`, `del`, `txn`, `watch`, `compaction`, `endpoint`, `member`, `alarm`).

- **`header`** is there whenever the document is the answer of one node to one request, and in each element of a list
  that another node answered; the element of a node that did not answer (`endpoint health`) has none. A list that took
  several requests has the header of the first. What is made of many answers (`top`, `lease top`, `doctor`, `snapshot
  save`), of a stream of events (`watch`, `elect --listen`), of a session (`lock`, `elect`) or without a cluster
  (`cert`, `offline`, `version`) has none.
- **Keys and values** are base64, since they are bytes.
- **Ids** of members, clusters and leases are numbers of 64 bits, as etcdctl's are: read them with a parser that does
  not round. Where an id is a string, it is hexadecimal, as tables show it and as commands take it.
- **Durations** end in `_ms` or `_s` and are numbers; *not always* marks a field that may be missing.
";

/// Verbs that print no document, with the reason.
const NONE: [(&str, &str); 8] = [
    ("serve", "runs until it is stopped"),
    ("dev", "runs until it is stopped"),
    ("completion", "prints a script"),
    ("man", "prints pages"),
    (
        "bench",
        "prints a report: [measure.md](../guide/measure.md)",
    ),
    (
        "chaos",
        "prints a report: [measure.md](../guide/measure.md)",
    ),
    (
        "make-mirror",
        "runs on, and says on the error output how far it is",
    ),
    (
        "verify",
        "prints a report: [measure.md](../guide/measure.md)",
    ),
];

/// Verbs whose document is another's.
const SAME: [(&str, &str); 2] = [
    ("member promote", "member add"),
    ("member replace", "member add"),
];

const KEY: [&str; 6] = [
    "create_revision",
    "key",
    "lease",
    "mod_revision",
    "value",
    "version",
];

/// The page, from all that was seen.
pub(super) fn page(seen: &[Seen]) -> String {
    let mut used = BTreeSet::new();
    let mut out = STORY.to_owned();
    let mut all: Vec<&Seen> = seen.iter().collect();
    out.push_str("\n## The header\n\n");
    let headers = Shape::of(&all).below("header");
    headers.write(&mut out, "the header", &mut used);
    out.push_str("\n## A key\n\n");
    let keys = Shape::of(&all).below("kvs[]");
    keys.write(&mut out, "a key", &mut used);
    for verb in verbs() {
        let is_of = |name: &str| verb == name || verb.starts_with(&format!("{name} "));
        if NONE.iter().any(|(name, _)| is_of(name)) {
            continue;
        }
        writeln!(out, "\n## {verb}\n").unwrap();
        if let Some((_, other)) = SAME.iter().find(|(name, _)| *name == verb) {
            writeln!(out, "As [{other}](#{}).", other.replace(' ', "-")).unwrap();
            continue;
        }
        let of_verb: Vec<&Seen> = all.iter().filter(|it| it.verb() == verb).copied().collect();
        assert!(
            !of_verb.is_empty(),
            "no document of `{verb}` was seen: add it to the test"
        );
        all.retain(|it| it.verb() != verb);
        let note = NOTES.iter().find(|(name, _)| *name == verb);
        let lines = of_verb.iter().map(|it| it.documents.trim().lines().count());
        assert!(
            note.is_some() || lines.max() == Some(1),
            "say what each line of `{verb}` is"
        );
        if let Some((_, note)) = note {
            writeln!(out, "{note}\n").unwrap();
        }
        Shape::of(&of_verb).write(&mut out, &verb, &mut used);
    }
    let unknown: Vec<&str> = all.iter().map(|it| it.what.as_str()).collect();
    assert!(unknown.is_empty(), "no verbs: {unknown:?}");
    let idle: Vec<_> = MEANINGS
        .iter()
        .filter(|(of, _)| !used.contains(of))
        .collect();
    assert!(
        idle.is_empty(),
        "meanings of fields that no document has: {idle:?}"
    );
    out.push_str("\n## Verbs without a document\n\n| Verb | Why |\n|---|---|\n");
    for (verb, why) in NONE {
        writeln!(out, "| `{verb}` | {why} |").unwrap();
    }
    out
}

/// Every command that does something, in the order of the help.
pub(super) fn verbs() -> Vec<String> {
    fn walk(command: &clap::Command, of: &str, verbs: &mut Vec<String>) {
        for below in command
            .get_subcommands()
            .filter(|below| !below.is_hide_set() && below.get_name() != "help")
        {
            let name = format!("{of} {}", below.get_name());
            match below.has_subcommands() {
                true => walk(below, &name, verbs),
                false => verbs.push(name.trim().to_owned()),
            }
        }
    }
    let mut verbs = Vec::new();
    walk(&cli::command(&[]), "", &mut verbs);
    verbs
}

/// The fields of documents: their types, and in how many of the runs they were.
struct Shape {
    fields: BTreeMap<String, BTreeSet<String>>,
    runs: Vec<BTreeSet<String>>,
}

impl Shape {
    fn of(seen: &[&Seen]) -> Self {
        let (mut fields, mut runs) = (BTreeMap::<_, BTreeSet<_>>::new(), Vec::new());
        let documents = seen.iter().flat_map(|it| {
            let documents = serde_json::Deserializer::from_str(&it.documents).into_iter::<Value>();
            documents.flat_map(|document| elements(document.expect("it is JSON")))
        });
        for document in documents {
            let mut run = BTreeSet::new();
            for line in shape(&document) {
                let (path, kind) = line.rsplit_once(": ").unwrap();
                let path = path.trim_start_matches('.').to_owned();
                fields
                    .entry(path.clone())
                    .or_default()
                    .insert(kind.to_owned());
                run.insert(path);
            }
            runs.push(run);
        }
        Self { fields, runs }
    }

    /// What is below a place, wherever that place is.
    fn below(&self, place: &str) -> Self {
        let rest = |path: &String| {
            let at = path.find(&format!("{place}."))?;
            Some(path[at + place.len() + 1..].to_owned())
        };
        let mut fields = BTreeMap::<_, BTreeSet<_>>::new();
        for (path, kinds) in &self.fields {
            if let Some(rest) = rest(path) {
                fields.entry(rest).or_default().extend(kinds.clone());
            }
        }
        let runs = self
            .runs
            .iter()
            .map(|run| run.iter().filter_map(rest).collect());
        let runs = runs.filter(|run: &BTreeSet<_>| !run.is_empty()).collect();
        Self { fields, runs }
    }

    /// Whether documents that could have the field are without it.
    fn is_missing(&self, path: &str) -> bool {
        let parent = path.rfind(['.', ']']).map_or("", |at| &path[..=at]);
        let mut with_parent = self
            .runs
            .iter()
            .filter(|run| run.iter().any(|it| it.starts_with(parent)));
        !with_parent.all(|run| {
            run.iter()
                .any(|it| it == path || it.starts_with(&format!("{path}.")))
        })
    }

    /// Whether the field is a list whose elements have a line of their own.
    fn has_elements(&self, path: &str) -> bool {
        let element = format!("{path}[]");
        self.fields.keys().any(|it| it.starts_with(&element))
    }

    fn write(&self, out: &mut String, of: &str, used: &mut BTreeSet<&'static str>) {
        let is_list = self
            .fields
            .get("")
            .is_some_and(|kinds| kinds.contains("list"));
        let mut done = BTreeSet::new();
        let mut rows = String::new();
        for (path, kinds) in self.fields.iter().filter(|(path, _)| !path.is_empty()) {
            let shown = path.strip_prefix("[].").unwrap_or(path);
            let (shown, kind) = match self.known_object(path) {
                Some((object, kind)) if object != path => (
                    object.strip_prefix("[].").unwrap_or(object),
                    kind.to_owned(),
                ),
                _ if self.has_elements(path) => continue,
                _ => (
                    shown,
                    kinds.iter().cloned().collect::<Vec<_>>().join(" or "),
                ),
            };
            if !done.insert(shown.to_owned()) || shown == "[]" {
                continue;
            }
            let whole = match is_list {
                true => format!("[].{shown}"),
                false => shown.to_owned(),
            };
            let missing = match self.is_missing(&whole) {
                true => ", not always",
                false => "",
            };
            let meaning = meaning(of, shown, used);
            writeln!(rows, "| `{shown}` | {kind}{missing} | {meaning} |").unwrap();
        }
        if is_list && !rows.is_empty() {
            out.push_str("A list; each element has:\n\n");
        }
        match rows.is_empty() {
            true if is_list => {}
            true => out.push_str("Nothing in it, if there is none.\n"),
            false => write!(out, "| Field | Type | What it is |\n|---|---|---|\n{rows}").unwrap(),
        }
    }

    /// The header or the key that the field is a part of.
    fn known_object<'a>(&self, path: &'a str) -> Option<(&'a str, &'static str)> {
        if let Some(at) = path.find("header.") {
            return Some((&path[..at + "header".len()], "[header](#the-header)"));
        }
        if let Some(at) = path.find(".Response.Response") {
            let rest = &path[at + ".Response.".len()..];
            let end = path.len() - rest.len() + rest.find('.').unwrap_or(rest.len());
            return Some((&path[..end], "the same fields"));
        }
        let (object, _) = path.rsplit_once('.')?;
        let names = self
            .fields
            .keys()
            .filter_map(|it| it.strip_prefix(object)?.strip_prefix('.'));
        names.eq(KEY).then_some((object, "[key](#a-key)"))
    }
}

/// A list by its elements, so that what one of them lacks is not hidden by the others.
fn elements(document: Value) -> Vec<String> {
    match document {
        Value::Array(all) if !all.is_empty() => {
            let alone = all.into_iter().map(|it| Value::Array(vec![it]).to_string());
            alone.collect()
        }
        other => vec![other.to_string()],
    }
}

/// What a field means: in this verb, or else wherever it is.
fn meaning(verb: &str, field: &str, used: &mut BTreeSet<&'static str>) -> &'static str {
    let here = format!("{verb}: {field}");
    let name = field
        .trim_end_matches("[]")
        .rsplit('.')
        .next()
        .unwrap_or(field);
    let of = |key: &str| MEANINGS.iter().find(|(of, _)| *of == key);
    let found = of(&here).or_else(|| of(name));
    let (of, meaning) =
        found.unwrap_or_else(|| panic!("say what `{field}` of `{verb}` is, in meanings.rs"));
    used.insert(of);
    meaning
}
