//! What a node knows of itself and of the other members.

pub(crate) mod checks;
pub(crate) mod contacts;
pub(crate) mod directory;
pub(crate) mod document;
pub(crate) mod doubles;
pub(crate) mod followers;
pub(crate) mod integrity;
pub(crate) mod lease_stats;
pub(crate) mod node_state;
pub(crate) mod reload;
pub(crate) mod startup;
mod warnings;
