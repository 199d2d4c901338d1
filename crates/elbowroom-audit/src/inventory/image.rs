//! An image: a `docker save` archive or an OCI layout, as a stream or a directory.
//!
//! An archive is read once, from its first byte to its last, because it may come out of an engine's socket. Layers are
//! looked at as they come by, in whatever order, and put on top of each other when the manifest is known.

use super::decompress::{DecompressionBudget, decompressed};
use super::layer::{self, ImageLayer};
use super::tar::{Tar, TarEntryKind};
use super::{AuditBounds, AuditError, engine, file_evidence, rootfs};
use crate::rules::evidence::Inventory;
use elbowroom_linux::bounded;
use elbowroom_linux::probe::file::{open_in, open_plain};
use rustix::fs::ResolveFlags;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

/// An archive in a file: `docker save`, an OCI layout, or the tar of a root directory; compressed or not.
pub fn archive(path: &Path, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    let what = path.display().to_string();
    // Others may be able to put a pipe, a device or a link in its place.
    let opened = path.canonicalize().and_then(|path| open_in(Path::new("/"), &path));
    let file = opened.map_err(AuditError::io("opening", &what))?;
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
                    if serde_json::from_slice::<IgnoredAny>(&text).is_ok() {
                        json_left -= entry.size;
                        blobs.documents.insert(entry.path, text);
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
    if !blobs.has_manifest() && plain > 0 {
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
    fn document(&mut self, path: &str) -> Option<Vec<u8>>;
    fn layer(&mut self, path: &str) -> Result<Option<ImageLayer>, io::Error>;
}

/// What of a document matters: what else there is may take a hundred times its bytes as a tree.
fn parse<'a, T: Deserialize<'a>>(document: &'a [u8]) -> Option<T> {
    serde_json::from_slice(document).ok()
}

/// An image in `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: Option<String>,
    layers: Option<Vec<String>>,
}

/// An index or a manifest of an OCI layout.
#[derive(Deserialize)]
struct OciDocument {
    manifests: Option<Vec<OciDescriptor>>,
    config: Option<OciDescriptor>,
    layers: Option<Vec<OciDescriptor>>,
}

#[derive(Deserialize)]
struct OciDescriptor {
    digest: Option<String>,
    platform: Option<OciPlatform>,
}

#[derive(Deserialize)]
struct OciPlatform {
    architecture: Option<String>,
    os: Option<String>,
}

/// The configuration of an image, of both kinds.
#[derive(Default, Deserialize)]
struct ImageConfig<'a> {
    #[serde(borrow)]
    config: Option<ContainerConfig<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ContainerConfig<'a> {
    #[serde(borrow)]
    entrypoint: Option<&'a RawValue>,
    #[serde(borrow)]
    cmd: Option<&'a RawValue>,
    #[serde(borrow)]
    env: Option<&'a RawValue>,
}

/// A list of words; none where it is of another shape.
fn words(list: Option<&RawValue>) -> Vec<String> {
    list.and_then(|list| parse(list.get().as_bytes())).unwrap_or_default()
}

/// The parts of an archive that has gone by.
#[derive(Default)]
struct ArchiveBlobs {
    /// Documents as they are written.
    documents: BTreeMap<String, Vec<u8>>,
    layers: BTreeMap<String, ImageLayer>,
    links: BTreeMap<String, String>,
}

impl ArchiveBlobs {
    fn has_manifest(&self) -> bool {
        ["/manifest.json", "/index.json"].iter().any(|path| self.documents.contains_key(*path))
    }

    /// Where a link ends; engines write one at most.
    fn target<'a>(&'a self, path: &'a str) -> &'a str {
        self.links.get(path).map_or(path, String::as_str)
    }
}

impl ImageSource for ArchiveBlobs {
    fn document(&mut self, path: &str) -> Option<Vec<u8>> {
        self.documents.get(self.target(path)).cloned()
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
        // A container's root may call itself a layout, and have devices in it.
        open_plain(&self.root, Path::new(path), ResolveFlags::NO_MAGICLINKS)
    }
}

impl ImageSource for OciDirectory {
    fn document(&mut self, path: &str) -> Option<Vec<u8>> {
        bounded::bytes(self.open(path).ok()?, self.bounds.json).ok()
    }

    fn layer(&mut self, path: &str) -> Result<Option<ImageLayer>, io::Error> {
        let file = self.open(path)?;
        layer::read(file, &self.bounds, &self.allowance, &mut self.entries).map(Some)
    }
}

