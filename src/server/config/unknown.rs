//! Environment variables with our prefix that are no settings.
//!
//! An unknown key in the file or in a flag is an error, and so is an unknown variable that begins like a
//! section. Any other unknown `LEASEHOLD_` variable only causes a warning: container platforms set such
//! names for their services, our programs set some for the commands that they run, and an operator often
//! cannot remove them. A node that does not start is worse than a line in its log.

use std::fmt;

use super::sections::SETTINGS;
use super::setting::environment_variable;
use super::source::{is_of_command, is_of_platform};

/// The prefix of our variables.
const PREFIX: &str = "LEASEHOLD_";
/// How alike two names must be for a hint.
const LIKENESS_MIN: f64 = 0.7;

/// A variable that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name. Its value is left out: it may be a secret.
    pub name: String,
    /// The variable whose name is most like it, if any is.
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

/// The variables of `env` that have our prefix and no effect. `of_flags` are the variables of flags of
/// the command line.
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

fn nearest(name: &str, known: &[String]) -> Option<String> {
    // The common mistake is a misplaced underscore.
    let bare = |name: &str| name.replacen(PREFIX, "", 1).replace('_', "");
    let likeness = |it: &String| strsim::normalized_damerau_levenshtein(&bare(it), &bare(name));
    let best = known
        .iter()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LIKENESS_MIN).then(|| best.clone())
}

#[cfg(test)]
mod tests {
    use super::super::source::OF_COMMANDS;
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
