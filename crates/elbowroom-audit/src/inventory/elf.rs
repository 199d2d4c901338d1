//! What an ELF file says about itself.
//!
//! Everything is read from bytes that another program wrote: the `object` crate checks every offset, and what it refuses is
//! simply no evidence.

use super::sysconf;
use crate::rules::detect::{GO_MODULES, SOURCE_MENTIONS, SYMBOLS, marker_texts};
use crate::rules::evidence::{ElfEvidence, GoBuild, Libc, SizingCall};
use crate::rules::source::ResourceSource;
use aho_corasick::{AhoCorasick, MatchKind};
use elbowroom_linux::elf::{is_within_bounds, name_at};
use object::elf::{DT_NEEDED, DT_SONAME, EM_X86_64, ET_DYN, ET_EXEC, FileHeader32, FileHeader64};
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, Object, ObjectSection, SymbolIndex};
use std::sync::LazyLock;

/// What an ELF file says about itself; `None` for what is no program and no shared library.
pub fn read(bytes: &[u8]) -> Option<ElfEvidence> {
    match bytes.get(..5)? {
        [0x7f, b'E', b'L', b'F', 2] => read_class::<FileHeader64<Endianness>>(bytes),
        [0x7f, b'E', b'L', b'F', 1] => read_class::<FileHeader32<Endianness>>(bytes),
        _ => None,
    }
}

fn read_class<Header: FileHeader<Endian = Endianness>>(bytes: &[u8]) -> Option<ElfEvidence> {
    let file = ElfFile::<Header>::parse(bytes).ok()?;
    let endian = file.endian();
    let kind = file.elf_header().e_type(endian);
    if kind != ET_EXEC && kind != ET_DYN || !is_within_bounds(&file) {
        return None;
    }
    let mut elf = ElfEvidence::default();
    let segments = file.elf_program_headers();
    let interpreter = segments.iter().find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
    let interpreter = interpreter.map(|path| &path[..path.len().min(255)]);
    dynamic(&file, bytes, &mut elf);
    elf.libc = libc(interpreter, &elf.needed);
    // A static-pie program has no interpreter; the C library and the loader have one, and a name for others to link to.
    let has_name = elf.soname.is_some();
    let starts = interpreter.is_some() || elf.needed.is_empty() && file.entry() != 0;
    elf.program = kind == ET_EXEC || starts && !has_name;
    let sysconf = symbols(&file, bytes, &mut elf);
    if let (Some(sysconf), EM_X86_64) = (sysconf, file.elf_header().e_machine(endian)) {
        elf.calls.extend(sysconf::sysconf_calls(&file, sysconf));
    }
    let found = scan_texts(bytes, &mut elf);
    elf.go = go_build(&file, bytes, found.go);
    elf.rustc = rustc_from_comment(&file).or(found.rust);
    Some(elf)
}

/// No name of a library or a symbol that is looked for is longer.
const MAX_NAME_LEN: usize = 255;

fn dynamic<Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Header>,
    bytes: &[u8],
    elf: &mut ElfEvidence,
) {
    let endian = file.endian();
    let sections = file.elf_section_table();
    let Ok(Some((entries, link))) = sections.dynamic(endian, bytes) else { return };
    let Ok(strings) = sections.section(link).and_then(|section| section.data(endian, bytes)) else { return };
    for entry in entries.iter().take(4096) {
        let Some(name) = name_at(strings, entry.d_val(endian).into(), MAX_NAME_LEN) else { continue };
        match entry.tag32(endian) {
            Some(DT_NEEDED) => elf.needed.push(name.to_owned()),
            Some(DT_SONAME) => elf.soname = Some(name.to_owned()),
            _ => {}
        }
    }
}

fn libc(interpreter: Option<&[u8]>, needed: &[String]) -> Libc {
    let any = |part: &str| {
        interpreter.is_some_and(|path| String::from_utf8_lossy(path).contains(part))
            || needed.iter().any(|name| name.contains(part))
    };
    match () {
        () if any("ld-musl") || any("libc.musl") => Libc::Musl,
        () if any("ld-linux") || any("libc.so.6") || any("ld64.so") => Libc::Glibc,
        () => Libc::Static,
    }
}

