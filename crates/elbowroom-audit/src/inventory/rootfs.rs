//! A root directory, read where it is.

use super::{AuditBounds, AuditError, file_evidence};
use crate::rules::evidence::Inventory;
use elbowroom_linux::probe::file::open_plain;
use elbowroom_linux::root::{ReadError, Root};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

/// Directories at the top whose files are the kernel's.
const KERNEL_DIRECTORIES: [&str; 3] = ["proc", "sys", "dev"];

/// Everything in a directory that has something to say. No link is followed; the root may change meanwhile, and what went
/// away is not there.
pub fn inventory(path: &Path, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    let root = open(path)?;
    let mut inventory = Inventory::default();
    let mut directories = vec![String::new()];
    let mut entries = 0;
    // A hard link is the same program once more.
    let mut seen = HashSet::new();
    let (mut kept, mut read) = (Vec::new(), 0);
    let too_much = |bound, of| AuditError::TooMuch { what: path.display().to_string(), bound, of };
    while let Some(directory) = directories.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let listing = match root.open(&directory, flags) {
            Ok(fd) => Dir::new(fd).map_err(|e| AuditError::io("reading", &directory)(e.into()))?,
            Err(error) if directory.is_empty() => return Err(read_error(path, error)),
            Err(error) => {
                inventory.skipped.push(error.to_string());
                continue;
            }
        };
        for entry in listing {
            let entry = entry.map_err(|e| AuditError::io("reading", &directory)(e.into()))?;
            let name = entry.file_name().to_string_lossy();
            if name == "." || name == ".." || directory.is_empty() && KERNEL_DIRECTORIES.contains(&&*name) {
                continue;
            }
            let below = format!("{directory}/{name}");
            entries += file_evidence::weight(&below, None);
            if entries > bounds.entries {
                return Err(too_much(bounds.entries, "entries"));
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&root, &below[1..], AtFlags::SYMLINK_NOFOLLOW);
                    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
                }
                known => known,
            };
            match kind {
                FileType::Directory => directories.push(below),
                FileType::RegularFile => {
                    kept.clear();
                    match examine_file(&root, &below, &bounds, &mut seen, &mut kept, &mut inventory) {
                        Ok(weight) => entries += weight,
                        Err(error) => inventory.skipped.push(format!("{below}: {error}")),
                    }
                    // A file may have holes, and take no room on the disk.
                    read += kept.len() as u64;
                    if read > bounds.total {
                        return Err(too_much(bounds.total, "bytes of programs"));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(inventory)
}

/// A directory that other paths are below.
pub(super) fn open(path: &Path) -> Result<Root, AuditError> {
    Root::at(path).map_err(|error| read_error(path, error))
}

/// Takes in what a file says, and tells what that counts of [`AuditBounds::entries`].
fn examine_file(
    root: &Root,
    path: &str,
    bounds: &AuditBounds,
    seen: &mut HashSet<(u64, u64)>,
    kept: &mut Vec<u8>,
    inventory: &mut Inventory,
) -> std::io::Result<u64> {
    // It may be a pipe or a device by now.
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match open_plain(root, Path::new(path), resolve) {
        Ok(file) => file,
        Err(error) if [ErrorKind::NotFound, ErrorKind::InvalidInput].contains(&error.kind()) => return Ok(0),
        Err(error) => return Err(error),
    };
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_nlink > 1 && !seen.insert((stat.st_dev, stat.st_ino)) {
        return Ok(0);
    }
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let evidence = file_evidence::examine(path, size, file, bounds, kept, &mut inventory.skipped)?;
    let weight = evidence.as_ref().map_or(0, |evidence| file_evidence::weight("", Some(evidence)));
    inventory.files.extend(evidence.map(|evidence| (path.to_owned(), evidence)));
    Ok(weight)
}

fn read_error(path: &Path, error: ReadError) -> AuditError {
    let what = path.display().to_string();
    match error {
        ReadError::Io { operation, source, .. } => AuditError::Io { operation, what, source: source.into() },
        ReadError::Malformed { source, .. } => AuditError::malformed(what, source.to_string()),
        ReadError::Mounts { source, .. } => AuditError::malformed(what, source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_root_is_walked_without_following_links() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("release"), "JAVA_VERSION=\"8\"\n").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        std::fs::create_dir_all(path.join("opt/jdk")).unwrap();
        std::fs::create_dir_all(path.join("proc")).unwrap();
        std::fs::write(path.join("opt/jdk/release"), "JAVA_VERSION=\"17\"\n").unwrap();
        std::fs::hard_link(path.join("opt/jdk/release"), path.join("opt/release")).unwrap();
        std::fs::write(path.join("proc/release"), "JAVA_VERSION=\"1\"\n").unwrap();
        symlink(outside.path(), path.join("escape")).unwrap();
        symlink("/", path.join("host")).unwrap();
        symlink("loop", path.join("loop")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path.join("nginx.conf"), FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        let found = inventory(path, AuditBounds::default()).unwrap();
        assert_eq!(found.files.len(), 1, "{found:?}");
        assert_eq!(found.skipped, Vec::<String>::new());
    }

    #[test]
    fn files_with_holes_are_not_read_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), b"\x7fELF").unwrap();
            std::fs::File::options()
                .write(true)
                .open(dir.path().join(name))
                .unwrap()
                .set_len(1 << 20)
                .unwrap();
        }
        let audit = |total| inventory(dir.path(), AuditBounds { total, ..AuditBounds::default() });
        assert!(audit(3 << 20).is_ok());
        let error = audit(2 << 20).unwrap_err().to_string();
        assert!(error.ends_with("more than 2097152 bytes of programs, refused"), "{error}");
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let error = inventory(Path::new("/no/such/root"), AuditBounds::default()).unwrap_err();
        assert!(error.to_string().contains("/no/such/root"), "{error}");
    }
}
