//! The agent for HotSpot: where it is installed, and `elbowroom run --java`, by the variable that every HotSpot reads.

use anyhow::{Context, bail, ensure};
use elbowroom_linux::bounded;
use elbowroom_types::launch;
use elbowroom_types::launch::JAVA_AGENT as JAR;
use flate2::bufread::DeflateDecoder;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where it is, from the directory of the program: beside it, where `make install` puts it, where `make java` leaves it.
const JAR_DIRS: [&str; 3] = [".", "../share/elbowroom", "../java"];

/// The native half, in the jar.
const LIBRARY_ENTRY: &[u8] = b"elbowroom/agent/x86-64.so";
/// No native half is larger.
const MAX_LIBRARY_BYTES: u64 = 2 << 20;

/// The value of [`launch::JAVA_OPTIONS_VARIABLE`] for the command, whose view may become `most` CPUs.
pub fn java_tool_options(most: u32) -> anyhow::Result<OsString> {
    let jar = find_jar().context("--java")?;
    let jar = jar.to_str().with_context(|| format!("--java: {} is not UTF-8", jar.display()))?;
    ensure!(
        !jar.contains(['"', '\'']),
        "--java: a Java launcher cannot be told of {jar}: move it to a path without quotes"
    );
    let mut options = std::env::var_os(launch::JAVA_OPTIONS_VARIABLE).unwrap_or_default();
    launch::append_java_agent(&mut options, jar, most);
    Ok(options)
}

/// The agent's file, built by `make java`.
pub(crate) fn find_jar() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("this program's own path")?;
    let directory = program.parent().context("the directory of this program is not known")?;
    let Some(jar) = find_jar_from(directory) else {
        bail!(
            "there is no {JAR} beside {} or in ../share/elbowroom: `make java` builds it",
            program.display()
        )
    };
    Ok(jar)
}

/// The native half of the agent, from the bytes of its jar; `None` where there is none.
pub(crate) fn read_library(jar: &[u8]) -> Option<Vec<u8>> {
    zip_entry(jar, LIBRARY_ENTRY)
}

/// A file of a zip archive (PKWARE's APPNOTE.TXT, 4.3: the end of the central directory, its headers, the local header).
fn zip_entry(zip: &[u8], wanted: &[u8]) -> Option<Vec<u8>> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(zip.get(at..)?.first_chunk().copied()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(zip.get(at..)?.first_chunk().copied()?) as usize);
    let end = zip.windows(4).rposition(|word| word == b"PK\x05\x06")?;
    let (count, mut at) = (u16_at(end + 10)?, u32_at(end + 16)?);
    for _ in 0..count {
        let name = usize::from(u16_at(at + 28)?);
        if zip.get(at + 46..at + 46 + name)? == wanted {
            let (method, packed, local) = (u16_at(at + 10)?, u32_at(at + 20)?, u32_at(at + 42)?);
            let begin = local + 30 + usize::from(u16_at(local + 26)?) + usize::from(u16_at(local + 28)?);
            let bytes = zip.get(begin..begin.checked_add(packed)?)?;
            return match method {
                0 => Some(bytes.to_vec()),
                8 => bounded::bytes(DeflateDecoder::new(bytes), MAX_LIBRARY_BYTES).ok(),
                _ => None,
            };
        }
        at += 46 + name + usize::from(u16_at(at + 30)?) + usize::from(u16_at(at + 32)?);
    }
    None
}

fn find_jar_from(directory: &Path) -> Option<PathBuf> {
    JAR_DIRS.iter().find_map(|place| directory.join(place).join(JAR).canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// An archive of one file behind another that is empty, with what tools add to headers.
    fn zip(name: &[u8], method: u16, packed: &[u8]) -> Vec<u8> {
        let (mut files, mut directory) = (Vec::new(), Vec::new());
        for (name, method, packed) in [(&b"META-INF/"[..], 0, &b""[..]), (name, method, packed)] {
            let (length, size) = ((name.len() as u16).to_le_bytes(), (packed.len() as u32).to_le_bytes());
            let local = (files.len() as u32).to_le_bytes();
            let fill = |bytes: &mut Vec<u8>, to: usize| bytes.resize(bytes.len() + to, 0);
            files.extend(b"PK\x03\x04");
            fill(&mut files, 22);
            files.extend([length, [4, 0]].concat());
            files.extend([name, &[9; 4], packed].concat());
            directory.extend(b"PK\x01\x02");
            fill(&mut directory, 6);
            directory.extend(method.to_le_bytes());
            fill(&mut directory, 8);
            directory.extend([size, size].concat());
            directory.extend([length, [2, 0], [1, 0]].concat());
            fill(&mut directory, 8);
            directory.extend(local);
            directory.extend([name, &[7; 3]].concat());
        }
        let end = [&b"PK\x05\x06\0\0\0\0\x02\0\x02\0"[..], &(directory.len() as u32).to_le_bytes()].concat();
        let at = (files.len() as u32).to_le_bytes();
        [&files[..], &directory, &end, &at, &[0, 0]].concat()
    }

    #[test]
    fn the_native_half_is_found_in_the_jar() {
        let library = b"\x7fELF, again and again and again and again".to_vec();
        let mut packed = Vec::new();
        flate2::bufread::DeflateEncoder::new(&library[..], flate2::Compression::best())
            .read_to_end(&mut packed)
            .unwrap();
        let (stored, deflated) = (zip(LIBRARY_ENTRY, 0, &library), zip(LIBRARY_ENTRY, 8, &packed));
        for jar in [&stored, &deflated] {
            assert_eq!(super::read_library(jar), Some(library.clone()));
            // Whatever is damaged, nothing is read that is not there.
            for at in 0..jar.len() {
                let _ = super::read_library(&jar[..at]);
                for byte in [0, 0x7f, 0xff] {
                    let mut damaged = jar.clone();
                    damaged[at] = byte;
                    let _ = super::read_library(&damaged);
                }
            }
        }
        for jar in [&b""[..], b"PK\x05\x06", &zip(b"other", 0, &library), &zip(LIBRARY_ENTRY, 9, &library)] {
            assert_eq!(super::read_library(jar), None);
        }
    }

    #[test]
    fn the_jar_beside_the_program_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let (bin, share) = (root.path().join("bin"), root.path().join("share/elbowroom"));
        for directory in [&bin, &share] {
            std::fs::create_dir_all(directory).unwrap();
        }
        assert_eq!(find_jar_from(&bin), None);
        std::fs::write(share.join(JAR), "").unwrap();
        assert_eq!(find_jar_from(&bin), Some(share.join(JAR).canonicalize().unwrap()));
        std::fs::write(bin.join(JAR), "").unwrap();
        assert_eq!(find_jar_from(&bin), Some(bin.join(JAR).canonicalize().unwrap()));
    }
}
