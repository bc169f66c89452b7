//! Answers in JSON without what differs between any two servers, or has no order.

/// `text` without the value of each field of this name, which keeps its place.
pub(crate) fn without_values(text: &str, name: &str) -> String {
    let begin = format!("\"{name}\":");
    let mut parts = text.split(&begin);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(&begin);
        kept.push_str(&part[value_bytes(part)..]);
    }
    kept
}

/// `text` without the fields of this name.
pub(crate) fn without_fields(text: &str, name: &str) -> String {
    let begin = format!("\"{name}\":");
    let mut kept = text.to_owned();
    while let Some(at) = kept.find(&begin) {
        let after = at + begin.len();
        let end = after + value_bytes(&kept[after..]);
        match kept[..at].ends_with(',') {
            true => kept.replace_range(at - 1..end, ""),
            false => {
                let comma = usize::from(kept[end..].starts_with(','));
                kept.replace_range(at..end + comma, "");
            }
        }
    }
    kept
}

/// `text` with the list of this name in order.
pub(crate) fn sorted(text: &str, name: &str) -> String {
    let begin = format!("\"{name}\":[");
    let Some((before, rest)) = text.split_once(&begin) else {
        return text.to_owned();
    };
    let (list, after) = rest.split_once(']').unwrap();
    // Objects in it have no comma after a bracket inside them.
    let lines = match list.starts_with('{') {
        true => list.replace("},{", "}\n{"),
        false => list.replace("\",\"", "\"\n\""),
    };
    let mut parts: Vec<&str> = lines.split('\n').collect();
    parts.sort_unstable();
    format!("{before}{begin}{}]{after}", parts.join(","))
}

/// How long the value is with which `text` begins: a number, a string without escapes, or a list of those.
fn value_bytes(text: &str) -> usize {
    let end_of = |end: char| text[1..].find(end).unwrap() + 2;
    match text.as_bytes()[0] {
        b'"' => end_of('"'),
        b'[' => end_of(']'),
        b'{' => end_of('}'),
        _ => text
            .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-')
            .unwrap(),
    }
}

#[test]
fn values_fields_and_orders_are_taken_from_a_text() {
    let text =
        r#"{"ID":"5","names":["b","a"],"size":-3,"alarms":[{"ID":"9","alarm":"B"},{"ID":"10"}]}"#;
    assert_eq!(
        without_values(text, "ID"),
        r#"{"ID":,"names":["b","a"],"size":-3,"alarms":[{"ID":,"alarm":"B"},{"ID":}]}"#
    );
    assert_eq!(
        without_fields(&without_fields(text, "ID"), "names"),
        r#"{"size":-3,"alarms":[{"alarm":"B"},{}]}"#
    );
    assert_eq!(
        sorted(&sorted(text, "names"), "alarms"),
        r#"{"ID":"5","names":["a","b"],"size":-3,"alarms":[{"ID":"10"},{"ID":"9","alarm":"B"}]}"#
    );
    assert_eq!(sorted(text, "none"), text);
}
