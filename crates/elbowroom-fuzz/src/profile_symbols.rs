use elbowroom_profile::perf::record;
use elbowroom_profile::symbols::pclntab;
use elbowroom_profile::symbols::pclntab::GoFunctionTable;
use elbowroom_profile::symbols::{ElfSymbols, KernelSymbols};

/// Arbitrary bytes as a program's file, as Go's table of functions, as records of perf and as the kernel's symbols: names or
/// none, no panic.
pub fn run(data: &[u8]) {
    let symbols = ElfSymbols::read(data);
    let _ = (symbols.at(0), symbols.at(0x1000), symbols.at(u64::MAX));
    for at in pclntab::candidates(data).take(4).chain([0]) {
        if let Ok(functions) = GoFunctionTable::parse(&data[at..], 0x1000, |offset, value| value ^ offset) {
            let _ = (
                functions.function_at(0),
                functions.function_at(0x1000),
                functions.function_at(u64::MAX - 1),
            );
        }
    }
    let mut rest = data;
    while let Some((_, size)) = record::next(rest) {
        rest = &rest[size..];
    }
    let kernel = KernelSymbols::parse(&String::from_utf8_lossy(data));
    let _ = kernel.at(0xffff_ffff_8100_0000);
}
