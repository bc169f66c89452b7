//! Tells the crate which commit and which compiler it is made with. Never fails: outside a git
//! checkout, or without git, the commit is `unknown`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let home = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = commit(&home).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=BUILT_FROM_COMMIT={commit}");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = output(&compiler, &["--version"], &home).unwrap_or_else(|| "unknown".to_owned());
    let version = version.strip_prefix("rustc ").unwrap_or(&version);
    println!("cargo:rustc-env=BUILT_WITH_RUSTC={version}");
}

fn commit(home: &Path) -> Option<String> {
    // A source tree unpacked inside somebody else's repository does not bear its commit.
    let top = PathBuf::from(output("git", &["rev-parse", "--show-toplevel"], home)?);
    if top.canonicalize().ok()? != home.canonicalize().ok()? {
        return None;
    }
    // The log of HEAD changes with every commit and checkout, whatever branch is out.
    for file in ["HEAD", "logs/HEAD"] {
        let path = output("git", &["rev-parse", "--git-path", file], home)?;
        let path = home.join(path);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    output("git", &["rev-parse", "--short=12", "HEAD"], home)
}

fn output(program: &str, arguments: &[&str], directory: &Path) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_owned())
}
