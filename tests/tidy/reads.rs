//! Who looks at the leader lease and at the store in one function: a leased read does, in one file, where
//! types keep its order (P20). What only shows both is on a list.

use super::code::{Token, closing, product, product_tokens};
use super::sizes::body_of;

/// The one file in which a read takes its steps.
const STEPS: &str = "node/leased_read.rs";
/// Asked of the lease, or of what is known of a state's age.
const LEASE: &[&str] = &["age", "bound", "is_valid", "permit", "remaining"];
/// Asked of the store.
const STORE: &[&str] = &["applied", "get", "revision", "settled", "snapshot"];
/// What the store is called where it is asked.
const NAMES: &[&str] = &["front", "handle", "reader", "store"];
/// Functions that show both to people, in no reply to a read. What does not any more leaves the list.
const SHOWN: &[(&str, &str)] = &[("server/admin/service.rs", "status")];

/// Functions of a file that ask the lease and the store.
fn ask_both(text: &str) -> Vec<String> {
    let tokens = product_tokens(text);
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if pair[0].text != "fn" {
            continue;
        }
        let Some(open) = body_of(&tokens, at + 2) else {
            continue;
        };
        let body = &tokens[open..closing(&tokens, open)];
        if asks(body, |_| true, LEASE) && asks(body, |of| NAMES.contains(&of), STORE) {
            found.push(pair[1].text.clone());
        }
    }
    found
}

/// Whether one of `methods` is called of something that `of` accepts by its last name.
fn asks(body: &[Token], of: impl Fn(&str) -> bool, methods: &[&str]) -> bool {
    let mut at = 0..body.len().saturating_sub(3);
    at.any(|at| {
        let is_call = body[at + 1].text == "." && body[at + 3].text == "(";
        let has_arguments = body.get(at + 4).is_some_and(|next| next.text != ")");
        // The same words are used of what has no clock: a lease is asked at a time.
        let of_lease = methods != LEASE || has_arguments;
        is_call && of_lease && of(&body[at].text) && methods.contains(&body[at + 2].text.as_str())
    })
}

#[test]
fn the_lease_and_the_store_are_asked_in_one_function_of_one_file_only() {
    let mut wrong = Vec::new();
    let mut shown = Vec::new();
    for source in product() {
        if source.name == STEPS || source.name.starts_with("bench") {
            continue;
        }
        for function in ask_both(&source.text) {
            match SHOWN.contains(&(source.name.as_str(), function.as_str())) {
                true => shown.push((source.name.clone(), function)),
                false => wrong.push(format!("    (\"{}\", \"{function}\"),", source.name)),
            }
        }
    }
    for (file, function) in SHOWN {
        if !shown
            .iter()
            .any(|(name, of)| name == file && of == function)
        {
            wrong.push(format!("{file}: `{function}` shows no lease any more"));
        }
    }
    assert!(
        wrong.is_empty(),
        "\nthe steps of a leased read are in {STEPS}:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_leased_read_by_hand_is_seen() {
    let by_hand = "impl X {\n    fn read(&self) {\n        let found = self.store.get(key);\n        \
                   if self.lease().is_some_and(|cell| cell.is_valid(clock.now())) { found }\n    }\n}\n";
    assert_eq!(ask_both(by_hand), ["read"]);
    let apart = by_hand.replace("self.store.get(key)", "self.table.get(key)");
    assert_eq!(ask_both(&apart), [""; 0]);
    let no_lease = by_hand.replace("is_valid(clock.now())", "is_valid()");
    assert_eq!(ask_both(&no_lease), [""; 0]);
}
