//! Holders that die, sleep, or do both, at every point at which they can.

use crate::rig::{Holder, MIB, Part, Random, Rig, USERS, patience, rig};
use elbowroom_linux::lease::{HEARTBEAT_INTERVAL, LeaseEnding, LeaseGuard, Leases, restore};
use elbowroom_linux::timer::prefer_realtime;
use elbowroom_types::unit::Limit::At;
use rustix::process::Signal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How many stops a holder makes at its system calls on its way through [`Part::Cycle`].
fn stops(rig: &Rig) -> usize {
    let mut holder = Holder::start(rig, Part::Cycle);
    holder.trace();
    holder.tell("go");
    let mut stops = 0;
    while holder.step() {
        stops += 1;
    }
    drop(holder);
    let remains = restore(&rig.ledger()).unwrap();
    assert_eq!(remains.count(|fate| *fate == LeaseEnding::Restored), 1, "{remains:?}");
    assert_eq!(rig.limits(), USERS);
    stops
}

/// A holder that has come to its `stop`th stop; or to its end, or to where it says something and waits, because no two runs
/// make the same number of system calls.
fn stopped_at(rig: &Rig, part: Part, stop: usize) -> Holder {
    let mut holder = Holder::start(rig, part);
    holder.trace();
    holder.tell("go");
    let mut left = stop;
    while left > 0 && !holder.has_spoken() && holder.step() {
        left -= 1;
    }
    holder
}

/// Every stop; where everything takes longer, some.
fn stride() -> usize {
    if patience(Duration::from_secs(1)) > Duration::from_secs(1) { 7 } else { 1 }
}

fn assert_clean(rig: &Rig, case: &str) {
    let first = restore(&rig.ledger()).unwrap();
    assert_eq!(rig.limits(), USERS, "{case}: {first:?}");
    assert_eq!(
        first.count(|fate| matches!(fate, LeaseEnding::Failed(_) | LeaseEnding::Foreign(_))),
        0,
        "{case}: {first:?}"
    );
    assert!(first.damaged.is_empty() && rig.records().is_empty(), "{case}: {first:?}");
    assert!(restore(&rig.ledger()).unwrap().leases.is_empty(), "{case}: restored twice");
}

#[test]
fn killed_at_any_system_call_a_holder_leaves_the_users_limits() {
    let rig = rig!();
    let stops = stops(&rig);
    assert!(stops > 100, "{stops} stops: the cycle is not what it was");
    let mut limited = 0;
    for stop in (0..stops).step_by(stride()) {
        let holder = stopped_at(&rig, Part::Cycle, stop);
        limited += usize::from(rig.limits() != USERS);
        holder.kill();
        assert_clean(&rig, &format!("killed at stop {stop}"));
    }
    println!("killed at {stops} stops / {}, {limited} times with a limit of ours in force", stride());
    assert!(limited > stops / stride() / 4, "{limited} of {stops}");
}

#[test]
fn stopped_at_any_system_call_a_holder_is_deposed_and_leaves_nothing_whatever_it_does_then() {
    let rig = rig!();
    let stops = stops(&rig);
    // All at once: it takes seconds to be sure that a holder is silent.
    let held = (0..stops).step_by(stride()).map(|stop| {
        let rig = rig.another();
        let holder = stopped_at(&rig, Part::Cycle, stop);
        (stop, rig, holder)
    });
    let held: Vec<_> = held.collect();
    depose(held.iter().map(|(_, rig, _)| rig));
    let mut random = Random(42);
    for (stop, rig, mut holder) in held {
        // It goes on, and dies a little later; or not before it is through.
        let mut more = random.below(stops as u64);
        while more > 0 && holder.step() {
            more -= 1;
        }
        holder.kill();
        assert_clean(&rig, &format!("stopped at {stop}, {more} left"));
    }
}

#[test]
fn deposed_in_the_middle_of_a_change_a_holder_says_what_is_in_force() {
    let rig = rig!();
    let mut first = stopped_at(&rig, Part::Change, 0);
    let mut stops = 0;
    while !first.has_spoken() {
        assert!(first.step(), "it lives on");
        stops += 1;
    }
    first.kill();
    let held = (0..stops).step_by(stride()).map(|stop| {
        let rig = rig.another();
        let holder = stopped_at(&rig, Part::Change, stop);
        (rig, holder)
    });
    let held: Vec<_> = held.collect();
    depose(held.iter().map(|(rig, _)| rig));
    let (mut revoked, mut late) = (0, 0);
    for (rig, mut holder) in held {
        holder.let_go();
        let (said, now) = (holder.line(), rig.knob(0).read().unwrap());
        match said.as_str() {
            // Deposed before the change began: it found out first.
            "Written 1" if now == At(6 * MIB) => {}
            // Deposed after it had looked for the last time: it finds out with the next change or beat.
            "Written 1" if now == USERS[0] => late += 1,
            "Revoked 0" => {
                assert_eq!(now, USERS[0]);
                revoked += 1;
            }
            said => panic!("{said}, and {now} is in force"),
        }
        assert_eq!(holder.ask("again"), "Written", "what the guard wrote is no foreign value");
    }
    // How many system calls a holder makes after its last look is a matter of its allocator and of the kernel.
    assert!(
        revoked > 20 / stride() && revoked > late,
        "{revoked} revoked, {late} too late to say so, {stops} stops"
    );
}

/// Watches holders until all are deposed.
fn depose<'a>(rigs: impl Iterator<Item = &'a Rig>) {
    let mut guarded: Vec<_> = rigs.map(|rig| (rig, LeaseGuard::new(rig.ledger()))).collect();
    let until = Instant::now() + patience(Duration::from_secs(30));
    let mut looks = 0;
    while looks < 5 || guarded.iter().any(|(rig, _)| rig.limits() != USERS) {
        assert!(Instant::now() < until, "limits of holders that are silent stay");
        guarded.iter_mut().for_each(|(_, guard)| guard.check());
        looks += 1;
        std::thread::sleep(Duration::from_micros(HEARTBEAT_INTERVAL.get()));
    }
}

