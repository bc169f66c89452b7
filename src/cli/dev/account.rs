//! What a development cluster says of itself once it leads: what is where, and what to try.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt};

use anstyle::{AnsiColor, Style};

use crate::types::Role;

/// All there is to tell.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) nodes: Vec<NodeAccount>,
    pub(super) directory: PathBuf,
    pub(super) temporary: bool,
    pub(super) pki: PathBuf,
    /// The log file; `None` when log lines go to the terminal.
    pub(super) log: Option<PathBuf>,
    /// How to call this program from another shell.
    pub(super) program: String,
}

/// What there is to tell of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeAccount {
    pub(super) name: String,
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) admin: SocketAddr,
    /// Where etcd's clients reach it.
    pub(super) etcd: Option<SocketAddr>,
    /// `None` if it did not answer.
    pub(super) role: Option<Role>,
    /// What is left of its lease, if it has a valid one.
    pub(super) lease: Option<Duration>,
}

const TITLE: Style = Style::new().bold();
const NAME: Style = Style::new()
    .bold()
    .fg_color(Some(anstyle::Color::Ansi(AnsiColor::Cyan)));
const GOOD: Style = Style::new()
    .bold()
    .fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
const FAINT: Style = Style::new().dimmed();
const COMMAND: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));

impl fmt::Display for Account {
    /// With colours; a writer without colours strips them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.nodes.len();
        let plural = if count == 1 { "node" } else { "nodes" };
        writeln!(
            f,
            "{TITLE}leasehold{TITLE:#}: {count} {plural} in this process\n"
        )?;
        for node in &self.nodes {
            node.fmt(f)?;
        }
        let leader = self
            .nodes
            .iter()
            .find_map(|node| Some((&node.name, node.lease?)));
        if let Some((name, left)) = leader {
            let left = left.as_millis();
            line(
                f,
                "lease",
                format_args!(
                    "{GOOD}valid{GOOD:#}, {left} ms left, renewed continuously: {name} serves \
                     reads by itself"
                ),
            )?;
        }
        let etcd: Vec<String> = self
            .nodes
            .iter()
            .filter_map(|node| Some(node.etcd?.to_string()))
            .collect();
        if !etcd.is_empty() {
            line(
                f,
                "etcd",
                format_args!("{} {FAINT}(without TLS){FAINT:#}", etcd.join(",")),
            )?;
            line(f, "console", format_args!("http://{}/console/", etcd[0]))?;
        }
        let fate = match self.temporary {
            true => "deleted when this command ends",
            false => "kept",
        };
        let directory = self.directory.display();
        line(
            f,
            "data",
            format_args!("{directory} {FAINT}({fate}){FAINT:#}"),
        )?;
        line(f, "certificates", format_args!("{}", self.pki.display()))?;
        if let Some(log) = &self.log {
            line(f, "log", format_args!("{}", log.display()))?;
        }
        writeln!(f, "\nTry, in a second shell:\n")?;
        for command in self.commands() {
            writeln!(f, "  {COMMAND}{command}{COMMAND:#}")?;
        }
        let promise = match self.temporary {
            true => "and deletes the data",
            false => "and keeps the data",
        };
        writeln!(f, "\nCtrl-C stops everything {promise}.")
    }
}

impl Account {
    fn commands(&self) -> Vec<String> {
        let program = &self.program;
        let mut commands = vec![
            format!("{program} put foo bar"),
            format!("{program} get foo -o fields"),
            format!("{program} endpoint status -o table"),
        ];
        if self.nodes.len() > 1 {
            commands.push(format!("{program} move-leader"));
        }
        if let Some(node) = self.nodes.first() {
            commands.push(format!("curl http://{}/metrics", node.admin));
        }
        if self.nodes.iter().any(|node| node.etcd.is_some()) {
            commands.push("etcdctl put foo bar".to_owned());
        }
        commands
    }
}

impl fmt::Display for NodeAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Some(role) => role.to_string(),
            None => "silent".to_owned(),
        };
        let style = match self.role {
            Some(Role::Leader) => GOOD,
            _ => FAINT,
        };
        writeln!(
            f,
            "  {NAME}{}{NAME:#}  {style}{role:<9}{style:#}  clients {}  peers {}  admin http://{}",
            self.name, self.client, self.peer, self.admin
        )
    }
}

