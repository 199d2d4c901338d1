//! Go's table of functions, which programs keep when they are stripped: tracebacks need it.
//!
//! # Problem
//! Distributions strip `.symtab` from Go programs; dockerd, containerd, runc and podman are such programs.
//!
//! # Approach
//! `.gopclntab` (`src/runtime/symtab.go`, `src/debug/gosym/pclntab.go`, and the design *Go 1.2 Runtime Symbol Information*):
//! a header, function names, and a sorted array of (entry, offset of the function's record). Three forms since Go 1.16 are
//! told by their magic; before 1.18 entries are addresses, since then distances from the text's begin. In a
//! position-independent program an address is zero in the file, and a relocation has it: the caller gives a function
//! that knows.
//!
//! Everything is read from bytes that another program wrote: what leads out of them is no function.

use thiserror::Error;

/// Go 1.16 and 1.17.
const GO116: u32 = 0xffff_fffa;
/// Go 1.18 and 1.19.
const GO118: u32 = 0xffff_fff0;
/// Go 1.20 and later.
const GO120: u32 = 0xffff_fff1;
/// Kubernetes' largest program has a tenth of that.
const MAX_FUNCTIONS: usize = 4_000_000;
/// Names with generics' types in them get long; no longer one is kept.
const MAX_NAME_LEN: usize = 512;

/// A table of functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoFunctionTable {
    /// (address, where its name begins in `names`, the name's length), by address.
    entries: Vec<(u64, u32, u16)>,
    names: Vec<u8>,
    /// Behind the last function's end.
    end: u64,
}

/// Why bytes are no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PclntabError {
    /// It does not begin as one.
    #[error("it does not begin with the magic of Go 1.16, 1.18 or 1.20")]
    Magic,
    /// A table of another machine: pointers of neither 4 nor 8 bytes, or a strange size of instructions.
    #[error("its pointers have {0} bytes")]
    Pointers(u8),
    /// Something leads out of it.
    #[error("it ends early, or its parts lie outside it")]
    Truncated,
    /// More functions than any program has.
    #[error("it claims {0} functions")]
    TooMany(u64),
}

/// Where tables may begin: at every one of the three magics with a plausible header, in order.
pub fn candidates(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    // Every magic is 0xfX 0xff 0xff 0xff, and is followed by two zeros, the size of instructions and of pointers.
    let aligned = (0..bytes.len().saturating_sub(8)).step_by(8);
    aligned.filter(|at| header(&bytes[*at..]).is_ok())
}

/// Form and pointer size of a table.
fn header(bytes: &[u8]) -> Result<(u32, usize), PclntabError> {
    let head: &[u8; 8] = bytes.first_chunk().ok_or(PclntabError::Truncated)?;
    let magic = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    if !matches!(magic, GO116 | GO118 | GO120)
        || head[4] != 0
        || head[5] != 0
        || !matches!(head[6], 1 | 2 | 4)
    {
        return Err(PclntabError::Magic);
    }
    match head[7] {
        size @ (4 | 8) => Ok((magic, usize::from(size))),
        other => Err(PclntabError::Pointers(other)),
    }
}

