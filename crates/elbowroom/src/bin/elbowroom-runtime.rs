//! What runs while a container starts: see [`elbowroom::oci`].

fn main() -> std::process::ExitCode {
    elbowroom::oci::main()
}
