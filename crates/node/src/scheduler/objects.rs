//! Large results: received from workers, stored in a directory by task and digest, served to clients, and expired.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use hypha_api::{Object, ObjectError, ServiceUnavailable};
use hypha_bulk::{FileSink, Sink};
use hypha_engine::{FromWorker, Outcome};
use hypha_model::{Digest, Digester, NodeRole, ObjectRef, TaskId, TaskResult, Time};
use hypha_net::{Incoming, Net};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::NodeError;
use crate::object::RESULT_TRANSFER_KIND;

/// A larger result is refused: tasks are not meant to move data sets.
const MAX_BYTES: u64 = 16 << 30;

/// How much of an object is read at a time.
const PIECE_BYTES: usize = 256 << 10;

#[derive(Clone, Debug)]
pub(super) struct Objects {
    directory: PathBuf,
}

impl Objects {
    pub(super) fn open(directory: &Path) -> Result<Objects, NodeError> {
        std::fs::create_dir_all(directory).map_err(|error| {
            NodeError::failed(format!("cannot use object_store {}: {error}", directory.display()))
        })?;
        Ok(Objects { directory: directory.to_owned() })
    }

    /// Receives results from workers, for as long as there are transfers.
    pub(super) async fn receive(self, net: Net, mut offers: mpsc::Receiver<Incoming>) {
        while let Some(offer) = offers.recv().await {
            let (objects, net) = (self.clone(), net.clone());
            tokio::spawn(async move {
                let peers = net.peers().await;
                let known = peers.iter().find(|peer| peer.id.to_string() == offer.peer().as_str());
                match known.map(|peer| peer.role) {
                    Some(role) => objects.take(offer, role == NodeRole::Worker).await,
                    // After a restart, a transfer may arrive before its sender has connected otherwise. It is not
                    // refused, but ended: the worker sends it again.
                    None => drop(offer),
                }
            });
        }
    }

    async fn take(&self, offer: Incoming, is_worker: bool) {
        let header = offer.header();
        let Some(digest) =
            header.digest.filter(|_| is_worker && header.kind == RESULT_TRANSFER_KIND)
        else {
            return offer.refuse("this scheduler takes only results of tasks, from workers").await;
        };
        if header.length > MAX_BYTES {
            return offer.refuse("the result is too large").await;
        }
        // The number of the attempt does not matter: the digest identifies the bytes.
        let task = header.name.split('#').next().and_then(|task| task.parse().ok());
        let Some(task) = task else {
            return offer.refuse("the name of a result must be its attempt").await;
        };
        let path = self.path(task, &Digest::from_bytes(digest.0));
        let (length, from) = (header.length, offer.peer().as_str().to_owned());
        // Two workers may send the same bytes at once: each writes its own file.
        let own = path.with_extension(format!("{:016x}", rand::random::<u64>()));
        let taken = match FileSink::open(&own, length).await {
            Ok((file, chain)) => {
                let sink = ObjectSink { file, own: own.clone(), path };
                let taken = offer.accept_from(sink, chain, CancellationToken::new()).await;
                taken.map_err(|error| error.to_string())
            }
            // Ended and not refused, as above: there may be room later.
            Err(error) => {
                drop(offer);
                Err(format!("cannot write {}: {error}", own.display()))
            }
        };
        if let Err(problem) = taken {
            tracing::warn!(from, "a large result was not stored: {problem}");
        }
    }

    /// Workers of the previous version refer to an object by JSON in place of the result. The JSON is a reference only
    /// if that object has arrived for this task; otherwise it is the result itself.
    pub(super) async fn resolve_object_ref(&self, message: &mut FromWorker) {
        let FromWorker::Finished { attempt, outcome: Outcome::Completed { result }, .. } = message
        else {
            return;
        };
        let Some(object) = result.payload().and_then(|it| ObjectRef::from_json(it.bytes())) else {
            return;
        };
        let found = tokio::fs::metadata(self.path(attempt.task, &object.digest)).await;
        if found.is_ok_and(|found| found.len() == object.bytes) {
            *result = TaskResult::Object(object);
        }
    }

