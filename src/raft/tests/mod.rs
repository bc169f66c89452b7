//! Tests of the whole consensus: golden conversations, random worlds, random messages.

mod chaos;
mod script;
mod world;

use std::fs;
use std::path::Path;

/// Every file in `testdata/` says what happens, and it does.
#[test]
fn golden_conversations_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/raft/testdata");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let only = std::env::var("GOLDEN").unwrap_or_default();
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("the conversations are there")
        .map(|file| file.expect("readable").path())
        .filter(|path| path.to_string_lossy().contains(&only))
        .collect();
    files.sort();
    assert!(
        !only.is_empty() || files.len() >= 50,
        "conversations are missing"
    );
    let mut broken = Vec::new();
    for path in files {
        let name = path
            .file_stem()
            .expect("named")
            .to_string_lossy()
            .into_owned();
        let script = fs::read_to_string(&path).expect("readable");
        assert!(
            script.starts_with(&format!("# {name}: ")),
            "{name} does not begin with its claim"
        );
        let played = std::panic::catch_unwind(|| script::run(&script));
        match played {
            Ok(text) if text == script => {}
            Ok(text) if update => fs::write(&path, text).expect("writable"),
            Ok(text) => broken.push(format!("{name}:\n{}", difference(&script, &text))),
            Err(_) => broken.push(format!("{name}: an oracle objects (see above)")),
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let show = |mark: &str, lines: &[&str]| {
        let lines = lines.iter().skip(same).take(6);
        lines
            .map(|line| format!("{mark} {line}\n"))
            .collect::<String>()
    };
    show("-", &old) + &show("+", &new)
}
