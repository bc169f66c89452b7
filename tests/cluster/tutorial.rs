//! docs/guide/tutorial.md, typed from its beginning to its end.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::{Cluster, binary, eventually, without_settings};

const PAGE: &str = include_str!("../../docs/guide/tutorial.md");

/// A block of the page: who types, and its lines.
struct Block {
    is_third: bool,
    lines: Vec<&'static str>,
}

fn blocks() -> Vec<Block> {
    let mut all = Vec::new();
    let mut rest = PAGE;
    while let Some((_, after)) = rest.split_once("\n```") {
        let (language, after) = after.split_once('\n').unwrap();
        let (body, after) = after.split_once("```").unwrap();
        // The page says that this one is not run.
        assert!(language != "sh" || body == "leasehold dev\n", "{body}");
        if matches!(language, "console" | "console third" | "text third") {
            all.push(Block {
                is_third: language.ends_with("third"),
                lines: body.lines().collect(),
            });
        }
        rest = after;
    }
    all
}

/// Commands of a block, each with the lines that it prints.
fn commands(block: &Block) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => all.push((command, Vec::new())),
            (None, Some((_, printed))) => printed.push(line),
            (None, None) => {}
        }
    }
    all
}

/// Whether `found` begins with the lines of the page, in which `...` is anything: in a line its rest, and
/// alone all that follows.
fn begins(found: &str, page: &[&str]) -> bool {
    let mut found = found.lines();
    page.iter().all(|line| match line.split_once("...") {
        Some(("", "")) => found.next().is_some(),
        Some((start, _)) => found.next().is_some_and(|it| it.starts_with(start)),
        None => found.next() == Some(*line),
    })
}

struct Terminal<'a> {
    cluster: &'a Cluster,
    tools: &'a Path,
}

impl Terminal<'_> {
    fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        without_settings(&mut shell);
        shell.args(["-c", &format!("exec 2>&1; {line}")]);
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", self.tools.display()));
        let pki = &self.cluster.pki;
        shell.env("LEASEHOLD_ENDPOINTS", self.cluster.endpoints().join(","));
        shell.env("LEASEHOLD_CACERT", pki.file("client-ca.pem"));
        shell.env("LEASEHOLD_CERT", pki.file("tester.pem"));
        shell.env("LEASEHOLD_KEY", pki.file("tester.key"));
        shell.env("LEASEHOLD_TIMEOUT", "60s");
        shell
    }

    fn types(&self, line: &str) -> String {
        let output = self.shell(line).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts what does not end by itself, with what it prints in a file.
    fn leaves_running(&self, line: &str, to: &Path) -> Running {
        let file = fs::File::create(to).unwrap();
        let mut shell = self.shell(line);
        shell.stdin(Stdio::null()).stdout(file).process_group(0);
        Running(shell.spawn().unwrap())
    }
}

/// Ends with the test, whatever becomes of that: by TERM, because a shell in the background has its commands ignore INT.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn every_command_of_the_tutorial_does_what_the_page_says() {
    let cluster = Cluster::start(3);
    let tools = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(binary(), tools.path().join("leasehold")).unwrap();
    let terminal = Terminal {
        cluster: &cluster,
        tools: tools.path(),
    };
    // Nothing is printed until there is a leader.
    eventually("a leader", || {
        let (code, ..) = cluster.cli(&["get", "k"]);
        (code == 5).then_some(())
    });
    let shown = tools.path().join("third");
    let read = || {
        let mut text = String::new();
        fs::File::open(&shown)
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    };
    let (mut third, mut typed) = (None::<Running>, 0);
    let mut seen: Vec<&str> = Vec::new();
    for block in blocks() {
        let commands = commands(&block);
        if block.is_third {
            if let [(line, printed)] = commands.as_slice() {
                drop(third.take());
                third = Some(terminal.leaves_running(line, &shown));
                seen.clone_from(printed);
                typed += 1;
            } else {
                seen.extend(block.lines.iter());
            }
            let page = seen.join("\n");
            eventually(&page, || begins(&read(), &seen).then_some(()));
            continue;
        }
        for (line, printed) in commands {
            let found = terminal.types(line);
            let is_all = printed.last() == Some(&"...") || found.lines().count() == printed.len();
            let page = printed.join("\n");
            assert!(
                begins(&found, &printed) && is_all,
                "{line}\n--- page\n{page}\n--- found\n{found}"
            );
            typed += 1;
        }
    }
    assert!(
        typed > 25,
        "{typed} commands: the page is read as it is written"
    );
}
