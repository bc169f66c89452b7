//! Contexts: the file in which a user keeps clusters under names, with where each is and who to be there.
//!
//! What a flag or a variable gives stands above the context, and the context above a running development
//! cluster. The file decides where commands and passwords go, so one that others may write is refused, and
//! it is read as strictly as a node's configuration: what is not known is a mistake, told with its line.
//! A file that commands write is written as a whole; comments in it are not kept.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::arguments::duration::parse_timeout;
use super::failure::Failure;
use super::runtime::DevName;
use crate::server::disk::durable;

/// With it a pipe is opened at once.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

/// The context that is always there: the development cluster without a name, if it runs.
pub const DEV: &str = "dev";

/// The keys of a context.
pub const KEYS: [&str; 9] = [
    "endpoints",
    "cacert",
    "cert",
    "key",
    "user",
    "password_file",
    "token_file",
    "timeout",
    "connect_timeout",
];

/// A cluster that has a name. What is `None` is not said in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Client addresses, as `host:port`; empty if none are said.
    pub endpoints: Vec<String>,
    /// The authority that signs nodes.
    pub cacert: Option<PathBuf>,
    /// Our certificate.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The user to log in as.
    pub user: Option<String>,
    /// Where that user's password is.
    pub password_file: Option<PathBuf>,
    /// Where a token is that names the user instead.
    pub token_file: Option<PathBuf>,
    /// Deadline for a request.
    pub timeout: Option<Duration>,
    /// Deadline for a connection.
    pub connect_timeout: Option<Duration>,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contexts {
    /// The file, which need not exist.
    pub path: PathBuf,
    /// The context that is used if none is named.
    pub current: Option<String>,
    /// The contexts, by name.
    pub all: BTreeMap<String, Context>,
}

/// Why contexts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextsError {
    /// There is no home in which the file could be.
    #[error(
        "neither HOME nor XDG_CONFIG_HOME says where contexts are kept: name the file with --contexts"
    )]
    NoHome,
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a folder or a pipe.
    #[error("{} is not a file: name one with --contexts", path.display())]
    NoFile {
        /// What is not one.
        path: PathBuf,
    },
    /// A path in a context is not text, as what the file says is.
    #[error("{} is not UTF-8, so a context cannot name it: rename it, or use a link to it", path.display())]
    NoText {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else could change it.
    #[error(
        "users other than the owner can write {0} (mode {mode:04o}), and could send commands and \
         passwords to another cluster: chmod go-w {0}",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is another user's.
    #[error(
        "{} belongs to another user, who could send commands and passwords to another cluster: use a \
         file of your own",
        path.display()
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// It says something that cannot be.
    #[error("{} line {line}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// There is no such context.
    #[error("there is no context `{name}` in {}: {}", path.display(), choices(known))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// What there is.
        known: Vec<String>,
    },
}

fn choices(known: &[String]) -> String {
    match known {
        [] => "it has none; `leasehold context set NAME --endpoints ...` makes one".to_owned(),
        known => format!("choose one of {}", known.join(", ")),
    }
}

impl From<ContextsError> for Failure {
    fn from(error: ContextsError) -> Self {
        match error {
            ContextsError::Write { .. } => Self::refused(error.to_string()),
            _ => Self::usage(error.to_string()),
        }
    }
}

impl Contexts {
    /// The file that is `named`, or else the usual one, read; one that does not exist says nothing.
    ///
    /// # Errors
    /// It cannot be read, others could have written it, or it says what cannot be.
    pub fn of(named: Option<&Path>) -> Result<Self, ContextsError> {
        match named {
            Some(path) => Self::read(path),
            None => Self::read(&usual_path().ok_or(ContextsError::NoHome)?),
        }
    }

