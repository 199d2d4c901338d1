//! An image: a `docker save` archive or an OCI layout, as a stream or a directory.
//!
//! An archive is read once, from its first byte to its last, because it may come out of an engine's socket: layers are
//! looked at as they come by, in whatever order, and put on top of each other when the manifest is known.

use super::decompress::{DecompressionBudget, decompressed};
use super::layer::{self, ImageLayer};
use super::tar::{Tar, TarEntryKind};
use super::{AuditBounds, AuditError, engine, file_evidence, rootfs};
use crate::rules::evidence::Inventory;
use elbowroom_linux::bounded;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

/// An archive in a file: `docker save`, an OCI layout, or the tar of a root directory; compressed or not.
pub fn archive(path: &Path, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    let what = path.display().to_string();
    let file = File::open(path).map_err(AuditError::io("opening", &what))?;
    read_archive(file, &what, bounds)
}

/// An image of the engine, through its socket or its command.
pub(super) fn from_engine(name: &str, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    read_archive(engine::save(name)?, name, bounds)
}

/// An archive as a stream.
pub fn read_archive(reader: impl Read, what: &str, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    let failed = || AuditError::io("reading", what);
    let allowance = DecompressionBudget::new(bounds.total);
    let mut tar = Tar::new(decompressed(reader, &allowance).map_err(failed())?);
    let mut blobs = ArchiveBlobs::default();
    let mut entries = bounds.entries;
    let mut json_left = bounds.json;
    let mut plain = 0;
    while let Some(entry) = tar.next_entry().map_err(failed())? {
        let target = match &entry.kind {
            TarEntryKind::HardLink(target) | TarEntryKind::SymbolicLink(target) => {
                file_evidence::weight(target, None)
            }
            _ => 0,
        };
        let weight = file_evidence::weight(&entry.path, None) + target;
        layer::take_entries(&mut entries, weight, &bounds).map_err(failed())?;
        match entry.kind {
            TarEntryKind::HardLink(target) => {
                blobs.links.insert(entry.path, target);
            }
            TarEntryKind::SymbolicLink(target) => {
                blobs.links.insert(entry.path.clone(), link_target_path(&entry.path, &target));
            }
            TarEntryKind::File => match first_bytes(&mut tar).map_err(failed())? {
                first if is_json(&first) && entry.size <= json_left => {
                    let mut text = first;
                    bounded::append(&mut tar, bounds.json, &mut text).map_err(failed())?;
                    // An image's own files may begin with a brace too.
                    if let Ok(json) = serde_json::from_slice(&text) {
                        json_left -= entry.size;
                        blobs.json.insert(entry.path, json);
                    }
                }
                first if is_layer(&first) => {
                    if blobs.layers.len() >= bounds.layers {
                        let (bound, what) = (bounds.layers as u64, what.to_owned());
                        return Err(AuditError::TooMuch { what, bound, of: "layers" });
                    }
                    let reader = Cursor::new(first).chain(&mut tar);
                    let layer = layer::read(reader, &bounds, &allowance, &mut entries).map_err(failed())?;
                    blobs.layers.insert(entry.path, layer);
                }
                _ => plain += 1,
            },
            TarEntryKind::Directory | TarEntryKind::Other => {}
        }
    }
    if blobs.manifest().is_none() && plain > 0 {
        let why = "neither `docker save` nor an OCI layout; unpack it and name the directory";
        return Err(AuditError::malformed(what, why));
    }
    assemble(&mut blobs, what, &bounds)
}

/// An OCI layout in a directory.
pub(super) fn oci_directory(path: &Path, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    let root = rootfs::open(path)?;
    let what = path.display().to_string();
    let mut directory = OciDirectory {
        root,
        bounds,
        allowance: DecompressionBudget::new(bounds.total),
        entries: bounds.entries,
    };
    assemble(&mut directory, &what, &bounds)
}

/// Where the parts of an image are, by path in its archive.
trait ImageSource {
    fn json(&mut self, path: &str) -> Option<Value>;
    fn layer(&mut self, path: &str) -> Result<Option<ImageLayer>, io::Error>;
}

/// The parts of an archive that has gone by.
#[derive(Default)]
struct ArchiveBlobs {
    json: BTreeMap<String, Value>,
    layers: BTreeMap<String, ImageLayer>,
    links: BTreeMap<String, String>,
}

