//! The roles of nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The role that a node's certificate gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// The meeting point of other nodes: relay, routing, gossip.
    Gateway,
    /// Places tasks and runs jobs.
    Scheduler,
    /// Offers capacity.
    Worker,
    /// Serves data sets.
    Data,
}

impl NodeRole {
    /// All roles.
    pub const ALL: [NodeRole; 4] =
        [NodeRole::Gateway, NodeRole::Scheduler, NodeRole::Worker, NodeRole::Data];

    /// The one word for it: in certificates, commands and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            NodeRole::Gateway => "gateway",
            NodeRole::Scheduler => "scheduler",
            NodeRole::Worker => "worker",
            NodeRole::Data => "data",
        }
    }
}

/// A role that does not exist.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a role: use `gateway`, `scheduler`, `worker` or `data`")]
pub struct UnknownNodeRole(String);

impl FromStr for NodeRole {
    type Err = UnknownNodeRole;
    fn from_str(text: &str) -> Result<NodeRole, UnknownNodeRole> {
        NodeRole::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| UnknownNodeRole(text.chars().take(64).collect()))
    }
}

impl fmt::Display for NodeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_is_one_word_everywhere() {
        for role in NodeRole::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
        }
        assert!("Worker".parse::<NodeRole>().unwrap_err().to_string().contains("use `gateway`"));
    }
}
