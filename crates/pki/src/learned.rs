//! Revocation lists that a node got from others: used at once, and kept in a file for the next start.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

use crate::material::{LoadError, PemSource};
use crate::signed_crl::SignedCrl;

/// Authorities whose lists are kept: more organisations than one network has.
const MAX_AUTHORITIES: usize = 64;

/// The lists, one for each authority. Clones share them.
#[derive(Clone, Debug)]
pub struct LearnedCrls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: Option<PathBuf>,
    /// By the name of the authority.
    lists: Mutex<BTreeMap<Vec<u8>, SignedCrl>>,
}

impl LearnedCrls {
    /// Loads the lists that an earlier incarnation of the node left at `path`.
    pub(crate) fn load(path: Option<&Path>) -> Result<LearnedCrls, LoadError> {
        let source = path.map(read).transpose()?.flatten();
        let mut lists = BTreeMap::new();
        if let Some(source) = &source {
            let certificates: Vec<CertificateDer<'static>> = source.sections()?;
            for der in source.sections::<CertificateRevocationListDer<'static>>()? {
                let authority = certificates.iter().find(|one| crate::signed_crl::signs(one, &der));
                let list = SignedCrl::new(&der, authority.map(|one| one.to_vec()));
                let list = list.map_err(|reason| source.malformed(reason))?;
                lists.insert(list.issuer_name().to_vec(), list);
            }
        }
        let path = path.map(Path::to_owned);
        Ok(LearnedCrls(Arc::new(Inner { path, lists: Mutex::new(lists) })))
    }

    /// Adds a list that was verified, in place of an earlier one of the same authority. It is used even if it
    /// cannot be written to the disk.
    pub fn add(&self, list: SignedCrl) -> io::Result<()> {
        let mut lists = self.lock();
        if lists.len() >= MAX_AUTHORITIES && !lists.contains_key(list.issuer_name()) {
            let problem = format!("{MAX_AUTHORITIES} authorities have lists here already");
            return Err(io::Error::other(problem));
        }
        lists.insert(list.issuer_name().to_vec(), list);
        let text = pem(&lists);
        match &self.0.path {
            Some(path) => write(path, &text),
            None => Ok(()),
        }
    }

    pub(crate) fn source(&self) -> Option<PemSource> {
        let lists = self.lock();
        let name = self.0.path.as_ref().map(|path| path.display().to_string());
        let name = name.unwrap_or_else(|| "revocation lists of others".to_owned());
        (!lists.is_empty()).then(|| PemSource::from_text(&name, &pem(&lists)))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, SignedCrl>> {
        self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the file, if there is one.
pub(crate) fn read(path: &Path) -> Result<Option<PemSource>, LoadError> {
    match PemSource::read(path) {
        Ok(source) => Ok(Some(source)),
        Err(LoadError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn pem(lists: &BTreeMap<Vec<u8>, SignedCrl>) -> String {
    lists.values().map(SignedCrl::to_pem).collect()
}

/// Replaces the file as a whole: half of one would keep the node from starting.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let new = path.with_extension("new");
    let file = fs::File::create(&new)?;
    io::Write::write_all(&mut &file, text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}