impl ArchiveBlobs {
    fn manifest(&self) -> Option<&Value> {
        self.json.get("/manifest.json").or_else(|| self.json.get("/index.json"))
    }

    /// Where a link ends; engines write one at most.
    fn target<'a>(&'a self, path: &'a str) -> &'a str {
        self.links.get(path).map_or(path, String::as_str)
    }
}

impl ImageSource for ArchiveBlobs {
    fn json(&mut self, path: &str) -> Option<Value> {
        self.json.get(self.target(path)).cloned()
    }

    fn layer(&mut self, path: &str) -> Result<Option<ImageLayer>, io::Error> {
        // A layer may be there twice: two steps that did the same.
        let path = self.target(path).to_owned();
        Ok(self.layers.get(&path).cloned())
    }
}

/// The parts of an OCI layout that is a directory.
struct OciDirectory {
    root: elbowroom_linux::root::Root,
    bounds: AuditBounds,
    allowance: DecompressionBudget,
    entries: u64,
}

impl OciDirectory {
    fn open(&self, path: &str) -> Result<File, io::Error> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        self.root.open(path, flags).map(File::from).map_err(io::Error::other)
    }
}

impl ImageSource for OciDirectory {
    fn json(&mut self, path: &str) -> Option<Value> {
        let text = bounded::bytes(self.open(path).ok()?, self.bounds.json).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn layer(&mut self, path: &str) -> Result<Option<ImageLayer>, io::Error> {
        let file = self.open(path)?;
        layer::read(file, &self.bounds, &self.allowance, &mut self.entries).map(Some)
    }
}

/// Finds manifest, configuration and layers, and puts them together.
fn assemble(parts: &mut impl ImageSource, what: &str, bounds: &AuditBounds) -> Result<Inventory, AuditError> {
    let mut inventory = Inventory::default();
    let (config, layers) = match parts.json("/manifest.json") {
        Some(manifest) => docker_manifest(&manifest, &mut inventory.skipped),
        None => {
            let index = parts.json("/index.json");
            index.and_then(|index| oci_manifest(parts, &index, &mut inventory.skipped))
        }
    }
    .ok_or_else(|| AuditError::malformed(what, "no manifest of an image in it"))?;
    if layers.len() > bounds.layers {
        return Err(AuditError::TooMuch { what: what.to_owned(), bound: bounds.layers as u64, of: "layers" });
    }
    // A manifest may name one layer many times, and each time is one more.
    let (mut stack, mut left) = (Vec::new(), bounds.entries);
    for path in layers {
        let layer = parts.layer(&path).map_err(AuditError::io("reading", format!("{what}: {path}")))?;
        let layer = layer.ok_or_else(|| AuditError::malformed(what, format!("layer {path} is missing")))?;
        layer::take_entries(&mut left, layer.weight, bounds).map_err(AuditError::io("reading", what))?;
        stack.push(layer);
    }
    inventory.files = layer::stack(&stack.iter().collect::<Vec<_>>(), &mut inventory.skipped);
    let config = parts.json(&config).unwrap_or_default();
    let words = |key: &str| -> Vec<String> {
        let list = config["config"][key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    inventory.command = words("Entrypoint").into_iter().chain(words("Cmd")).collect();
    inventory.env = words("Env");
    Ok(inventory)
}

/// `manifest.json` of `docker save`: configuration and layers by path.
fn docker_manifest(manifest: &Value, skipped: &mut Vec<String>) -> Option<(String, Vec<String>)> {
    let images = manifest.as_array()?;
    if images.len() > 1 {
        skipped.push(format!("the archive holds {} images: this is the first", images.len()));
    }
    let image = images.first()?;
    let layers = image["Layers"].as_array()?.iter().map(|path| path.as_str().map(|path| format!("/{path}")));
    Some((format!("/{}", image["Config"].as_str()?), layers.collect::<Option<_>>()?))
}

/// Through the indexes of an OCI layout, at most a few deep, to the manifest of this machine's architecture.
fn oci_manifest(
    parts: &mut impl ImageSource,
    index: &Value,
    skipped: &mut Vec<String>,
) -> Option<(String, Vec<String>)> {
    let mut document = index.clone();
    for _ in 0..4 {
        if let Some(layers) = document["layers"].as_array() {
            let layers = layers.iter().map(|layer| blob_path(&layer["digest"]));
            return Some((blob_path(&document["config"]["digest"])?, layers.collect::<Option<_>>()?));
        }
        let manifests = document["manifests"].as_array()?;
        let ours = |manifest: &&Value| {
            manifest["platform"]["architecture"].as_str() == Some(architecture())
                && manifest["platform"]["os"].as_str() == Some("linux")
        };
        let chosen = manifests.iter().find(ours).or_else(|| manifests.first())?;
        if manifests.len() > 1 {
            let platform = chosen["platform"]["architecture"].as_str().unwrap_or("the first");
            skipped.push(format!("{} images in the index: this is {platform}", manifests.len()));
        }
        document = parts.json(&blob_path(&chosen["digest"])?)?;
    }
    None
}

/// `sha256:0123...` as a path in the layout; `None` for what is no digest.
fn blob_path(digest: &Value) -> Option<String> {
    let (algorithm, hex) = digest.as_str()?.split_once(':')?;
    let word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (word(algorithm) && word(hex)).then(|| format!("/blobs/{algorithm}/{hex}"))
}

/// As the OCI image specification calls it (Go's `GOARCH`).
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn first_bytes(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    bounded::beginning(reader, 512)
}

fn is_json(first: &[u8]) -> bool {
    matches!(first.iter().find(|byte| !byte.is_ascii_whitespace()), Some(b'{' | b'['))
}

/// gzip, zstd, a tar header, or the two blocks of zeros of a tar that is empty.
fn is_layer(first: &[u8]) -> bool {
    first.starts_with(&[0x1f, 0x8b])
        || first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || first.get(257..262) == Some(b"ustar")
        || first.len() == 512 && first.iter().all(|byte| *byte == 0)
}

/// A link's text, from the directory it is in: `../ID/layer.tar` in `docker save`.
fn link_target_path(path: &str, target: &str) -> String {
    let mut at: Vec<&str> = path.split('/').collect();
    at.pop();
    for component in target.split('/') {
        match component {
            ".." => {
                at.pop();
            }
            "." | "" => {}
            name => at.push(name),
        }
    }
    at.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::tar::tests::entry;
    use super::*;
    use std::io::Write;

    const CONFIG: &[u8] = br#"{"config":{"Env":["GOMAXPROCS=2"],"Entrypoint":["/app"],"Cmd":["-v"]}}"#;

    fn layer(path: &str) -> Vec<u8> {
        let mut tar = entry(b'0', path, "", b"JAVA_VERSION=\"17\"\n");
        tar.resize(tar.len() + 1024, 0);
        tar
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    fn audit(archive: &[Vec<u8>]) -> Result<Inventory, String> {
        read_archive(&archive.concat()[..], "x.tar", AuditBounds::default()).map_err(|e| e.to_string())
    }

    fn docker(manifest: &[u8]) -> Vec<Vec<u8>> {
        vec![
            entry(b'0', "1/layer.tar", "", &layer("a/release")),
            entry(b'0', "2/layer.tar", "", &layer("b/release")),
            entry(b'2', "3/layer.tar", "../1/layer.tar", b""),
            entry(b'0', "config.json", "", CONFIG),
            entry(b'0', "manifest.json", "", manifest),
        ]
    }

    #[test]
    fn a_docker_archive_is_its_layers_in_the_order_of_the_manifest() {
        let manifest = br#"[{"Config":"config.json","Layers":["1/layer.tar","2/layer.tar","3/layer.tar"]}]"#;
        let found = audit(&docker(manifest)).unwrap();
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["/a/release", "/b/release"]);
        assert_eq!(found.command, ["/app", "-v"]);
        assert_eq!(found.env, ["GOMAXPROCS=2"]);
    }

    #[test]
    fn an_oci_layout_is_followed_through_its_index() {
        let index = br#"{"manifests":[
            {"digest":"sha256:other","platform":{"architecture":"s390x","os":"linux"}},
            {"digest":"sha256:m","platform":{"architecture":"amd64","os":"linux"}},
            {"digest":"sha256:m","platform":{"architecture":"arm64","os":"linux"}}]}"#;
        let manifest = br#"{"config":{"digest":"sha256:c"},"layers":[{"digest":"sha256:a1"}]}"#;
        let parts: [(&str, Vec<u8>); 5] = [
            ("oci-layout", b"{}".to_vec()),
            ("blobs/sha256/a1", gzip(&layer("a/release"))),
            ("index.json", index.to_vec()),
            ("blobs/sha256/m", manifest.to_vec()),
            ("blobs/sha256/c", CONFIG.to_vec()),
        ];
        let entries: Vec<Vec<u8>> = parts.iter().map(|(path, data)| entry(b'0', path, "", data)).collect();
        let found = audit(&entries).unwrap();
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["/a/release"]);
        // The same as a directory.
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        parts.iter().for_each(|(path, data)| std::fs::write(dir.path().join(path), data).unwrap());
        let target = dir.path().to_str().unwrap();
        assert_eq!(super::super::inventory(target, AuditBounds::default()).unwrap(), found);
    }

