//! See the library.

fn main() -> std::process::ExitCode {
    elbowroom::main()
}