impl GoFunctionTable {
    /// Reads the table that `bytes`, of a little-endian machine, begin with.
    ///
    /// `pointer` turns the offset of a pointer in the table and the value that the file has there into the address that the
    /// linker means; `text` is where the text begins should the table not say.
    ///
    /// # Errors
    /// [`PclntabError`]: they begin with none, or with one that is damaged. Single functions that are damaged are left out.
    pub fn parse(bytes: &[u8], text: u64, pointer: impl Fn(u64, u64) -> u64) -> Result<Self, PclntabError> {
        let (magic, size) = header(bytes)?;
        let word = |at: usize| unsigned(bytes, at, size).ok_or(PclntabError::Truncated);
        let field = |index: usize| word(8 + index * size);
        let usize_field = |index: usize| usize::try_from(field(index)?).map_err(|_| PclntabError::Truncated);
        let claimed = field(0)?;
        let count = usize::try_from(claimed)
            .ok()
            .filter(|n| *n <= MAX_FUNCTIONS)
            .ok_or(PclntabError::TooMany(claimed))?;
        // nfunc, nfiles, [textStart since 1.18], names, compilation units, files, pcs, functions.
        let shift = usize::from(magic != GO116);
        let (names_at, table_at) = (usize_field(2 + shift)?, usize_field(6 + shift)?);
        let base = match magic {
            GO116 => 0,
            _ => match pointer((8 + 2 * size) as u64, field(2)?) {
                0 => text,
                start => start,
            },
        };
        // Two columns; entries are addresses before 1.18, distances of four bytes since.
        let width = if magic == GO116 { size } else { 4 };
        let rows = bytes.get(table_at..).ok_or(PclntabError::Truncated)?;
        if rows.len() < count.checked_mul(2 * width).ok_or(PclntabError::Truncated)? {
            return Err(PclntabError::Truncated);
        }
        let entry = |row: usize| {
            let at = table_at + row * 2 * width;
            let value = unsigned(bytes, at, width)?;
            Some(if magic == GO116 { pointer(at as u64, value) } else { base.wrapping_add(value) })
        };
        let mut functions = Self::default();
        for row in 0..count {
            let Some(address) = entry(row) else { break };
            let name = || {
                let record = unsigned(rows, row * 2 * width + width, width)?;
                let record = usize::try_from(record).ok()?;
                // The record begins with the entry again, then the name's offset.
                let offset = unsigned(rows, record.checked_add(width)?, 4)?;
                name_at(bytes, names_at.checked_add(usize::try_from(offset).ok()?)?)
            };
            functions.push(address, name().unwrap_or_default(), bytes.len());
        }
        functions.end = entry(count).unwrap_or(u64::MAX);
        // They are sorted in every honest table; a search needs it.
        functions.entries.sort_by_key(|(address, ..)| *address);
        Ok(functions)
    }

