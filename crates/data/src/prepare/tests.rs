//! Round trips of each kind of input, and what malformed input is answered with.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::{Dataset, Kind, SliceIndex, Tokens};

fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

fn options(samples_per_slice: u32) -> Options {
    Options {
        name: Name::literal("corpus"),
        samples_per_slice: number(samples_per_slice),
        holdout_every: None,
    }
}

/// A directory with these files, and their paths.
fn files(contents: &[(&str, &[u8])]) -> (TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let write = |(name, bytes): &(&str, &[u8])| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let paths = contents.iter().map(write).collect();
    (directory, paths)
}

/// Prepares, opens and verifies.
fn run(input: &Input, options: &Options, directory: &Path) -> Result<Dataset, String> {
    let output = directory.join("out");
    prepare(input, options, &output, &mut |_| {}).map_err(|error| error.to_string())?;
    let dataset = Dataset::open(&output).unwrap();
    for part in [Some(dataset.clone()), dataset.open_holdout().unwrap()].into_iter().flatten() {
        for index in 0..part.manifest().slices.len() {
            part.verify(SliceIndex(index as u32)).unwrap();
        }
    }
    Ok(dataset)
}

fn all_tokens(dataset: &Dataset) -> Vec<Vec<u32>> {
    let slices = 0..dataset.manifest().slices.len() as u32;
    let read = |index| {
        let mut file = dataset.samples(SliceIndex(index)).unwrap();
        let samples = file.samples();
        let tokens: Tokens = file.read_tokens(0..samples).unwrap();
        tokens.sequences().map(<[u32]>::to_vec).collect::<Vec<_>>()
    };
    slices.flat_map(read).collect()
}

fn all_texts(dataset: &Dataset) -> Vec<String> {
    let text = |tokens: Vec<u32>| tokens.iter().map(|token| *token as u8 as char).collect();
    all_tokens(dataset).into_iter().map(text).collect()
}

fn bytes_input(files: Vec<PathBuf>, context: u32) -> Input {
    Input::Text { files, encoding: Encoding::Bytes, context: number(context) }
}

#[test]
fn text_becomes_overlapping_sequences_of_bytes() {
    let (directory, paths) = files(&[("a.txt", b"abcdef"), ("b.txt", b"gh\n"), ("c.txt", b"ij")]);
    let dataset = run(&bytes_input(paths, 3), &options(2), directory.path()).unwrap();
    assert_eq!(all_texts(&dataset), ["abcd", "def\n", "\ngh\n", "\nij\n"]);
    let manifest = dataset.manifest();
    assert_eq!(manifest.kind, Kind::Tokens { vocabulary: 256, context: 3 });
    let slices: Vec<_> =
        manifest.slices.iter().map(|slice| (slice.file.as_str(), slice.samples)).collect();
    assert_eq!(slices, [("slice-0000.safetensors", 2), ("slice-0001.safetensors", 2)]);
}

#[test]
fn every_nth_sample_is_held_out() {
    let (directory, paths) = files(&[("a.txt", b"012345678\n")]);
    let mut options = options(2);
    options.holdout_every = Some(number(3));
    let dataset = run(&bytes_input(paths.clone(), 1), &options, directory.path()).unwrap();
    assert_eq!(all_texts(&dataset), ["01", "12", "34", "45", "67", "78"]);
    let holdout = dataset.open_holdout().unwrap().unwrap();
    assert_eq!(all_texts(&holdout), ["23", "56", "8\n"]);

    let (other, _) = files(&[]);
    options.holdout_every = Some(number(10));
    let error = run(&bytes_input(paths.clone(), 1), &options, other.path()).unwrap_err();
    assert_eq!(error, "there are only 9 samples: none would be held out");
    options.holdout_every = Some(number(1));
    let error = run(&bytes_input(paths, 1), &options, other.path()).unwrap_err();
    assert!(error.contains("leaves none"), "{error}");
}

#[test]
fn same_input_gives_the_same_manifest() {
    let text: Vec<u8> = (0..400_000u32).map(|at| (at.wrapping_mul(at) / 7) as u8).collect();
    let prepare_once = || {
        let (directory, paths) = files(&[("a.txt", &text)]);
        run(&bytes_input(paths, 64), &options(1000), directory.path()).unwrap().manifest().clone()
    };
    assert_eq!(prepare_once(), prepare_once());
}

