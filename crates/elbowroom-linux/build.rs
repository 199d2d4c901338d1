//! Compiles the BPF program that tells which containers ran.

include!("bpf/build.rs");

fn main() {
    compile(&["active"]);
}
