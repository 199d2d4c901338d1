//! A tar archive as a stream: ustar, GNU long names and pax, as image layers have them.
//!
//! Of our own, because the archive is foreign: no header makes it hold more than a path's length in memory, and an entry's
//! bytes are skipped or read, never kept.

use elbowroom_linux::bounded;
use std::io::{self, Read};

const BLOCK: usize = 512;
/// `PATH_MAX`, with room for pax's other records.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// An archive, and the entry it stands at.
pub(crate) struct Tar<R> {
    reader: R,
    /// Bytes of the entry that were not read yet.
    unread: u64,
    /// Zeros behind it.
    padding: u64,
}

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TarEntry {
    /// Components without `.` and empty ones, with a slash before each; empty for the root itself.
    pub path: String,
    /// What it is.
    pub kind: TarEntryKind,
    /// Bytes of a file.
    pub size: u64,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TarEntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Another name of a file that came before.
    HardLink(String),
    /// A symbolic link, with the text in it.
    SymbolicLink(String),
    /// A device or a FIFO.
    Other,
}

impl<R: Read> Tar<R> {
    /// An archive from its first byte.
    pub fn new(reader: R) -> Self {
        Self { reader, unread: 0, padding: 0 }
    }

    /// The next entry; what is left of the last one is passed over. `None` at the end. An entry whose path leads out of the
    /// archive is an error: no honest program writes one.
    pub(crate) fn next_entry(&mut self) -> io::Result<Option<TarEntry>> {
        let mut path = None;
        let mut link = None;
        let mut size = None;
        loop {
            self.skip_entry()?;
            let mut header = [0; BLOCK];
            if !read_block(&mut self.reader, &mut header)? || header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            verify_checksum(&header)?;
            let length = number(&header[124..136])?;
            let kind = header[156];
            (self.unread, self.padding) = (length, length.wrapping_neg() % BLOCK as u64);
            match kind {
                b'L' => path = Some(text(&self.read_record()?)),
                b'K' => link = Some(text(&self.read_record()?)),
                b'x' => {
                    for (key, value) in pax(&self.read_record()?)? {
                        match key.as_str() {
                            "path" => path = Some(value),
                            "linkpath" => link = Some(value),
                            "size" => {
                                size = Some(value.parse().map_err(|_| invalid_data("a size that is none"))?)
                            }
                            _ => {}
                        }
                    }
                }
                b'g' => {}
                _ => {
                    // GNU's old sparse files have more headers than one.
                    let mut more = kind == b'S' && header[482] != 0;
                    while more {
                        let mut block = [0; BLOCK];
                        more = read_block(&mut self.reader, &mut block)? && block[504] != 0;
                    }
                    let length = size.unwrap_or(length);
                    (self.unread, self.padding) = (length, length.wrapping_neg() % BLOCK as u64);
                    let path = normalize_path(&path.take().unwrap_or_else(|| name(&header)))?;
                    let link = link.take().unwrap_or_else(|| text(&header[157..257]));
                    let kind = match kind {
                        b'0' | b'\0' | b'7' | b'S' => TarEntryKind::File,
                        b'1' => TarEntryKind::HardLink(normalize_path(&link)?),
                        b'2' => TarEntryKind::SymbolicLink(link),
                        b'5' => TarEntryKind::Directory,
                        _ => TarEntryKind::Other,
                    };
                    return Ok(Some(TarEntry { path, kind, size: self.unread }));
                }
            }
        }
    }

    /// Reads the entry as a small record.
    fn read_record(&mut self) -> io::Result<Vec<u8>> {
        if self.unread > MAX_RECORD_BYTES {
            return Err(invalid_data("a name longer than any path"));
        }
        bounded::bytes(self, MAX_RECORD_BYTES)
    }

    fn skip_entry(&mut self) -> io::Result<()> {
        let rest = self.unread.saturating_add(self.padding);
        if bounded::skip(&mut self.reader, rest)? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (self.unread, self.padding) = (0, 0);
        Ok(())
    }
}

/// The bytes of the entry it stands at.
impl<R: Read> Read for Tar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.unread).unwrap_or(usize::MAX).min(buffer.len());
        let got = self.reader.read(&mut buffer[..want])?;
        if got == 0 && want > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.unread -= got as u64;
        Ok(got)
    }
}

