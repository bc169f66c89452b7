//! A type is named by a noun: what it is, not what was done to it.

use super::code::{product, product_tokens};

/// Participles that end in neither `ed` nor `ing`.
const IRREGULAR: &[&str] = &[
    "Begun", "Born", "Bound", "Broken", "Brought", "Built", "Caught", "Chosen", "Done", "Drawn",
    "Found", "Given", "Gone", "Heard", "Held", "Hidden", "Kept", "Known", "Lost", "Made", "Met",
    "Said", "Seen", "Sent", "Shown", "Sought", "Spent", "Taken", "Thrown", "Told", "Won",
    "Written",
];

/// Nouns that only look like participles.
const NOUNS: &[&str] = &[
    "Accounting",
    "Feed",
    "Finding",
    "Greeting",
    "Heading",
    "Need",
    "Opening",
    "Reading",
    "Sampling",
    "Seed",
    "Setting",
    "Speed",
    "String",
    "Timing",
];

/// Participles that name a type all the same, and the reason. What is not needed leaves the list.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("Captured", "a step of a leased read, in the order of P20"),
    ("Looked", "a step of a leased read, in the order of P20"),
    ("Judged", "a step of a leased read, in the order of P20"),
    ("Done", "a step of the driver's turn, as Idle and Asleep"),
    ("Heard", "the part that every answer to a leader has"),
    ("Published", "what the core shows to other threads"),
    (
        "Recovered",
        "what a recovery found, of the log and of a node",
    ),
    ("Serving", "what all sessions of a serving node share"),
    ("Shared", "the data of an object that several tasks hold"),
];

/// Whether `name` is one word, and a participle by its form.
fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().skip(1).all(char::is_lowercase);
    let is_irregular = IRREGULAR.contains(&name);
    let is_regular = name.ends_with("ed") || name.ends_with("ing");
    is_one_word && (is_irregular || is_regular && !NOUNS.contains(&name))
}

/// The types that a file names by a participle, with the numbers of their lines.
fn participles(text: &str) -> Vec<(usize, String)> {
    let tokens = product_tokens(text);
    let mut found = Vec::new();
    for pair in tokens.windows(2) {
        let is_definition = ["struct", "enum", "trait", "type"].contains(&pair[0].text.as_str());
        if is_definition && is_participle(&pair[1].text) {
            found.push((pair[1].line, pair[1].text.clone()));
        }
    }
    found
}

#[test]
fn a_type_is_named_by_a_noun() {
    let mut wrong = Vec::new();
    let mut used = Vec::new();
    for source in product() {
        for (line, name) in participles(&source.text) {
            match EXCEPTIONS.iter().any(|(exception, _)| *exception == name) {
                true => used.push(name),
                false => wrong.push(format!("src/{}:{line}: `{name}`", source.name)),
            }
        }
    }
    for (name, _) in EXCEPTIONS {
        if !used.iter().any(|of| of == name) {
            wrong.push(format!("no type is named `{name}` any more"));
        }
    }
    assert!(
        wrong.is_empty(),
        "\nsay what it is, by a noun:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_type_that_is_named_by_a_participle_is_seen() {
    let planted = "pub struct Lost;\npub(crate) enum Joining<T> {\n    Known,\n    Kept { told: T },\n}\n\
                   trait Named {}\ntype Checked<T> = Option<T>;\nstruct LostLog;\nstruct Timing;\n\
                   #[cfg(test)]\nmod tests {\n    struct Seen;\n}\n";
    let expected = [(1, "Lost"), (2, "Joining"), (6, "Named"), (7, "Checked")];
    let expected = expected.map(|(line, name)| (line, name.to_owned()));
    assert_eq!(participles(planted), expected);
}
