//! The declaration of a setting, and its names.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// `section.key`, as in the file and on the command line.
    pub key: &'static str,
    /// The default, in the words of the command line; empty for none.
    pub default: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
}

/// The environment variable of a setting: `LEASEHOLD_` and the key in capitals.
pub fn environment_variable(key: &str) -> String {
    format!("LEASEHOLD_{}", key.replace('.', "_").to_uppercase())
}
