//! Finds the attempt of a notification: by its secret, which proves it, or by the task's id, which does not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use hypha_model::{Fence, WorkerId};

use crate::transport::lock;

/// An attempt on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttemptKey {
    pub(super) worker: WorkerId,
    pub(super) fence: Fence,
}

type Secret = [u8; 16];

/// The secrets of all attempts at task instances.
#[derive(Default)]
pub(super) struct Secrets(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    // A keyed hash: the time that a lookup takes does not reveal secrets.
    by_secret: HashMap<Secret, AttemptKey>,
    by_task: HashMap<Box<str>, AttemptKey>,
}

/// The secret of one attempt; dropping this revokes it.
pub(super) struct AttemptSecret {
    secrets: Arc<Secrets>,
    secret: Secret,
    attempt: AttemptKey,
    tasks: Vec<Box<str>>,
}

impl Secrets {
    /// A new secret for an attempt at `task`.
    pub(super) fn register(self: &Arc<Secrets>, attempt: AttemptKey, task: &str) -> AttemptSecret {
        let secret: Secret = rand::random();
        lock(&self.0).by_secret.insert(secret, attempt);
        let mut registered =
            AttemptSecret { secrets: Arc::clone(self), secret, attempt, tasks: Vec::new() };
        registered.add_task_name(task);
        registered
    }

    pub(super) fn find_by_secret(&self, secret: &str) -> Option<AttemptKey> {
        let secret: Secret = HEXLOWER.decode(secret.as_bytes()).ok()?.try_into().ok()?;
        lock(&self.0).by_secret.get(&secret).copied()
    }

    pub(super) fn find_by_task(&self, task: &str) -> Option<AttemptKey> {
        lock(&self.0).by_task.get(task).copied()
    }
}

impl AttemptSecret {
    /// The secret as in a URL.
    pub(super) fn to_hex(&self) -> String {
        HEXLOWER.encode(&self.secret)
    }

    /// Adds the instance's own id of the task. Two instances may use the same id: notifications without a secret then
    /// concern the later one, and the earlier one is polled.
    pub(super) fn add_task_name(&mut self, task: &str) {
        lock(&self.secrets.0).by_task.insert(task.into(), self.attempt);
        self.tasks.push(task.into());
    }
}

impl Drop for AttemptSecret {
    fn drop(&mut self) {
        let mut tables = lock(&self.secrets.0);
        tables.by_secret.remove(&self.secret);
        for task in &self.tasks {
            if tables.by_task.get(task) == Some(&self.attempt) {
                tables.by_task.remove(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_identifies_its_attempt_until_it_ends() {
        let secrets = Arc::new(Secrets::default());
        let attempt = |fence| AttemptKey {
            worker: WorkerId::from_uuid(uuid::Uuid::nil()),
            fence: Fence(fence),
        };
        let first = secrets.register(attempt(1), "task-a");
        let mut second = secrets.register(attempt(2), "task-b");
        second.add_task_name("task-a");
        let (shown, other) = (first.to_hex(), second.to_hex());
        assert_eq!((shown.len(), shown == other), (32, false));
        assert_eq!(secrets.find_by_secret(&shown), Some(attempt(1)));
        for wrong in ["", "zz", &shown[..30], &shown.to_uppercase().replace('0', "A")] {
            assert!(secrets.find_by_secret(wrong).is_none() || wrong == shown, "{wrong}");
        }
        drop(first);
        assert_eq!(secrets.find_by_secret(&shown), None);
        assert_eq!(secrets.find_by_task("task-a"), Some(attempt(2)), "the other name stays");
        drop(second);
        assert_eq!(secrets.find_by_task("task-a"), None);
        assert_eq!(secrets.find_by_task("task-b"), None);
    }
}
