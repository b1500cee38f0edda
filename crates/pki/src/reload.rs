//! Certificates and revocation lists that change while a node runs.

use std::time::SystemTime;

use libp2p_identity::PeerId;

use crate::learned::LearnedCrls;
use crate::material::{CertificateFiles, LoadError, Material};
use crate::pki::{Pki, warn_if_key_is_readable};

/// Watches the files of a [`Pki`].
///
/// Contents are compared, not timestamps: the files are small, and neither a file
/// system with coarse times nor a link that moves can hide a change.
pub struct Reloader {
    files: CertificateFiles,
    peer_id: PeerId,
    in_use: Material,
    learned: LearnedCrls,
    reported: Option<String>,
}

impl Reloader {
    /// Loads the files as [`Pki::load`] does, and watches them from then on.
    pub fn load(files: CertificateFiles) -> Result<(Pki, Reloader), LoadError> {
        warn_if_key_is_readable(&files);
        let learned = LearnedCrls::load(files.learned_crls.as_deref())?;
        let in_use = Material::read(&files)?.with_learned(&learned);
        let pki = Pki::from_material(&in_use, SystemTime::now())?;
        let peer_id = pki.own().peer_id;
        Ok((pki, Reloader { files, peer_id, in_use, learned, reported: None }))
    }

    /// Takes lists from other nodes; they are in use after the next [`Reloader::poll`].
    pub fn learned(&self) -> &LearnedCrls {
        &self.learned
    }

    /// `Some` if the files changed: the new [`Pki`], or why the change cannot be used.
    ///
    /// After an error the previous [`Pki`] stays in use. A half-written file is retried
    /// at every call, but the same error is reported once.
    pub fn poll(&mut self) -> Option<Result<Pki, LoadError>> {
        match self.changed() {
            Ok(None) => {
                self.reported = None;
                None
            }
            Ok(Some((material, pki))) => {
                self.reported = None;
                self.in_use = material;
                Some(Ok(pki))
            }
            Err(error) => {
                let text = error.to_string();
                if self.reported.as_ref() == Some(&text) {
                    return None;
                }
                self.reported = Some(text);
                Some(Err(error))
            }
        }
    }

    fn changed(&self) -> Result<Option<(Material, Pki)>, LoadError> {
        let material = Material::read(&self.files)?.with_learned(&self.learned);
        if material == self.in_use {
            return Ok(None);
        }
        let pki = Pki::from_material(&material, SystemTime::now())?;
        // Peers know the node by its peer id.
        if pki.own().peer_id != self.peer_id {
            return Err(LoadError::PeerIdChanged {
                name: material.cert.name,
                old: self.peer_id.to_string(),
                new: pki.own().peer_id.to_string(),
            });
        }
        Ok(Some((material, pki)))
    }
}