    /// The object that is the result of `task`, if it exists. All of it is read once before the first piece is sent:
    /// bytes that the disk has damaged are an error, and not a result.
    pub(super) async fn read(
        &self,
        task: TaskId,
        object: ObjectRef,
    ) -> Result<Option<Object>, ObjectError> {
        let path = match object.by_digest {
            true => self.directory.join(object.digest.to_string()),
            false => self.path(task, &object.digest),
        };
        let failed = |error: io::Error| {
            ObjectError::Unavailable(ServiceUnavailable(format!("the object store fails: {error}")))
        };
        let checked = path.clone();
        let checking = tokio::task::spawn_blocking(move || open_checked(&checked, &object));
        let file = match checking.await.map_err(|error| failed(io::Error::other(error)))? {
            Ok(Some(file)) => file,
            Ok(None) => {
                tracing::error!(path = %path.display(), %task, "a result has changed on the disk");
                return Err(ObjectError::Corrupt);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (file, bytes) = (tokio::fs::File::from_std(file), object.bytes);
        let pieces = futures::stream::try_unfold(file, |mut file| async move {
            let mut piece = vec![0; PIECE_BYTES];
            let read = file.read(&mut piece).await?;
            piece.truncate(read);
            Ok((read > 0).then(|| (Bytes::from(piece), file)))
        });
        Ok(Some(Object { bytes, pieces: pieces.boxed() }))
    }

    /// Deletes the objects of tasks that are no longer stored. Tasks that were submitted after `before` are not looked
    /// up.
    ///
    /// A task expires by the scheduler's clock. Its object has no time of its own: those of files follow the system's
    /// clock, and once that is set forward by `age`, the results of tasks that are still shown would be deleted. Only
    /// objects of earlier versions, which name no task, go by it.
    pub(super) async fn forget_expired<E, F: Future<Output = Result<bool, E>>>(
        &self,
        (before, age): (Time, Duration),
        is_stored: impl Fn(TaskId) -> F,
    ) -> Result<(), ForgetError<E>> {
        let long_ago = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut entries = tokio::fs::read_dir(&self.directory).await?;
        while let Some(entry) = entries.next_entry().await? {
            let is_expired = match task_of(&entry.file_name()) {
                Some(task) => {
                    task.created_at() < before
                        && !is_stored(task).await.map_err(ForgetError::Store)?
                }
                None => {
                    let changed = entry.metadata().await.and_then(|metadata| metadata.modified());
                    changed.is_ok_and(|changed| changed < long_ago)
                }
            };
            if is_expired {
                tokio::fs::remove_file(entry.path()).await?;
            }
        }
        Ok(())
    }

    fn path(&self, task: TaskId, digest: &Digest) -> PathBuf {
        self.directory.join(format!("{task}_{digest}"))
    }
}

/// Why old objects could not be deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForgetError<E> {
    #[error("{0}")]
    Directory(#[from] io::Error),
    #[error("{0}")]
    Store(E),
}

/// The task that a file belongs to.
fn task_of(file: &OsStr) -> Option<TaskId> {
    file.to_str()?.split_once('_')?.0.parse().ok()
}

/// Opens the file; `None` if its bytes are not the object's.
fn open_checked(path: &Path, object: &ObjectRef) -> io::Result<Option<File>> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() != object.bytes {
        return Ok(None);
    }
    let (mut digester, mut piece) = (Digester::default(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => digester.add(&piece[..read]),
        }
    }
    file.rewind()?;
    Ok((digester.digest() == object.digest).then_some(file))
}

/// A file that gets the object's name before the transfer is acknowledged: from then on the worker relies on it.
struct ObjectSink {
    file: FileSink,
    own: PathBuf,
    path: PathBuf,
}

impl Sink for ObjectSink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes).await
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.file.finish().await?;
        tokio::fs::rename(&self.own, &self.path).await?;
        // The name must survive a power failure, as the task that refers to it does.
        let directory = self.path.parent().unwrap_or(Path::new("."));
        tokio::fs::File::open(directory).await?.sync_all().await
    }

    async fn abandon(&mut self, _: bool) {
        // Each transfer has a file of its own: none would resume this one.
        self.file.abandon(false).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use hypha_model::{AttemptId, Fence, Payload, Rng, Span};

    use super::*;

    fn task(number: u64) -> TaskId {
        TaskId::new(Time::ZERO, &mut Rng::new(number))
    }

    async fn read(objects: &Objects, task: TaskId, object: ObjectRef) -> Result<Vec<u8>, String> {
        let found = objects.read(task, object).await.map_err(|error| error.to_string())?;
        let pieces = found.ok_or("there is none")?.pieces;
        let pieces: Vec<Bytes> = pieces.try_collect().await.map_err(|error| error.to_string())?;
        Ok(pieces.concat())
    }

    #[tokio::test]
    async fn object_is_served_only_to_its_task_and_only_if_intact() {
        let directory = tempfile::tempdir().unwrap();
        let objects = Objects::open(directory.path()).unwrap();
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 1).map(|at| at as u8).collect();
        let digest = Payload::from(&*bytes).digest();
        let object = ObjectRef { digest, bytes: bytes.len() as u64, by_digest: false };
        let by_digest = ObjectRef { by_digest: true, ..object };
        let path = objects.path(task(1), &digest);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&objects, task(1), object).await.as_ref(), Ok(&bytes));
        assert_eq!(read(&objects, task(2), object).await, Err("there is none".to_owned()));
        assert_eq!(read(&objects, task(1), by_digest).await, Err("there is none".to_owned()));
        // As earlier versions stored it.
        std::fs::write(directory.path().join(digest.to_string()), &bytes).unwrap();
        assert_eq!(read(&objects, task(2), by_digest).await.as_ref(), Ok(&bytes));
        assert_eq!(read(&objects, task(2), object).await, Err("there is none".to_owned()));

        let mut flipped = bytes.clone();
        flipped[2 * PIECE_BYTES] ^= 1;
        for damaged in [&flipped[..], &bytes[..bytes.len() - 1], b""] {
            std::fs::write(&path, damaged).unwrap();
            let error = read(&objects, task(1), object).await.unwrap_err();
            assert!(error.starts_with("the bytes of this result have changed"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_object_expires_with_its_task_whatever_the_date_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let objects = Objects::open(directory.path()).unwrap();
        let digest = Payload::from(&b"large"[..]).digest();
        let before = Time::ZERO + Span::from_secs(1_000);
        let young = TaskId::new(before, &mut Rng::new(3));
        let paths = [task(1), task(2), young].map(|task| objects.path(task, &digest));
        let unfinished = paths[1].with_extension("0123456789abcdef");
        let [kept, old] = ["kept", "old"].map(|name| directory.path().join(name));
        for path in paths.iter().chain([&unfinished, &kept, &old]) {
            std::fs::write(path, b"large").unwrap();
        }
        // As after the system's clock was set forward by years.
        for path in paths.iter().chain([&old]) {
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
        }
        let is_stored = |id| async move { Ok::<_, io::Error>(id == task(1)) };
        let age = Duration::from_secs(1_000);
        objects.forget_expired((before, age), is_stored).await.unwrap();
        let left = paths.iter().chain([&unfinished, &kept, &old]).map(|path| path.exists());
        assert_eq!(left.collect::<Vec<_>>(), [true, false, true, false, true, false]);
    }

    /// A worker of the previous version refers to an object by JSON; any program may return the same JSON.
    #[tokio::test]
    async fn object_reference_counts_only_if_the_object_arrived_for_the_task() {
        let directory = tempfile::tempdir().unwrap();
        let objects = Objects::open(directory.path()).unwrap();
        let digest = Payload::from(&b"large"[..]).digest();
        std::fs::write(objects.path(task(1), &digest), b"large").unwrap();
        let object = ObjectRef { digest, bytes: 5, by_digest: false };
        let cases = [
            (task(1), object.to_json(), true),
            (task(2), object.to_json(), false),
            (task(1), "[1]".to_owned(), false),
        ];
        for (task, json, expected) in cases {
            let outcome = Outcome::Completed { result: Payload::from(json.into_bytes()).into() };
            let (attempt, fence) = (AttemptId { task, number: 1 }, Fence(1));
            let mut message = FromWorker::Finished { attempt, fence, run: Span::ZERO, outcome };
            objects.resolve_object_ref(&mut message).await;
            let is_object = matches!(
                message,
                FromWorker::Finished {
                    outcome: Outcome::Completed { result: TaskResult::Object(_) },
                    ..
                }
            );
            assert_eq!(is_object, expected);
        }
    }
}
