//! How long a function is, and how wide a struct: what is longer or wider says why, or is on a list
//! that may only shrink.

use super::code::{Token, closing, product, product_tokens};

const LINES_MAX: usize = 70;
const FIELDS_MAX: usize = 20;
/// A function that is longer has a comment above it that begins so.
const REASON: &str = "// Long: ";

/// What is larger and says no reason. What is not any more leaves this list.
const LARGER: &[(&str, &str)] = &[("raft/consensus/mod.rs", "Consensus")];

/// Something too large in one file: its name, and how large it is.
type Large = (String, usize);

/// Functions and structs of a file that are too large and say no reason.
fn too_large(text: &str) -> Vec<Large> {
    let tokens = product_tokens(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let name = pair[1].text.clone();
        let Some(open) = body_of(&tokens, at + 2) else {
            continue;
        };
        let size = match pair[0].text.as_str() {
            "fn" => tokens[closing(&tokens, open)].line - pair[0].line + 1,
            "struct" => fields(&tokens[open + 1..closing(&tokens, open)]),
            _ => continue,
        };
        let is_large = match pair[0].text.as_str() {
            "fn" => size > LINES_MAX && !has_reason(&lines, pair[0].line),
            _ => size > FIELDS_MAX,
        };
        if is_large {
            found.push((name, size));
        }
    }
    found
}

/// Where the braces of an item open whose name is before `start`; none if it has none.
pub(super) fn body_of(tokens: &[Token], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match tokens.get(at)?.text.as_str() {
            "{" => return Some(at),
            ";" | "}" | ")" => return None,
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
}

fn fields(inside: &[Token]) -> usize {
    let (mut at, mut fields) = (0, 0);
    while at < inside.len() {
        match inside[at].text.as_str() {
            "(" | "[" | "{" => at = closing(inside, at) + 1,
            ":" => (at, fields) = (at + 1, fields + 1),
            _ => at += 1,
        }
    }
    fields
}

/// Whether the comments and attributes above the function at `line` say why it is long.
fn has_reason(lines: &[&str], line: usize) -> bool {
    let above = lines[..line - 1].iter().rev().map(|line| line.trim_start());
    let mut above = above.take_while(|line| line.starts_with("//") || line.starts_with('#'));
    above.any(|line| line.starts_with(REASON))
}

#[test]
fn functions_are_short_and_structs_are_narrow_or_say_why() {
    let mut found = Vec::new();
    for source in product() {
        let large = too_large(&source.text).into_iter();
        found.extend(large.map(|(item, size)| (source.name.clone(), item, size)));
    }
    let mut wrong = Vec::new();
    for (file, item, size) in &found {
        if !LARGER.contains(&(file.as_str(), item.as_str())) {
            wrong.push(format!("    (\"{file}\", \"{item}\"), // {size}"));
        }
    }
    for (file, item) in LARGER {
        if !found
            .iter()
            .any(|(in_file, name, _)| in_file == file && name == item)
        {
            wrong.push(format!(
                "{file}: `{item}` is not too large any more: take it from the list"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "\nover {LINES_MAX} lines without a `{REASON}`, or over {FIELDS_MAX} fields:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn what_is_too_large_is_seen() {
    let body = "    f(|| { g() });\n".repeat(LINES_MAX - 1);
    let long =
        format!("impl X {{\n/// Doc.\n#[inline]\nfn long<T>(a: [u8; 3])\n{{\n{body}}}\n}}\n");
    assert_eq!(too_large(&long), [("long".to_owned(), LINES_MAX + 2)]);
    let said = long.replace("/// Doc.", "/// Doc.\n// Long: one match of all messages.");
    assert_eq!(too_large(&said), []);
    let short = long.replacen("    f(|| { g() });\n", "", 2);
    assert_eq!(too_large(&short), []);

    let fields = |count: usize| -> String {
        let fields = (0..count)
            .map(|number| format!("    /// A: b\n    a{number}: Box<dyn Fn(u8) -> c::D>,\n"));
        format!(
            "pub struct Wide<T: Clone> {{\n{}}}\n",
            fields.collect::<String>()
        )
    };
    assert_eq!(too_large(&fields(FIELDS_MAX)), []);
    assert_eq!(
        too_large(&fields(FIELDS_MAX + 1)),
        [("Wide".to_owned(), FIELDS_MAX + 1)]
    );
}
