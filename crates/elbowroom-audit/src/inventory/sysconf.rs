//! What a program asks `sysconf` for.
//!
//! Every program imports `sysconf`, mostly for the size of a page. A program that counts CPUs differs in the argument: a constant,
//! loaded into `edi` right before the call (System V ABI, x86-64). The call is followed through its PLT stub to the slot that
//! the dynamic linker fills with `sysconf`, so that `putchar('T')`, which looks the same, is not taken for it.

use super::elf::bytes_at_address;
use crate::rules::evidence::SizingCall;
use object::read::elf::{ElfFile, FileHeader};
use object::{Endianness, Object, ObjectSection, RelocationTarget, SectionKind, SymbolIndex};
use std::collections::BTreeSet;

/// Between the constant and the call a compiler puts at most a few other instructions.
const MAX_DISTANCE: usize = 16;

/// A program asks a few times; one that writes thousands wants us to search for ever.
const MAX_CALLS: usize = 256;

/// The questions about CPUs and memory among a program's calls of `sysconf`.
pub(super) fn sysconf_calls<Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Header>,
    sysconf: SymbolIndex,
) -> BTreeSet<SizingCall> {
    let slots = got_slots(file, sysconf);
    let mut questions = BTreeSet::new();
    // Sections of a linker share no bytes. Those of a stranger may all be the whole file.
    let (mut unread, mut calls) = (file.data().len(), MAX_CALLS);
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let Ok(code) = section.data() else { continue };
        let code = &code[..code.len().min(unread)];
        unread -= code.len();
        let constants =
            code.windows(5).enumerate().filter_map(|(at, window)| Some((at, sysconf_call(window)?)));
        for (at, question) in constants.take(calls) {
            calls -= 1;
            let mut near = at + 5..(at + 5 + MAX_DISTANCE).min(code.len());
            let is_sysconf = near.any(|at| {
                let here = section.address().wrapping_add(at as u64);
                got_slot_of_call(file, &code[at..], here).is_some_and(|slot| slots.contains(&slot))
            });
            if is_sysconf {
                questions.insert(question);
            }
        }
    }
    questions
}

/// `mov edi, imm32` with one of bits/confname.h's numbers, which musl shares.
fn sysconf_call(code: &[u8]) -> Option<SizingCall> {
    let [0xbf, number, 0, 0, 0] = code else { return None };
    match number {
        83 => Some(SizingCall::NprocessorsConf),
        84 => Some(SizingCall::NprocessorsOnln),
        85 | 86 => Some(SizingCall::PhysPages),
        _ => None,
    }
}

/// Where the dynamic linker writes the address of `sysconf`.
fn got_slots<Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Header>,
    sysconf: SymbolIndex,
) -> BTreeSet<u64> {
    let is_sysconf = |target| target == RelocationTarget::Symbol(sysconf);
    let relocations = file.dynamic_relocations().into_iter().flatten();
    relocations.filter(|(_, r)| is_sysconf(r.target())).map(|(address, _)| address).collect()
}

/// The slot that a call goes through: `call stub`, `jmp stub`, `call [rip+slot]`, `jmp [rip+slot]`.
fn got_slot_of_call<Header: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Header>,
    code: &[u8],
    here: u64,
) -> Option<u64> {
    match code {
        [0xe8 | 0xe9, rest @ ..] => {
            let stub = relative(rest, here.wrapping_add(5))?;
            got_slot_of_stub(bytes_at_address(file, stub)?, stub)
        }
        [0xff, 0x15 | 0x25, rest @ ..] => relative(rest, here.wrapping_add(6)),
        _ => None,
    }
}

/// A PLT stub: `endbr64` and `bnd`, which need not be there, then `jmp [rip+slot]`.
fn got_slot_of_stub(mut code: &[u8], mut here: u64) -> Option<u64> {
    for prefix in [&[0xf3, 0x0f, 0x1e, 0xfa][..], &[0xf2]] {
        if let Some(rest) = code.strip_prefix(prefix) {
            (code, here) = (rest, here.wrapping_add(prefix.len() as u64));
        }
    }
    relative(code.strip_prefix(&[0xff, 0x25])?, here.wrapping_add(6))
}

/// A signed distance of 32 bits from `next`.
fn relative(code: &[u8], next: u64) -> Option<u64> {
    let distance = i32::from_le_bytes(code.get(..4)?.try_into().ok()?);
    Some(next.wrapping_add_signed(i64::from(distance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_those_of_the_c_library() {
        for (number, expect) in [
            (libc::_SC_NPROCESSORS_CONF, Some(SizingCall::NprocessorsConf)),
            (libc::_SC_NPROCESSORS_ONLN, Some(SizingCall::NprocessorsOnln)),
            (libc::_SC_PHYS_PAGES, Some(SizingCall::PhysPages)),
            (libc::_SC_PAGESIZE, None),
        ] {
            assert_eq!(sysconf_call(&[0xbf, number as u8, 0, 0, 0]), expect, "{number}");
        }
    }

    #[test]
    fn stubs_lead_to_their_slot_with_and_without_prefixes() {
        let jump = [0xff, 0x25, 0x10, 0, 0, 0];
        assert_eq!(got_slot_of_stub(&jump, 0x1000), Some(0x1016));
        let endbr = [&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2][..], &jump].concat();
        assert_eq!(got_slot_of_stub(&endbr, 0x1000), Some(0x101b));
        assert_eq!(got_slot_of_stub(&[0x90; 8], 0x1000), None);
        assert_eq!(got_slot_of_stub(&[0xff], 0x1000), None);
    }
}