    #[test]
    fn what_is_no_image_is_an_error_that_says_why() {
        for (archive, expect) in [
            (vec![entry(b'0', "usr/bin/x", "", b"#!/bin/sh\n")], "neither `docker save` nor"),
            (vec![entry(b'0', "manifest.json", "", b"[]")], "no manifest"),
            (
                docker(br#"[{"Config":"config.json","Layers":["9/layer.tar"]}]"#),
                "layer /9/layer.tar is missing",
            ),
            (vec![b"plain text".to_vec()], "end of file"),
            (
                vec![entry(b'0', "index.json", "", br#"{"manifests":[{"digest":"sha256:../../x"}]}"#)],
                "no manifest",
            ),
            (vec![entry(b'0', "1/layer.tar", "", &layer("../../release"))], "leads out"),
        ] {
            let error = audit(&archive).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn what_is_kept_of_a_small_archive_has_a_bound() {
        let bounds = AuditBounds { entries: 100, layers: 20, json: 1 << 10, ..AuditBounds::default() };
        let refusal =
            |parts: &[Vec<u8>]| read_archive(&parts.concat()[..], "x", bounds).unwrap_err().to_string();
        let numbered = |count, one: &dyn Fn(&str) -> Vec<u8>| -> Vec<Vec<u8>> {
            (0..count).map(|n: usize| one(&n.to_string())).collect()
        };
        // A layer that is named again is a copy more.
        let layer = numbered(12, &|name| entry(b'0', name, "", b"")).concat();
        let image = |times| {
            let names = vec!["\"1\""; times].join(",");
            let manifest = format!(r#"[{{"Config":"c","Layers":[{names}]}}]"#);
            [entry(b'0', "1", "", &layer), entry(b'0', "manifest.json", "", manifest.as_bytes())]
        };
        assert_eq!(refusal(&image(21)), "x: more than 20 layers, refused");
        assert_eq!(refusal(&image(10)), "while reading x: more than 100 entries");
        assert!(read_archive(&image(5).concat()[..], "x", bounds).is_ok());
        // Links beside the layers, and a name that is as long as may be in one.
        let links = numbered(60, &|name| entry(b'2', name, "1", b""));
        assert_eq!(refusal(&links), "while reading x: more than 100 entries");
        let long = entry(b'L', "x", "", "d/".repeat(16 << 10).as_bytes());
        let long = entry(b'0', "1", "", &[long, entry(b'0', "x", "", b"")].concat());
        assert_eq!(refusal(&[long]), "while reading x: more than 100 entries");
        // Documents that are no image's leave no room for its own.
        let mut documents = numbered(64, &|name| entry(b'0', name, "", b"[1,2,3,4,5,6,7 ]"));
        documents.push(entry(b'0', "manifest.json", "", b"[{}]"));
        assert!(refusal(&documents).contains("neither `docker save`"));
    }

    #[test]
    fn a_bomb_in_a_layer_is_refused() {
        let bomb = entry(b'0', "1/layer.tar", "", &gzip(&entry(b'0', "zeros", "", &vec![0; 4 << 20])));
        let bounds = AuditBounds { total: 1 << 20, ..AuditBounds::default() };
        let error = read_archive(&bomb[..], "x.tar", bounds).unwrap_err().to_string();
        assert_eq!(error, "x.tar: more than 1048576 bytes unpacked, refused");
    }
}
