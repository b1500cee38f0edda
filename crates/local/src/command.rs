//! Starts a node as a child process.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A node to be run by this program.
#[derive(Debug, Clone)]
pub struct NodeCommand {
    name: String,
    role: &'static str,
    config: PathBuf,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
}

impl NodeCommand {
    /// A node of this role, with this configuration file.
    pub fn new(name: &str, role: &'static str, config: PathBuf) -> NodeCommand {
        NodeCommand {
            name: name.to_owned(),
            role,
            config,
            flags: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// The name of its output and its files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a flag of the command line.
    pub fn flag(mut self, name: &str, value: &str) -> NodeCommand {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Adds an environment variable.
    pub fn variable(mut self, name: &str, value: &str) -> NodeCommand {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The command that starts it. Its input must be kept open; its output goes where ours goes.
    pub fn command(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(self.role)
            .args(["run", "--stop-with-stdin", "-c"])
            .arg(&self.config)
            .args(&self.flags)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            // Open for as long as we live: when it closes, the node stops, however we died.
            .stdin(Stdio::piped())
            // Ctrl-C is for us; we stop the nodes.
            .process_group(0);
        command
    }
}