fn line(f: &mut fmt::Formatter<'_>, title: &str, text: fmt::Arguments<'_>) -> fmt::Result {
    // The first of these lines follows the nodes at some distance.
    let gap = if title == "lease" { "\n" } else { "" };
    writeln!(f, "{gap}  {TITLE}{title:<12}{TITLE:#}  {text}")
}

/// How this program is called from another shell: by its bare name where the shell would find it,
/// else by its path.
pub(super) fn program() -> String {
    let Ok(ours) = env::current_exe() else {
        return "leasehold".to_owned();
    };
    let found = env::var_os("PATH").and_then(|path| {
        env::split_paths(&path)
            .map(|directory| directory.join("leasehold"))
            .find(|candidate| candidate.is_file())
    });
    let same = |found: &PathBuf| found.canonicalize().ok() == ours.canonicalize().ok();
    match found.filter(same) {
        Some(_) => "leasehold".to_owned(),
        None => shell_word(&ours),
    }
}

/// A path as one word of a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(nodes: u16, temporary: bool) -> Account {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let node = |index: u16| NodeAccount {
            name: format!("n{}", index + 1),
            client: address(7_400 + 10 * index),
            peer: address(7_401 + 10 * index),
            admin: address(7_402 + 10 * index),
            etcd: None,
            role: match index {
                0 => Some(Role::Leader),
                1 => Some(Role::Follower),
                _ => None,
            },
            lease: (index == 0).then_some(Duration::from_millis(431)),
        };
        Account {
            nodes: (0..nodes).map(node).collect(),
            directory: "/tmp/leasehold-dev-1".into(),
            temporary,
            pki: "/tmp/leasehold-dev-1/pki".into(),
            log: Some("/tmp/leasehold-dev-1/dev.log".into()),
            program: "leasehold".to_owned(),
        }
    }

    #[test]
    fn the_account_of_three_nodes_says_what_is_where_and_what_to_try() {
        let text = anstream::adapter::strip_str(&account(3, true).to_string()).to_string();
        assert_eq!(
            text,
            "\
leasehold: 3 nodes in this process

  n1  leader     clients 127.0.0.1:7400  peers 127.0.0.1:7401  admin http://127.0.0.1:7402
  n2  follower   clients 127.0.0.1:7410  peers 127.0.0.1:7411  admin http://127.0.0.1:7412
  n3  silent     clients 127.0.0.1:7420  peers 127.0.0.1:7421  admin http://127.0.0.1:7422

  lease         valid, 431 ms left, renewed continuously: n1 serves reads by itself
  data          /tmp/leasehold-dev-1 (deleted when this command ends)
  certificates  /tmp/leasehold-dev-1/pki
  log           /tmp/leasehold-dev-1/dev.log

Try, in a second shell:

  leasehold put foo bar
  leasehold get foo -o fields
  leasehold endpoint status -o table
  leasehold move-leader
  curl http://127.0.0.1:7402/metrics

Ctrl-C stops everything and deletes the data.
"
        );
    }

    #[test]
    fn one_node_has_nobody_to_hand_leadership_to_and_kept_data_is_called_kept() {
        let text = anstream::adapter::strip_str(&account(1, false).to_string()).to_string();
        assert!(
            text.starts_with("leasehold: 1 node in this process\n"),
            "{text}"
        );
        assert!(!text.contains("move-leader"), "{text}");
        assert!(text.contains("leasehold-dev-1 (kept)\n"), "{text}");
        assert!(
            text.ends_with("Ctrl-C stops everything and keeps the data.\n"),
            "{text}"
        );
    }

    #[test]
    fn ports_for_etcd_s_clients_are_shown_where_there_are_any() {
        let mut account = account(1, true);
        account.nodes[0].etcd = Some(SocketAddr::from(([127, 0, 0, 1], 2_379)));
        let text = anstream::adapter::strip_str(&account.to_string()).to_string();
        assert!(
            text.contains("  etcd          127.0.0.1:2379 (without TLS)\n"),
            "{text}"
        );
        assert!(
            text.contains("  console       http://127.0.0.1:2379/console/\n"),
            "{text}"
        );
        assert!(text.contains("  etcdctl put foo bar\n"), "{text}");
    }

    #[test]
    fn a_path_that_a_shell_would_take_apart_is_quoted() {
        assert_eq!(shell_word(Path::new("/opt/leasehold")), "/opt/leasehold");
        assert_eq!(shell_word(Path::new("/my dir/l")), "'/my dir/l'");
        assert_eq!(shell_word(Path::new("/it's")), r"'/it'\''s'");
    }
}
