//! Which attempt a notification is about: by its secret, which proves it, or by the task's id, which does not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use hypha_model::{Fence, WorkerId};

use crate::transport::locked;

/// An attempt on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) worker: WorkerId,
    pub(super) fence: Fence,
}

type Secret = [u8; 16];

/// The secrets of all attempts that are with task instances.
#[derive(Default)]
pub(super) struct Secrets(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    // A keyed hash: how long a look-up takes says nothing about the secrets.
    by_secret: HashMap<Secret, Place>,
    by_task: HashMap<Box<str>, Place>,
}

/// The secret of one attempt; it ends with this.
pub(super) struct Registered {
    secrets: Arc<Secrets>,
    secret: Secret,
    place: Place,
    tasks: Vec<Box<str>>,
}

impl Secrets {
    /// A new secret for an attempt at `task`.
    pub(super) fn register(self: &Arc<Secrets>, place: Place, task: &str) -> Registered {
        let secret: Secret = rand::random();
        locked(&self.0).by_secret.insert(secret, place);
        let mut registered =
            Registered { secrets: Arc::clone(self), secret, place, tasks: Vec::new() };
        registered.also_known_as(task);
        registered
    }

    pub(super) fn of_secret(&self, secret: &str) -> Option<Place> {
        let secret: Secret = HEXLOWER.decode(secret.as_bytes()).ok()?.try_into().ok()?;
        locked(&self.0).by_secret.get(&secret).copied()
    }

    pub(super) fn of_task(&self, task: &str) -> Option<Place> {
        locked(&self.0).by_task.get(task).copied()
    }
}

impl Registered {
    /// The secret as it stands in a URL.
    pub(super) fn shown(&self) -> String {
        HEXLOWER.encode(&self.secret)
    }

    /// The instance has an id of its own for the task. Two instances may use the same: the later one gets the
    /// hints, and the earlier one is polled.
    pub(super) fn also_known_as(&mut self, task: &str) {
        locked(&self.secrets.0).by_task.insert(task.into(), self.place);
        self.tasks.push(task.into());
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut tables = locked(&self.secrets.0);
        tables.by_secret.remove(&self.secret);
        for task in &self.tasks {
            if tables.by_task.get(task) == Some(&self.place) {
                tables.by_task.remove(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_names_its_attempt_until_that_is_over() {
        let secrets = Arc::new(Secrets::default());
        let place =
            |fence| Place { worker: WorkerId::from_uuid(uuid::Uuid::nil()), fence: Fence(fence) };
        let first = secrets.register(place(1), "task-a");
        let mut second = secrets.register(place(2), "task-b");
        second.also_known_as("task-a");
        let (shown, other) = (first.shown(), second.shown());
        assert_eq!((shown.len(), shown == other), (32, false));
        assert_eq!(secrets.of_secret(&shown), Some(place(1)));
        for wrong in ["", "zz", &shown[..30], &shown.to_uppercase().replace('0', "A")] {
            assert!(secrets.of_secret(wrong).is_none() || wrong == shown, "{wrong}");
        }
        drop(first);
        assert_eq!(secrets.of_secret(&shown), None);
        assert_eq!(secrets.of_task("task-a"), Some(place(2)), "the other's name stays");
        drop(second);
        assert_eq!(secrets.of_task("task-a"), None);
        assert_eq!(secrets.of_task("task-b"), None);
    }
}
