//! What an audit reads in programs that a compiler made for it.

use elbowroom_audit::inventory::elf;
use elbowroom_audit::rules::evidence::{ElfEvidence, Libc, SizingCall};
use std::process::Command;

/// What is seen in a compiled C program; `None`, with a word why, where there is no compiler.
fn compiled(source: &str, options: &[&str]) -> Option<ElfEvidence> {
    elf::read(&program(source, options)?)
}

fn program(source: &str, options: &[&str]) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("x.c"), dir.path().join("x"));
    std::fs::write(&input, source).unwrap();
    match Command::new("cc").args(options).arg("-w").arg("-o").arg(&output).arg(&input).output() {
        Ok(done) if done.status.success() => {}
        Ok(done) => panic!("{}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => {
            println!("skipped: needs a C compiler: {error}");
            return None;
        }
    }
    Some(std::fs::read(output).unwrap())
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_is_told_by_what_it_asks_sysconf_for() {
    let source = |body: &str| {
        format!("#include <unistd.h>\n#include <stdio.h>\nint main(int n, char **v) {{ {body} }}")
    };
    for (body, expect) in [
        ("return sysconf(_SC_NPROCESSORS_ONLN);", &[SizingCall::NprocessorsOnln][..]),
        (
            "return sysconf(_SC_NPROCESSORS_CONF) + sysconf(_SC_PHYS_PAGES);",
            &[SizingCall::NprocessorsConf, SizingCall::PhysPages],
        ),
        ("return sysconf(_SC_PAGESIZE);", &[]),
        // 'T' is 84, as _SC_NPROCESSORS_ONLN is.
        ("putchar_unlocked(n); putchar('T'); puts(v[0]); return sysconf(_SC_PAGESIZE);", &[]),
    ] {
        for options in
            [&["-O2"][..], &["-O0"], &["-O2", "-no-pie"], &["-O2", "-fno-plt"], &["-O2", "-fcf-protection"]]
        {
            let Some(elf) = compiled(&source(body), options) else { return };
            assert_eq!(elf.calls.iter().copied().collect::<Vec<_>>(), expect, "{body} {options:?}");
            assert!(elf.program && elf.libc == Libc::Glibc, "{elf:?}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn bytes_that_several_sections_claim_are_searched_once() {
    let source = "#include <unistd.h>\nint main() { return sysconf(_SC_NPROCESSORS_ONLN); }";
    let Some(mut bytes) = program(source, &["-O2"]) else { return };
    let calls = |bytes: &[u8]| elf::read(bytes).unwrap().calls;
    assert!(calls(&bytes).contains(&SizingCall::NprocessorsOnln));
    // The first section, before the program's own code, is code too, and all of the file (Elf64_Shdr, 64 bytes each).
    let first = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap() + 64;
    for (field, value) in [(8, 0x6), (16, 0x7f00_0000), (24, 0), (32, bytes.len() as u64)] {
        bytes[first + field..first + field + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    assert!(calls(&bytes).is_empty());
}

#[test]
fn calls_are_told_by_their_imports() {
    let source = "#define _GNU_SOURCE\n#include <sched.h>\n#include <sys/sysinfo.h>\n\
                  int main() { cpu_set_t s; struct sysinfo i; return sched_getaffinity(0, sizeof s, &s) + sysinfo(&i); }";
    let Some(elf) = compiled(source, &[]) else { return };
    assert_eq!(elf.calls.into_iter().collect::<Vec<_>>(), [SizingCall::Affinity, SizingCall::Sysinfo]);
}

#[test]
fn the_build_information_of_an_old_go_is_read_through_its_pointers() {
    let source = r#"
        struct text { const char *data; unsigned long length; };
        static const char version[] = "go1.16.5";
        static const char module[] = "path\tx\ndep\tgo.uber.org/automaxprocs\tv1.5.0\th1:x=\n";
        struct text v = { version, sizeof version - 1 }, m = { module, sizeof module - 1 };
        __attribute__((section(".go.buildinfo"), used, aligned(16)))
        struct { char magic[14]; char size, flags; struct text *version, *module; }
            info = { "\377 Go buildinf:", sizeof(void *), 0, &v, &m };
        int main() { return 0; }"#;
    let Some(elf) = compiled(source, &["-no-pie"]) else { return };
    let go = elf.go.expect("it has build information");
    assert_eq!(go.version, "go1.16.5");
    assert!(go.modules.contains("go.uber.org/automaxprocs"), "{go:?}");
}

#[test]
fn a_text_that_only_looks_like_build_information_is_none() {
    let source =
        r#"__attribute__((used)) const char magic[] = "\377 Go buildinf:"; int main() { return 0; }"#;
    let Some(elf) = compiled(source, &[]) else { return };
    assert_eq!(elf.go, None);
}
