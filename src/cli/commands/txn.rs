//! A transaction as it is typed, in etcdctl's words: lines in, a request out.
//!
//! Three parts, each ended by an empty line or the end of the input: comparisons, what is done if
//! all of them hold, what is done if not. A comparison is `value("KEY") = "VALUE"`, and of version,
//! create, mod and lease likewise; an operation is `put`, `get` or `del` as on the command line. In
//! double quotes a backslash begins an escape, as in Go and Rust; in single quotes nothing does.

use std::ffi::OsString;
use std::io;
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use clap::{Parser, Subcommand};

use super::request::{delete_request, get_request, put_request};
use super::which_lease;
use crate::api::{Compare, CompareOp, CompareTarget, LeaseTarget, TxnOp, TxnRequest};
use crate::cli::arguments::lease::{LeaseText, parse_lease};
use crate::cli::arguments::{DelArgs, GetArgs, PutArgs};
use crate::cli::connection::Connection;
use crate::cli::failure::Failure;
use crate::cli::print::Parts;

/// More than any server takes as one transaction, escapes included.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// A transaction as it was typed.
#[derive(Debug, Default)]
pub struct Script {
    compare: Vec<Compare>,
    /// The places of comparisons with a lease that the cluster is to be asked for.
    compared: Vec<(usize, LeaseText)>,
    success: Branch,
    failure: Branch,
}

#[derive(Debug, Default)]
struct Branch {
    ops: Vec<TxnOp>,
    parts: Vec<Parts>,
    /// The places of puts to a lease that the cluster is to be asked for.
    leases: Vec<(usize, LeaseText)>,
}

/// What is shown of each operation of each branch.
#[derive(Debug)]
pub struct BranchParts {
    /// If all comparisons held.
    pub success: Vec<Parts>,
    /// If not.
    pub failure: Vec<Parts>,
}

/// An operation as it is typed.
#[derive(Debug, Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    disable_help_subcommand = true
)]
struct Line {
    #[command(subcommand)]
    op: Op,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_flag = true)]
enum Op {
    Put(PutArgs),
    Get(GetArgs),
    Del(DelArgs),
}

impl Script {
    /// Reads the three parts. Prompts on standard error if the input is a terminal.
    ///
    /// # Errors
    /// Which line does not read, and how it should; or why the input could not be read.
    pub fn read(input: impl BufRead, interactive: bool) -> Result<Self, Failure> {
        let mut lines = Lines {
            input: input.take(INPUT_BYTES_MAX),
            number: 0,
        };
        let mut script = Self::default();
        let ask = |what: &str| {
            if interactive {
                // If standard error is gone, the prompt is lost.
                let _ = writeln!(anstream::stderr(), "{what}");
            }
        };
        ask("compares:");
        while let Some(line) = lines.next_of_part()? {
            let (compare, lease) = comparison(&line).map_err(|problem| lines.refuse(&problem))?;
            let place = script.compare.len();
            script.compared.extend(lease.map(|lease| (place, lease)));
            script.compare.push(compare);
        }
        for (what, branch) in [
            ("success requests (get, put, del):", &mut script.success),
            ("failure requests (get, put, del):", &mut script.failure),
        ] {
            ask(what);
            while let Some(line) = lines.next_of_part()? {
                let read = operation(&line).map_err(|problem| lines.refuse(&problem))?;
                let place = branch.ops.len();
                branch.leases.extend(read.lease.map(|lease| (place, lease)));
                branch.ops.push(read.op);
                branch.parts.push(read.parts);
            }
        }
        if lines.input.limit() == 0 {
            return Err(Failure::usage(format!(
                "the transaction is longer than {INPUT_BYTES_MAX} bytes, more than any server \
                 accepts"
            )));
        }
        // An empty line ends the last part too; more of them do no harm.
        while let Some(line) = lines.next()? {
            if !line.is_empty() {
                return Err(
                    lines.refuse("unexpected input after the transaction: it has three parts")
                );
            }
        }
        if script.compare.is_empty()
            && script.success.ops.is_empty()
            && script.failure.ops.is_empty()
        {
            return Err(Failure::usage(
                "the transaction is empty: it has no comparison and no operation",
            ));
        }
        Ok(script)
    }

