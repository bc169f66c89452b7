//! Variables that look like ours and are none.
//!
//! A key of the file or a flag that nobody knows is refused, and so is a variable that begins like a
//! section of ours. Of every other `LEASEHOLD_` variable a node only warns: container platforms set such
//! names for services of their own, programs of ours set some for the commands that they run, and who
//! starts a node often cannot take them away. A node that does not start is worse than a line in its log.

use std::fmt;

use super::{SETTINGS, environment_variable};

/// What all of ours begin with.
const PREFIX: &str = "LEASEHOLD_";
/// What programs of ours tell commands that they run, and read themselves besides their flags. A node
/// may be started from there.
const OF_COMMANDS: [&str; 9] = [
    "LEASEHOLD_FENCING_TOKEN",
    "LEASEHOLD_LEASE",
    "LEASEHOLD_LOCK_KEY",
    "LEASEHOLD_NEW_PASSWORD",
    "LEASEHOLD_PASSWORD",
    "LEASEHOLD_WATCH_EVENT_TYPE",
    "LEASEHOLD_WATCH_KEY",
    "LEASEHOLD_WATCH_REVISION",
    "LEASEHOLD_WATCH_VALUE",
];
/// How alike two names have to be for one to be meant by the other.
const LIKENESS_MIN: f64 = 0.7;

/// A variable that nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name. What it holds is nobody's business: it may be a secret.
    pub name: String,
    /// The variable that looks most like it, if any looks like it.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, nearest } = self;
        write!(
            f,
            "the environment variable {name} is not a setting and has no effect"
        )?;
        match nearest {
            Some(nearest) => write!(f, ": did you mean {nearest}?"),
            None => write!(f, ": `leasehold serve --help` lists all settings"),
        }
    }
}

/// Those of `env` that begin as ours do and mean nothing. `of_flags` are the variables that stand for
/// flags of the command line.
pub fn unknown_variables(env: &[(String, String)], of_flags: &[String]) -> Vec<UnknownVariable> {
    let settings = SETTINGS.iter().map(|it| environment_variable(it.key));
    let known: Vec<String> = settings.chain(of_flags.iter().cloned()).collect();
    let strange = env.iter().filter(|(name, value)| {
        name.starts_with(PREFIX)
            && !known.contains(name)
            && !is_of_command(name)
            && !is_of_platform(name, value)
    });
    strange
        .map(|(name, _)| UnknownVariable {
            name: name.clone(),
            nearest: nearest(name, &known),
        })
        .collect()
}

/// Programs of ours set it, or read it, for other ends than settings.
pub(super) fn is_of_command(name: &str) -> bool {
    OF_COMMANDS.contains(&name)
}

/// Container platforms set it for a service whose name begins as ours do, as
/// `LEASEHOLD_SERVICE_HOST` and `LEASEHOLD_NODE_PORT_7400_UDP_ADDR`.
pub(super) fn is_of_platform(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn nearest(name: &str, known: &[String]) -> Option<String> {
    // Where the underscores are is what people get wrong.
    let bare = |name: &str| name.replacen(PREFIX, "", 1).replace('_', "");
    let likeness = |it: &String| strsim::normalized_damerau_levenshtein(&bare(it), &bare(name));
    let best = known
        .iter()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LIKENESS_MIN).then(|| best.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(variables: &[(&str, &str)]) -> Vec<String> {
        let env: Vec<(String, String)> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let of_flags = [
            "LEASEHOLD_ENDPOINTS".to_owned(),
            "LEASEHOLD_CACERT".to_owned(),
        ];
        let found = unknown_variables(&env, &of_flags);
        found.iter().map(UnknownVariable::to_string).collect()
    }

    #[test]
    fn a_misspelt_setting_is_named_with_what_was_meant_and_without_its_value() {
        let right = environment_variable("leader_lease.max_clock_skew");
        let wrong = right.replace("LEADER_LEASE", "LEADERLEASE");
        assert_eq!(
            unknown(&[(&wrong, "canary"), ("LEASEHOLD_ENDPOINT", "a:1")]),
            [
                format!(
                    "the environment variable {wrong} is not a setting and has no effect: did you mean \
                     {right}?"
                ),
                "the environment variable LEASEHOLD_ENDPOINT is not a setting and has no effect: did you \
                 mean LEASEHOLD_ENDPOINTS?"
                    .to_owned(),
            ]
        );
        let strange = unknown(&[("LEASEHOLD_ZZZ", "1")]);
        assert!(strange[0].ends_with("lists all settings"), "{strange:?}");
    }

    #[test]
    fn what_others_set_for_ends_of_their_own_is_passed_over() {
        let mut fine: Vec<(String, String)> = [
            ("LEASEHOLD_SERVICE_HOST", "10.96.0.7"),
            ("LEASEHOLD_SERVICE_PORT", "7400"),
            ("LEASEHOLD_SERVICE_PORT_CLIENT", "7400"),
            ("LEASEHOLD_PORT", "udp://10.96.0.7:7400"),
            ("LEASEHOLD_PORT_7400_UDP", "udp://10.96.0.7:7400"),
            ("LEASEHOLD_PORT_7400_UDP_ADDR", "10.96.0.7"),
            ("LEASEHOLD_CLIENT_SERVICE_HOST", "10.96.0.8"),
            ("LEASEHOLD_ENDPOINTS", "a:1"),
            ("HOME", "/root"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        fine.extend(OF_COMMANDS.map(|name| (name.to_owned(), "x".to_owned())));
        fine.extend(
            SETTINGS
                .iter()
                .map(|it| (environment_variable(it.key), "x".to_owned())),
        );
        let fine: Vec<(&str, &str)> = fine.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(unknown(&fine), Vec::<String>::new());
    }
}
