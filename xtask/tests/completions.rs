//! Names of containers are completed, and none of them is obeyed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the agent of these tests has; containers are named by their makers.
const NAMES: &str = "web\nweb-2\ndb/shop.1\n$(touch hacked)\n`touch hacked`\nweb;touch hacked\n-web\nweb x\n";

/// The scripts, in a directory of this test's own: tests run at the same time.
fn completions(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let done = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("completions").arg(&dir).status().unwrap();
    assert!(done.success());
    dir
}

/// What bash offers for the last of these words, beside a program whose `list` says this.
fn offered(dir: &Path, list: &str, words: &[&str]) -> Vec<String> {
    let programs = dir.join("programs");
    fs::create_dir_all(&programs).unwrap();
    // The limit of a second that the scripts set is for people, and short for a busy machine.
    for (name, script) in [("elbowroom", list), ("timeout", "shift; exec \"$@\"")] {
        fs::write(programs.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let [.., before, last] = words else { panic!("two words at least") };
    let script = format!(
        "PATH='{}':$PATH; . ./elbowroom.bash; COMP_WORDS=({}); COMP_CWORD={}; _elbowroom_with_containers elbowroom '{last}' '{before}'; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        programs.display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    // A language that is not installed makes bash say so, and the user's own file may say anything.
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(dir).env("LC_ALL", "C").env_remove("BASH_ENV");
    let done = bash.output().expect("bash is there");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{words:?}");
    String::from_utf8(done.stdout)
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn names_of_containers_are_offered_and_only_harmless_ones() {
    let dir = completions("completions-bash");
    fs::write(dir.join("names"), NAMES).unwrap();
    let list = format!("cat '{}/names'", dir.display());
    let bash = |words: &[&str]| offered(&dir, &list, words);
    assert_eq!(bash(&["elbowroom", "show", ""]), ["web", "web-2", "db/shop.1"]);
    assert_eq!(bash(&["elbowroom", "--run-dir", "/run/x", "explain", "web-"]), ["web-2"]);
    assert_eq!(bash(&["elbowroom", "doctor", "d"]), ["db/shop.1"]);
    assert_eq!(bash(&["elbowroom", "inspect", "d"]), ["db/shop.1"]);
    assert!(!dir.join("hacked").exists());
    // Not where no container is meant.
    assert_eq!(bash(&["elbowroom", "show", "-o", ""]), ["text", "json", "yaml"]);
    assert!(bash(&["elbowroom", "show", "--f"]).contains(&"--format".to_owned()));
    assert!(!bash(&["elbowroom", "list", ""]).contains(&"web".to_owned()));
    assert!(bash(&["elbowroom", "expl"]).contains(&"explain".to_owned()));
    // Without an agent nothing is offered, and nothing is said.
    assert_eq!(offered(&dir, "echo no agent >&2; exit 2", &["elbowroom", "show", ""]), [""; 0]);
}

#[test]
fn the_other_shells_ask_for_names_as_well() {
    let dir = completions("completions-others");
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
    let (zsh, fish) = (read("_elbowroom"), read("elbowroom.fish"));
    assert!(zsh.starts_with("#compdef elbowroom\n_elbowroom_containers() {"));
    assert!(zsh.matches(":_elbowroom_containers'").count() >= 4, "{zsh}");
    assert!(fish.contains("using_subcommand explain\" -f -a \"(__fish_elbowroom_containers)\""), "{fish}");
}