    /// The function at `address`.
    pub fn function_at(&self, address: u64) -> Option<&str> {
        if address >= self.end {
            return None;
        }
        let (_, from, length) =
            self.entries[..self.entries.partition_point(|(a, ..)| *a <= address)].last()?;
        let from = *from as usize;
        let name = std::str::from_utf8(self.names.get(from..from + usize::from(*length))?).ok()?;
        (!name.is_empty()).then_some(name)
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All names together are no longer than the table, `most`: an honest one has each once.
    fn push(&mut self, address: u64, name: &[u8], most: usize) {
        let name = if self.names.len() + name.len() > most { &[] } else { name };
        let Ok(from) = u32::try_from(self.names.len()) else { return };
        self.names.extend_from_slice(name);
        self.entries.push((address, from, name.len() as u16));
    }
}

fn unsigned(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

/// The text up to its zero; a name that is too long loses its end.
fn name_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let rest = &rest[..rest.len().min(MAX_NAME_LEN)];
    let name = &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())];
    Some(match std::str::from_utf8(name) {
        Ok(_) => name,
        Err(error) => &name[..error.valid_up_to()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table as the linker of that version writes it: functions at 0x1000, 0x1100, ..., 0x80 bytes of records each.
    fn table(magic: u32, size: usize, names: &[&str], text: u64) -> Vec<u8> {
        let width = if magic == GO116 { size } else { 4 };
        let fields = if magic == GO116 { 7 } else { 8 };
        let names_at = 8 + fields * size;
        let mut text_of_names = Vec::new();
        let offsets: Vec<usize> = names
            .iter()
            .map(|name| {
                let at = text_of_names.len();
                text_of_names.extend_from_slice(name.as_bytes());
                text_of_names.push(0);
                at
            })
            .collect();
        let table_at = names_at + text_of_names.len();
        let mut bytes = magic.to_le_bytes().to_vec();
        bytes.extend([0, 0, 1, size as u8]);
        let mut fields_of = vec![names.len() as u64, 1];
        if magic != GO116 {
            fields_of.push(text);
        }
        fields_of.extend([names_at as u64, 0, 0, 0, table_at as u64]);
        for field in fields_of {
            bytes.extend(&field.to_le_bytes()[..size]);
        }
        bytes.extend(&text_of_names);
        let entry = |i: usize| if magic == GO116 { text + 0x100 * i as u64 } else { 0x100 * i as u64 };
        let records = (names.len() * 2 + 1) * width;
        for i in 0..names.len() {
            bytes.extend(&entry(i).to_le_bytes()[..width]);
            bytes.extend(&((records + i * 16) as u64).to_le_bytes()[..width]);
        }
        bytes.extend(&entry(names.len()).to_le_bytes()[..width]);
        for (i, offset) in offsets.iter().enumerate() {
            let mut record = entry(i).to_le_bytes()[..width].to_vec();
            record.extend((*offset as u32).to_le_bytes());
            record.resize(16, 0);
            bytes.extend(record);
        }
        bytes
    }

    const NAMES: [&str; 3] = ["runtime.text", "main.main", "encoding/json.(*decodeState).object"];

    #[test]
    fn names_that_are_shared_take_no_more_room_than_the_table() {
        let name = "x".repeat(400);
        let mut names = vec![""; 2_000];
        names[0] = &name;
        let mut bytes = table(GO120, 8, &names, 0x1000);
        // Every record has the first one's name.
        let records = bytes.len() - 16 * names.len();
        for record in (records..bytes.len()).step_by(16) {
            bytes[record + 4..record + 8].fill(0);
        }
        let functions = GoFunctionTable::parse(&bytes, 0, |_, value| value).unwrap();
        assert_eq!((functions.len(), functions.function_at(0x1000)), (2_000, Some(&*name)));
        assert!(functions.names.len() <= bytes.len(), "{} of {}", functions.names.len(), bytes.len());
    }

    #[test]
    fn every_form_names_its_functions() {
        for (magic, size) in [(GO116, 8), (GO118, 8), (GO120, 8), (GO116, 4), (GO120, 4)] {
            let bytes = table(magic, size, &NAMES, 0x1000);
            let functions = GoFunctionTable::parse(&bytes, 0, |_, value| value).unwrap();
            assert_eq!(functions.len(), 3, "{magic:x}");
            let at = |address| functions.function_at(address);
            assert_eq!(
                [at(0x1000), at(0x10ff), at(0x1100)],
                [Some(NAMES[0]), Some(NAMES[0]), Some(NAMES[1])]
            );
            assert_eq!([at(0xfff), at(0x12ff), at(0x1300)], [None, Some(NAMES[2]), None], "{magic:x}");
        }
    }

    #[test]
    fn addresses_that_only_relocations_know_come_from_them() {
        let bytes = table(GO118, 8, &NAMES, 0);
        let of = |text, pointer: fn(u64, u64) -> u64| GoFunctionTable::parse(&bytes, text, pointer).unwrap();
        assert_eq!(of(0, |at, _| if at == 24 { 0x5000 } else { 0 }).function_at(0x5100), Some("main.main"));
        assert_eq!(
            of(0x7000, |_, value| value).function_at(0x7100),
            Some("main.main"),
            "no relocation: the text section"
        );
        let bytes = table(GO116, 8, &NAMES, 0);
        let functions = GoFunctionTable::parse(&bytes, 0, |_, value| 0x9000 + value).unwrap();
        assert_eq!(functions.function_at(0x9100), Some("main.main"));
    }

    #[test]
    fn a_table_is_found_among_other_data() {
        let mut bytes = vec![0xff; 64];
        bytes.extend(table(GO120, 8, &NAMES, 0x1000));
        assert_eq!(candidates(&bytes).next(), Some(64));
        assert_eq!(candidates(&[0xf1, 0xff, 0xff]).next(), None);
    }

    #[test]
    fn what_is_no_table_says_why() {
        let parse = |bytes: &[u8]| GoFunctionTable::parse(bytes, 0, |_, value| value).unwrap_err();
        assert_eq!(parse(b"\x7fELF...."), PclntabError::Magic);
        assert_eq!(parse(&[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 3]), PclntabError::Pointers(3));
        assert_eq!(parse(&[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8]), PclntabError::Truncated);
        let mut many = table(GO120, 8, &NAMES, 0);
        many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(parse(&many), PclntabError::TooMany(u64::MAX));
    }

    proptest! {
        #[test]
        fn damage_is_an_error_or_fewer_names_and_never_a_panic(
            at in 0usize..400, value in any::<u8>(), end in 0usize..500, form in 0usize..3, ask in 0u64..0x2000,
        ) {
            let mut bytes = table([GO116, GO118, GO120][form], 8, &NAMES, 0x1000);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(end);
            if let Ok(functions) = GoFunctionTable::parse(&bytes, 0, |_, value| value) {
                prop_assert!(functions.function_at(ask).is_none_or(|name| !name.is_empty()));
            }
        }
    }
}