    /// The request, and what is to be shown of the answer, once the cluster has said which leases are meant.
    ///
    /// # Errors
    /// A lease is not there, or is not named clearly.
    pub async fn into_request(
        mut self,
        connection: &impl Connection,
    ) -> Result<(TxnRequest, BranchParts), Failure> {
        for (place, typed) in &self.compared {
            let lease = which_lease::find(typed, connection).await?;
            self.compare[*place].target = CompareTarget::Lease(lease.id);
        }
        for branch in [&mut self.success, &mut self.failure] {
            for (place, typed) in &branch.leases {
                let lease = which_lease::target(typed, connection).await?;
                if let TxnOp::Put(put) = &mut branch.ops[*place] {
                    put.lease = lease;
                }
            }
        }
        Ok(self.request())
    }

    fn request(self) -> (TxnRequest, BranchParts) {
        let request = TxnRequest::new()
            .when(self.compare)
            .and_then(self.success.ops)
            .or_else(self.failure.ops);
        let shown = BranchParts {
            success: self.success.parts,
            failure: self.failure.parts,
        };
        (request, shown)
    }
}

struct Lines<R> {
    input: io::Take<R>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// The next line, without white space around it; `None` at the end of the input.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        if self.input.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(line.trim_ascii().to_vec()))
    }

    /// The next line of a part; `None` at its end.
    fn next_of_part(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.next()?.filter(|line| !line.is_empty()))
    }

    fn refuse(&self, problem: &str) -> Failure {
        Failure::usage(format!(
            "line {} of the transaction: {problem}",
            self.number
        ))
    }
}

/// `value("KEY") = "VALUE"` and its kin; and the lease, if it is compared with one that is to be asked for.
fn comparison(line: &[u8]) -> Result<(Compare, Option<LeaseText>), String> {
    let form = || {
        "a comparison is written as value(\"KEY\") = \"VALUE\"; also version, create, mod and lease, \
         and !=, < and >"
            .to_owned()
    };
    let mut rest = Cursor(line);
    let target = rest.take_while(|byte| byte.is_ascii_alphabetic());
    rest.skip(b"(").ok_or_else(form)?;
    let key = rest.word(|byte| byte == b')' || byte.is_ascii_whitespace())?;
    rest.skip(b")").ok_or_else(form)?;
    let op = match rest.take_while(|byte| b"=!<>".contains(&byte)) {
        b"=" => CompareOp::Equal,
        b"!=" => CompareOp::NotEqual,
        b"<" => CompareOp::Less,
        b">" => CompareOp::Greater,
        _ => return Err(form()),
    };
    rest.skip_space();
    if rest.0.is_empty() {
        return Err(form());
    }
    let given = rest.word(|byte| byte.is_ascii_whitespace())?;
    rest.skip_space();
    if !rest.0.is_empty() {
        return Err("unexpected text after the comparison: write one per line".to_owned());
    }
    let number = || {
        let text = std::str::from_utf8(&given).unwrap_or_default();
        text.parse().map_err(|_| {
            let given = String::from_utf8_lossy(&given);
            format!("{given:?} is not a number: versions and revisions are numbers")
        })
    };
    let key = Bytes::from(key);
    let compare = match target {
        b"value" | b"val" => Compare::value(key, op, given),
        b"version" | b"ver" => Compare::version(key, op, number()?),
        b"create" | b"c" => Compare::create_revision(key, op, number()?),
        b"mod" | b"m" => Compare::mod_revision(key, op, number()?),
        b"lease" => {
            let (id, lease) = compared_lease(&given)?;
            return Ok((Compare::lease(key, op, id), lease));
        }
        _ => return Err(form()),
    };
    Ok((compare, None))
}

