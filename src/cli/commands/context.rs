//! `leasehold context`: named clusters are listed, chosen and changed.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::arguments::context::{ContextCommand, ContextSetArgs};
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::connection::{no_typed_password, one_user};
use crate::cli::contexts::{Context, Contexts, DEV};
use crate::cli::failure::Failure;
use crate::cli::print::{self, Align};

/// Carries a command out.
///
/// # Errors
/// The file cannot be used, or has no such context.
pub(super) fn run(
    command: ContextCommand,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut contexts = Contexts::of(global.contexts.as_deref())?;
    match command {
        ContextCommand::List => Ok(list(&contexts, global.output, out)?),
        ContextCommand::Show(arguments) => {
            let named = arguments.name.or_else(|| global.context.clone());
            let name = named.or_else(|| contexts.current.clone()).ok_or_else(|| {
                Failure::usage("no context is used: name one, or choose one with `context use`")
            })?;
            if name == DEV {
                let document = document(DEV, &Context::default());
                return Ok(said(DEV_IS_SHOWN, &document, global.output, out)?);
            }
            let context = contexts.named(&name)?;
            Ok(show(&name, context, global.output, out)?)
        }
        ContextCommand::Use(arguments) => {
            let name = arguments.name;
            if name != DEV {
                contexts.named(&name)?;
            }
            contexts.current = Some(name.clone());
            contexts.save()?;
            let done = format!("context {name} is used");
            Ok(said(
                &done,
                &json!({ "current": name }),
                global.output,
                out,
            )?)
        }
        ContextCommand::Set(arguments) => {
            one_user(global)?;
            let name = arguments.name.clone();
            let context = contexts.all.entry(name.clone()).or_default();
            let taken_out = change(context, arguments, global)?;
            let context = context.clone();
            contexts.save()?;
            let mut said = anstream::stderr();
            for what in taken_out {
                writeln!(said, "{what}")?;
            }
            Ok(show(&name, &context, global.output, out)?)
        }
        ContextCommand::Remove(arguments) => {
            let name = arguments.name;
            contexts.named(&name)?;
            contexts.all.remove(&name);
            contexts.current = contexts.current.filter(|current| *current != name);
            contexts.save()?;
            let done = format!("context {name} is removed");
            Ok(said(
                &done,
                &json!({ "removed": name }),
                global.output,
                out,
            )?)
        }
    }
}

/// Keeps what was given. Returns, in words, what is taken out because another takes its place.
fn change(
    context: &mut Context,
    arguments: ContextSetArgs,
    global: &GlobalArgs,
) -> Result<Vec<String>, Failure> {
    let known = context.user.clone();
    for key in &arguments.unset {
        context.unset(key);
    }
    let before = context.clone();
    if !global.endpoints.is_empty() {
        context.endpoints.clone_from(&global.endpoints);
    }
    let keep = |kept: &mut Option<PathBuf>, given: &Option<PathBuf>| -> io::Result<()> {
        if let Some(given) = given {
            *kept = Some(std::path::absolute(given)?);
        }
        Ok(())
    };
    keep(&mut context.cacert, &global.cacert)?;
    keep(&mut context.cert, &global.cert)?;
    keep(&mut context.key, &global.key)?;
    keep(&mut context.password_file, &global.password_file)?;
    keep(&mut context.token_file, &global.token_file)?;
    // Of a user and a token, the one that is given takes the place of the other.
    if global.user.is_some() {
        context.user.clone_from(&global.user);
        context.token_file = None;
    } else if global.token_file.is_some() {
        context.user = None;
    }
    context.timeout = global.timeout.or(context.timeout);
    context.connect_timeout = arguments.connect_timeout.or(context.connect_timeout);
    let is_of_another = known.is_some() && context.user != known;
    if context.token_file.is_some() {
        no_typed_password(global)?;
    }
    if context.token_file.is_some() || is_of_another && global.password_file.is_none() {
        context.password_file = None;
    }
    let mut taken_out = Vec::new();
    if let Some(user) = before.user.filter(|_| context.user.is_none()) {
        taken_out.push(format!(
            "user is taken out: the token takes the place of {user}"
        ));
    }
    if before.password_file.is_some() && context.password_file.is_none() {
        let user = known.as_deref().unwrap_or("another user");
        taken_out.push(format!("password_file is taken out: it was that of {user}"));
    }
    if let Some(user) = context
        .user
        .as_ref()
        .filter(|_| before.token_file.is_some())
    {
        taken_out.push(format!(
            "token_file is taken out: {user} logs in with a password"
        ));
    }
    Ok(taken_out)
}

