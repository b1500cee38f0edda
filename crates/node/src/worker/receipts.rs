//! Stores the receipts of leases: one small file for each lease, which is replaced with each receipt.
//!
//! Files are never removed, also not those of leases that were settled long ago: they are the owner's evidence of what
//! was earned. An owner who wants the space moves them elsewhere.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use hypha_engine::StoredReceipts;

use super::epoch::write_atomically;

/// The directory in `data_dir`.
const DIRECTORY: &str = "receipts";

/// The largest file: a receipt with two signatures for the largest worker takes about 8 KB.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// All receipts of the worker with this `data_dir`, in the order in which their leases were granted. Files that are not
/// receipts are skipped, and a warning names the first of them.
pub fn worker_receipts(data_dir: &Path) -> io::Result<Vec<StoredReceipts>> {
    let entries = match fs::read_dir(data_dir.join(DIRECTORY)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut receipts, mut unreadable) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry?.path();
        // One that was being written when the machine lost power ends in `.new`.
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match read(&path) {
            Ok(stored) => receipts.push(stored),
            Err(error) => unreadable.push((path, error)),
        }
    }
    if let Some((path, error)) = unreadable.iter().min_by_key(|(path, _)| path) {
        tracing::warn!(
            files = unreadable.len(),
            "skipped files of receipts that cannot be read; restore or remove them: {}: {error}",
            path.display()
        );
    }
    receipts.sort_by_key(StoredReceipts::lease);
    Ok(receipts)
}

/// Writes the receipts of a lease, durably against a power failure.
pub(super) fn write(data_dir: &Path, stored: &StoredReceipts) -> io::Result<()> {
    let directory = data_dir.join(DIRECTORY);
    if !fs::exists(&directory)? {
        fs::create_dir_all(&directory)?;
        File::open(data_dir)?.sync_all()?;
    }
    let json = serde_json::to_string(stored)?;
    write_atomically(&directory, &format!("{}.json", stored.lease()), &json)
}

fn read(path: &Path) -> io::Result<StoredReceipts> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_engine::{Receipt, Signature, SignedReceipt};
    use hypha_model::{LeaseId, Money, Rng, SchedulerId, Span, Time, WorkerId};

    use super::*;

    fn stored(seed: u64, number: u32, is_confirmed: bool) -> StoredReceipts {
        let at = Time::from_micros(seed * 1_000_000);
        let receipt = Receipt {
            lease: LeaseId::new(at, &mut Rng::new(seed)),
            worker: WorkerId::new(Time::ZERO, &mut Rng::new(1)),
            scheduler: SchedulerId::new(Time::ZERO, &mut Rng::new(2)),
            organisation: "Universität Ulm".parse().unwrap(),
            portion: Default::default(),
            price: Money::from_micros(u64::MAX / 3),
            held: Span::from_secs(10),
            number,
            is_final: false,
        };
        let signature = Signature { key: vec![1; 36], bytes: vec![2; 64] };
        let issued =
            Arc::new(SignedReceipt { receipt, worker: signature.clone(), scheduler: None });
        let countersigned = SignedReceipt { scheduler: Some(signature), ..(*issued).clone() };
        StoredReceipts { issued, confirmed: is_confirmed.then(|| Arc::new(countersigned)) }
    }

    #[test]
    fn receipts_are_read_back_the_last_of_each_lease() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(worker_receipts(directory.path()).unwrap(), []);
        write(directory.path(), &stored(7, 1, false)).unwrap();
        write(directory.path(), &stored(3, 1, true)).unwrap();
        write(directory.path(), &stored(7, 2, true)).unwrap();
        let read = worker_receipts(directory.path()).unwrap();
        assert_eq!(read, [stored(3, 1, true), stored(7, 2, true)]);
    }

    #[test]
    fn files_that_are_not_receipts_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &stored(1, 1, false)).unwrap();
        let file = |name: &str| directory.path().join(DIRECTORY).join(name);
        fs::write(file("empty.json"), "").unwrap();
        fs::write(file("list.json"), "[]").unwrap();
        fs::write(file("binary.json"), [0xff, 0xfe]).unwrap();
        fs::write(file("large.json"), " ".repeat(1 << 20)).unwrap();
        fs::write(file("half.json.new"), "{").unwrap();
        assert_eq!(worker_receipts(directory.path()).unwrap(), [stored(1, 1, false)]);
    }
}
