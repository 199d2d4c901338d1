//! Compiles the BPF programs of the profilers.

include!("../elbowroom-linux/bpf/build.rs");

fn main() {
    compile(&["fault_functions", "fault_tracepoints", "page_tables"]);
}