#[test]
fn a_holder_that_slept_finds_out_and_begins_anew() {
    let rig = rig!();
    let mut holder = Holder::start(&rig, Part::Obey);
    holder.set(&rig.knob(0), 5 * MIB);
    assert_eq!(holder.ask("beat"), "0");
    let mut guard = LeaseGuard::new(rig.ledger());
    holder.signal(Signal::STOP);
    let stopped = Instant::now();
    while rig.limits() != USERS {
        assert!(stopped.elapsed() < patience(Duration::from_secs(10)), "limits stay");
        guard.check();
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = stopped.elapsed();
    assert!(took > Duration::from_millis(2_500), "{took:?}: a beat that is late is no silence");
    holder.signal(Signal::CONT);
    assert_eq!(holder.ask("beat"), "1", "the lease that was taken away is told");
    assert_eq!((holder.ask("beat").as_str(), rig.records().len()), ("0", 0));
    holder.set(&rig.knob(0), 4 * MIB);
    for _ in 0..4 {
        assert_eq!(holder.ask("beat"), "0");
        guard.check();
        std::thread::sleep(Duration::from_micros(HEARTBEAT_INTERVAL.get()));
    }
    assert_eq!(rig.knob(0).read(), Ok(At(4 * MIB)), "a holder that works keeps its leases");
    holder.kill();
    guard.check();
    assert_clean(&rig, "killed");
}

#[test]
fn restoring_waits_until_it_is_sure_that_a_holder_is_silent() {
    let rig = rig!();
    let mut holder = Holder::start(&rig, Part::Obey);
    holder.set(&rig.knob(0), 5 * MIB);
    let works = restore(&rig.ledger()).unwrap();
    assert_eq!((works.held_by, works.leases.len()), (Some((holder.pid(), 1)), 0));
    assert_eq!(rig.knob(0).read(), Ok(At(5 * MIB)));
    holder.signal(Signal::STOP);
    let until = Instant::now() + patience(Duration::from_secs(20));
    while restore(&rig.ledger()).unwrap().leases.is_empty() {
        assert!(Instant::now() < until, "never sure");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(rig.limits(), USERS);
}

#[test]
fn restoring_does_not_wait_for_a_holder_of_nothing_however_silent() {
    let rig = rig!();
    let holder = Holder::start(&rig, Part::Obey);
    holder.signal(Signal::STOP);
    // As long as it takes to be silent, and a little.
    std::thread::sleep(Duration::from_micros(4 * HEARTBEAT_INTERVAL.get()));
    let (ledger, (done, remains)) = (rig.ledger(), mpsc::channel());
    std::thread::spawn(move || done.send(restore(&ledger).unwrap().held_by));
    assert_eq!(remains.recv_timeout(patience(Duration::from_secs(5))), Ok(Some((holder.pid(), 0))));
}

#[test]
fn two_hundred_killed_while_they_change_limits_leave_none_for_a_second() {
    let rig = rig!();
    prefer_realtime();
    let mut random = Random(u64::from(std::process::id()) << 32 | 1);
    let (mut slowest, mut limited) = (Duration::ZERO, 0);
    let mut guard = LeaseGuard::new(rig.ledger());
    for kill in 0..200 {
        let mut holder = Holder::start(&rig, Part::Storm);
        holder.tell("go");
        while rig.limits() == USERS {
            assert!(holder.is_alive(), "before kill {kill}");
        }
        // Not waiting for anything: to be somewhere else each time.
        std::thread::sleep(Duration::from_micros(random.below(8_000)));
        let killed = Instant::now();
        holder.kill();
        limited += usize::from(rig.limits() != USERS);
        guard.check();
        assert_eq!(rig.limits(), USERS, "after kill {kill}");
        assert!(rig.records().is_empty(), "after kill {kill}");
        slowest = slowest.max(killed.elapsed());
    }
    println!("200 kills, {limited} of them with a limit in force; all back within {slowest:?}");
    assert!(limited > 100, "{limited}: the storm is no storm");
    assert!(slowest < patience(Duration::from_secs(1)), "{slowest:?}");
}

#[test]
fn five_hundred_limits_are_back_within_seconds() {
    let rig = rig!();
    let mut holder = Holder::start(&rig, Part::Obey);
    let rigs: Vec<Rig> = (0..125).map(|_| rig.another()).collect();
    for knob in rigs.iter().flat_map(Rig::knobs) {
        holder.set(&knob, 600);
    }
    assert_eq!(rig.records().len(), 500);
    holder.kill();
    prefer_realtime();
    let began = Instant::now();
    let remains = restore(&rig.ledger()).unwrap();
    let took = began.elapsed();
    println!("500 limits restored in {took:?}");
    assert_eq!(remains.count(|fate| *fate == LeaseEnding::Restored), 500);
    assert!(rigs.iter().all(|rig| rig.limits() == USERS));
    // A second on a quiet machine; tests run beside others here.
    assert!(took < patience(Duration::from_secs(3)), "{took:?}");
}

#[test]
fn a_new_holder_begins_with_what_the_users_set() {
    let rig = rig!();
    let mut holder = Holder::start(&rig, Part::Obey);
    holder.set(&rig.knob(0), 5 * MIB);
    holder.set(&rig.knob(1), 4 * MIB);
    holder.kill();
    let leases = Leases::open(&rig.ledger()).unwrap();
    assert_eq!((rig.limits(), leases.held().count()), (USERS, 0));
    assert!(rig.records().is_empty());
}
