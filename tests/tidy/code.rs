//! Rust as tokens, as far as the checks beside it need: no comments, no literals, no tests.

use std::fs;
use std::path::Path;

use crate::{rust_files, source_root};

/// A word or a sign, and the number of its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// A file of the library.
pub(crate) struct Source {
    /// Its path below `src`.
    pub(crate) name: String,
    /// Its module; empty for `lib.rs` and what belongs to the binary.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
}

/// All files of the product: none that only a test build has.
pub(crate) fn product() -> Vec<Source> {
    let root = source_root();
    let mut sources: Vec<Source> = rust_files(&root)
        .into_iter()
        .map(|file| {
            let path = file.strip_prefix(&root).unwrap();
            Source {
                name: path.display().to_string(),
                module: module_path(path),
                text: fs::read_to_string(&file).unwrap(),
            }
        })
        .collect();
    let of_tests: Vec<Vec<String>> = sources
        .iter()
        .flat_map(|source| {
            let (_, modules) = without_tests(&tokens(&source.text));
            let inside = |name| [source.module.as_slice(), &[name]].concat();
            modules.into_iter().map(inside)
        })
        .collect();
    sources.retain(|source| {
        !of_tests
            .iter()
            .any(|module| source.module.starts_with(module))
    });
    sources
}

fn module_path(file: &Path) -> Vec<String> {
    let parts = file.with_extension("");
    let parts = parts.components();
    let mut parts: Vec<String> = parts
        .map(|part| part.as_os_str().to_str().unwrap().to_owned())
        .collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    match parts[0].as_str() {
        "lib" | "main" => Vec::new(),
        _ => parts,
    }
}

/// The tokens of a file, without the items that only a test build has.
pub(crate) fn product_tokens(text: &str) -> Vec<Token> {
    without_tests(&tokens(text)).0
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All tokens but comments. A literal is the token `""`.
fn tokens(text: &str) -> Vec<Token> {
    let (mut found, mut line, mut rest) = (Vec::new(), 1, text);
    while let Some(first) = rest.chars().next() {
        let (length, token) = match first {
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), None),
            _ if rest.starts_with("/*") => (block_comment(rest), None),
            '"' => (quoted(rest, 0), Some("\"\"")),
            'b' if rest.starts_with("b\"") => (quoted(rest, 1), Some("\"\"")),
            'r' | 'b' if raw_string(rest).is_some() => {
                (raw_string(rest).unwrap_or(1), Some("\"\""))
            }
            '\'' => match character(rest) {
                Some(length) => (length, Some("\"\"")),
                // A lifetime.
                None => (1, None),
            },
            ':' if rest.starts_with("::") => (2, Some("::")),
            c if is_word(c) => {
                let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                (length, Some(&rest[..length]))
            }
            c if c.is_whitespace() => (c.len_utf8(), None),
            c => (c.len_utf8(), Some(&rest[..c.len_utf8()])),
        };
        found.extend(token.map(|token| Token {
            text: token.to_owned(),
            line,
        }));
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of a string whose quote is at `start`.
fn quoted(text: &str, start: usize) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(start + 1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end)? + end.len();
    Some(text.len() - body.len() + length)
}

/// The length of a character literal; none if this is a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    match chars.next()? {
        (_, '\\') => {
            chars.next()?;
            let (end, _) = chars.find(|(_, c)| *c == '\'')?;
            Some(end + 1)
        }
        _ => match chars.next()? {
            (end, '\'') => Some(end + 1),
            _ => None,
        },
    }
}

/// Leaves out every item under an attribute that asks for a test build, and says which of those are
/// modules.
fn without_tests(all: &[Token]) -> (Vec<Token>, Vec<String>) {
    let (mut kept, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < all.len() {
        let is_attribute = all[at].text == "#" && all.get(at + 1).is_some_and(|t| t.text == "[");
        if !is_attribute {
            kept.push(all[at].clone());
            at += 1;
            continue;
        }
        let end = closing(all, at + 1);
        let words: Vec<&str> = all[at + 2..end].iter().map(|t| t.text.as_str()).collect();
        let wants_test = match words[..] {
            ["cfg", "(", "test", ")"] => true,
            ["cfg", "(", "all", "(", ..] => {
                let at = words.iter().position(|word| *word == "test");
                at.is_some_and(|at| words[at - 1] != "(" || words[at - 2] != "not")
            }
            _ => false,
        };
        if wants_test {
            let start = end + 1;
            at = item_end(all, start);
            let name = all[start..at].windows(2).find(|pair| pair[0].text == "mod");
            modules.extend(name.map(|pair| pair[1].text.clone()));
        } else {
            kept.extend_from_slice(&all[at..=end]);
            at = end + 1;
        }
    }
    (kept, modules)
}

/// Where the bracket that opens at `start` is closed.
pub(crate) fn closing(all: &[Token], start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in all.iter().enumerate().skip(start) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    all.len() - 1
}

/// What follows the item that begins at `start`: it ends with `;`, or with its braces.
fn item_end(all: &[Token], start: usize) -> usize {
    let mut at = start;
    while at < all.len() {
        match all[at].text.as_str() {
            ";" | "," => return at + 1,
            "{" => return closing(all, at) + 1,
            "(" | "[" => at = closing(all, at) + 1,
            _ => at += 1,
        }
    }
    at
}

#[test]
fn comments_literals_and_tests_are_left_out() {
    let text = "// use crate::a;\nfn f<'a>(x: &'a str) { g('}', \"{\\\"\", r#\"{\"#) }\n\
                /* { */ #[cfg(test)]\nmod tests {\n    use crate::b;\n}\n#[cfg(all(test, not(loom)))]\n\
                use crate::c;\n#[cfg(not(test))]\nuse crate::d;\n";
    let found = product_tokens(text);
    let words: Vec<&str> = found.iter().map(|token| token.text.as_str()).collect();
    let all = words.join(" ");
    assert!(
        all.starts_with("fn f < a > ( x : & a str ) { g ( \"\" , \"\" , \"\" ) } # [ cfg"),
        "{all}"
    );
    assert!(all.ends_with("use crate :: d ;"), "{all}");
    assert!(
        !all.contains("crate :: b") && !all.contains("crate :: c"),
        "{all}"
    );
    assert_eq!(found[0].line, 2);
}
