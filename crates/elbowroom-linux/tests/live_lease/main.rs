//! Leases on real cgroups and a real loop device, whichever version the cgroups are; and processes that hold them and die.
//! Needs root; says so and passes where it is not.

mod death;
mod hostile;
mod rig;
mod trace;

use elbowroom_linux::cgroup::CgroupVersion;
use elbowroom_linux::lease::{LeaseOutcome, Leases, io, restore};
use elbowroom_types::id::CgroupId;
use elbowroom_types::io::{IoMax, IoWeightMechanism, LimitWriteFailure};
use elbowroom_types::unit::Limit::{At, Max};
use rig::{MIB, USERS, rig};

#[test]
fn a_limit_is_in_force_and_on_record_until_it_is_released() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    for (i, before) in USERS.into_iter().enumerate() {
        let knob = rig.knob(i);
        assert_eq!(leases.set(&knob, At(500), "test").unwrap(), LeaseOutcome::Written);
        assert_eq!(leases.set(&knob, At(500), "test").unwrap(), LeaseOutcome::Unchanged);
        assert_eq!((knob.read(), rig.records().len()), (Ok(At(500)), 1));
        assert_eq!(leases.set(&knob, At(600), "test").unwrap(), LeaseOutcome::Written);
        assert_eq!(leases.before(&knob), Some(before));
        assert_eq!(leases.release(&knob), LeaseOutcome::Written);
        assert_eq!(leases.release(&knob), LeaseOutcome::Unchanged);
        assert_eq!((rig.limits(), rig.records().len()), (USERS, 0));
    }
}

#[test]
fn asking_for_the_value_from_before_ends_the_lease() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    leases.set(&rig.knob(0), At(5 * MIB), "test").unwrap();
    assert_eq!(leases.set(&rig.knob(0), USERS[0], "test").unwrap(), LeaseOutcome::Written);
    assert_eq!((leases.held().count(), rig.records().len(), rig.limits()), (0, 0, USERS));
    assert_eq!(leases.set(&rig.knob(0), USERS[0], "test").unwrap(), LeaseOutcome::Unchanged);
}

#[test]
fn of_the_users_limits_and_ours_the_tighter_is_in_force_and_the_users_come_back() {
    let rig = rig!();
    let [rbps, wbps, riops, wiops] = USERS;
    let user = IoMax { rbps, wbps, riops, wiops };
    let in_force = || rig.io_max();
    assert_eq!(in_force(), user);
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    let looser = At(20 * MIB);
    let ours = IoMax { rbps: looser, wbps: At(3 * MIB), riops: At(u64::MAX), wiops: At(200) };
    let limits = io::set_io_max(&mut leases, &rig.place(), ours, None, None, "test");
    assert_eq!((limits.group, limits.disk), (CgroupId(7), rig.disk));
    assert_eq!((limits.user, limits.ceded), (user, None));
    assert_eq!(limits.ours, IoMax { wbps: At(3 * MIB), wiops: At(200), ..IoMax::MAX });
    assert_eq!(in_force(), IoMax { rbps, wbps: At(3 * MIB), riops: Max, wiops: At(200) });
    let tighter = IoMax { rbps: At(2 * MIB), ..ours };
    assert_eq!(io::set_io_max(&mut leases, &rig.place(), tighter, None, None, "test").ours.rbps, At(2 * MIB));
    assert_eq!(in_force().rbps, At(2 * MIB));
    let none = io::set_io_max(&mut leases, &rig.place(), IoMax::MAX, None, None, "test");
    assert_eq!((none.ours, in_force(), rig.records().len()), (IoMax::MAX, user, 0));
}

#[test]
fn limits_that_the_kernel_would_take_for_others_are_not_written() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    // v1 takes 0 for no limit, and the lower 32 bits of the second; v2 refuses 0 and 1.
    let ours = IoMax { rbps: At(0), wbps: At(1), riops: At((1 << 32) + 1), wiops: At(0) };
    let limits = io::set_io_max(&mut leases, &rig.place(), ours, None, None, "test");
    assert_eq!(limits.ours, IoMax { rbps: At(2), wbps: At(2), riops: Max, wiops: At(2) });
    assert_eq!(rig.limits(), [At(2), At(2), Max, At(2)]);
    leases.release_all();
    assert_eq!(rig.limits(), USERS);
}

/// What the weight file of a rig's cgroup says of its disk.
fn weight(rig: &rig::Rig, file: &str) -> Option<u64> {
    let text = std::fs::read_to_string(rig.cgroup().join(file)).unwrap();
    let device = format!("{} ", rig.disk);
    text.lines().find_map(|line| line.strip_prefix(&device)?.parse().ok())
}

