//! Reads the input of the rules: the files of the tree, and cargo's metadata of its packages.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::{clippy, closure, layers};
use crate::cargo;

pub(super) struct Workspace {
    pub(super) crates: Vec<Crate>,
    /// Every `.rs` file.
    pub(super) sources: Vec<TextFile>,
    /// Every `.md` file.
    pub(super) documents: Vec<TextFile>,
    /// The text of [`closure::ALLOW_LIST`].
    pub(super) allow_list: String,
    /// The text of [`clippy::PURE_CLIPPY`].
    pub(super) pure_clippy: String,
}

/// A text file, by its path from the root with `/` between folders.
#[derive(Debug, Clone)]
pub(super) struct TextFile {
    pub(super) path: String,
    pub(super) text: String,
}

/// A package below `crates/`.
#[derive(Debug, Clone, Default)]
pub(super) struct Crate {
    /// Its folder in `crates/`, by which the layers name it.
    pub(super) name: String,
    pub(super) package: String,
    /// The path of its `Cargo.toml` from the root, and its text.
    pub(super) manifest: String,
    pub(super) manifest_text: String,
    /// The text of its own clippy configuration, if it has one.
    pub(super) clippy: Option<String>,
    /// Other crates of the workspace that its product code or build script uses.
    pub(super) uses: Vec<Use>,
    /// For pure crates, what `cargo tree` prints with depths.
    pub(super) tree: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Use {
    pub(super) name: String,
    /// Of the manifest.
    pub(super) line: usize,
}

impl Workspace {
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        let (sources, documents) = files.into_iter().partition(|file| file.path.ends_with(".rs"));
        let own = |path: &str| {
            fs::read_to_string(root.join(path))
                .with_context(|| format!("cannot read {path}; restore it from the repository"))
        };
        Ok(Self {
            crates: crates(root)?,
            sources,
            documents,
            allow_list: own(closure::ALLOW_LIST)?,
            pure_clippy: own(clippy::PURE_CLIPPY)?,
        })
    }
}

/// The line of a manifest that brings in the dependency called `key`; 1 if none is found.
pub(super) fn line_of_dependency(manifest: &str, key: &str) -> usize {
    let declares = |line: &str| {
        let entry = line.trim_start().strip_prefix(key);
        let entry = entry.is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        entry || (line.starts_with('[') && line.trim_end().ends_with(&format!(".{key}]")))
    };
    manifest.lines().position(declares).map_or(1, |index| index + 1)
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<TextFile>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {folder:?}"))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() && !is_foreign(&path) {
            collect(root, &path, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "rs" || end == "md") {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {path:?}; is it UTF-8?"))?;
            files.push(TextFile { path: below(root, &path)?, text });
        }
    }
    Ok(())
}

/// Folders whose files are built or fetched. Cargo marks its target directories with a tag, whatever their
/// name.
fn is_foreign(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.')
        || matches!(name.as_ref(), "target" | "node_modules" | "__pycache__")
        || folder.join("CACHEDIR.TAG").exists()
}

fn below(root: &Path, path: &Path) -> anyhow::Result<String> {
    let path = path.strip_prefix(root).with_context(|| format!("{path:?} is outside {root:?}"))?;
    Ok(path.to_string_lossy().replace('\\', "/"))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
    /// `None` for a normal dependency.
    kind: Option<String>,
    /// Only dependencies inside the workspace have one.
    path: Option<String>,
}

fn crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let metadata = cargo::output(cargo::command(root).args([
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--locked",
    ]))?;
    let metadata: Metadata = serde_json::from_str(&metadata)
        .context("cargo metadata has a form that tidy does not know; compare the cargo versions")?;
    let mut crates = Vec::new();
    for package in metadata.packages {
        let manifest = below(root, Path::new(&package.manifest_path))?;
        let Some(name) = crate_name(&manifest) else {
            continue;
        };
        let manifest_text = fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("cannot read {manifest}"))?;
        let tree =
            layers::is_pure(name).then(|| closure::cargo_tree(root, &package.name)).transpose()?;
        crates.push(Crate {
            name: name.to_owned(),
            uses: uses(root, &package, &manifest_text)?,
            clippy: fs::read_to_string(root.join(format!("crates/{name}/clippy.toml"))).ok(),
            package: package.name,
            manifest_text,
            tree,
            manifest,
        });
    }
    Ok(crates)
}

fn uses(root: &Path, package: &Package, manifest: &str) -> anyhow::Result<Vec<Use>> {
    let mut uses = Vec::new();
    for dependency in &package.dependencies {
        // Tests may use whatever helps them.
        let Some(path) = &dependency.path else {
            continue;
        };
        if dependency.kind.as_deref() == Some("dev") {
            continue;
        }
        let folder = below(root, Path::new(path))?;
        let name = folder.strip_prefix("crates/").unwrap_or(&folder).to_owned();
        let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
        uses.push(Use { name, line: line_of_dependency(manifest, key) });
    }
    Ok(uses)
}

fn crate_name(manifest: &str) -> Option<&str> {
    manifest.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_found_in_its_manifest() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\nserde_json = \"1\"\n\
                        serde.workspace = true\n[dependencies.uuid]\nversion = \"1\"\n";
        for (key, line) in [("serde_json", 4), ("serde", 5), ("uuid", 6), ("gone", 1)] {
            assert_eq!(line_of_dependency(manifest, key), line, "{key}");
        }
    }

    #[test]
    fn crates_are_known_by_their_folder() {
        assert_eq!(crate_name("crates/model/Cargo.toml"), Some("model"));
        assert_eq!(crate_name("crates/model/fuzz/Cargo.toml"), Some("model/fuzz"));
        assert_eq!(crate_name("xtask/Cargo.toml"), None);
    }

    #[test]
    fn built_or_fetched_folders_are_skipped() {
        for (folder, foreign) in
            [("a/target", true), ("a/.git", true), ("a/node_modules", true), ("a/src", false)]
        {
            assert_eq!(is_foreign(Path::new(folder)), foreign, "{folder}");
        }
    }
}