/// Notes calls and definitions; returns the symbol that the file imports `sysconf` by.
fn symbols<Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Header>,
    bytes: &[u8],
    elf: &mut ElfEvidence,
) -> Option<SymbolIndex> {
    let endian = file.endian();
    let table = file.elf_dynamic_symbol_table();
    let strings = file.elf_section_table().section(table.string_section());
    let Ok(strings) = strings.and_then(|section| section.data(endian, bytes)) else { return None };
    let mut sysconf = None;
    for (index, symbol) in table.enumerate() {
        let Some(name) = name_at(strings, symbol.st_name(endian).into(), MAX_NAME_LEN) else { continue };
        if !symbol.is_undefined(endian) {
            if SYMBOLS.contains(&name) {
                elf.defines.insert(name.to_owned());
            }
            continue;
        }
        match name {
            "sched_getaffinity" | "pthread_getaffinity_np" => {
                elf.calls.insert(SizingCall::Affinity);
            }
            "get_nprocs" | "_ZNSt6thread20hardware_concurrencyEv" => {
                elf.calls.insert(SizingCall::NprocessorsOnln);
            }
            "get_nprocs_conf" => {
                elf.calls.insert(SizingCall::NprocessorsConf);
            }
            "get_phys_pages" | "get_avphys_pages" => {
                elf.calls.insert(SizingCall::PhysPages);
            }
            "sysinfo" => {
                elf.calls.insert(SizingCall::Sysinfo);
            }
            "sysconf" => sysconf = Some(index),
            _ => {}
        }
    }
    sysconf
}

/// Every text that is looked for, in one automaton: a file is read once.
struct TextSearch {
    search: AhoCorasick,
    patterns: Vec<TextPattern>,
}

#[derive(Clone, Copy)]
enum TextPattern {
    Mark(&'static str),
    Mention(ResourceSource),
    Go,
    Rust,
}

/// What `debug/buildinfo` looks for.
const GO_MAGIC: &[u8] = b"\xff Go buildinf:";

static TEXT_SEARCH: LazyLock<TextSearch> = LazyLock::new(|| {
    let mut patterns: Vec<(&[u8], TextPattern)> =
        marker_texts().into_iter().map(|text| (text.as_bytes(), TextPattern::Mark(text))).collect();
    patterns.extend(
        SOURCE_MENTIONS.iter().map(|(text, source)| (text.as_bytes(), TextPattern::Mention(*source))),
    );
    patterns.push((GO_MAGIC, TextPattern::Go));
    // Where std's sources were: rustc's own builds say its commit, Debian's its version.
    patterns.push((b"/rustc/", TextPattern::Rust));
    patterns.push((b"/usr/src/rustc-", TextPattern::Rust));
    let search = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(patterns.iter().map(|(text, _)| text))
        .expect("a few dozen short texts make an automaton");
    TextSearch { search, patterns: patterns.into_iter().map(|(_, what)| what).collect() }
});

/// What the texts of a file showed besides marks and mentions.
struct TextFindings {
    /// Where Go's build information is, if nothing better says so.
    go: Option<usize>,
    /// rustc's version as its own sources are called in panic messages, where that is in their name; else nothing.
    rust: Option<String>,
}

fn scan_texts(bytes: &[u8], elf: &mut ElfEvidence) -> TextFindings {
    let mut found = TextFindings { go: None, rust: None };
    for hit in TEXT_SEARCH.search.find_iter(bytes) {
        let after = &bytes[hit.end()..];
        match TEXT_SEARCH.patterns[hit.pattern()] {
            TextPattern::Mark(text) => {
                let version = version_beside(&bytes[..hit.start()], after);
                let known = elf.marks.entry(text.to_owned()).or_default();
                *known = known.take().or(version);
            }
            // /proc/status and /proc/stat, memory.max_usage_in_bytes and memory.max.
            TextPattern::Mention(_) if after.starts_with(b"us") || after.starts_with(b"_") => {}
            TextPattern::Mention(source) => {
                elf.mentions.insert(source);
            }
            TextPattern::Go => found.go = found.go.or(Some(hit.start())),
            TextPattern::Rust => {
                let known = found.rust.take().filter(|version| !version.is_empty());
                found.rust = Some(known.or_else(|| version_beside(b"", after)).unwrap_or_default());
            }
        }
    }
    found
}

/// A version directly after a text (`nginx/1.22.1`), or else directly before it (`10.11.19-MariaDB`).
fn version_beside(before: &[u8], after: &[u8]) -> Option<String> {
    let numeric = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let ahead = after.iter().take(24).take_while(|b| numeric(b)).count();
    let behind = before.iter().rev().take(24).take_while(|b| numeric(b)).count();
    let version = if ahead > 0 { &after[..ahead] } else { &before[before.len() - behind..] };
    let version = std::str::from_utf8(version).ok()?.trim_matches('.');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// `rustc version 1.95.0 (...)` in `.comment`.
fn rustc_from_comment<Header: FileHeader<Endian = Endianness>>(file: &ElfFile<'_, Header>) -> Option<String> {
    let data = file.section_by_name(".comment")?.data().ok()?;
    let text = String::from_utf8_lossy(data.get(..data.len().min(64 << 10))?);
    let version: String = text
        .split_once("rustc version ")?
        .1
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .take(16)
        .collect();
    Some(version)
}

/// Go's build information: `debug/buildinfo`, both the inline form (1.18) and the older one of two pointers.
fn go_build<Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Header>,
    bytes: &[u8],
    found: Option<usize>,
) -> Option<GoBuild> {
    let section = file.section_by_name(".go.buildinfo").and_then(|section| section.data().ok());
    // A file that only mentions the magic (this one) is not written in Go: then its version is no `go1...`.
    let info = match section {
        Some(data) if data.starts_with(GO_MAGIC) => data,
        _ => bytes.get(found?..)?,
    };
    let (size, flags) = (*info.get(14)?, *info.get(15)?);
    let (version, module) = if flags & 2 != 0 {
        let (version, rest) = length_prefixed(info.get(32..)?)?;
        (version, length_prefixed(rest).map(|(module, _)| module).unwrap_or_default())
    } else {
        let word = |bytes: &[u8]| read_word(bytes, size, flags & 1 != 0);
        let string = |at: usize| {
            let header = bytes_at_address(file, word(info.get(at..)?)?)?;
            let data = bytes_at_address(file, word(header)?)?;
            data.get(..usize::try_from(word(header.get(usize::from(size)..)?)?).ok()?)
        };
        (string(16)?, string(16 + usize::from(size)).unwrap_or_default())
    };
    let version = std::str::from_utf8(version.get(..version.len().min(64))?).ok()?;
    if !version.starts_with("go") && !version.starts_with("devel") {
        return None;
    }
    let module = String::from_utf8_lossy(module);
    let modules = module.lines().filter_map(|line| line.strip_prefix("dep\t")?.split('\t').next());
    let modules = modules.filter(|name| GO_MODULES.contains(name)).map(str::to_owned).collect();
    let godebug = module.lines().find_map(|line| line.strip_prefix("build\tDefaultGODEBUG="));
    // `devel go1.25-abcdef Mon...` is a Go between two releases.
    let version = version.strip_prefix("devel ").unwrap_or(version).to_owned();
    Some(GoBuild { version, modules, godebug: godebug.unwrap_or_default().chars().take(1000).collect() })
}

/// Bytes behind their length, a `binary.Uvarint`.
fn length_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0u64;
    for (i, byte) in bytes.iter().take(9).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let rest = &bytes[i + 1..];
            return rest.split_at_checked(usize::try_from(length).ok()?);
        }
    }
    None
}

