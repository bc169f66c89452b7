//! A golden file, and what differs from it.

use std::fs;
use std::path::Path;

/// Unchanged lines that are shown around a difference.
const CONTEXT: usize = 2;

/// Compares `found` with the golden file of this name; with `UPDATE_PINS=1` it writes the file.
pub(crate) fn check(name: &str, found: &str) {
    check_file(&format!("tests/pins/{name}"), found);
}

/// The same of a file anywhere in the tree: `name` is its way from the root.
pub(crate) fn check_file(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("UPDATE_PINS").is_some() {
        fs::write(&path, found).expect("the golden file can be written");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{name} differs. If that is intended, UPDATE_PINS=1 writes it anew.\n{}",
        difference(&expected, found)
    );
}

/// The lines that are in one text alone, with the lines around them.
fn difference(expected: &str, found: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    // The longest common subsequence of the lines from (i, j) on.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines: Vec<(char, &str)> = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    let is_near = |at: usize| {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len());
        lines[around].iter().any(|(mark, _)| *mark != ' ')
    };
    let shown = (0..lines.len()).filter(|at| is_near(*at));
    shown
        .map(|at| format!("{} {}\n", lines[at].0, lines[at].1))
        .collect()
}

#[test]
fn a_difference_shows_what_went_and_what_came_and_what_stands_around_it() {
    let old = "a\nb\nc\nd\ne\nf\ng\n";
    let new = "a\nb\nc\nd\nE\nf\ng\n";
    assert_eq!(difference(old, new), "  c\n  d\n- e\n+ E\n  f\n  g\n");
    assert_eq!(difference("", "x\n"), "+ x\n");
    assert_eq!(difference(old, old), "");
}
