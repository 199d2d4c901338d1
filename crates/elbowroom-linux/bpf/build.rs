// Compiling BPF programs; the build scripts of crates that have some include this file.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The oldest clang whose BPF back end is known to compile the program, and the newest name worth trying.
const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 14..=22;

/// Headers that programs of more than one crate need.
const SHARED: &str = "../elbowroom-linux/bpf";

/// Compiles `bpf/NAME.bpf.c` into `$OUT_DIR/NAME.bpf.o` when the feature `bpf` is on; otherwise does nothing and needs nothing.
fn compile(programs: &[&str]) {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed={SHARED}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let source = manifest.join("bpf");
    // libbpf-sys, a direct dependency for this, exports where the headers of the libbpf it builds are.
    let headers = variable("DEP_BPF_INCLUDE");
    let clang = clang();
    for program in programs {
        // cpu=v3 (Linux 5.12) has the atomic instructions; -g is what BTF and CO-RE relocations come from.
        let status = Command::new(&clang)
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror"])
            // No path of the machine that builds is in what is built.
            .arg(format!("-ffile-prefix-map={}=bpf", source.display()))
            .arg(format!("-ffile-prefix-map={}=shared", manifest.join(SHARED).display()))
            .arg(format!("-ffile-prefix-map={headers}=libbpf"))
            .arg("-fdebug-compilation-dir=.")
            .arg("-I")
            .arg(&source)
            .arg("-I")
            .arg(manifest.join(SHARED))
            .arg("-I")
            .arg(&headers)
            .arg("-c")
            .arg(source.join(format!("{program}.bpf.c")))
            .arg("-o")
            .arg(PathBuf::from(variable("OUT_DIR")).join(format!("{program}.bpf.o")))
            .status()
            .expect("the clang that was found can be run");
        assert!(status.success(), "clang could not compile bpf/{program}.bpf.c");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// `$CLANG`, or `clang`, or the newest `clang-N`.
fn clang() -> String {
    if let Ok(clang) = env::var("CLANG") {
        return clang;
    }
    let runs = |name: &String| {
        Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    std::iter::once("clang".to_owned())
        .chain(CLANG_VERSIONS.rev().map(|version| format!("clang-{version}")))
        .find(runs)
        .unwrap_or_else(|| {
            panic!("feature \"bpf\" needs clang: install it, set CLANG=/path/to/clang, or build without the feature")
        })
}