fn read_word(bytes: &[u8], size: u8, big_endian: bool) -> Option<u64> {
    let bytes = bytes.get(..usize::from(size)).filter(|b| matches!(b.len(), 4 | 8))?;
    let fold = |all: u64, byte: &u8| all << 8 | u64::from(*byte);
    Some(if big_endian { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) })
}

/// What is at an address when the program runs, to the end of its section.
pub(super) fn bytes_at_address<'data, Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'data, Header>,
    address: u64,
) -> Option<&'data [u8]> {
    let section = file.sections().find(|section| {
        section.address() != 0
            && (section.address()..section.address().saturating_add(section.size())).contains(&address)
    })?;
    section.data().ok()?.get(usize::try_from(address - section.address()).ok()?..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_on_either_side_of_a_text() {
        assert_eq!(version_beside(b"", b"1.22.1\0").as_deref(), Some("1.22.1"));
        assert_eq!(version_beside(b"\x0010.11.19", b"\0").as_deref(), Some("10.11.19"));
        assert_eq!(version_beside(b"v", b" x"), None);
        assert_eq!(version_beside(b"", b"..."), None);
    }

    #[test]
    fn a_length_that_leads_out_is_refused() {
        assert_eq!(length_prefixed(b"\x03abcd"), Some((&b"abc"[..], &b"d"[..])));
        assert_eq!(length_prefixed(b"\x05abcd"), None);
        assert_eq!(length_prefixed(&[0xff; 20]), None);
    }

    #[test]
    fn this_test_is_a_rust_program_and_knows_its_compiler() {
        let elf = read(&std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(elf.program && elf.go.is_none(), "{elf:?}");
        assert!(elf.rustc.as_deref().is_some_and(|version| version.starts_with("1.")), "{:?}", elf.rustc);
        assert_eq!(elf.libc, Libc::Glibc);
    }

    #[test]
    fn damaged_files_are_no_evidence_and_no_panic() {
        let whole = std::fs::read("/bin/true").unwrap();
        for end in (0..whole.len()).step_by(397) {
            let _ = read(&whole[..end]);
        }
        let mut damaged = whole.clone();
        for at in (0..whole.len().min(4096)).step_by(3) {
            damaged[at] ^= 0xff;
            let _ = read(&damaged);
            damaged[at] = whole[at];
        }
    }
}
