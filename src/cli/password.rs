//! Passwords come from a file, from the environment or from a terminal that shows nothing of them:
//! what stands on a command line is seen by everybody on the machine.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::{fs, io};

use rustix::termios;

use super::failure::Failure;
use crate::api::Secret;
use crate::transport::exposed_mode;

const PASSWORD: &str = "LEASEHOLD_PASSWORD";
const NEW_PASSWORD: &str = "LEASEHOLD_NEW_PASSWORD";

/// The password of the user to log in as: in the `file` that was given, in the environment, or in the file of
/// the user's context.
pub(super) fn of_user(
    user: &str,
    file: Option<&Path>,
    of_context: Option<&Path>,
) -> Result<Secret, Failure> {
    if let Some(found) = from_file_or(file, in_environment(PASSWORD), of_context)? {
        return Ok(found);
    }
    if io::stdin().is_terminal() {
        return prompt(&format!("Password of {user}: "));
    }
    Err(Failure::usage(format!(
        "the password of {user} is missing: name a file with --password-file, or set {PASSWORD}"
    )))
}

/// A new password for `user`. On a terminal it is asked for twice.
pub(super) fn new(user: &str, file: Option<&Path>) -> Result<Secret, Failure> {
    if let Some(found) = from_file_or(file, in_environment(NEW_PASSWORD), None)? {
        return Ok(found);
    }
    if !io::stdin().is_terminal() {
        return read_line(&mut io::stdin().lock());
    }
    let first = prompt(&format!("New password of {user}: "))?;
    match prompt("Repeat the new password:  ")? == first {
        true => Ok(first),
        false => Err(Failure::usage("the passwords differ: nothing was changed")),
    }
}

fn in_environment(variable: &str) -> Option<Secret> {
    let found = std::env::var_os(variable).filter(|text| !text.is_empty());
    found.map(|text| Secret::new(std::os::unix::ffi::OsStringExt::into_vec(text)))
}

/// The first that there is, strongest first.
fn from_file_or(
    file: Option<&Path>,
    in_environment: Option<Secret>,
    of_context: Option<&Path>,
) -> Result<Option<Secret>, Failure> {
    let of_context = of_context.filter(|_| in_environment.is_none());
    if let Some(file) = file.or(of_context) {
        if let Some(mode) = exposed_mode(file) {
            let file = file.display();
            return Err(Failure::usage(format!(
                "users other than the owner can read {file} (mode {mode:04o}), which holds a password: \
                 chmod 600 {file}"
            )));
        }
        let text = fs::read(file)
            .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        return Ok(Some(read_line(&mut text.as_slice())?));
    }
    Ok(in_environment)
}

/// Asks on standard error, and has the terminal not show what is typed.
fn prompt(question: &str) -> Result<Secret, Failure> {
    let terminal = io::stdin();
    write!(io::stderr(), "{question}")?;
    io::stderr().flush()?;
    let before = termios::tcgetattr(&terminal).map_err(io::Error::from)?;
    let mut silent = before.clone();
    silent.local_modes.remove(termios::LocalModes::ECHO);
    let now = termios::OptionalActions::Flush;
    termios::tcsetattr(&terminal, now, &silent).map_err(io::Error::from)?;
    let typed = read_line(&mut terminal.lock());
    termios::tcsetattr(&terminal, now, &before).map_err(io::Error::from)?;
    writeln!(io::stderr())?;
    typed
}

/// The first line, without its end.
fn read_line(from: &mut impl BufRead) -> Result<Secret, Failure> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    while line
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        line.pop();
    }
    match line.is_empty() {
        true => Err(Failure::usage("the password is empty: nothing was changed")),
        false => Ok(Secret::new(line)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_password_is_not_read_from_a_file_that_others_can_read() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        fs::write(&file, "secret\n").unwrap();
        for (mode, is_read) in [(0o600, true), (0o400, true), (0o644, false), (0o640, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            for asked in [
                of_user("anna", Some(&file), None),
                of_user("anna", None, Some(&file)),
                new("anna", Some(&file)),
            ] {
                match asked {
                    Ok(password) => {
                        assert!(is_read, "{mode:o}");
                        assert_eq!(password.reveal(), b"secret");
                    }
                    Err(refused) => {
                        assert!(!is_read, "{mode:o}: {refused}");
                        assert!(refused.message.contains("chmod 600"), "{refused}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_given_for_this_command_stands_above_the_context() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let [flag, context] = ["flag", "context"].map(|name| {
            let file = folder.path().join(name);
            fs::write(&file, name).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            file
        });
        let variable = || Some(Secret::new(b"variable".to_vec()));
        for (file, in_environment, of_context, found) in [
            (Some(&flag), variable(), Some(&context), Some("flag")),
            (None, variable(), Some(&context), Some("variable")),
            (None, None, Some(&context), Some("context")),
            (None, None, None, None),
        ] {
            let of_context = of_context.map(PathBuf::as_path);
            let file = file.map(PathBuf::as_path);
            let read = from_file_or(file, in_environment, of_context).unwrap();
            let found = found.map(str::as_bytes);
            assert_eq!(read.as_ref().map(Secret::reveal), found);
        }
    }

    #[test]
    fn a_password_is_the_first_line_without_its_end() {
        for text in ["secret\n", "secret\r\nmore\n", "secret"] {
            let read = read_line(&mut text.as_bytes()).unwrap();
            assert_eq!(read.reveal(), b"secret");
        }
        assert!(read_line(&mut &b"\nx"[..]).is_err());
        let spaces = read_line(&mut &b" a b \n"[..]).unwrap();
        assert_eq!(spaces.reveal(), b" a b ", "spaces belong to it");
    }
}
