//! `leasehold man`: the manual, made of what `--help` says, so that the two cannot differ.

use std::io::Write;
use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_mangen::Man;

use crate::cli::failure::Failure;

/// Writes the page of the program to `out`, or a page for it and for every command below `directory`.
///
/// # Errors
/// The directory cannot be made, or a page not be written.
pub(super) fn run(
    program: Command,
    directory: Option<&Path>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        Man::new(program).render(&mut page)?;
        return Ok(out.write_all(&page)?);
    };
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| Failure::refused(format!("cannot write {path}: {error}"))
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    for (name, page) in pages(&program, None)? {
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, page).map_err(failed(&path))?;
    }
    Ok(())
}

/// The pages of a command and of all that can be said below it, by their names.
fn pages(command: &Command, above: Option<(&str, &str)>) -> io::Result<Vec<(String, Vec<u8>)>> {
    // The page is `leasehold-lease-grant`; what is typed is `leasehold lease grant`.
    let (name, typed) = match above {
        None => (command.get_name().to_owned(), command.get_name().to_owned()),
        Some((name, typed)) => (
            format!("{name}-{}", command.get_name()),
            format!("{typed} {}", command.get_name()),
        ),
    };
    let shown = command
        .clone()
        .display_name(name.clone())
        .bin_name(typed.clone());
    let mut page = Vec::new();
    Man::new(shown).title(&name).render(&mut page)?;
    let mut all = vec![(name.clone(), page)];
    for below in command.get_subcommands() {
        if below.get_name() != "help" && !below.is_hide_set() {
            all.extend(pages(below, Some((&name, &typed)))?);
        }
    }
    Ok(all)
}
