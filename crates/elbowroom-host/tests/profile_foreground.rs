//! A program on the host and in a container of runc: the same words, environment and directory.

use elbowroom_host::profile::engine::{Engine, EngineError, Kind, Options, Program};
use std::fs;

#[test]
fn a_program_finds_in_its_container_what_was_named_and_the_container_goes_with_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root: a container is made");
        return;
    }
    let engine = match Engine::open(Kind::Runc, &Options::default()) {
        Ok(engine) => engine,
        Err(EngineError::Missing { .. }) => return eprintln!("skipped: needs runc, which is not installed"),
        Err(error) => panic!("{error}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let seen = tempfile::tempdir().unwrap();
    fs::write(seen.path().join("model"), "weights").unwrap();
    let script = "echo $WORD $(cat $SEEN/model) $(hostname) >> answer; echo x 2>/dev/null > $SEEN/new || echo refused >> answer; \
                  test -c /dev/fuse && echo device >> answer; exit 3";
    let program = Program {
        words: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        environment: vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("WORD".into(), "hello".into()),
            ("SEEN".into(), seen.path().display().to_string()),
        ],
        seen: vec![seen.path().to_owned()],
        directory: dir.path().to_owned(),
        devices: Vec::new(),
    };
    let answer = || fs::read_to_string(dir.path().join("answer")).unwrap();
    assert_eq!(program.native().unwrap().code(), Some(3));
    assert!(answer().starts_with("hello weights"), "{}", answer());
    fs::remove_file(dir.path().join("answer")).unwrap();
    assert_eq!(engine.run(&program, 0).unwrap().code(), Some(3));
    let inside = answer();
    assert!(inside.starts_with("hello weights") && inside.contains("refused"), "{inside}");
    assert!(!inside.contains("device"), "a device that was not named is there: {inside}");
    let with = Program { devices: vec!["/dev/fuse".into()], ..program };
    if fs::exists("/dev/fuse").unwrap() {
        engine.run(&with, 1).unwrap();
        assert!(answer().contains("device"), "{}", answer());
    }
    assert_eq!(engine.close(), Vec::<String>::new());
}
