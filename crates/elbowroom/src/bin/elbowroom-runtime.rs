//! What runs while a container starts: see [`elbowroom_agent::engines::oci`].

fn main() -> std::process::ExitCode {
    elbowroom_agent::engines::oci::main()
}