/// The id that a lease is compared with, 0 for none; or the lease that is to be asked for it.
fn compared_lease(given: &[u8]) -> Result<(i64, Option<LeaseText>), String> {
    const NONE: &[u8] = b"0";
    if given == NONE {
        return Ok((0, None));
    }
    let text = std::str::from_utf8(given).map_err(|_| {
        let given = String::from_utf8_lossy(given);
        format!("{given:?} is not a lease: write its id in hexadecimal, or its name")
    })?;
    Ok(match parse_lease(text)? {
        LeaseText::Id(id) => (id, None),
        other => (0, Some(other)),
    })
}

/// An operation that was read.
struct Operation {
    op: TxnOp,
    parts: Parts,
    /// The lease of a put that is to be asked for.
    lease: Option<LeaseText>,
}

/// `put KEY VALUE` and its kin, and what is to be shown of the answer.
fn operation(line: &[u8]) -> Result<Operation, String> {
    let line = Line::try_parse_from(words(line)?).map_err(|error| {
        let text = error.render().to_string();
        let first = text.lines().next().unwrap_or_default();
        let first = first.strip_prefix("error: ").unwrap_or(first);
        format!("{first}: an operation is put, get or del, as on the command line")
    })?;
    let mut lease = None;
    let (op, parts) = match line.op {
        Op::Put(PutArgs { fence, .. }) | Op::Del(DelArgs { fence, .. }) if !fence.is_empty() => {
            return Err(
                "in a transaction a fence is one of the comparisons: create(\"KEY\") = \"TOKEN\""
                    .to_owned(),
            );
        }
        Op::Put(arguments) => {
            let no_value = || Err(Failure::usage("a put in a transaction needs its value"));
            lease = arguments.lease_text();
            let put = put_request(arguments, LeaseTarget::None, no_value);
            (
                TxnOp::Put(put.map_err(|failure| failure.message)?),
                Parts::All,
            )
        }
        Op::Get(arguments) => {
            let (range, parts) = get_request(arguments);
            (TxnOp::Range(range), parts)
        }
        Op::Del(arguments) => {
            let delete = delete_request(arguments).map_err(|failure| failure.message)?;
            (TxnOp::DeleteRange(delete), Parts::All)
        }
    };
    Ok(Operation { op, parts, lease })
}

fn words(line: &[u8]) -> Result<Vec<OsString>, String> {
    let mut rest = Cursor(line);
    let mut words = Vec::new();
    rest.skip_space();
    while !rest.0.is_empty() {
        words.push(OsString::from_vec(
            rest.word(|byte| byte.is_ascii_whitespace())?,
        ));
        rest.skip_space();
    }
    Ok(words)
}