const DEV_IS_SHOWN: &str =
    "dev: the development cluster without a name is used, while one runs (`leasehold dev`)";

fn list(contexts: &Contexts, format: Format, out: &mut impl Write) -> io::Result<()> {
    let is_current = |name: &str| contexts.current.as_deref() == Some(name);
    let dev = (DEV.to_owned(), Context::default());
    let dev = is_current(DEV).then_some((&dev.0, &dev.1));
    let mut shown_all = dev.into_iter().chain(&contexts.all);
    match format {
        Format::Simple => shown_all.try_for_each(|(name, context)| {
            let mark = if is_current(name) { '*' } else { ' ' };
            let endpoints = context.endpoints.join(",");
            writeln!(out, "{}", format!("{mark} {name}  {endpoints}").trim_end())
        }),
        Format::Table => {
            let columns = [
                ("CURRENT", Align::Left),
                ("NAME", Align::Left),
                ("ENDPOINTS", Align::Left),
                ("USER", Align::Left),
            ];
            let rows = shown_all.map(|(name, context)| {
                vec![
                    if is_current(name) { "*" } else { "" }.to_owned(),
                    name.clone(),
                    context.endpoints.join(","),
                    context.user.clone().unwrap_or_default(),
                ]
            });
            print::table(out, &columns, rows)
        }
        Format::Json | Format::Fields => {
            let all = contexts.all.iter();
            let document = json!({
                "current": contexts.current,
                "file": shown(&contexts.path),
                "contexts": all.map(|(name, it)| document(name, it)).collect::<Vec<_>>(),
            });
            in_format(&document, format, out)
        }
    }
}

fn show(name: &str, context: &Context, format: Format, out: &mut impl Write) -> io::Result<()> {
    if format != Format::Simple {
        return in_format(&document(name, context), format, out);
    }
    writeln!(out, "name = \"{name}\"")?;
    let said = context.said();
    said.iter()
        .try_for_each(|(key, value)| writeln!(out, "{key} = {value}"))
}

/// Every key, so that a program finds null where nothing is said.
fn document(name: &str, context: &Context) -> Value {
    let millis = |it: std::time::Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    let path = |path: &Option<PathBuf>| path.as_deref().map(shown);
    json!({
        "name": name,
        "endpoints": context.endpoints,
        "cacert": path(&context.cacert),
        "cert": path(&context.cert),
        "key": path(&context.key),
        "user": context.user,
        "password_file": path(&context.password_file),
        "token_file": path(&context.token_file),
        "timeout_ms": context.timeout.map(millis),
        "connect_timeout_ms": context.connect_timeout.map(millis),
    })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn said(sentence: &str, document: &Value, format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Simple => writeln!(out, "{sentence}"),
        format => in_format(document, format, out),
    }
}

