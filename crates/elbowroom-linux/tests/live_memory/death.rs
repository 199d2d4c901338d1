//! Processes that die while they hold a group and reclaim from it, at every point at which they can: nothing stays squeezed.

use crate::room::{ID, MIB, Room, room};
use crate::trace::Tracee;
use elbowroom_linux::cgroup::{CgroupLayout, CgroupVersion};
use elbowroom_linux::lease::{Leases, restore};
use elbowroom_linux::memory::MemoryActuator;
use elbowroom_linux::root::Root;
use elbowroom_types::memory::ReclaimRequest;
use elbowroom_types::unit::{Bytes, Micros};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const LEDGER: &str = "ELBOWROOM_TEST_MEMORY_LEDGER";
const PATH: &str = "ELBOWROOM_TEST_MEMORY_PATH";
/// How many random deaths; in a soak, more.
const DEATHS: &str = "ELBOWROOM_TEST_MEMORY_DEATHS";

/// Not a test: what the processes that tests start do.
#[test]
fn part() {
    let (Some(ledger), Ok(path)) = (std::env::var_os(LEDGER), std::env::var(PATH)) else { return };
    let mut leases = Leases::open(Path::new(&ledger)).unwrap();
    let mut actuator = MemoryActuator::new(CgroupLayout::detect(&Root::host().unwrap()).unwrap());
    println!("\nready {}", rustix::thread::gettid().as_raw_nonzero());
    let order = ReclaimRequest {
        at: Micros::ZERO,
        group: ID,
        amount: Bytes(8 * MIB),
        keep: Bytes::ZERO,
        swap: false,
        dead: false,
        saving: false,
    };
    for _ in std::io::stdin().lines() {
        println!("{:?}", actuator.reclaim(&mut leases, &order, &path).outcome);
    }
}

struct Reclaimer {
    child: Child,
    output: BufReader<ChildStdout>,
    tid: i32,
}

impl Reclaimer {
    fn start(room: &Room) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "death::part", "--nocapture", "--test-threads=1"])
            .env(LEDGER, room.ledger())
            .env(PATH, room.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut reclaimer = Self { child, output, tid: 0 };
        reclaimer.tid = loop {
            if let Some(tid) = reclaimer.line().strip_prefix("ready ") {
                break tid.parse().unwrap();
            }
        };
        reclaimer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended");
        line.trim_end().to_owned()
    }

    fn tell(&mut self, times: usize) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all("go\n".repeat(times).as_bytes()).unwrap();
    }

    fn has_spoken(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    fn kill(&mut self, tracee: Option<Tracee>) {
        self.child.kill().unwrap();
        if let Some(tracee) = tracee {
            tracee.reap();
        }
        self.child.wait().unwrap();
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a guard does; it hears that the holder lives until the last write of the holder's children is over.
fn assert_restored(room: &Room, case: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let remains = restore(&room.ledger()).unwrap();
        if remains.held_by.is_none() {
            assert_eq!((room.limits(), room.records()), (room.set(256), 0), "{case}: {remains:?}");
            return;
        }
        assert!(Instant::now() < deadline, "{case}: {remains:?}");
    }
}

/// Whether something of ours is in force: on v1, where a limit would kill, only what keeps memory out of swap.
fn is_squeezed(room: &Room) -> bool {
    let (now, users) = (room.limits(), room.set(256));
    assert!(room.version() == CgroupVersion::V2 || now[0] == users[0], "{now:?}");
    now != users
}

/// Every stop; where everything takes longer, some.
fn stride() -> usize {
    if std::env::var_os("ELBOWROOM_TEST_PATIENCE").is_some() { 17 } else { 1 }
}

#[test]
fn killed_at_any_system_call_of_a_transient_limit_nothing_stays_squeezed() {
    let mut room = room!();
    room.set_limit(256);
    room.reread(64);
    let (mut squeezed, mut stops) = (0, 0);
    for stop in (0..).step_by(stride()) {
        let mut reclaimer = Reclaimer::start(&room);
        let tracee = Tracee::seize(reclaimer.tid);
        reclaimer.tell(1);
        let mut left = stop;
        while left > 0 && !reclaimer.has_spoken() && tracee.step() {
            left -= 1;
        }
        let over = left > 0;
        squeezed += usize::from(is_squeezed(&room));
        reclaimer.kill(Some(tracee));
        assert_restored(&room, &format!("killed at stop {stop}"));
        if over {
            stops = stop;
            break;
        }
    }
    println!("killed at {stops} stops / {}, {squeezed} times with something of ours in force", stride());
    assert!(stops > 30, "{stops} stops: a transient limit is not what it was");
    let could_be = room.version() == CgroupVersion::V2 || room.swap_free() > 0;
    assert!(squeezed > 0 || !could_be || stride() > 1, "it was never killed where it matters");
}

#[test]
fn killed_at_random_while_it_reclaims_nothing_stays_squeezed() {
    let mut room = room!();
    room.set_limit(256);
    room.reread(64);
    let deaths = std::env::var(DEATHS).ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let (mut squeezed, mut seed) = (0, u64::from(std::process::id()));
    for death in 0..deaths {
        let mut reclaimer = Reclaimer::start(&room);
        reclaimer.tell(1000);
        reclaimer.line();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((seed >> 33) % 20_000));
        reclaimer.kill(None);
        squeezed += usize::from(is_squeezed(&room));
        assert_restored(&room, &format!("death {death}"));
    }
    println!("killed {deaths} times at random, {squeezed} times with something of ours in force");
}