#[test]
fn long_text_is_kept_whole_and_progress_reaches_the_end() {
    // Lines around the size of a piece, without a newline at the end.
    let mut text = vec![b'a'; 300_000];
    text.extend(
        (0..3_000_000u32).map(|at| if at % 1000 == 0 { b'\n' } else { (at % 89) as u8 + 33 }),
    );
    let (directory, paths) = files(&[("a.txt", &text)]);
    let output = directory.path().join("out");
    let mut reports = Vec::new();
    let input = bytes_input(paths, 10);
    prepare(&input, &options(100_000), &output, &mut |progress| reports.push(progress)).unwrap();
    let sequences = all_tokens(&Dataset::open(&output).unwrap());
    assert_eq!(sequences.len(), 330_000);
    for (index, sequence) in sequences.iter().enumerate() {
        let expected = text[index * 10..].iter().take(11).copied().chain([b'\n']);
        assert!(expected.map(u32::from).take(11).eq(sequence.iter().copied()), "{index}");
    }
    assert!(reports.len() >= 3, "{reports:?}");
    assert!(reports.is_sorted_by_key(|progress| progress.input_bytes));
    let last = reports.last().unwrap();
    assert_eq!((last.input_bytes, last.total_bytes), (3_300_000, 3_300_000));
}

#[test]
fn text_columns_are_documents() {
    let (directory, paths) = files(&[
        ("a.csv", b"id,text\n1,\"ab\ncd\"\n2,ef\n"),
        ("b.jsonl", b"{\"text\": \"gh\", \"id\": 3}\n\n{\"text\": \"ij\"}"),
    ]);
    let context = number(12);
    let column = "text".into();
    let input = Input::TextColumn { files: paths, column, encoding: Encoding::Bytes, context };
    let dataset = run(&input, &options(5), directory.path()).unwrap();
    assert_eq!(all_texts(&dataset), ["ab\ncd\nef\ngh\ni"]);
}

#[test]
fn number_columns_are_rows() {
    let (directory, paths) = files(&[
        ("a.csv", b"x,name,y\n1,a, 2.5\n-3,b,1e3\n"),
        ("b.jsonl", b"{\"y\":7,\"x\":0.1}\n"),
    ]);
    let columns = vec!["y".into(), "x".into()];
    let input = Input::NumberColumns { files: paths, columns };
    let dataset = run(&input, &options(10), directory.path()).unwrap();
    let bytes = dataset.samples(SliceIndex(0)).unwrap().read("values", 0..3).unwrap();
    let values: Vec<f32> =
        bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    assert_eq!(values, [2.5, 1.0, 1000.0, -3.0, 7.0, 0.1]);
}

#[test]
fn tensors_of_other_files_are_divided_again() {
    let (first, first_paths) = files(&[("a.txt", b"abcdefg")]);
    let (second, second_paths) = files(&[("b.txt", b"hijkl")]);
    run(&bytes_input(first_paths, 1), &options(100), first.path()).unwrap();
    run(&bytes_input(second_paths, 1), &options(100), second.path()).unwrap();
    let slice = |directory: &TempDir| directory.path().join("out/slice-0000.safetensors");
    let input = Input::Tensors { files: vec![slice(&first), slice(&second)] };
    let (directory, _) = files(&[]);
    let dataset = run(&input, &options(4), directory.path()).unwrap();
    assert_eq!(
        all_texts(&dataset),
        ["ab", "bc", "cd", "de", "ef", "fg", "g\n", "hi", "ij", "jk", "kl", "l\n"]
    );
    assert_eq!(dataset.manifest().kind, Kind::Tensors);

    let (third, third_paths) = files(&[("c.txt", b"abcdefg")]);
    run(&bytes_input(third_paths, 2), &options(100), third.path()).unwrap();
    let input = Input::Tensors { files: vec![slice(&first), slice(&third)] };
    let error = run(&input, &options(4), files(&[]).0.path()).unwrap_err();
    assert!(error.contains("tensors differ from those of the first file"), "{error}");
}

#[cfg(feature = "images")]
#[test]
fn images_become_tensors_with_their_class() {
    let encode = |colour: [u8; 3], side: u32| {
        let image = image::RgbImage::from_pixel(side, side, image::Rgb(colour));
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    };
    let (red, blue) = (encode([255, 0, 0], 2), encode([0, 0, 255], 5));
    let (directory, _) =
        files(&[("in/cat/1.png", &red), ("in/dog/1.PNG", &blue), ("in/dog/.hidden", b"")]);
    let input = Input::Images {
        folder: directory.path().join("in"),
        width: number(3),
        height: number(2),
        colour: Colour::Rgb,
    };
    let dataset = run(&input, &options(4), directory.path()).unwrap();
    let classes = vec!["cat".into(), "dog".into()];
    assert_eq!(dataset.manifest().kind, Kind::Images { classes });
    let mut slice = dataset.samples(SliceIndex(0)).unwrap();
    for sample in 0..2 {
        let label = slice.read("labels", sample..sample + 1).unwrap();
        let pixels = slice.read("images", sample..sample + 1).unwrap();
        let expected = match label.as_slice() {
            [0, ..] => [[255; 6], [0; 6], [0; 6]].concat(),
            _ => [[0; 6], [0; 6], [255; 6]].concat(),
        };
        assert_eq!(pixels, expected);
    }
    assert!(
        slice.tensors().any(|tensor| tensor.dtype == crate::Dtype::U8 && tensor.shape == [3, 2, 3])
    );

    fs::write(directory.path().join("in/cat/2.jpg"), b"not an image").unwrap();
    fs::remove_dir_all(directory.path().join("out")).unwrap();
    let error = run(&input, &options(4), directory.path()).unwrap_err();
    assert!(error.contains("cat/2.jpg: cannot decode the image"), "{error}");
    fs::write(directory.path().join("in/cat/2.jpg.txt"), b"").unwrap();
    let error = run(&input, &options(4), directory.path()).unwrap_err();
    assert!(error.contains("neither a PNG nor a JPEG"), "{error}");
}