fn in_format(document: &Value, format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Fields => print::fields(out, document),
        Format::Table => print::row(out, document),
        Format::Json | Format::Simple => print::line(out, document),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::Command;

    /// A file of contexts, and what is typed about it.
    struct Home(tempfile::TempDir);

    impl Home {
        fn types(&self, words: &str) -> Result<String, Failure> {
            let file = self.0.path().join("contexts.toml");
            let (command, global) = read(&format!("{words} --contexts {}", file.display()));
            let mut out = Vec::new();
            run(command, &global, &mut out)?;
            Ok(String::from_utf8(out).unwrap())
        }
    }

    /// What is meant by `leasehold context` with these words.
    fn read(words: &str) -> (ContextCommand, GlobalArgs) {
        let line = format!("leasehold context {words}");
        let parsed = crate::cli::parse_from(&[], line.split_whitespace().map(Into::into));
        let parsed = parsed.unwrap();
        let Command::Context { command } = parsed.command else {
            unreachable!("it begins with that word");
        };
        (command, parsed.global)
    }

    fn home() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    #[test]
    fn the_development_cluster_is_shown_as_the_one_that_is_used() {
        let home = home();
        home.types("set prod --endpoints a:1").unwrap();
        assert_eq!(home.types("list").unwrap(), "  prod  a:1\n");
        home.types("use dev").unwrap();
        for words in ["show", "show dev"] {
            let shown = home.types(words).unwrap();
            assert!(shown.contains("development cluster"), "{shown}");
        }
        assert_eq!(home.types("list").unwrap(), "* dev\n  prod  a:1\n");
        let table = home.types("list -o table").unwrap();
        assert!(table.contains("dev"), "{table}");
        let shown = home.types("show -o json").unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["name"], DEV);
        home.types("use prod").unwrap();
        assert_eq!(home.types("list").unwrap(), "* prod  a:1\n");
    }

    #[test]
    fn a_password_file_goes_with_its_user() {
        let home = home();
        let annas = "set prod --user anna --password-file /anna.pw";
        for (words, is_kept) in [
            ("set prod --user bob", false),
            ("set prod --unset user", false),
            ("set prod --unset user --user bob", false),
            ("set prod --user anna", true),
            ("set prod --timeout 1s", true),
        ] {
            home.types(annas).unwrap();
            let shown = home.types(words).unwrap();
            assert_eq!(shown.contains("/anna.pw"), is_kept, "{words}: {shown}");
            assert_eq!(home.types("show prod").unwrap(), shown);
        }
        home.types(annas).unwrap();
        let bobs = home
            .types("set prod --user bob --password-file /bob.pw")
            .unwrap();
        assert!(bobs.contains("/bob.pw"), "{bobs}");
        // A token names its user itself, and a user needs none.
        let shown = home.types("set prod --token-file /token").unwrap();
        assert!(
            shown.contains("token_file = \"/token\"") && !shown.contains("bob"),
            "{shown}"
        );
        let shown = home.types("set prod --user anna").unwrap();
        assert!(!shown.contains("/token"), "{shown}");
        let refused = home.types("set prod --user anna --token-file /token");
        assert!(refused.unwrap_err().message.contains("name two users"));
        // What takes the place of another says so, and what has no user is refused.
        let refused = home.types("set other --token-file /token --password-file /anna.pw");
        assert!(refused.unwrap_err().message.contains("leave one out"));
        home.types("set other --token-file /token").unwrap();
        let refused = home
            .types("set other --password-file /anna.pw")
            .unwrap_err();
        assert!(refused.message.contains("--user"), "{}", refused.message);
        assert!(home.types("show other").unwrap().contains("/token"));
        home.types("remove other").unwrap();
        // A file may be given before its user.
        home.types("set other --password-file /anna.pw").unwrap();
        let shown = home.types("set other --user anna").unwrap();
        assert!(shown.contains("/anna.pw"), "{shown}");
    }

    #[test]
    fn what_is_taken_out_of_a_context_is_told() {
        let anna = Context {
            user: Some("anna".to_owned()),
            password_file: Some("/anna.pw".into()),
            ..Context::default()
        };
        let token = Context {
            token_file: Some("/token".into()),
            ..Context::default()
        };
        let told = |before: &Context, words: &str| {
            let (ContextCommand::Set(arguments), global) = read(&format!("set prod {words}"))
            else {
                unreachable!("it begins with that word");
            };
            change(&mut before.clone(), arguments, &global).unwrap()
        };
        for (before, words, said) in [
            (&anna, "--timeout 1s", &[][..]),
            (&anna, "--user bob --password-file /bob.pw", &[]),
            (
                &anna,
                "--user bob",
                &["password_file is taken out: it was that of anna"],
            ),
            (
                &anna,
                "--token-file /token",
                &[
                    "user is taken out: the token takes the place of anna",
                    "password_file is taken out: it was that of anna",
                ],
            ),
            (
                &token,
                "--user bob",
                &["token_file is taken out: bob logs in with a password"],
            ),
        ] {
            assert_eq!(told(before, words), said, "{words}");
        }
    }
}
