//! Bounds for reading ELF files of other users.

use object::Endianness;
use object::read::elf::{ElfFile, FileHeader, SectionHeader};

/// Whether a file keeps to what linkers make. Lookups by name take time that grows with sections times names, and a hostile file
/// may have any number of both.
pub fn is_within_bounds<Header: FileHeader<Endian = Endianness>>(file: &ElfFile<'_, Header>) -> bool {
    const MAX_SECTIONS: usize = 4096;
    const MAX_NAME_BYTES: u64 = 4 << 20;
    let sections = file.elf_section_table();
    let names = sections.iter().nth(usize::from(file.elf_header().e_shstrndx(file.endian())));
    sections.len() <= MAX_SECTIONS
        && names.is_none_or(|names| names.sh_size(file.endian()).into() <= MAX_NAME_BYTES)
}

/// The name at an offset of a string table, of fewer than `longest` bytes: the writer of the file may have left out every zero.
pub fn name_at(strings: &[u8], offset: u64, longest: usize) -> Option<&str> {
    let name = strings.get(usize::try_from(offset).ok()?..)?;
    let name = &name[..name.len().min(longest)];
    std::str::from_utf8(&name[..name.iter().position(|byte| *byte == 0)?]).ok()
}
