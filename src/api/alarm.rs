//! The alarms NOSPACE of a cluster: the one that is measured, and those that operators raise.

use serde::{Deserialize, Serialize};

use crate::types::NodeId;

/// Alarms NOSPACE. While there is any, puts and lease grants are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmsResponse {
    /// The one that is measured is raised: the state has reached its quota, or the leader's disk is full. It
    /// ends by itself.
    pub measured: bool,
    /// The members for which an operator has raised one, by id; to a change, those that it touched.
    pub members: Vec<NodeId>,
}