/// What is left of a line.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn skip_space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    /// Goes past `what`, and white space around it, if that is next.
    fn skip(&mut self, what: &[u8]) -> Option<()> {
        self.skip_space();
        self.0 = self.0.strip_prefix(what)?;
        self.skip_space();
        Some(())
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !is_part(*byte));
        let (taken, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        taken
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A word, which may be quoted, in whole or in part; `is_end` is what ends it outside of quotes.
    fn word(&mut self, is_end: impl Fn(u8) -> bool) -> Result<Vec<u8>, String> {
        let mut word = Vec::new();
        while let Some(byte) = self.0.first().copied().filter(|byte| !is_end(*byte)) {
            self.take();
            match byte {
                b'"' => self.double_quoted(&mut word)?,
                b'\'' => {
                    word.extend_from_slice(self.take_while(|byte| byte != b'\''));
                    self.take().ok_or_else(unclosed)?;
                }
                byte => word.push(byte),
            }
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Vec<u8>) -> Result<(), String> {
        loop {
            match self.take().ok_or_else(unclosed)? {
                b'"' => return Ok(()),
                b'\\' => self.escape(word)?,
                byte => word.push(byte),
            }
        }
    }

    fn escape(&mut self, word: &mut Vec<u8>) -> Result<(), String> {
        let letter = self.take().ok_or_else(unclosed)?;
        let simple = match letter {
            b'n' => Some(b'\n'),
            b'r' => Some(b'\r'),
            b't' => Some(b'\t'),
            b'0' => Some(0),
            b'"' | b'\'' | b'\\' => Some(letter),
            _ => None,
        };
        if let Some(byte) = simple {
            word.push(byte);
            return Ok(());
        }
        let digits = match letter {
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            _ => 0,
        };
        let number = self.0.get(..digits).and_then(|text| {
            let text = std::str::from_utf8(text)
                .ok()
                .filter(|text| !text.is_empty())?;
            // A sign would read as well.
            let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u32::from_str_radix(text, 16).ok())?
        });
        let bad = || {
            "an escape in double quotes is one of \\n \\r \\t \\0 \\\" \\' \\\\, or \\x, \\u or \\U with \
             two, four or eight hexadecimal digits"
                .to_owned()
        };
        let number = number.ok_or_else(bad)?;
        self.0 = &self.0[digits..];
        match u8::try_from(number) {
            Ok(byte) if letter == b'x' => word.push(byte),
            _ => {
                let character = char::from_u32(number).ok_or_else(bad)?;
                word.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        Ok(())
    }
}

fn unclosed() -> String {
    "a quote is not closed on its line: write a line's end as \\n in double quotes".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{DeleteRangeRequest, KeyRange, PutRequest, RangeRequest};
    use crate::cli::failure::Exit;

    fn read(text: &str) -> Result<TxnRequest, Failure> {
        Script::read(text.as_bytes(), false).map(|script| script.request().0)
    }

    #[test]
    fn the_transaction_of_the_manual_reads() {
        let text =
            "mod(\"key1\") > \"0\"\n\nput key1 \"overwrote-key1\"\n\nput key1 \"created-key1\"\n\n";
        let expected = TxnRequest::new()
            .when([Compare::mod_revision("key1", CompareOp::Greater, 0)])
            .and_then([TxnOp::put("key1", "overwrote-key1")])
            .or_else([TxnOp::put("key1", "created-key1")]);
        assert_eq!(read(text).unwrap(), expected);
        assert_eq!(
            read(text.trim_end()).unwrap(),
            expected,
            "no empty line at the end"
        );
        let only_else = TxnRequest::new().or_else([TxnOp::get("k")]);
        assert_eq!(read("\n\nget k\n").unwrap(), only_else);
    }

    #[test]
    fn a_transaction_with_nothing_in_it_is_refused() {
        for text in ["", "\n", "\n\n\n"] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{text:?}");
            assert!(failure.message.contains("is empty"), "{failure}");
        }
    }

    #[test]
    fn every_target_and_operator_reads() {
        let compares = |text: &str| comparison(text.as_bytes()).unwrap().0;
        let equal = CompareOp::Equal;
        for (text, expected) in [
            (r#"value("k") = "v""#, Compare::value("k", equal, "v")),
            (
                r#"val("k") != "v""#,
                Compare::value("k", CompareOp::NotEqual, "v"),
            ),
            (
                r#"version("k") < "2""#,
                Compare::version("k", CompareOp::Less, 2),
            ),
            (
                r#"ver("k")>2"#,
                Compare::version("k", CompareOp::Greater, 2),
            ),
            (
                r#"create("k") = "12""#,
                Compare::create_revision("k", equal, 12),
            ),
            ("c( k ) = 12", Compare::create_revision("k", equal, 12)),
            (r#"m("k)(") = "0""#, Compare::mod_revision("k)(", equal, 0)),
            (r#"lease("k") = "0x1f""#, Compare::lease("k", equal, 0x1f)),
            (r#"lease("k") = "0""#, Compare::lease("k", equal, 0)),
            (
                r#"value("a\"\x00é\u00e9") = "\n""#,
                Compare::value("a\"\0éé", equal, "\n"),
            ),
            (r#"value("k") = """#, Compare::value("k", equal, "")),
        ] {
            assert_eq!(compares(text), expected, "{text}");
        }
        assert_eq!(
            compares(r#"value("\xff") = "\xfe\x00""#),
            Compare::value(vec![0xff], equal, vec![0xfe, 0])
        );
    }

    #[test]
    fn operations_have_the_options_of_the_command_line() {
        let text = "\nput k 'a \"b\" \\n' --prev-kv\nget --prefix a --keys-only --limit 3\ndel x z\n\nget \"\" --from-key --print-value-only";
        let script = Script::read(text.as_bytes(), false).unwrap();
        let (request, shown) = script.request();
        let put = PutRequest {
            key: "k".into(),
            value: "a \"b\" \\n".into(),
            prev_kv: true,
            ..PutRequest::default()
        };
        let get = RangeRequest {
            key: "a".into(),
            range: KeyRange::Prefix,
            keys_only: true,
            limit: 3,
            ..RangeRequest::default()
        };
        let delete = DeleteRangeRequest {
            key: "x".into(),
            range: KeyRange::Until("z".into()),
            ..DeleteRangeRequest::default()
        };
        let all = RangeRequest {
            range: KeyRange::From,
            ..RangeRequest::default()
        };
        let expected = TxnRequest::new()
            .and_then([
                TxnOp::Put(put),
                TxnOp::Range(get),
                TxnOp::DeleteRange(delete),
            ])
            .or_else([TxnOp::Range(all)]);
        assert_eq!(request, expected);
        assert_eq!(shown.success, [Parts::All, Parts::Keys, Parts::All]);
        assert_eq!(shown.failure, [Parts::Values]);
    }

    #[test]
    fn what_does_not_read_is_named_by_its_line() {
        for (text, line, problem) in [
            ("value(k = 1", 1, "a comparison is written as"),
            ("size(\"k\") = \"1\"", 1, "a comparison is written as"),
            ("mod(\"k\") == \"1\"", 1, "a comparison is written as"),
            ("mod(\"k\") =", 1, "a comparison is written as"),
            ("mod(\"k\") = \"1\" 2", 1, "unexpected text"),
            ("mod(\"k\") = \"one\"", 1, "\"one\" is not a number"),
            (
                "mod(\"k\") = \"99999999999999999999\"",
                1,
                "is not a number",
            ),
            ("lease(\"k\") = \"id:xyz\"", 1, "hexadecimal"),
            ("lease(\"k\") = \"\"", 1, "or its name"),
            ("lease(\"k\") = \"\\xff\"", 1, "or its name"),
            ("\nput k v --lease id:xyz", 2, "hexadecimal"),
            ("value(\"k) = \"1\"", 1, "a quote is not closed"),
            ("value(\"k\") = \"1", 1, "a quote is not closed"),
            ("value(\"\\q\") = \"1\"", 1, "an escape"),
            ("value(\"\\x+1\") = \"1\"", 1, "an escape"),
            ("value(\"\\ud800\") = \"1\"", 1, "an escape"),
            ("\nput k", 2, "needs its value"),
            ("\nput k 'v", 2, "a quote is not closed"),
            ("\nget", 2, "an operation is put, get or del"),
            ("\ndel --prefix", 2, "an operation is put, get or del"),
            ("\ndel --prefix ''", 2, "KEY is empty"),
            (
                "\nget k --consistency q",
                2,
                "an operation is put, get or del",
            ),
            ("\nlease grant 60", 2, "an operation is put, get or del"),
            ("\n\nget a --rev -1", 3, "an operation is put, get or del"),
            ("\n\n\n\nget a", 5, "it has three parts"),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            let place = format!("line {line} of the transaction: ");
            assert!(failure.message.starts_with(&place), "{text:?}: {failure}");
            assert!(failure.message.contains(problem), "{text:?}: {failure}");
        }
    }
}
