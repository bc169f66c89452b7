use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::cli::connection::{Login, Surroundings, Target};

/// What `text` in a file of these permissions says.
fn read(text: &str, mode: u32) -> Result<Contexts, ContextsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("contexts.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    Contexts::read(&path)
}

const TWO: &str = "\
current = \"prod\"
[contexts.prod]
endpoints = [\"10.0.0.1:7400\", \"10.0.0.2:7400\"]
cacert = \"/pki/ca.pem\"
cert = \"/pki/app.pem\"
key = \"/pki/app.key\"
user = \"anna\"
password_file = \"/pki/anna.pw\"
timeout = \"10s\"
connect_timeout = \"500ms\"
[contexts.test]
endpoints = [\"10.1.0.1:7400\"]
";

#[test]
fn what_is_written_is_what_is_read() {
    let contexts = read(TWO, 0o600).unwrap();
    assert_eq!(contexts.current.as_deref(), Some("prod"));
    let prod = contexts.named("prod").unwrap();
    assert_eq!(prod.endpoints, ["10.0.0.1:7400", "10.0.0.2:7400"]);
    assert_eq!(prod.timeout, Some(Duration::from_secs(10)));
    assert_eq!(prod.connect_timeout, Some(Duration::from_millis(500)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("below").join("contexts.toml");
    let odd = Context {
        user: Some("a \"quoted\" \\ name\n".to_owned()),
        ..Context::default()
    };
    let mut moved = Contexts { path, ..contexts };
    moved.all.insert("odd".to_owned(), odd);
    moved.save().unwrap();
    assert_eq!(Contexts::read(&moved.path).unwrap(), moved);
    let mode = fs::metadata(&moved.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_file_that_is_not_there_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let contexts = Contexts::read(&folder.path().join("none.toml")).unwrap();
    assert_eq!((contexts.current.as_ref(), contexts.all.len()), (None, 0));
    let refused = contexts.named("prod").unwrap_err().to_string();
    assert!(refused.contains("context set NAME"), "{refused}");
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    for (mode, is_read) in [(0o600, true), (0o644, true), (0o664, false), (0o606, false)] {
        match read(TWO, mode) {
            Ok(_) => assert!(is_read, "{mode:o}"),
            Err(refused) => {
                assert!(!is_read, "{mode:o}: {refused}");
                assert!(refused.to_string().contains("chmod go-w"), "{refused}");
            }
        }
    }
}

#[test]
fn what_is_no_file_says_nothing_if_it_is_a_device_and_is_refused_by_its_name_otherwise() {
    let nothing = Contexts::read(Path::new("/dev/null")).unwrap();
    assert_eq!((nothing.current.as_ref(), nothing.all.len()), (None, 0));
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o666.into()).unwrap();
    let at = |path: &Path| Contexts {
        path: path.to_owned(),
        ..nothing.clone()
    };
    let refused = |path: &Path, done: Result<(), ContextsError>| {
        let said = done.unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("{} is not a file", path.display())),
            "{said}"
        );
    };
    for path in [folder.path(), &pipe] {
        refused(path, Contexts::read(path).map(drop));
    }
    refused(&pipe, at(&pipe).save());
}

#[test]
fn a_link_stays_one_and_what_it_leads_to_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("kept.toml"), TWO).unwrap();
    fs::set_permissions(at("kept.toml"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("kept.toml", at("contexts.toml")).unwrap();
    // What an interrupted run or somebody else left.
    fs::write(at("other"), "another's").unwrap();
    std::os::unix::fs::symlink("other", at("kept.toml.new")).unwrap();
    let mut contexts = Contexts::read(&at("contexts.toml")).unwrap();
    contexts.current = Some("test".to_owned());
    contexts.save().unwrap();
    assert_eq!(
        fs::read_link(at("contexts.toml")).unwrap(),
        Path::new("kept.toml")
    );
    let kept = Contexts::read(&at("kept.toml")).unwrap();
    assert_eq!(kept.current.as_deref(), Some("test"));
    let found = fs::symlink_metadata(at("kept.toml")).unwrap();
    assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600);
    assert_eq!(fs::read(at("other")).unwrap(), b"another's");
    // One that leads nowhere is not replaced, either.
    fs::remove_file(at("kept.toml")).unwrap();
    let refused = contexts.save().unwrap_err().to_string();
    assert!(
        refused.contains("cannot write") && at("contexts.toml").is_symlink(),
        "{refused}"
    );
}

#[test]
fn a_path_that_is_no_text_is_not_saved_as_another() {
    use std::os::unix::ffi::OsStringExt;

    let folder = tempfile::tempdir().unwrap();
    let mut contexts = Contexts::read(&folder.path().join("contexts.toml")).unwrap();
    let odd = std::ffi::OsString::from_vec(b"/pki/\xff.pem".to_vec());
    let context = Context {
        cert: Some(odd.into()),
        ..Context::default()
    };
    contexts.all.insert("odd".to_owned(), context);
    let refused = contexts.save().unwrap_err().to_string();
    assert!(refused.contains("is not UTF-8"), "{refused}");
    assert!(!contexts.path.exists());
}

#[test]
fn what_is_not_known_is_refused_with_its_line_and_what_there_is() {
    for (text, line, said) in [
        ("curent = \"a\"\n", 1, "there are `current` and sections"),
        (
            "[contexts.a]\nendpoint = []\n",
            2,
            "a context has endpoints, cacert",
        ),
        ("current = \"b\"\n[contexts.a]\n", 1, "choose one of a"),
        ("\ncurrent = 7\n", 2, "a name in quotes"),
        ("[contexts]\na = 7\n", 2, "write [contexts.a]"),
        (
            "[contexts.a]\n\nendpoints = \"x:1\"\n",
            3,
            "endpoints is a list",
        ),
        ("[contexts.a]\nendpoints = [7]\n", 2, "endpoints is a list"),
        ("[contexts.a]\ncert = 7\n", 2, "cert is a text in quotes"),
        (
            "[contexts.a]\ntimeout = \"soon\"\n",
            2,
            "write seconds, or a number",
        ),
        ("[contexts.a]\ntimeout = \"0s\"\n", 2, "between 1ms and 1h"),
        ("[contexts.a]\ntimeout = \"1ns\"\n", 2, "between 1ms and 1h"),
        (
            "[contexts.a]\nconnect_timeout = \"1000h\"\n",
            2,
            "between 1ms and 1h",
        ),
        ("[contexts.\"a b\"]\n", 1, "`a b` is no name"),
        ("[contexts.dev]\n", 1, "dev means the running"),
        ("[contexts.a]\nuser = \"x\"\nuser = \"y\"\n", 3, ""),
        (
            "[contexts.a]\nuser = \"x\"\ntoken_file = \"t\"\n",
            1,
            "name two users",
        ),
        ("[contexts.a\n", 1, ""),
    ] {
        let refused = read(text, 0o600).unwrap_err().to_string();
        let place = format!("contexts.toml line {line}: ");
        assert!(
            refused.contains(&place) && refused.contains(said),
            "{text}: {refused}"
        );
    }
}

#[test]
fn a_deadline_that_the_file_could_not_have_is_refused_when_it_is_typed() {
    let set = |timeout: &str| {
        let line = format!("leasehold context set a --connect-timeout {timeout}");
        super::super::parse_from(&[], line.split_whitespace().map(Into::into))
    };
    for timeout in ["0", "1ns", "1000h"] {
        let refused = set(timeout).expect_err(timeout).to_string();
        assert!(refused.contains("between 1ms and 1h"), "{refused}");
    }
    for timeout in ["1ms", "1h"] {
        assert!(set(timeout).is_ok(), "{timeout}");
        let text = format!("[contexts.a]\nconnect_timeout = \"{timeout}\"\n");
        assert!(read(&text, 0o600).is_ok(), "{timeout}");
    }
}

#[test]
fn paths_begin_at_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("contexts.toml");
    fs::write(
        &path,
        "[contexts.a]\ncacert = \"pki/ca.pem\"\nkey = \"/k\"\n",
    )
    .unwrap();
    let contexts = Contexts::read(&path).unwrap();
    let read = contexts.named("a").unwrap();
    assert_eq!(read.cacert, Some(folder.path().join("pki/ca.pem")));
    assert_eq!(read.key, Some(PathBuf::from("/k")));
}

