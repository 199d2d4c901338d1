//! Whose code an address is: the kernel's symbols, ELF's, and Go's own table in programs that are stripped.

pub mod pclntab;

use super::processes::{CodeAddress, CodeModule, SampledProcesses};
use super::tenants::Tenants;
use crate::stack::{CallStack, ExecutionMode, StackFrame};
use elbowroom_linux::bounded;
use elbowroom_linux::elf::name_at;
use object::elf::{STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{ElfFile64, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, Object, ObjectSection, RelocationTarget};
use pclntab::GoFunctionTable;
use std::collections::HashMap;
use std::sync::Arc;

/// All programs that start containers together are not larger, nor is the kernel's table. What a container maps may be.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Names of C++ have their types in them.
const MAX_NAME_BYTES: usize = 4096;

/// The kernel's functions, by address.
#[derive(Debug, Default)]
pub struct KernelSymbols(Vec<(u64, String)>);

impl KernelSymbols {
    /// Those of the kernel that runs. Empty where `kernel.kptr_restrict` hides addresses.
    pub fn running() -> Self {
        Self::parse(&bounded::file_text("/proc/kallsyms", MAX_FILE_BYTES).unwrap_or_default())
    }

    /// `address type name [module]`, a line each.
    pub fn parse(text: &str) -> Self {
        let symbols = text.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            let address = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0)?;
            matches!(kind, "t" | "T" | "w" | "W").then(|| (address, name.to_owned()))
        });
        let mut symbols: Vec<(u64, String)> = symbols.collect();
        symbols.sort_by_key(|(address, _)| *address);
        Self(symbols)
    }

    /// The function at `address`.
    pub fn at(&self, address: u64) -> Option<&str> {
        let (_, name) = self.0[..self.0.partition_point(|(begin, _)| *begin <= address)].last()?;
        Some(name)
    }

    /// Whether names are hidden.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Functions of one ELF file, by the distance from the file's begin.
#[derive(Debug, Default)]
pub struct ElfSymbols {
    /// (in the file, in memory, length) of what is loaded.
    segments: Vec<(u64, u64, u64)>,
    go: Option<GoFunctionTable>,
    /// (address, size, name), by address.
    functions: Vec<(u64, u64, String)>,
    build_id: Vec<u8>,
}

impl ElfSymbols {
    /// Reads an ELF file of this machine's kind; without any names from what is none.
    pub fn read(bytes: &[u8]) -> Self {
        let Ok(file) = ElfFile64::<Endianness>::parse(bytes) else { return Self::default() };
        if !elbowroom_linux::elf::is_within_bounds(&file) {
            return Self::default();
        }
        let endian = file.endian();
        let loaded = file
            .elf_program_headers()
            .iter()
            .filter(|segment| segment.p_type(endian) == object::elf::PT_LOAD);
        let segments = loaded
            .map(|segment| (segment.p_offset(endian), segment.p_vaddr(endian), segment.p_filesz(endian)))
            .collect();
        let mut functions = functions(&file, bytes);
        functions.sort_by_key(|(address, ..)| *address);
        let build_id = file.build_id().ok().flatten().unwrap_or_default().to_vec();
        Self { segments, go: go(&file), functions, build_id }
    }

    /// The function at `offset` bytes from the file's begin.
    pub fn at(&self, offset: u64) -> Option<&str> {
        let inside =
            |(begin, _, length): &&(u64, u64, u64)| offset.checked_sub(*begin).is_some_and(|at| at < *length);
        let (begin, address, _) = self.segments.iter().find(inside)?;
        // A damaged file may be loaded across the end of the address space.
        let address = (offset - begin).checked_add(*address)?;
        if let Some(name) = self.go.as_ref().and_then(|go| go.function_at(address)) {
            return Some(name);
        }
        let before = &self.functions[..self.functions.partition_point(|(begin, ..)| *begin <= address)];
        // Aliases share an address, and small functions lie in none: the nearest few decide.
        let around = before.iter().rev().take(8);
        around.filter(|(begin, size, _)| address - begin < *size).map(|(.., name)| name.as_str()).next()
    }

