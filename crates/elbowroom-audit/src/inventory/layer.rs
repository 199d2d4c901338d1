//! One layer of an image, and layers on top of each other.

use super::decompress::{DecompressionBudget, decompressed};
use super::tar::{Tar, TarEntryKind};
use super::{AuditBounds, file_evidence};
use crate::rules::evidence::FileEvidence;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};

/// What a layer adds and hides (OCI image specification, "Image Layer Filesystem Changeset").
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageLayer {
    /// Files with something to say.
    files: BTreeMap<String, FileEvidence>,
    /// Paths below which nothing of lower layers shows: files of this layer, and what it deleted.
    hidden_paths: HashSet<String>,
    /// Directories of which only this layer's part shows.
    opaque: HashSet<String>,
    /// What was not looked at.
    skipped: Vec<String>,
    /// What it counts of [`AuditBounds::entries`].
    pub(super) weight: u64,
}

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// Reads one layer, compressed or not. `entries` counts down over all layers of an image.
pub(super) fn read(
    reader: impl Read,
    bounds: &AuditBounds,
    allowance: &DecompressionBudget,
    entries: &mut u64,
) -> io::Result<ImageLayer> {
    // It costs something, empty or not.
    let mut layer = ImageLayer { weight: 1, ..ImageLayer::default() };
    let mut tar = Tar::new(decompressed(reader, allowance)?);
    let mut kept = Vec::new();
    let mut take = |layer: &mut ImageLayer, weight| {
        layer.weight += weight;
        take_entries(entries, weight, bounds)
    };
    while let Some(entry) = tar.next_entry()? {
        take(&mut layer, file_evidence::weight(&entry.path, None))?;
        let (directory, name) = entry.path.rsplit_once('/').unwrap_or_default();
        if name == OPAQUE {
            layer.opaque.insert(directory.to_owned());
            continue;
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            layer.hidden_paths.insert(format!("{directory}/{hidden}"));
            continue;
        }
        let evidence = match entry.kind {
            TarEntryKind::Directory => continue,
            TarEntryKind::File => file_evidence::examine(
                &entry.path,
                entry.size,
                &mut tar,
                bounds,
                &mut kept,
                &mut layer.skipped,
            )?,
            TarEntryKind::HardLink(first) => layer.files.get(&first).cloned(),
            TarEntryKind::SymbolicLink(_) | TarEntryKind::Other => None,
        };
        match evidence {
            Some(evidence) => {
                take(&mut layer, file_evidence::weight("", Some(&evidence)))?;
                layer.files.insert(entry.path.clone(), evidence);
            }
            None => {
                layer.files.remove(&entry.path);
            }
        }
        layer.hidden_paths.insert(entry.path);
    }
    Ok(layer)
}

/// Counts `weight` down from what is left of [`AuditBounds::entries`].
pub(super) fn take_entries(left: &mut u64, weight: u64, bounds: &AuditBounds) -> io::Result<()> {
    *left = left.checked_sub(weight).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("more than {} entries", bounds.entries))
    })?;
    Ok(())
}

/// Layers from the lowest to the highest, as one tree; what was not looked at goes to `skipped`.
pub(super) fn stack(layers: &[&ImageLayer], skipped: &mut Vec<String>) -> BTreeMap<String, FileEvidence> {
    let mut files: BTreeMap<String, FileEvidence> = BTreeMap::new();
    for layer in layers {
        for path in &layer.hidden_paths {
            files.remove(path);
        }
        for directory in layer.hidden_paths.iter().chain(&layer.opaque) {
            remove_below(&mut files, directory);
        }
        files.extend(layer.files.iter().map(|(path, evidence)| (path.clone(), evidence.clone())));
        skipped.extend(layer.skipped.iter().cloned());
    }
    files
}

