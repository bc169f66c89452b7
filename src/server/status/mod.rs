//! What a node knows of itself and of the others, for whoever asks.

pub(crate) mod directory;
pub(crate) mod integrity;
pub(crate) mod lease_stats;
pub(crate) mod startup;
