//! A program on the host and in a container of runc: the same words, environment and directory.

use elbowroom_linux::signal::SignalFd;
use elbowroom_profile::engine::{ContainerOptions, ContainerProgram, EngineError, EngineKind, EngineSession};
use rustix::process::Signal;
use std::fs;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// runc, where it can be used here, for one test at a time: what one closes is all of this process. Else why not is printed.
fn runc() -> Option<(EngineSession, MutexGuard<'static, ()>)> {
    static ONE: Mutex<()> = Mutex::new(());
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root: a container is made");
        return None;
    }
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match EngineSession::open(EngineKind::Runc, &ContainerOptions::default()) {
        Ok(engine) => Some((engine, turn)),
        Err(EngineError::Missing { .. }) => {
            eprintln!("skipped: needs runc, which is not installed");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program that starts another and waits for it; tells this profiler to end once both are there. Returns how the program ended,
/// when nothing of it is left.
fn told_to_end(
    dir: &Path,
    run: impl FnOnce(&ContainerProgram, &SignalFd) -> Option<ExitStatus> + Send + 'static,
) -> Option<ExitStatus> {
    // A FIFO has a reader while any of them has it open, in a container too.
    let (fifo, started) = (dir.join("fifo"), dir.join("started"));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let script = "exec 3<>fifo; sleep 1000 & echo > started; wait";
    let program = ContainerProgram {
        words: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        work_dir: dir.to_owned(),
        ..ContainerProgram::default()
    };
    let profiler: JoinHandle<Option<ExitStatus>> = std::thread::spawn(move || {
        let signals = SignalFd::block(&[Signal::TERM]).unwrap();
        run(&program, &signals)
    });
    until("it runs", || started.exists() || profiler.is_finished());
    // SAFETY: the thread is not joined yet; it has the signal blocked, which its program has shown by running.
    unsafe { libc::pthread_kill(profiler.as_pthread_t(), libc::SIGTERM) };
    until("it ends", || profiler.is_finished());
    // It is not read: all that had it open are gone.
    let write = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    until("what it started ends", || {
        matches!(rustix::fs::open(&fifo, write, 0.into()), Err(rustix::io::Errno::NXIO))
    });
    profiler.join().unwrap()
}

#[test]
fn a_signal_ends_a_program_on_the_host_with_what_it_started() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(told_to_end(dir.path(), |program, signals| program.run_on_host(signals).unwrap()), None);
}

#[test]
fn a_signal_ends_a_program_in_its_container() {
    let Some((engine, _turn)) = runc() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = move |program: &ContainerProgram, signals: &SignalFd| {
        let ended = engine.run(program, 0, signals).unwrap();
        assert_eq!(engine.close(), Vec::<String>::new());
        ended
    };
    assert_eq!(told_to_end(dir.path(), run), None);
}

#[test]
fn a_program_finds_in_its_container_what_was_named_and_the_container_goes_with_it() {
    let Some((engine, _turn)) = runc() else { return };
    let signals = SignalFd::block(&[Signal::TERM]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let seen = tempfile::tempdir().unwrap();
    fs::write(seen.path().join("model"), "weights").unwrap();
    let script = "echo $WORD $(cat $SEEN/model) $(hostname) >> answer; echo x 2>/dev/null > $SEEN/new || echo refused >> answer; \
                  test -c /dev/fuse && echo device >> answer; exit 3";
    let program = ContainerProgram {
        words: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        environment: vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("WORD".into(), "hello".into()),
            ("SEEN".into(), seen.path().display().to_string()),
        ],
        readable_paths: vec![seen.path().to_owned()],
        work_dir: dir.path().to_owned(),
        devices: Vec::new(),
    };
    let answer = || fs::read_to_string(dir.path().join("answer")).unwrap();
    assert_eq!(program.run_on_host(&signals).unwrap().unwrap().code(), Some(3));
    assert!(answer().starts_with("hello weights"), "{}", answer());
    fs::remove_file(dir.path().join("answer")).unwrap();
    assert_eq!(engine.run(&program, 0, &signals).unwrap().unwrap().code(), Some(3));
    let inside = answer();
    assert!(inside.starts_with("hello weights") && inside.contains("refused"), "{inside}");
    assert!(!inside.contains("device"), "a device that was not named is there: {inside}");
    let with = ContainerProgram { devices: vec!["/dev/fuse".into()], ..program };
    if fs::exists("/dev/fuse").unwrap() {
        engine.run(&with, 1, &signals).unwrap();
        assert!(answer().contains("device"), "{}", answer());
    }
    assert_eq!(engine.close(), Vec::<String>::new());
}