/// Removes what is in a directory, and looks at nothing else.
fn remove_below(files: &mut BTreeMap<String, FileEvidence>, directory: &str) {
    let begin = format!("{directory}/");
    let below =
        files.range(begin.clone()..).map(|(path, _)| path).take_while(|path| path.starts_with(&begin));
    for path in below.cloned().collect::<Vec<_>>() {
        files.remove(&path);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tar::tests::entry;
    use super::*;
    use crate::rules::evidence::JavaRelease;

    const RELEASE: &[u8] = b"JAVA_VERSION=\"17\"\n";

    fn layer(archive: &[Vec<u8>]) -> ImageLayer {
        let bounds = AuditBounds::default();
        read(&archive.concat()[..], &bounds, &DecompressionBudget::new(1 << 30), &mut 1000).unwrap()
    }

    fn shown(layers: &[ImageLayer]) -> Vec<String> {
        stack(&layers.iter().collect::<Vec<_>>(), &mut Vec::new()).into_keys().collect()
    }

    fn file(path: &str) -> Vec<u8> {
        entry(b'0', path, "", RELEASE)
    }

    #[test]
    fn higher_layers_hide_what_they_delete_and_replace() {
        let below = || layer(&[file("a/release"), file("b/c/release"), file("d/release")]);
        for (above, expect) in [
            (vec![], vec!["/a/release", "/b/c/release", "/d/release"]),
            (vec![entry(b'0', "a/.wh.release", "", b"")], vec!["/b/c/release", "/d/release"]),
            (vec![entry(b'0', ".wh.b", "", b"")], vec!["/a/release", "/d/release"]),
            (vec![entry(b'0', "b/.wh..wh..opq", "", b"")], vec!["/a/release", "/d/release"]),
            (vec![entry(b'0', ".wh..wh..opq", "", b"")], vec![]),
            (vec![entry(b'2', "d", "/etc", b"")], vec!["/a/release", "/b/c/release"]),
            (vec![entry(b'0', "d/release", "", b"other")], vec!["/a/release", "/b/c/release"]),
            (vec![entry(b'5', "d", "", b"")], vec!["/a/release", "/b/c/release", "/d/release"]),
            // A name that only begins like a directory's is another name.
            (vec![entry(b'0', "b/.wh.c-", "", b"")], vec!["/a/release", "/b/c/release", "/d/release"]),
        ] {
            assert_eq!(shown(&[below(), layer(&above)]), expect);
        }
    }

    #[test]
    fn an_opaque_directory_keeps_what_its_own_layer_adds() {
        let above = layer(&[entry(b'0', "a/.wh..wh..opq", "", b""), file("a/x/release")]);
        assert_eq!(shown(&[layer(&[file("a/release")]), above]), ["/a/x/release"]);
    }

    #[test]
    fn a_layer_that_hides_one_file_costs_no_look_at_all_others() {
        let evidence = |path: String| (path, FileEvidence::JavaRelease(JavaRelease::default()));
        let below = ImageLayer {
            files: (0..100_000).map(|n| evidence(format!("/a/b/c/{n}"))).collect(),
            ..ImageLayer::default()
        };
        let above = ImageLayer { hidden_paths: ["/a/b/c/7".to_owned()].into(), ..ImageLayer::default() };
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let layers: Vec<&ImageLayer> =
                std::iter::once(&below).chain(std::iter::repeat_n(&above, 999)).collect();
            done.send(stack(&layers, &mut Vec::new()).len())
        });
        assert_eq!(wait.recv_timeout(std::time::Duration::from_secs(60)), Ok(99_999));
    }

    #[test]
    fn a_hard_link_is_the_file() {
        assert_eq!(shown(&[layer(&[file("release"), entry(b'1', "b", "release", b"")])]), ["/b", "/release"]);
    }

    #[test]
    fn too_many_entries_are_refused() {
        let archive = [file("a"), file("b"), file("c")].concat();
        let error = read(&archive[..], &AuditBounds::default(), &DecompressionBudget::new(1 << 30), &mut 2)
            .unwrap_err();
        assert!(error.to_string().contains("entries"), "{error}");
    }
}