/// Fills `block`; false at the end of the archive.
fn read_block(reader: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
    let mut at = 0;
    while at < BLOCK {
        match reader.read(&mut block[at..]) {
            Ok(0) if at == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

fn verify_checksum(header: &[u8; BLOCK]) -> io::Result<()> {
    let sum = |field: std::ops::Range<usize>| header[field].iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let expect = sum(0..148) + 8 * u64::from(b' ') + sum(156..BLOCK);
    match number(&header[148..156])? == expect {
        true => Ok(()),
        false => Err(invalid_data("a header whose checksum is wrong")),
    }
}

/// Octal digits, or GNU's base 256.
fn number(field: &[u8]) -> io::Result<u64> {
    if field[0] & 0x80 != 0 {
        let mut bytes = field.iter().copied();
        let first = u64::from(bytes.next().unwrap_or_default() & 0x7f);
        return bytes
            .try_fold(first, |all, byte| all.checked_mul(256)?.checked_add(u64::from(byte)))
            .ok_or_else(|| invalid_data("a number that is too large"));
    }
    let digits = text(field);
    let digits = digits.trim();
    match digits.is_empty() {
        true => Ok(0),
        false => u64::from_str_radix(digits, 8).map_err(|_| invalid_data("a number that is none")),
    }
}

fn name(header: &[u8; BLOCK]) -> String {
    let name = text(&header[..100]);
    let prefix = if &header[257..262] == b"ustar" { text(&header[345..500]) } else { String::new() };
    // GNU keeps times there.
    if prefix.is_empty() || &header[257..265] == b"ustar  \0" { name } else { format!("{prefix}/{name}") }
}

/// Up to the first zero. What is not UTF-8 becomes U+FFFD: a path is only a key and a word in a report.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// pax records: `LENGTH KEY=VALUE\n`, the length being that of all of it.
fn pax(mut bytes: &[u8]) -> io::Result<Vec<(String, String)>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let end = bytes
            .iter()
            .position(|byte| *byte == b' ')
            .ok_or_else(|| invalid_data("a pax record without length"))?;
        let length: usize =
            text(&bytes[..end]).parse().map_err(|_| invalid_data("a pax record without length"))?;
        let record =
            bytes.get(end + 1..length).ok_or_else(|| invalid_data("a pax record that is too long"))?;
        let record = text(record.strip_suffix(b"\n").unwrap_or(record));
        let (key, value) =
            record.split_once('=').ok_or_else(|| invalid_data("a pax record without value"))?;
        records.push((key.to_owned(), value.to_owned()));
        bytes = &bytes[length..];
    }
    Ok(records)
}

fn normalize_path(path: &str) -> io::Result<String> {
    let mut normal = String::new();
    for component in path.split('/').filter(|component| !component.is_empty() && *component != ".") {
        if component == ".." {
            return Err(invalid_data("a path that leads out of it"));
        }
        normal.push('/');
        normal.push_str(component);
    }
    match normal.len() as u64 <= MAX_RECORD_BYTES {
        true => Ok(normal),
        false => Err(invalid_data("a name longer than any path")),
    }
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive has {what}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A header and its file, as tar(1) writes them.
    pub(in super::super) fn entry(kind: u8, path: &str, link: &str, data: &[u8]) -> Vec<u8> {
        let mut header = [0u8; BLOCK];
        header[..path.len().min(100)].copy_from_slice(&path.as_bytes()[..path.len().min(100)]);
        header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        header[156] = kind;
        header[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    fn entries(bytes: &[u8]) -> Result<Vec<TarEntry>, String> {
        let mut tar = Tar::new(bytes);
        let mut all = Vec::new();
        while let Some(entry) = tar.next_entry().map_err(|e| e.to_string())? {
            all.push(entry);
        }
        Ok(all)
    }

    #[test]
    fn names_are_read_in_every_way_they_are_written() {
        let long = "d/".repeat(80) + "f";
        let pax = format!("{} path={long}\n", long.len() + 10);
        assert_eq!(pax.len(), long.len() + 10);
        for archive in [
            [
                entry(b'L', "././@LongLink", "", format!("{long}\0").as_bytes()),
                entry(b'0', "short", "", b"x"),
            ],
            [entry(b'x', "PaxHeaders/f", "", pax.as_bytes()), entry(b'0', "short", "", b"x")],
        ] {
            assert_eq!(entries(&archive.concat()).unwrap()[0].path, format!("/{long}"));
        }
    }

    #[test]
    fn what_is_read_of_an_entry_does_not_move_the_next() {
        let archive =
            [entry(b'0', "./a", "", b"hello"), entry(b'1', "b", "a", b""), entry(b'5', "c/", "", b"")];
        let archive = archive.concat();
        let mut tar = Tar::new(&archive[..]);
        assert_eq!(
            tar.next_entry().unwrap(),
            Some(TarEntry { path: "/a".into(), kind: TarEntryKind::File, size: 5 })
        );
        let mut two = [0; 2];
        tar.read_exact(&mut two).unwrap();
        assert_eq!(&two, b"he");
        assert_eq!(tar.next_entry().unwrap().map(|e| e.kind), Some(TarEntryKind::HardLink("/a".into())));
        assert_eq!(tar.next_entry().unwrap().map(|e| e.kind), Some(TarEntryKind::Directory));
        assert_eq!(tar.next_entry().unwrap(), None);
    }

    #[test]
    fn hostile_archives_are_refused() {
        for (archive, expect) in [
            (entry(b'0', "../../etc/passwd", "", b""), "leads out"),
            (entry(b'1', "x", "../y", b""), "leads out"),
            (entry(b'L', "x", "", &[b'a'; 70 << 10]), "longer than any path"),
            (entry(b'x', "x", "", b"99999 path=x\n"), "too long"),
            (entry(b'x', "x", "", b"0 path=x\n"), "too long"),
            (vec![b'x'; BLOCK], "a number that is none"),
            (
                entry(b'0', "x", "", b"").iter().map(|b| if *b == b'x' { b'y' } else { *b }).collect(),
                "checksum",
            ),
            (entry(b'0', "x", "", b"data")[..600].to_vec(), "end of file"),
        ] {
            let error = entries(&archive).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0").unwrap(), 0o644);
        assert_eq!(number(b"        ").unwrap(), 0);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]).unwrap(), 2 << 32);
        assert!(number(&[0xff; 12]).is_err());
        assert!(number(b"9").is_err());
    }
}
