//! Large results: taken from workers, kept in a directory by their digest, given to clients, forgotten in time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use hypha_api::Object;
use hypha_bulk::{FileSink, Sink};
use hypha_model::{Digest, NodeRole};
use hypha_net::{Incoming, Net};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::NodeError;
use crate::object::KIND;

/// A result above this is not taken: a task is no way to move a data set.
const MAX_BYTES: u64 = 16 << 30;

/// What is read of an object at a time.
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

    /// Takes what workers send, for as long as there are transfers.
    pub(super) async fn receive(self, net: Net, mut offers: mpsc::Receiver<Incoming>) {
        while let Some(offer) = offers.recv().await {
            let (objects, net) = (self.clone(), net.clone());
            tokio::spawn(async move {
                let peers = net.peers().await;
                let known = peers.iter().find(|peer| peer.id.to_string() == offer.peer().as_str());
                match known.map(|peer| peer.role) {
                    Some(role) => objects.take(offer, role == NodeRole::Worker).await,
                    // After a restart, transfers may come before their senders have connected otherwise. It is not
                    // refused, but ended: a worker sends it again.
                    None => drop(offer),
                }
            });
        }
    }

    async fn take(&self, offer: Incoming, of_worker: bool) {
        let header = offer.header();
        let Some(digest) = header.digest.filter(|_| of_worker && header.kind == KIND) else {
            return offer.refuse("this scheduler takes only results of tasks, from workers").await;
        };
        if header.length > MAX_BYTES {
            return offer.refuse("the result is too large").await;
        }
        let path = self.path(&Digest::from_bytes(digest.0));
        let (length, from) = (header.length, offer.peer().as_str().to_owned());
        // Two workers may send the same bytes at once: each writes its own file.
        let own = path.with_extension(format!("{:016x}", rand::random::<u64>()));
        let taken = match FileSink::open(&own, length).await {
            Ok((file, chain)) => {
                let sink = ObjectSink { file, own: own.clone(), path };
                let taken = offer.accept_from(sink, chain, CancellationToken::new()).await;
                taken.map_err(|error| error.to_string())
            }
            // As above: there may be room later.
            Err(error) => {
                drop(offer);
                Err(format!("cannot write {}: {error}", own.display()))
            }
        };
        if let Err(problem) = taken {
            tracing::warn!(from, "a large result was not taken: {problem}");
        }
    }

    /// An object, if it is there.
    pub(super) async fn read(&self, digest: Digest) -> io::Result<Option<Object>> {
        let file = match tokio::fs::File::open(self.path(&digest)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = file.metadata().await?.len();
        let pieces = futures::stream::try_unfold(file, |mut file| async move {
            let mut piece = vec![0; PIECE_BYTES];
            let read = file.read(&mut piece).await?;
            piece.truncate(read);
            Ok((read > 0).then(|| (Bytes::from(piece), file)))
        });
        Ok(Some(Object { bytes, pieces: pieces.boxed() }))
    }

    /// Forgets objects that came longer ago than `age`. Called from a thread that may wait.
    pub(super) fn forget_older_than(&self, age: Duration) -> io::Result<u64> {
        let before = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut forgotten = 0;
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            if changed.is_ok_and(|changed| changed < before) {
                std::fs::remove_file(entry.path())?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.to_string())
    }
}

/// A file that gets the object's name before the worker hears that it is taken: afterwards the worker relies on it.
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
        // The name must survive a power cut, as the task that tells of it does.
        let directory = self.path.parent().unwrap_or(Path::new("."));
        tokio::fs::File::open(directory).await?.sync_all().await
    }

    async fn abandon(&mut self, _: bool) {
        // Another transfer gets a name of its own: nobody would go on with this one.
        self.file.abandon(false).await;
    }
}