/// Finds manifest, configuration and layers, and puts them together.
fn assemble(parts: &mut impl ImageSource, what: &str, bounds: &AuditBounds) -> Result<Inventory, AuditError> {
    let mut inventory = Inventory::default();
    let (config, layers) = match parts.document("/manifest.json") {
        Some(manifest) => docker_manifest(&manifest, &mut inventory.skipped),
        None => oci_manifest(parts, &mut inventory.skipped),
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
    let document = parts.document(&config).unwrap_or_default();
    let image: ImageConfig<'_> = parse(&document).unwrap_or_default();
    let config = image.config.unwrap_or_default();
    inventory.command = [words(config.entrypoint), words(config.cmd)].concat();
    inventory.env = words(config.env);
    Ok(inventory)
}

/// `manifest.json` of `docker save`: configuration and layers by path.
fn docker_manifest(manifest: &[u8], skipped: &mut Vec<String>) -> Option<(String, Vec<String>)> {
    let images: Vec<DockerImage> = parse(manifest)?;
    if images.len() > 1 {
        skipped.push(format!("the archive holds {} images: this is the first", images.len()));
    }
    let image = images.into_iter().next()?;
    let layers = image.layers?.into_iter().map(|path| format!("/{path}"));
    Some((format!("/{}", image.config?), layers.collect()))
}

/// Through the indexes of an OCI layout, at most a few deep, to the manifest of this machine's architecture.
fn oci_manifest(parts: &mut impl ImageSource, skipped: &mut Vec<String>) -> Option<(String, Vec<String>)> {
    let mut path = "/index.json".to_owned();
    for _ in 0..4 {
        let document: OciDocument = parse(&parts.document(&path)?)?;
        if let Some(layers) = document.layers {
            let layers: Option<Vec<String>> = layers.iter().map(blob_path).collect();
            return Some((blob_path(&document.config?)?, layers?));
        }
        let manifests = document.manifests?;
        let ours = |manifest: &&OciDescriptor| {
            let platform = manifest.platform.as_ref();
            platform.is_some_and(|platform| {
                platform.architecture.as_deref() == Some(architecture())
                    && platform.os.as_deref() == Some("linux")
            })
        };
        let chosen = manifests.iter().find(ours).or_else(|| manifests.first())?;
        if manifests.len() > 1 {
            let platform = chosen.platform.as_ref().and_then(|platform| platform.architecture.as_deref());
            let platform = platform.unwrap_or("the first");
            skipped.push(format!("{} images in the index: this is {platform}", manifests.len()));
        }
        path = blob_path(chosen)?;
    }
    None
}

/// The digest `sha256:0123...` as a path in the layout; `None` for what is no digest.
fn blob_path(of: &OciDescriptor) -> Option<String> {
    let (algorithm, hex) = of.digest.as_deref()?.split_once(':')?;
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
    fn a_pipe_or_a_device_in_a_layout_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let bounds = AuditBounds::default();
        let mut layout = OciDirectory {
            root: rootfs::open(dir.path()).unwrap(),
            bounds,
            allowance: DecompressionBudget::new(bounds.total),
            entries: bounds.entries,
        };
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(["/file", "/pipe"].map(|path| layout.document(path).is_some()), [true, false]);
    }

    #[test]
    fn a_document_takes_little_more_memory_than_its_bytes() {
        let peak = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
        };
        // Each object would be a tree with room for eleven members.
        let config = br#"{"config":{"Cmd":["/app"],"x":[{"":0}"#.to_vec();
        let config = [config, br#",{"":0}"#.repeat(1 << 20), b"]}}".to_vec()].concat();
        let before = peak();
        let manifest = br#"[{"Config":"config.json","Layers":[]}]"#;
        let found =
            audit(&[entry(b'0', "config.json", "", &config), entry(b'0', "manifest.json", "", manifest)]);
        assert_eq!(found.unwrap().command, ["/app"]);
        let more = peak() - before;
        assert!(more < 256 << 20, "{more} for {}", config.len());
    }

    #[test]
    fn a_bomb_in_a_layer_is_refused() {
        let bomb = entry(b'0', "1/layer.tar", "", &gzip(&entry(b'0', "zeros", "", &vec![0; 4 << 20])));
        let bounds = AuditBounds { total: 1 << 20, ..AuditBounds::default() };
        let error = read_archive(&bomb[..], "x.tar", bounds).unwrap_err().to_string();
        assert_eq!(error, "x.tar: more than 1048576 bytes unpacked, refused");
    }
}