#[cfg(feature = "images")]
#[test]
fn classes_are_mixed_and_images_upright_and_bounded() {
    use image::ImageEncoder;
    // EXIF that says: turn by 90 degrees clockwise.
    let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let encode = |pixels: &[u8], width: u32| {
        let mut bytes = Vec::new();
        let mut encoder = image::codecs::png::PngEncoder::new(&mut bytes);
        encoder.set_exif_metadata(exif.to_vec()).unwrap();
        let height = pixels.len() as u32 / width;
        encoder.write_image(pixels, width, height, image::ExtendedColorType::L8).unwrap();
        bytes
    };
    let check = |names: &[&str], image: &[u8]| {
        let contents: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, image)).collect();
        let (directory, _) = files(&contents);
        let folder = directory.path().join("in");
        let (width, height) = (number(2), number(2));
        let input = Input::Images { folder, width, height, colour: Colour::Grey };
        run(&input, &options(100), directory.path()).map(|dataset| {
            let mut slice = dataset.samples(SliceIndex(0)).unwrap();
            let samples = slice.samples();
            let labels = slice.read("labels", 0..samples).unwrap();
            let labels: Vec<u8> = labels.chunks(8).map(|label| label[0]).collect();
            (labels, slice.read("images", 0..1).unwrap())
        })
    };
    let names = ["in/a/1.png", "in/a/2.png", "in/a/3.png", "in/a/4.png", "in/a/5.png"];
    let others = ["in/b/1.png", "in/b/2.png", "in/b/3.png", "in/b/4.png", "in/b/5.png"];
    let (labels, pixels) = check(&[names, others].concat(), &encode(&[1, 2, 3, 4], 2)).unwrap();
    assert!(!labels.is_sorted(), "{labels:?}");
    assert_eq!(pixels, [3, 1, 4, 2]);
    let error = check(&names[..1], &encode(&vec![0; 40_000], 40_000)).unwrap_err();
    assert!(error.contains("cannot decode the image"), "{error}");
}

#[cfg(feature = "tokenizers")]
#[test]
fn tokenizer_encodes_without_truncation_or_padding_and_ends_documents() {
    let tokenizer = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 2,
        "strategy": "LongestFirst", "stride": 0}, "padding": {"strategy":
        {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "?"}, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "one": 1, "two": 2, "three": 300, "<end>": 4}}}"#;
    let (directory, paths) = files(&[
        ("a.txt", b"one two\nthree four\n"),
        ("b.txt", b"two"),
        ("tokenizer.json", tokenizer.as_bytes()),
        ("bad.txt", b"one\ntwo\n\xff\n"),
    ]);
    let input = |files: &[PathBuf], end: &str| Input::Text {
        files: files.to_vec(),
        encoding: Encoding::Tokenizer { file: paths[2].clone(), end_of_text: Some(end.into()) },
        context: number(1),
    };
    let dataset = run(&input(&paths[..2], "<end>"), &options(10), directory.path()).unwrap();
    let expected = [[1, 2], [2, 300], [300, 0], [0, 4], [4, 2], [2, 4]];
    assert_eq!(all_tokens(&dataset), expected);
    assert_eq!(dataset.manifest().kind, Kind::Tokens { vocabulary: 301, context: 1 });
    assert_eq!(dataset.manifest().tensors[0].dtype, crate::Dtype::U16);

    let (other, _) = files(&[]);
    let error = run(&input(&paths[3..], "<end>"), &options(10), other.path()).unwrap_err();
    assert!(error.ends_with("bad.txt: line 3: not valid UTF-8"), "{error}");
    let error = run(&input(&paths[..1], "<no>"), &options(10), other.path()).unwrap_err();
    assert!(error.ends_with("tokenizer.json: there is no token `<no>`"), "{error}");
}