    /// How many functions Go's table has; `None` where there is none.
    #[cfg(test)]
    pub(crate) fn go_functions(&self) -> Option<usize> {
        self.go.as_ref().map(GoFunctionTable::len)
    }

    /// What the linker called this build.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }
}

/// (address, size, name) of the functions in both symbol tables. All names together are no longer than the file: symbols that share
/// one long name would be, many times.
fn functions(file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Vec<(u64, u64, String)> {
    let endian = file.endian();
    let mut functions = Vec::new();
    let mut room = bytes.len();
    for table in [file.elf_symbol_table(), file.elf_dynamic_symbol_table()] {
        let strings = file.elf_section_table().section(table.string_section());
        let Ok(strings) = strings.and_then(|section| section.data(endian, bytes)) else { continue };
        for symbol in table.iter() {
            let is_function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
            if !is_function || symbol.is_undefined(endian) || symbol.st_size(endian) == 0 {
                continue;
            }
            let Some(name) = name_at(strings, symbol.st_name(endian).into(), MAX_NAME_BYTES) else {
                continue;
            };
            let Some(left) = room.checked_sub(name.len()) else { return functions };
            room = left;
            functions.push((symbol.st_value(endian), symbol.st_size(endian), name.to_owned()));
        }
    }
    functions
}

/// Go's table: in a section of its own, or, in a position-independent program, among the data that relocations change.
fn go(file: &ElfFile64<'_, Endianness>) -> Option<GoFunctionTable> {
    if file.endian() != Endianness::Little {
        return None;
    }
    let text = file.section_by_name(".text").map_or(0, |section| section.address());
    let names = [".gopclntab", ".data.rel.ro.gopclntab", ".data.rel.ro", ".rodata"];
    let sections = names.iter().filter_map(|name| file.section_by_name(name));
    let mut relocations: Option<HashMap<u64, u64>> = None;
    for section in sections {
        let Ok(data) = section.data() else { continue };
        for at in pclntab::candidates(data).take(64) {
            let relocations = relocations.get_or_insert_with(|| relative(file));
            let base = section.address().wrapping_add(at as u64);
            // An address that is relocated is the relocation's addend, whatever the file has in its place.
            let pointer = |offset: u64, value: u64| {
                relocations.get(&base.wrapping_add(offset)).copied().unwrap_or(value)
            };
            if let Ok(functions) = GoFunctionTable::parse(&data[at..], text, pointer)
                && !functions.is_empty()
            {
                return Some(functions);
            }
        }
    }
    None
}

/// Addresses that only the loader writes: where, and what (`R_X86_64_RELATIVE`, `R_AARCH64_RELATIVE`).
fn relative(file: &ElfFile64<'_, Endianness>) -> HashMap<u64, u64> {
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let relative = relocations.filter(|(_, relocation)| relocation.target() == RelocationTarget::Absolute);
    relative.map(|(at, relocation)| (at, relocation.addend() as u64)).collect()
}

impl SampledProcesses {
    /// Every stack with names, and how often it was seen.
    pub(crate) fn symbolise(mut self, kernel: &KernelSymbols) -> Vec<(CallStack, u64)> {
        let used = self.used_modules();
        let mut room = MAX_FILE_BYTES;
        let symbols: Vec<ElfSymbols> = self
            .modules
            .iter_mut()
            .zip(&used)
            .map(|(module, used)| match *used {
                true => load(module, &mut self.tenants, &mut room),
                false => ElfSymbols::default(),
            })
            .collect();
        let mut frames: HashMap<CodeAddress, StackFrame> = HashMap::new();
        let nothing: Arc<str> = "".into();
        let mut frame = |address: &CodeAddress| {
            let made = frames.entry(*address).or_insert_with(|| match *address {
                CodeAddress::Kernel(address) => {
                    let name = kernel.at(address).unwrap_or("[kernel]").into();
                    StackFrame { name, module: Arc::clone(&nothing), mode: ExecutionMode::Kernel }
                }
                CodeAddress::File(module, offset) => {
                    let file = &self.modules[module as usize].name;
                    let name = symbols[module as usize].at(offset);
                    let name = name.map_or_else(|| format!("[{file}]").into(), Arc::from);
                    StackFrame { name, module: Arc::clone(file), mode: ExecutionMode::User }
                }
                CodeAddress::Anonymous => StackFrame {
                    name: "[unknown]".into(),
                    module: Arc::clone(&nothing),
                    mode: ExecutionMode::User,
                },
            });
            made.clone()
        };
        let mut stacks: HashMap<CallStack, u64> = HashMap::new();
        for ((program, addresses), count) in &self.stacks {
            let mut named: Vec<StackFrame> = addresses.iter().map(&mut frame).collect();
            // Without frame pointers a chain ends in values that are no addresses.
            while named.len() > 1 && named.last().is_some_and(|last| &*last.name == "[unknown]") {
                named.pop();
            }
            *stacks.entry(CallStack { program: Arc::clone(program), frames: named }).or_default() += count;
        }
        let mut stacks: Vec<(CallStack, u64)> = stacks.into_iter().collect();
        stacks.sort();
        stacks
    }

    /// Which modules any stack has an address in.
    fn used_modules(&self) -> Vec<bool> {
        let mut used = vec![false; self.modules.len()];
        for (_, addresses) in self.stacks.keys() {
            for address in addresses {
                if let CodeAddress::File(module, _) = address {
                    used[*module as usize] = true;
                }
            }
        }
        used
    }
}

/// The file's symbols, as far as there is room for the file, and its container's part is not used up; none where it is another build than
/// the one that ran.
fn load(module: &mut CodeModule, tenants: &mut Tenants, room: &mut u64) -> ElfSymbols {
    let Some(file) = module.file.take() else { return ElfSymbols::default() };
    let own = tenants.room_of(module.tenant, MAX_FILE_BYTES, *room);
    let Ok(bytes) = bounded::beginning(file, own) else { return ElfSymbols::default() };
    *room -= bytes.len() as u64;
    tenants.taken(module.tenant).into_iter().for_each(|taken| taken.bytes += bytes.len() as u64);
    let symbols = ElfSymbols::read(&bytes);
    match module.build_id.is_empty() || module.build_id == symbols.build_id {
        true => symbols,
        false => ElfSymbols::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_functions_are_found_by_address_and_data_is_none() {
        let kernel =
            KernelSymbols::parse("ffff0010 T a\nffff0020 t b [mod]\nffff0018 D data\n0 T hidden\nnonsense\n");
        assert_eq!(
            [kernel.at(0xffff_0010), kernel.at(0xffff_001f), kernel.at(0xffff_ffff)],
            [Some("a"), Some("a"), Some("b")]
        );
        assert_eq!(kernel.at(0xffff), None);
        assert!(KernelSymbols::parse("0000000000000000 T hidden").is_empty());
    }

    #[test]
    fn this_test_knows_the_name_of_its_own_function() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let symbols = ElfSymbols::read(&bytes);
        let address = symbols
            .functions
            .iter()
            .find(|(.., name)| name.contains("symbols") && name.contains("read"))
            .unwrap();
        let (begin, at, _) =
            symbols.segments.iter().find(|(_, a, l)| (*a..a + l).contains(&address.0)).unwrap();
        let found = symbols.at(address.0 + 1 - at + begin).unwrap();
        assert!(found.contains("symbols"), "{found}");
        assert_eq!(symbols.at(u64::MAX), None);
    }

    #[test]
    fn stripped_go_programs_of_this_machine_name_their_functions() {
        let mut seen = 0;
        for path in ["/usr/sbin/runc", "/usr/sbin/dockerd", "/usr/bin/containerd", "/usr/bin/podman"] {
            let Ok(bytes) = std::fs::read(path) else { continue };
            let symbols = ElfSymbols::read(&bytes);
            assert!(
                symbols.go_functions().is_some_and(|count| count > 5_000),
                "{path}: {:?}",
                symbols.go_functions()
            );
            let go = symbols.go.as_ref().unwrap();
            let text =
                ElfFile64::<Endianness>::parse(&*bytes).unwrap().section_by_name(".text").unwrap().address();
            let size =
                ElfFile64::<Endianness>::parse(&*bytes).unwrap().section_by_name(".text").unwrap().size();
            let named = (text..text + size)
                .step_by(4096)
                .filter(|address| go.function_at(*address).is_some())
                .count();
            assert!(named as u64 > size / 4096 * 8 / 10, "{path}: {named} of {}", size / 4096);
            seen += 1;
        }
        if seen == 0 {
            eprintln!("skipped: no Go program of a container engine is installed here");
        }
    }

    #[test]
    fn all_files_together_take_no_more_room_than_one_may() {
        let bytes = same_name(10, 4);
        let of = |tenant, tenants: &mut Tenants, room: &mut u64| {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &bytes).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            let mut module = CodeModule { name: "x".into(), build_id: Vec::new(), file: Some(file), tenant };
            load(&mut module, tenants, room).functions.len()
        };
        let (mut tenants, mut room) = (Tenants::two(), bytes.len() as u64 * 5 / 2);
        let mut loaded = |tenant| of(tenant, &mut tenants, &mut room);
        assert_eq!([loaded(None), loaded(None), loaded(None), loaded(None)], [10, 10, 0, 0]);
        // A container that has used up its part leaves room for its neighbour.
        tenants.taken(Some(0)).unwrap().bytes = MAX_FILE_BYTES / 4;
        room = bytes.len() as u64 * 5;
        let mut loaded = |tenant| of(tenant, &mut tenants, &mut room);
        assert_eq!([loaded(Some(0)), loaded(Some(1))], [0, 10]);
    }

    /// A file with `symbols` functions, all named by the same zero-terminated text of `length` bytes.
    fn same_name(symbols: usize, length: usize) -> Vec<u8> {
        let (begin, section) = (64, 64);
        let strings = begin + 24 * symbols;
        let sections = (strings + length + 1).next_multiple_of(8);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(sections + 3 * section, 0);
        let mut put = |at: usize, value: u64, size: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        for (at, value, size) in [
            (16, 2, 2),
            (18, 62, 2),
            (20, 1, 4),
            (40, sections, 8),
            (52, 64, 2),
            (58, 64, 2),
            (60, 3, 2),
            (62, 2, 2),
        ] {
            put(at, value as u64, size);
        }
        for (at, (kind, offset, size, link, entry)) in
            [(2, begin, 24 * symbols, 2, 24), (3, strings, length + 1, 0, 0)].into_iter().enumerate()
        {
            let header = sections + (at + 1) * section;
            for (at, value, size) in
                [(4, kind, 4), (24, offset, 8), (32, size, 8), (40, link, 4), (56, entry, 8)]
            {
                put(header + at, value as u64, size);
            }
        }
        for at in (0..symbols).map(|i| begin + 24 * i) {
            // A function (STT_FUNC) in section 1, of one byte.
            for (field, value, size) in [(4, 2, 1), (6, 1, 2), (8, at, 8), (16, 1, 8)] {
                put(at + field, value as u64, size);
            }
        }
        bytes[strings..strings + length].fill(b'x');
        bytes
    }

    #[test]
    fn names_that_are_shared_take_no_more_room_than_the_file() {
        let few = ElfSymbols::read(&same_name(3, 20));
        assert_eq!(few.functions.iter().map(|(.., name)| name.len()).collect::<Vec<_>>(), [20; 3]);
        let file = same_name(1_000, 4_000);
        let kept: usize = ElfSymbols::read(&file).functions.iter().map(|(.., name)| name.len()).sum();
        assert!((1..=file.len()).contains(&kept), "{kept} of {}", file.len());
        assert!(ElfSymbols::read(&same_name(10, 5_000)).functions.is_empty(), "nothing has a name that long");
    }

    #[test]
    fn damaged_files_have_no_names_and_do_no_harm() {
        let whole = std::fs::read("/bin/true").unwrap();
        for end in (0..whole.len()).step_by(397) {
            let _ = ElfSymbols::read(&whole[..end]).at(0x1000);
        }
        let beyond = ElfSymbols { segments: vec![(0, u64::MAX, 16)], ..ElfSymbols::default() };
        assert_eq!(beyond.at(8), None);
    }
}