#[test]
fn a_weight_is_lent_as_a_limit_is() {
    let rig = rig!();
    let (bfq, iocost) = match rig.version() {
        CgroupVersion::V1 => ("blkio.bfq.weight_device", None),
        CgroupVersion::V2 => ("io.bfq.weight", Some("io.weight")),
    };
    let mut tried = 0;
    for (weights, file, on) in [
        (IoWeightMechanism::Bfq, Some(bfq), rig.switch_on_bfq()),
        (IoWeightMechanism::Iocost, iocost, rig.switch_on_iocost()),
    ] {
        let Some(file) = file.filter(|file| on && rig.cgroup().join(file).exists()) else { continue };
        tried += 1;
        let mut leases = Leases::open(&rig.ledger()).unwrap();
        let mut set = |weight, weights| {
            let limits = io::set_io_max(&mut leases, &rig.place(), IoMax::MAX, weight, weights, "test");
            assert_eq!(limits.ceded, None);
        };
        let by = Some(weights);
        for (ours, by, now) in [
            (Some(250), by, Some(250)),
            (Some(40), by, Some(40)),
            (None, by, None),
            (Some(250), by, Some(250)),
            // It divides itself by weight no more.
            (Some(250), None, None),
        ] {
            set(ours, by);
            assert_eq!(
                (weight(&rig, file), rig.records().len()),
                (now, usize::from(now.is_some())),
                "{file}"
            );
        }
        std::fs::write(rig.cgroup().join(file), format!("{} 300", rig.disk)).unwrap();
        set(Some(250), by);
        assert_eq!(weight(&rig, file), Some(250), "{file}");
        drop(leases);
        restore(&rig.ledger()).unwrap();
        assert_eq!((weight(&rig, file), rig.limits()), (Some(300), USERS), "{file}");
    }
    if tried == 0 {
        println!("skipped: needs bfq or iocost");
    }
}

#[test]
fn a_weight_that_cannot_be_set_costs_no_limit() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    let ours = IoMax { rbps: At(5 * MIB), ..IoMax::MAX };
    // No disk of the rig divides by weight unless it is told to.
    let limits =
        io::set_io_max(&mut leases, &rig.place(), ours, Some(250), Some(IoWeightMechanism::Bfq), "test");
    assert_eq!((limits.ceded, limits.ours), (None, ours));
    assert_eq!((rig.knob(0).read(), rig.records().len()), (Ok(At(5 * MIB)), 1));
}

#[test]
fn a_limit_that_another_program_wrote_stays_and_none_of_ours_beside_it() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    let ours = IoMax { rbps: At(5 * MIB), wbps: At(5 * MIB), ..IoMax::MAX };
    io::set_io_max(&mut leases, &rig.place(), ours, None, None, "test");
    rig.knob(1).write(At(9 * MIB)).unwrap();
    for _ in 0..2 {
        let tighter = IoMax { rbps: At(4 * MIB), wbps: At(4 * MIB), ..IoMax::MAX };
        let limits = io::set_io_max(&mut leases, &rig.place(), tighter, None, None, "test");
        assert_eq!((limits.ceded, limits.ours), (Some(LimitWriteFailure::Foreign), IoMax::MAX));
        assert_eq!(limits.user.wbps, At(9 * MIB));
        assert_eq!(rig.limits(), [USERS[0], At(9 * MIB), USERS[2], USERS[3]]);
    }
    assert_eq!(rig.records().len(), 0);
}

#[test]
fn limits_that_went_with_their_disk_are_no_other_programs_doing() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    let ours = IoMax { wbps: At(5 * MIB), ..IoMax::MAX };
    io::set_io_max(&mut leases, &rig.place(), ours, None, None, "test");
    rig.knob(1).write(Max).unwrap();
    let limits = io::set_io_max(&mut leases, &rig.place(), IoMax::MAX, None, None, "test");
    assert_eq!((limits.ceded, rig.records().len()), (None, 0));
    // Another disk with this number is governed at once.
    assert_eq!(io::set_io_max(&mut leases, &rig.place(), ours, None, None, "test").ours, ours);
}

#[test]
fn a_users_own_limit_changed_under_ours_is_in_force() {
    let rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    leases.tighten(&rig.knob(0), At(5 * MIB), "test").unwrap();
    rig.knob(0).write(At(3 * MIB)).unwrap();
    assert_eq!(leases.release(&rig.knob(0)), LeaseOutcome::Foreign { found: At(3 * MIB) });
    assert_eq!((rig.knob(0).read(), rig.records().len()), (Ok(At(3 * MIB)), 0));
}

#[test]
fn a_disk_that_is_not_there_is_refused_and_a_cgroup_that_is_not_there_is_gone() {
    let mut rig = rig!();
    let mut leases = Leases::open(&rig.ledger()).unwrap();
    let ours = IoMax { rbps: At(5 * MIB), ..IoMax::MAX };
    let disk = std::mem::replace(&mut rig.disk, "4095:7".parse().unwrap());
    let ceded = |leases: &mut Leases, rig: &rig::Rig| {
        io::set_io_max(leases, &rig.place(), ours, None, None, "test").ceded
    };
    assert_eq!((ceded(&mut leases, &rig), rig.records().len()), (Some(LimitWriteFailure::Refused), 0));
    rig.disk = disk;
    assert_eq!(ceded(&mut leases, &rig), None);
    rig.remove_cgroup();
    assert_eq!(ceded(&mut leases, &rig), Some(LimitWriteFailure::Gone));
    let ended = leases.release_all();
    assert!(ended.iter().all(|ended| ended.fate == elbowroom_linux::lease::LeaseEnding::Gone), "{ended:?}");
    assert_eq!(rig.records().len(), 0);
}

#[test]
fn there_is_one_holder() {
    let rig = rig!();
    let holder = rig::Holder::start(&rig, rig::Part::Obey);
    let refused = Leases::open(&rig.ledger()).unwrap_err().to_string();
    assert_eq!(refused, format!("process {} holds leases in {}", holder.pid(), rig.ledger().display()));
}