/// The target of `get foo` with these flags beside a context.
fn target(flags: &str, context: Context) -> Result<Target, Failure> {
    let line = format!("leasehold get foo {flags}");
    let global = super::super::parse_from(&[], line.split_whitespace().map(Into::into));
    let surroundings = Surroundings {
        context: Some(("prod".to_owned(), context)),
        ..Surroundings::default()
    };
    Target::find(&global.unwrap().global, &surroundings)
}

#[test]
fn a_flag_stands_above_the_context_and_the_rest_stays() {
    let context = Context {
        endpoints: vec!["a:1".to_owned()],
        cacert: Some("ca".into()),
        cert: Some("cert".into()),
        key: Some("key".into()),
        timeout: Some(Duration::from_secs(9)),
        ..Context::default()
    };
    let plain = target("", context.clone()).unwrap();
    assert_eq!(plain.endpoints, ["a:1"]);
    assert_eq!(plain.timeout, Duration::from_secs(9));
    assert_eq!(plain.connect_timeout, plain.timeout);
    let other = target("--endpoints b:2 --timeout 1s --cert mine", context.clone()).unwrap();
    assert_eq!(other.endpoints, ["b:2"]);
    assert_eq!(other.timeout, Duration::from_secs(1));
    assert_eq!(other.cert, Path::new("mine"));
    assert_eq!(other.key, Path::new("key"));
    let incomplete = Context {
        endpoints: Vec::new(),
        ..context.clone()
    };
    let refused = target("", incomplete).unwrap_err();
    let said = "the context prod has no `endpoints`";
    assert!(refused.message.contains(said), "{refused}");
    let incomplete = Context {
        key: None,
        ..context
    };
    let refused = target("", incomplete).unwrap_err();
    assert!(refused.message.contains("--key"), "{refused}");
}