    fn read(path: &Path) -> Result<Self, ContextsError> {
        let read_error = |source| {
            let path = path.to_owned();
            ContextsError::Read { path, source }
        };
        let nothing = Self {
            path: path.to_owned(),
            current: None,
            all: BTreeMap::new(),
        };
        // Opened once: what is read is what was looked at. A pipe is not waited for.
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(NONBLOCK);
        let mut file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(nothing),
            Err(error) => return Err(read_error(error)),
        };
        let found = file.metadata().map_err(read_error)?;
        if found.file_type().is_char_device() {
            return Ok(nothing);
        }
        if !found.is_file() {
            let path = path.to_owned();
            return Err(ContextsError::NoFile { path });
        }
        refuse_others(path, &found)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(read_error)?;
        Reader { path, text: &text }.contexts(nothing)
    }

    /// The context of this name.
    ///
    /// # Errors
    /// [`ContextsError::Unknown`].
    pub fn named(&self, name: &str) -> Result<&Context, ContextsError> {
        self.all.get(name).ok_or_else(|| ContextsError::Unknown {
            name: name.to_owned(),
            path: self.path.clone(),
            known: self.all.keys().cloned().collect(),
        })
    }

    /// Writes the file, private to its owner, and the directories above it. If it is a link, what it leads to
    /// is written.
    ///
    /// # Errors
    /// [`ContextsError::NoText`]; [`ContextsError::NoFile`]; [`ContextsError::Write`].
    pub fn save(&self) -> Result<(), ContextsError> {
        let write_error = |source| ContextsError::Write {
            path: self.path.clone(),
            source,
        };
        let mut paths = self.all.values().flat_map(Context::paths);
        if let Some(path) = paths.find(|path| path.to_str().is_none()) {
            let path = path.to_owned();
            return Err(ContextsError::NoText { path });
        }
        // A link that leads nowhere is an error, and stays.
        let place = match fs::symlink_metadata(&self.path) {
            Ok(_) => fs::canonicalize(&self.path).map_err(write_error)?,
            Err(_) => self.path.clone(),
        };
        if fs::metadata(&place).is_ok_and(|it| !it.is_file()) {
            return Err(ContextsError::NoFile { path: place });
        }
        let write = || {
            if let Some(above) = place.parent().filter(|it| !it.as_os_str().is_empty()) {
                fs::create_dir_all(above)?;
            }
            durable::replace_with_mode(&place, self.text().as_bytes(), 0o600)
        };
        write().map_err(write_error)
    }

    fn text(&self) -> String {
        let line = |key: &str, value: Value| format!("{key} = {value}\n");
        let mut out = "# Written by `leasehold context`, which keeps no comments.\n".to_owned();
        if let Some(current) = &self.current {
            out.push_str(&line("current", current.as_str().into()));
        }
        for (name, context) in &self.all {
            out.push_str(&format!("\n[contexts.{name}]\n"));
            for (key, value) in context.said() {
                out.push_str(&line(key, value));
            }
        }
        out
    }
}

impl Context {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let paths = [
            &self.cacert,
            &self.cert,
            &self.key,
            &self.password_file,
            &self.token_file,
        ];
        paths.into_iter().filter_map(|path| path.as_deref())
    }

    /// What it says, by key.
    pub fn said(&self) -> Vec<(&'static str, Value)> {
        let path = |path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            // To be shown. One that is not UTF-8 is not saved.
            Some(Value::from(path.to_string_lossy().into_owned()))
        };
        let duration = |duration: &Option<Duration>| {
            let text = humantime::format_duration((*duration)?).to_string();
            Some(Value::from(text.replace(' ', "")))
        };
        let endpoints = self.endpoints.iter().map(|it| Value::from(it.as_str()));
        let endpoints =
            Some(Value::Array(endpoints.collect())).filter(|_| !self.endpoints.is_empty());
        let values = [
            endpoints,
            path(&self.cacert),
            path(&self.cert),
            path(&self.key),
            self.user.as_deref().map(Value::from),
            path(&self.password_file),
            path(&self.token_file),
            duration(&self.timeout),
            duration(&self.connect_timeout),
        ];
        let said = KEYS.into_iter().zip(values);
        said.filter_map(|(key, value)| Some((key, value?)))
            .collect()
    }

    /// Takes one key back.
    pub fn unset(&mut self, key: &str) {
        match key {
            "endpoints" => self.endpoints.clear(),
            "cacert" => self.cacert = None,
            "cert" => self.cert = None,
            "key" => self.key = None,
            "user" => self.user = None,
            "password_file" => self.password_file = None,
            "token_file" => self.token_file = None,
            "timeout" => self.timeout = None,
            "connect_timeout" => self.connect_timeout = None,
            _ => {}
        }
    }
}

/// Whether a name can be one of a context.
///
/// # Errors
/// What a name looks like.
pub fn check_name(name: &str) -> Result<(), String> {
    name.parse::<DevName>().map(|_| ())
}

