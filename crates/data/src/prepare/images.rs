//! Folders of images as samples: one folder for each class.

use std::fs;
use std::io::BufReader;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use super::writer::Writer;
use super::{Colour, PrepareError, file_error, read_error};
use crate::{Dtype, Kind, TensorSpec};

/// No camera has more in one dimension.
const MAX_SIDE_PIXELS: u32 = 32_768;

/// Enough for 100 megapixels in colour, and not enough to fill a machine's memory.
const MAX_DECODER_BYTES: u64 = 512 << 20;

/// The list of files is in memory: at most about 2 GiB.
const MAX_IMAGES: usize = 20_000_000;

pub(super) fn prepare(
    folder: &Path,
    width: NonZeroU32,
    height: NonZeroU32,
    colour: Colour,
    writer: &mut Writer<'_>,
) -> Result<(), PrepareError> {
    let (width, height) = (width.get(), height.get());
    if width.max(height) > MAX_SIDE_PIXELS {
        let reason = format!("an image has at most {MAX_SIDE_PIXELS} pixels a side");
        return Err(PrepareError::Invalid(reason));
    }
    let (classes, mut images) = find_images(folder)?;
    if images.is_empty() {
        return Err(file_error(folder, "no class folder in it has an image"));
    }
    // A fixed order that mixes the classes: by the digest of the path below the folder.
    images.sort_by_key(|image| (image.rank, image.path.clone()));
    let channels = match colour {
        Colour::Grey => 1,
        Colour::Rgb => 3,
    };
    let shape = vec![channels, u64::from(height), u64::from(width)];
    let tensors = vec![
        TensorSpec { name: "images".into(), dtype: Dtype::U8, shape },
        TensorSpec { name: "labels".into(), dtype: Dtype::I64, shape: Vec::new() },
    ];
    let total = images.iter().map(|image| image.bytes).sum();
    writer.describe(Kind::Images { classes }, tensors, total)?;
    for image in images {
        let pixels = decode(&image.path, width, height, colour).map_err(|error| {
            file_error(&image.path, format!("cannot decode the image: {error}"))
        })?;
        writer.push(&[&pixels, &image.label.to_le_bytes()])?;
        writer.advance(image.bytes);
    }
    Ok(())
}

struct ImageFile {
    path: PathBuf,
    label: i64,
    bytes: u64,
    rank: [u8; 32],
}

fn find_images(folder: &Path) -> Result<(Vec<String>, Vec<ImageFile>), PrepareError> {
    let mut classes = Vec::new();
    let mut images = Vec::new();
    for class in list(folder)? {
        let directory = folder.join(&class);
        if !directory.is_dir() {
            return Err(file_error(&directory, "expected a folder for each class, not a file"));
        }
        let label = classes.len() as i64;
        for name in list(&directory)? {
            let path = directory.join(&name);
            let metadata = path.metadata().map_err(|source| read_error(&path, source))?;
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            let is_image =
                ["png", "jpg", "jpeg"].iter().any(|one| ending.eq_ignore_ascii_case(one));
            if !is_image || !metadata.is_file() {
                return Err(file_error(&path, "neither a PNG nor a JPEG file; remove it"));
            }
            let rank = *blake3::hash(format!("{class}/{name}").as_bytes()).as_bytes();
            images.push(ImageFile { path, label, bytes: metadata.len(), rank });
            if images.len() > MAX_IMAGES {
                return Err(file_error(folder, format!("more than {MAX_IMAGES} images")));
            }
        }
        classes.push(class);
    }
    Ok((classes, images))
}

/// The names in a directory, in order, without hidden files.
fn list(directory: &Path) -> Result<Vec<String>, PrepareError> {
    let files = fs::read_dir(directory).map_err(|source| read_error(directory, source))?;
    let mut names = Vec::new();
    for file in files {
        let name = file.map_err(|source| read_error(directory, source))?.file_name();
        match name.into_string() {
            Ok(name) if name.starts_with('.') => {}
            Ok(name) => names.push(name),
            Err(name) => return Err(file_error(&directory.join(name), "the name is not UTF-8")),
        }
    }
    names.sort();
    Ok(names)
}

/// The pixels of the upright, resized image, channel by channel.
fn decode(path: &Path, width: u32, height: u32, colour: Colour) -> image::ImageResult<Vec<u8>> {
    let file = fs::File::open(path)?;
    // By content: files with the wrong ending are common.
    let mut reader = ImageReader::new(BufReader::new(file)).with_guessed_format()?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE_PIXELS);
    limits.max_image_height = Some(MAX_SIDE_PIXELS);
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    if (image.width(), image.height()) != (width, height) {
        image = image.resize_exact(width, height, FilterType::Triangle);
    }
    Ok(match colour {
        Colour::Grey => image.into_luma8().into_raw(),
        Colour::Rgb => {
            let pixels = image.into_rgb8().into_raw();
            (0..3).flat_map(|channel| pixels.iter().skip(channel).step_by(3).copied()).collect()
        }
    })
}