#[test]
fn the_password_of_a_context_is_its_users_alone() {
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, name).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let context = Context {
        endpoints: vec!["a:1".to_owned()],
        cacert: Some("ca".into()),
        cert: Some("cert".into()),
        key: Some("key".into()),
        user: Some("anna".to_owned()),
        password_file: Some(secret("annas")),
        ..Context::default()
    };
    // A token in its place, under whatever user a flag names.
    let with_token = Context {
        user: None,
        password_file: None,
        token_file: Some("token".into()),
        ..context.clone()
    };
    let of_token = |flags| match target(flags, with_token.clone()).unwrap().login {
        Some(Login::TokenFile(file)) => file,
        other => panic!("{other:?}"),
    };
    assert_eq!(of_token(""), Path::new("token"));
    assert_eq!(of_token("--token-file mine"), Path::new("mine"));
    let of = |login: Option<Login>| match login {
        Some(Login::Password(user, password)) => (user, password),
        other => panic!("{other:?}"),
    };
    let (user, password) = of(target("", context.clone()).unwrap().login);
    assert_eq!((user.as_str(), password.reveal()), ("anna", &b"annas"[..]));
    let bobs = secret("bobs");
    let flags = format!("--user bob --password-file {}", bobs.display());
    let (user, password) = of(target(&flags, context.clone()).unwrap().login);
    assert_eq!((user.as_str(), password.reveal()), ("bob", &b"bobs"[..]));
    let (user, _) = of(target(&flags, with_token.clone()).unwrap().login);
    assert_eq!(user, "bob");
    // The other way round: a token that is given is used, and not the user of the context.
    let given = target("--token-file mine", context).unwrap().login;
    assert!(matches!(given, Some(Login::TokenFile(_))), "{given:?}");
}
