//! Compiles the libraries that `elbowroom run` preloads into programs; they are inside the binary. Where `shim/` does not know
//! the architecture they are empty, and `run` says so.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Library, its sources.
const LIBRARIES: [(&str, &[&str]); 2] =
    [("libelbowroom-openmp.so", &["openmp.c", "entry.S"]), ("libelbowroom-libc.so", &["libc.c"])];

fn main() {
    let shim = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../shim");
    let out = PathBuf::from(variable("OUT_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-env-changed=TARGET_CC");
    for file in ["view.h", "page.h", "resolve.h", "openmp.c", "entry.S", "libc.c"] {
        println!("cargo:rerun-if-changed={}", shim.join(file).display());
    }
    for (library, sources) in LIBRARIES {
        let library = out.join(library);
        match variable("CARGO_CFG_TARGET_ARCH").as_str() {
            "x86_64" => compile(&shim, sources, &[], &library),
            "aarch64" => compile(&shim, sources, &["-mno-outline-atomics"], &library),
            _ => std::fs::write(&library, []).expect("cargo's own directory can be written"),
        }
    }
}

/// As `shim/Makefile` does, which says why, without debugging information.
fn compile(shim: &Path, sources: &[&str], options: &[&str], library: &Path) {
    // As make has it: a command with its first arguments. `TARGET_CC` is for another machine (as for the crate `cc`).
    let compiler = ["TARGET_CC", "CC"].into_iter().find_map(|name| env::var(name).ok());
    let compiler = compiler.unwrap_or_else(|| "cc".to_owned());
    let mut words = compiler.split_whitespace();
    let name = library.file_name().expect("a library has a name").to_string_lossy();
    let status = Command::new(words.next().unwrap_or("cc"))
        .args(words)
        .args(["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-ffreestanding"])
        .args([
            "-fno-stack-protector",
            "-nostdlib",
            "-shared",
            "-Wl,-z,now",
            "-Wl,--hash-style=both",
            "-Wl,-s",
        ])
        .args(options)
        .arg(format!("-Wl,-soname,{name}"))
        .args(sources.iter().map(|source| shim.join(source)))
        .arg("-o")
        .arg(library)
        .status()
        .unwrap_or_else(|error| {
            panic!("{compiler} cannot be run ({error}): install a C compiler, or set CC")
        });
    assert!(status.success(), "{compiler} could not compile {name}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