fn usual_path() -> Option<PathBuf> {
    let absolute = |variable| {
        let path = PathBuf::from(env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    Some(config?.join("leasehold").join("contexts.toml"))
}

/// Who can write the file decides where passwords go.
fn refuse_others(path: &Path, found: &fs::Metadata) -> Result<(), ContextsError> {
    const ROOT: u32 = 0;
    let (path, mode) = (path.to_owned(), found.mode() & 0o7777);
    if ![ROOT, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        return Err(ContextsError::NotOurs { path });
    }
    match mode & 0o022 {
        0 => Ok(()),
        _ => Err(ContextsError::Exposed { path, mode }),
    }
}

/// Reads the text of a file.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn contexts(&self, mut contexts: Contexts) -> Result<Contexts, ContextsError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let at = error.span().unwrap_or_default().start;
            self.invalid(at, error.message().to_owned())
        })?;
        let mut current_at = 0;
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("current", DeValue::String(name)) => {
                    current_at = at;
                    contexts.current = Some(name.to_string());
                }
                ("current", _) => {
                    return Err(self.invalid(at, "current is a name in quotes".to_owned()));
                }
                ("contexts", DeValue::Table(named)) => {
                    for (name, context) in named {
                        let at = name.span().start;
                        let name = name.get_ref().as_ref();
                        check_name(name).map_err(|form| {
                            self.invalid(at, format!("`{name}` is no name: {form}"))
                        })?;
                        if name == DEV {
                            return Err(self.invalid(at, DEV_IS_TAKEN.to_owned()));
                        }
                        let context = self.context(at, name, context.get_ref())?;
                        contexts.all.insert(name.to_owned(), context);
                    }
                }
                (key, _) => {
                    let problem = format!(
                        "`{key}` is not known: there are `current` and sections `[contexts.NAME]`"
                    );
                    return Err(self.invalid(at, problem));
                }
            }
        }
        match contexts.current.as_deref().filter(|name| *name != DEV) {
            Some(name) if !contexts.all.contains_key(name) => {
                let known: Vec<String> = contexts.all.keys().cloned().collect();
                let problem = format!("there is no context `{name}`: {}", choices(&known));
                Err(self.invalid(current_at, problem))
            }
            _ => Ok(contexts),
        }
    }

    fn context(
        &self,
        at: usize,
        name: &str,
        value: &DeValue<'_>,
    ) -> Result<Context, ContextsError> {
        let DeValue::Table(table) = value else {
            let problem = format!("{name} is a section: write [contexts.{name}] above its keys");
            return Err(self.invalid(at, problem));
        };
        let mut context = Context::default();
        for (key, value) in table {
            let at = key.span().start;
            let key = key.get_ref().as_ref();
            if !KEYS.contains(&key) {
                let problem = format!("`{key}` is not known: a context has {}", KEYS.join(", "));
                return Err(self.invalid(at, problem));
            }
            let value = value.get_ref();
            if key == "endpoints" {
                context.endpoints = self.endpoints(at, value)?;
                continue;
            }
            let DeValue::String(text) = value else {
                return Err(self.invalid(at, format!("{key} is a text in quotes")));
            };
            let duration = || {
                parse_timeout(text)
                    .map_err(|form| self.invalid(at, format!("{key} = \"{text}\": {form}")))
            };
            let path = || {
                let directory = self.path.parent().unwrap_or_else(|| Path::new(""));
                Some(directory.join(text.as_ref()))
            };
            match key {
                "cacert" => context.cacert = path(),
                "cert" => context.cert = path(),
                "key" => context.key = path(),
                "user" => context.user = Some(text.to_string()),
                "password_file" => context.password_file = path(),
                "token_file" => context.token_file = path(),
                "timeout" => context.timeout = Some(duration()?),
                _ => context.connect_timeout = Some(duration()?),
            }
        }
        if context.user.is_some() && context.token_file.is_some() {
            let problem =
                format!("{name} has user and token_file, which name two users: leave one out");
            return Err(self.invalid(at, problem));
        }
        if context.password_file.is_some() && context.token_file.is_some() {
            let problem = format!(
                "{name} has password_file and token_file, which log in two ways: leave one out"
            );
            return Err(self.invalid(at, problem));
        }
        Ok(context)
    }

    fn endpoints(&self, at: usize, value: &DeValue<'_>) -> Result<Vec<String>, ContextsError> {
        let form = "endpoints is a list, for example [\"10.0.0.1:7400\", \"10.0.0.2:7400\"]";
        let wrong = || self.invalid(at, form.to_owned());
        let DeValue::Array(list) = value else {
            return Err(wrong());
        };
        let texts = list.iter().map(|it| match it.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(wrong()),
        });
        texts.collect()
    }

    fn invalid(&self, at: usize, problem: String) -> ContextsError {
        let before = self.text.bytes().take(at);
        ContextsError::Invalid {
            path: self.path.to_owned(),
            line: 1 + before.filter(|byte| *byte == b'\n').count(),
            problem,
        }
    }
}

/// Why a context cannot have that name.
pub const DEV_IS_TAKEN: &str =
    "dev means the running development cluster: choose another name for a context";

#[cfg(test)]
mod tests;
