//! Which metrics an expression names, and by which labels. Prometheus itself judges whether it is an
//! expression; this only finds the names in one.

/// A metric in an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) name: String,
    /// The labels that it is selected by.
    pub(crate) labels: Vec<String>,
}

/// Followed by labels in parentheses.
const GROUPING: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// Words that are no metrics and need no parenthesis behind them.
const WORDS: [&str; 16] = [
    "and", "or", "unless", "bool", "offset", "sum", "min", "max", "avg", "count", "group", "topk",
    "bottomk", "quantile", "inf", "nan",
];

/// The metrics of an expression, and the labels that it groups by.
pub(crate) fn names(expression: &str) -> (Vec<Selector>, Vec<String>) {
    let (mut selectors, mut grouping) = (Vec::new(), Vec::new());
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            rest = after_string(rest);
        } else if first.is_ascii_digit() || first == '$' {
            // A number, a duration, or a variable.
            rest = rest[1..].trim_start_matches(is_word);
        } else if is_word(first) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = &rest[..end];
            rest = &rest[end..];
            let next = rest.trim_start();
            if GROUPING.contains(&word) {
                let (inside, after) = next
                    .strip_prefix('(')
                    .and_then(|next| next.split_once(')'))
                    .unwrap_or_else(|| panic!("{word} without labels in {expression}"));
                let labels = inside.split(',').map(|label| label.trim().to_owned());
                grouping.extend(labels.filter(|label| !label.is_empty()));
                rest = after;
            } else if !WORDS.contains(&word) && !next.starts_with('(') {
                let mut selector = Selector {
                    name: word.to_owned(),
                    labels: Vec::new(),
                };
                if let Some(matchers) = rest.strip_prefix('{') {
                    rest = read_matchers(matchers, &mut selector.labels);
                }
                selectors.push(selector);
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    (selectors, grouping)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// What follows the string at the beginning.
fn after_string(text: &str) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return &text[at + 1..],
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("a string does not end: {text}");
}

/// Reads `a="x",b=~"y"}` and returns what follows.
fn read_matchers<'a>(text: &'a str, labels: &mut Vec<String>) -> &'a str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return after;
        }
        let end = rest
            .find(|c| !is_word(c))
            .unwrap_or_else(|| panic!("labels that do not end: {text}"));
        labels.push(rest[..end].to_owned());
        rest = after_string(rest[end..].trim_start_matches(['=', '!', '~', ' ']));
    }
}

#[test]
fn the_metrics_of_an_expression_are_found_and_nothing_else() {
    let expression = r#"histogram_quantile(0.99, sum by (job, le) (rate(a_bucket{x="}\" b",y=~"$y"}[$__rate_interval])))
        > on (job) 0.1 * max(c:d) and e offset 5m or time() - f{} < 7 * 86400"#;
    let (selectors, grouping) = names(expression);
    let found: Vec<_> = selectors
        .iter()
        .map(|selector| (selector.name.as_str(), selector.labels.join(" ")))
        .collect();
    let none = String::new;
    assert_eq!(
        found,
        [
            ("a_bucket", "x y".to_owned()),
            ("c:d", none()),
            ("e", none()),
            ("f", none())
        ]
    );
    assert_eq!(grouping, ["job", "le", "job"]);
}
