//! The host's own files that pages are made from, read with as few system calls as can be.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Reads host files. Those that are asked for again and again stay open: `pread` of an open `/proc/meminfo` costs half
/// of what opening it does. One per thread.
#[derive(Debug)]
pub struct HostFiles {
    root: PathBuf,
    open: HashMap<String, File>,
    buffer: Vec<u8>,
}

impl HostFiles {
    /// Reads below `root`: `/`, or a directory with the same files in it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), open: HashMap::new(), buffer: vec![0; 16 << 10] }
    }

    /// The text of a file, given relative to the root. `keep` leaves it open for the next time.
    ///
    /// # Errors
    /// What the kernel says; nothing stays open then. Bytes that are not UTF-8 (there are none in these files) become
    /// the replacement character.
    pub fn read(&mut self, path: &str, keep: bool) -> io::Result<String> {
        if let Some(file) = self.open.get(path) {
            match pread_all(file, &mut self.buffer) {
                Ok(text) => return Ok(text),
                // The file went and came back (a CPU, a module): open it anew.
                Err(_) => self.open.remove(path),
            };
        }
        let file = File::open(self.path(path))?;
        let text = pread_all(&file, &mut self.buffer)?;
        if keep {
            self.open.insert(path.to_owned(), file);
        }
        Ok(text)
    }

    /// Whether the file is there.
    pub fn exists(&self, path: &str) -> bool {
        self.open.contains_key(path) || self.path(path).exists()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(Path::new(path).strip_prefix("/").unwrap_or(Path::new(path)))
    }
}

fn pread_all(file: &File, buffer: &mut Vec<u8>) -> io::Result<String> {
    let mut len = 0;
    loop {
        if len == buffer.len() {
            buffer.resize(buffer.len() * 2, 0);
        }
        match file.read_at(&mut buffer[len..], len as u64) {
            Ok(0) => return Ok(String::from_utf8_lossy(&buffer[..len]).into_owned()),
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let long = "0123456789abcdef".repeat(5000);
        std::fs::write(dir.path().join("long"), &long).unwrap();
        let mut host = HostFiles::new(dir.path());
        for keep in [true, true, false] {
            assert_eq!(host.read("long", keep).unwrap(), long);
        }
    }

    #[test]
    fn a_file_kept_open_shows_what_it_says_now() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = HostFiles::new(dir.path());
        std::fs::write(dir.path().join("f"), "one").unwrap();
        assert_eq!(host.read("f", true).unwrap(), "one");
        std::fs::write(dir.path().join("f"), "three").unwrap();
        assert_eq!(host.read("/f", true).unwrap(), "three");
        assert!(host.exists("f") && !host.exists("g"));
        assert!(host.read("g", true).is_err());
    }
}