#[cfg(feature = "tokenizers")]
#[test]
fn characters_are_not_cut_in_a_line_that_is_longer_than_a_piece() {
    let tokenizer = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "é": 1}}}"#;
    // Three bytes each, so that a piece of 2^18 bytes ends inside a character.
    let text = "é ".repeat(100_000);
    let (directory, paths) =
        files(&[("a.txt", text.as_bytes()), ("tokenizer.json", tokenizer.as_bytes())]);
    let encoding = Encoding::Tokenizer { file: paths[1].clone(), end_of_text: None };
    let input = Input::Text { files: vec![paths[0].clone()], encoding, context: number(1) };
    let dataset = run(&input, &options(1_000_000), directory.path()).unwrap();
    assert_eq!(all_tokens(&dataset), vec![[1, 1]; 99_999]);
}

#[test]
fn records_are_bounded_and_files_are_not() {
    let context = number(1);
    let input = |path: &PathBuf| Input::TextColumn {
        files: vec![path.clone()],
        column: "x".into(),
        encoding: Encoding::Bytes,
        context,
    };
    let long = "a".repeat(1 << 21);
    let many_csv = format!("x\n{}", "abcdefg\n".repeat(200_000));
    let many_jsonl = "{\"x\":\"abcdefg\"}\n".repeat(100_000);
    for (name, content, is_valid) in [
        ("a.csv", format!("x\n\"{long}"), false),
        ("a.jsonl", format!("{{\"x\":\"{long}\"}}\n"), false),
        ("a.csv", many_csv, true),
        ("a.jsonl", many_jsonl, true),
    ] {
        let (directory, paths) = files(&[(name, content.as_bytes())]);
        match run(&input(&paths[0]), &options(1_000_000), directory.path()) {
            Ok(_) => assert!(is_valid, "{name}"),
            Err(error) => {
                assert!(!is_valid && error.contains("the record has more than 1 MiB"), "{error}");
            }
        }
    }
}

#[test]
fn malformed_records_are_named_by_line() {
    for (name, content, expected) in [
        ("a.csv", "x,y\n1,2\nabc,3\n", "a.csv: line 3: column `x`: \"abc\" is not a finite number"),
        (
            "a.csv",
            "x,y\n\"1\n\",2\nNaN,3\n",
            "a.csv: line 4: column `x`: \"NaN\" is not a finite number",
        ),
        ("a.csv", "x,y\n1,2\n3\n", "a.csv: line 3: 1 fields instead of 2"),
        ("a.csv", "z,y\n1,2\n", "a.csv: line 1: there is no column `x`"),
        ("a.csv", "x\n1e99\n", "a.csv: line 2: column `x`: \"1e99\" is not a finite number"),
        ("a.csv", "x,y\n", "the input does not have enough for one sample"),
        (
            "a.jsonl",
            "{\"x\":1}\n{\"x\":\n",
            "a.jsonl: line 2: invalid JSON: EOF while parsing a value at column",
        ),
        ("a.jsonl", "{\"x\":1}\n\n{\"y\":1}\n", "a.jsonl: line 3: there is no column `x`"),
        ("a.jsonl", "[1]\n", "a.jsonl: line 1: not a JSON object"),
        ("a.jsonl", "{\"x\":[]}\n", "a.jsonl: line 1: column `x`: not a finite number"),
        ("a.txt", "1\n", "a.txt: expected a file that ends in .csv or .jsonl"),
    ] {
        let (directory, paths) = files(&[(name, content.as_bytes())]);
        let input = Input::NumberColumns { files: paths, columns: vec!["x".into()] };
        let error = run(&input, &options(10), directory.path()).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{content}: {error}");
        // Neither an output nor a temporary directory is left.
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "{content}");
    }
}

#[test]
fn occupied_output_is_refused_and_untouched() {
    let (directory, paths) = files(&[("a.txt", b"abcdef"), ("out/keep", b"mine")]);
    let input = bytes_input(vec![paths[0].clone()], 2);
    let error = run(&input, &options(10), directory.path()).unwrap_err();
    assert!(
        error.ends_with("out is not empty; name a new directory, or empty this one"),
        "{error}"
    );
    assert_eq!(fs::read(&paths[1]).unwrap(), b"mine");
    fs::remove_file(&paths[1]).unwrap();
    run(&input, &options(10), directory.path()).unwrap();
}

#[test]
fn options_that_cannot_work_are_refused() {
    let (directory, paths) = files(&[("a.txt", b"abcdef")]);
    let check = |input: &Input, samples, expected: &str| {
        let error = run(input, &options(samples), directory.path()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check(&bytes_input(paths.clone(), 7), 10, "not have enough for one sample");
    check(&bytes_input(Vec::new(), 6), 10, "there are no input files");
    check(&bytes_input(paths.clone(), 1023), u32::MAX, "use 1048576");
    check(&bytes_input(paths.clone(), u32::MAX), 1, "is too large");
    check(&bytes_input(vec![directory.path().join("no")], 1), 1, "cannot read");
    check(&Input::Tensors { files: paths }, 10, "a.txt: it has 6 bytes");
}
