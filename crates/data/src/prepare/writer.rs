//! Collects samples and writes them as slices, with every n-th one held out.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Options, PrepareError, Prepared, Progress, file_error, sync_directory, write_error};
use crate::manifest::{self, MAX_MANIFEST_BYTES, MAX_SLICE_BYTES};
use crate::{HOLDOUT_DIRECTORY, Kind, MANIFEST_FILE, Manifest, SliceEntry, TensorSpec, slice_file};

/// Often enough for a progress bar, seldom enough to cost nothing.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Takes the samples of a data set, one after the other. What a sample is has to be [described](Writer::describe)
/// first.
pub(super) struct Writer<'a> {
    directory: PathBuf,
    options: &'a Options,
    outputs: Option<Outputs>,
    callback: &'a mut dyn FnMut(Progress),
    progress: Progress,
    reported_bytes: u64,
}

struct Outputs {
    train: Output,
    holdout: Option<Output>,
}

/// One directory of slices.
struct Output {
    directory: PathBuf,
    manifest: Manifest,
    /// The bytes of the samples of the next slice, for each tensor.
    columns: Vec<Vec<u8>>,
    samples: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        directory: &Path,
        options: &'a Options,
        callback: &'a mut dyn FnMut(Progress),
    ) -> Result<Writer<'a>, PrepareError> {
        if options.holdout_every.is_some_and(|every| every.get() < 2) {
            let reason = "holding out every sample leaves none; hold out every 2nd or fewer";
            return Err(PrepareError::Invalid(reason.into()));
        }
        let progress = Progress::default();
        let directory = directory.into();
        Ok(Writer { directory, options, outputs: None, callback, progress, reported_bytes: 0 })
    }

    /// Says what the samples are. Called once, before the first one.
    pub(super) fn describe(
        &mut self,
        kind: Kind,
        tensors: Vec<TensorSpec>,
        total_bytes: u64,
    ) -> Result<(), PrepareError> {
        let sample_bytes = manifest::check_tensors(&tensors)
            .and_then(|()| manifest::sample_bytes(&tensors))
            .map_err(PrepareError::Invalid)?;
        let per_slice = self.options.samples_per_slice.get();
        let most = MAX_SLICE_BYTES / sample_bytes;
        if u64::from(per_slice) > most {
            let reason = format!("{per_slice} samples are more than a slice can hold; use {most}");
            return Err(PrepareError::Invalid(reason));
        }
        self.progress.total_bytes = total_bytes;
        let columns = vec![Vec::new(); tensors.len()];
        let manifest = Manifest::new(self.options.name.clone(), kind, per_slice, tensors);
        let holdout = match self.options.holdout_every {
            None => None,
            Some(_) => {
                let directory = self.directory.join(HOLDOUT_DIRECTORY);
                fs::create_dir(&directory).map_err(|source| write_error(&directory, source))?;
                let (manifest, columns) = (manifest.clone(), columns.clone());
                Some(Output { directory, manifest, columns, samples: 0 })
            }
        };
        let directory = self.directory.clone();
        let train = Output { directory, manifest, columns, samples: 0 };
        self.outputs = Some(Outputs { train, holdout });
        Ok(())
    }

    /// Adds a sample: the bytes of each tensor, in the order of the description.
    pub(super) fn push(&mut self, sample: &[&[u8]]) -> Result<(), PrepareError> {
        let every = self.options.holdout_every.map(|every| u64::from(every.get()));
        let Some(Outputs { train, holdout }) = &mut self.outputs else {
            return Err(PrepareError::Invalid("samples were not described".into()));
        };
        self.progress.samples += 1;
        let is_held_out = every.is_some_and(|every| self.progress.samples.is_multiple_of(every));
        match holdout {
            Some(holdout) if is_held_out => holdout.push(sample),
            _ => train.push(sample),
        }
    }

    /// Counts bytes of input.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.progress.input_bytes = self.progress.input_bytes.saturating_add(bytes);
        if self.progress.input_bytes - self.reported_bytes >= PROGRESS_BYTES {
            self.reported_bytes = self.progress.input_bytes;
            (self.callback)(self.progress);
        }
    }

    /// Writes the last slices and the manifests.
    pub(super) fn finish(mut self) -> Result<Prepared, PrepareError> {
        let Some(Outputs { train, holdout }) = self.outputs.take() else {
            return Err(PrepareError::Invalid("samples were not described".into()));
        };
        let samples = self.progress.samples;
        if samples == 0 {
            let reason = "the input does not have enough for one sample";
            return Err(PrepareError::Invalid(reason.into()));
        }
        if self.options.holdout_every.is_some_and(|every| u64::from(every.get()) > samples) {
            let reason = format!("there are only {samples} samples: none would be held out");
            return Err(PrepareError::Invalid(reason));
        }
        let holdout = holdout.map(Output::finish).transpose()?;
        let manifest = train.finish()?;
        (self.callback)(self.progress);
        Ok(Prepared { manifest, holdout })
    }
}

impl Output {
    fn push(&mut self, sample: &[&[u8]]) -> Result<(), PrepareError> {
        for (column, bytes) in self.columns.iter_mut().zip(sample) {
            column.extend_from_slice(bytes);
        }
        self.samples += 1;
        match self.samples == self.manifest.samples_per_slice {
            true => self.write_slice(),
            false => Ok(()),
        }
    }

    fn write_slice(&mut self) -> Result<(), PrepareError> {
        let file = format!("slice-{:04}.safetensors", self.manifest.slices.len());
        let path = self.directory.join(&file);
        let columns: Vec<(&TensorSpec, &[u8])> =
            self.manifest.tensors.iter().zip(self.columns.iter().map(Vec::as_slice)).collect();
        let samples = std::mem::take(&mut self.samples);
        let (bytes, blake3) = slice_file::write(&path, &columns, samples)
            .map_err(|source| write_error(&path, source))?;
        self.manifest.slices.push(SliceEntry { file, samples, bytes, blake3 });
        self.columns.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    fn finish(mut self) -> Result<Manifest, PrepareError> {
        if self.samples > 0 {
            self.write_slice()?;
        }
        let path = self.directory.join(MANIFEST_FILE);
        let json = self.manifest.to_json().map_err(|error| file_error(&path, error))?;
        if json.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(file_error(&path, "too many slices; put more samples into each"));
        }
        let written = File::create_new(&path)
            .and_then(|mut file| file.write_all(&json).and_then(|()| file.sync_all()));
        written.map_err(|source| write_error(&path, source))?;
        sync_directory(&self.directory)?;
        Ok(self.manifest)
    }
}
