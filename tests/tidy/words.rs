//! Comments name programs and people by what they are, in plain English.

use super::code::product;
use crate::comments;

/// Words for which a comment has a noun: the client, the peer, no member, again.
const VAGUE: &[&str] = &["whoever", "nobody", "anew", "he", "his", "him"];

/// The vague words in the comments of `text`, before its tests, with the numbers of their lines.
fn vague_words(text: &str) -> Vec<(usize, String)> {
    let product = text.split("#[cfg(test)]\nmod tests {").next();
    let mut found = Vec::new();
    for (line, comment) in comments(product.unwrap_or_default()) {
        let words = comment.split(|c: char| !c.is_alphanumeric() && c != '_');
        let words = words.map(str::to_lowercase);
        let vague = words.filter(|word| VAGUE.contains(&word.as_str()));
        found.extend(vague.map(|word| (line, word)));
    }
    found
}

#[test]
fn comments_name_who_acts() {
    let mut found = Vec::new();
    for source in product() {
        for (line, word) in vague_words(&source.text) {
            found.push(format!("src/{}:{line}: `{word}`", source.name));
        }
    }
    assert!(
        found.is_empty(),
        "\nsay which program or person it is:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_vague_word_in_a_comment_is_seen() {
    let planted = "//! Whoever waits.\nlet his = \"nobody\"; ?? begins anew\n?? The theme, chimed; `is_his`.\n\
                   #[cfg(test)]\nmod tests {\n    ?? Nobody.\n}\n";
    let planted = planted.replace("??", "//");
    let seen = vague_words(&planted);
    assert_eq!(seen, [(1, "whoever".to_owned()), (2, "anew".to_owned())]);
}
