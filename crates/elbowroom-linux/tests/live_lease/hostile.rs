//! A ledger that is damaged, full, or not ours alone; cgroups that come back as others.

use crate::rig::{Holder, MIB, Part, Rig, USERS, rig};
use elbowroom_linux::lease::{CgroupKnob, DISKS, LeaseEnding, LeaseError, LeaseOutcome, Leases, restore};
use elbowroom_types::unit::Limit::{At, Max};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

/// A ledger whose holder was killed while it had limits on the first two knobs.
fn left_behind(rig: &Rig) {
    let mut holder = Holder::start(rig, Part::Obey);
    holder.set(&rig.knob(0), 5 * MIB);
    holder.set(&rig.knob(1), 4 * MIB);
    holder.kill();
    assert_eq!(rig.records().len(), 2);
}

#[test]
fn a_cgroup_that_was_made_anew_keeps_what_it_has() {
    let rig = rig!();
    left_behind(&rig);
    rig.remove_cgroup();
    rig.make_cgroup();
    // The very value that was ours.
    rig.knob(0).write(At(5 * MIB)).unwrap();
    let remains = restore(&rig.ledger()).unwrap();
    assert_eq!((remains.count(|fate| *fate == LeaseEnding::Gone), rig.records().len()), (2, 0));
    assert_eq!(rig.limits(), [At(5 * MIB), Max, Max, Max]);
}

#[test]
fn what_another_program_wrote_since_is_left() {
    let rig = rig!();
    left_behind(&rig);
    rig.knob(1).write(At(7 * MIB)).unwrap();
    let remains = restore(&rig.ledger()).unwrap();
    assert_eq!(remains.count(|fate| *fate == LeaseEnding::Restored), 1);
    assert_eq!(remains.count(|fate| *fate == LeaseEnding::Foreign(At(7 * MIB))), 1);
    assert_eq!(rig.limits(), [USERS[0], At(7 * MIB), USERS[2], USERS[3]]);
    assert!(rig.records().is_empty());
}

#[test]
fn files_that_are_no_records_are_skipped_and_the_others_restored() {
    let rig = rig!();
    left_behind(&rig);
    let ledger = rig.ledger();
    let good =
        rig.records().into_iter().find(|path| fs::read_to_string(path).unwrap().contains("4194304")).unwrap();
    let text = fs::read_to_string(&good).unwrap();
    let name = good.file_name().unwrap().to_str().unwrap();
    let outside = rig.run_dir().join("outside");
    fs::write(&outside, "4194304\n").unwrap();

    let mut damaged = 0;
    let mut plant = |name: &str, text: &[u8]| {
        fs::write(ledger.join(name), text).unwrap();
        damaged += 1;
    };
    plant("empty.json", b"");
    plant("cut.json", &text.as_bytes()[..text.len() / 2]);
    plant("noise.json", &[0xff; 5000]);
    plant("long.json", &[b' '; 100_000]);
    plant("elsewhere.json", text.as_bytes());
    plant("deep.json", "[".repeat(10_000).as_bytes());
    let forged = |from: &str, to: &str| text.replace(from, to).into_bytes();
    plant(&name.replace(".json", "x.json"), &forged("\"file\":\"", "\"file\":\"../"));
    let frozen = name.split_once('.').unwrap().0.to_owned() + ".cgroup.freeze.json";
    plant(&frozen, text.replace(&rig.knob(1).file, "cgroup.freeze").as_bytes());
    plant("7.json", &forged(&rig.cgroup().display().to_string(), "relative"));
    plant("later.json", &forged("\"version\":1", "\"version\":2"));
    symlink(&good, ledger.join("link.json")).unwrap();
    fs::create_dir(ledger.join("dir.json")).unwrap();
    mknodat(CWD, ledger.join("fifo.json"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::write(ledger.join("others.json"), &text).unwrap();
    chown(ledger.join("others.json"), Some(4242), None).unwrap();
    fs::write(ledger.join("unfinished"), "half a rec").unwrap();

    let remains = restore(&ledger).unwrap();
    assert_eq!(remains.damaged.len(), damaged + 4, "{:#?}", remains.damaged);
    assert_eq!(remains.count(|fate| *fate == LeaseEnding::Restored), 2, "{:?}", remains.leases);
    assert_eq!(rig.limits(), USERS);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "4194304\n");
    assert!(!ledger.join("unfinished").exists());
}

#[test]
fn a_record_of_something_that_is_no_cgroup_is_not_followed() {
    let rig = rig!();
    left_behind(&rig);
    let target = rig.run_dir().join("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("memory.max"), "5242880\n").unwrap();
    let knob = CgroupKnob {
        inode: std::os::unix::fs::MetadataExt::ino(&fs::metadata(&target).unwrap()),
        dir: target.clone(),
        file: "memory.max".into(),
        key: None,
        ..rig.knob(0)
    };
    let record =
        rig.records().into_iter().find(|path| fs::read_to_string(path).unwrap().contains("5242880")).unwrap();
    let text = fs::read_to_string(&record).unwrap();
    let old = serde_json::to_string(&rig.knob(0)).unwrap();
    let forged = text.replace(&old, &serde_json::to_string(&knob).unwrap());
    assert_ne!(text, forged);
    fs::write(rig.ledger().join(format!("{}.memory.max.json", knob.inode)), forged).unwrap();
    let remains = restore(&rig.ledger()).unwrap();
    assert_eq!(remains.count(|fate| *fate == LeaseEnding::Gone), 1, "{remains:?}");
    assert_eq!(fs::read_to_string(target.join("memory.max")).unwrap(), "5242880\n");
}

#[test]
fn a_ledger_that_cannot_be_read_does_not_keep_the_other_from_being_restored() {
    let rig = rig!();
    let (ledger, disks) = (rig.ledger(), rig.ledger().join(DISKS));
    left_behind(&rig);
    fs::write(&disks, "no directory").unwrap();
    assert!(matches!(restore(&ledger), Err(LeaseError::Insecure { .. })));
    assert_eq!(rig.limits(), USERS);

    fs::remove_file(&disks).unwrap();
    left_behind(&rig);
    fs::rename(&ledger, ledger.with_extension("moved")).unwrap();
    fs::create_dir_all(ledger.join("holder")).unwrap();
    fs::rename(ledger.with_extension("moved"), &disks).unwrap();
    assert!(matches!(restore(&ledger), Err(LeaseError::Io { .. })), "its holder's file is a directory");
    assert_eq!(rig.limits(), USERS);
}

#[test]
fn a_record_of_another_boot_is_thrown_away() {
    let rig = rig!();
    left_behind(&rig);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for record in rig.records() {
        let text = fs::read_to_string(&record).unwrap();
        fs::write(&record, text.replace(boot.trim(), "another")).unwrap();
    }
    assert!(restore(&rig.ledger()).unwrap().leases.is_empty());
    assert!(rig.records().is_empty());
    assert_eq!(rig.knob(0).read(), Ok(At(5 * MIB)), "an inode of another boot is another cgroup");
}

#[test]
fn no_limit_is_set_with_a_ledger_that_others_can_write() {
    let rig = rig!();
    let refused = |ledger: &Path| match Leases::open(ledger) {
        Err(LeaseError::Insecure { .. }) => {}
        other => panic!("{other:?}"),
    };
    let elsewhere = rig.run_dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let ledger = rig.ledger();
    symlink(&elsewhere, &ledger).unwrap();
    refused(&ledger);
    fs::remove_file(&ledger).unwrap();
    fs::write(&ledger, "").unwrap();
    refused(&ledger);
    fs::remove_file(&ledger).unwrap();
    fs::create_dir(&ledger).unwrap();
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o770)).unwrap();
    refused(&ledger);
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&ledger, Some(4242), None).unwrap();
    refused(&ledger);
    chown(&ledger, Some(0), None).unwrap();
    fs::set_permissions(rig.run_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    refused(&ledger);
    fs::set_permissions(rig.run_dir(), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("/etc/hostname", ledger.join("unfinished")).unwrap();
    let mut leases = Leases::open(&ledger).unwrap();
    assert_eq!(leases.set(&rig.knob(0), At(5 * MIB), "test").unwrap(), LeaseOutcome::Written);
    assert_eq!(fs::metadata("/etc/hostname").unwrap().len(), fs::read("/etc/hostname").unwrap().len() as u64);
}

#[test]
fn a_full_disk_means_no_new_limit_and_the_old_one_can_be_taken_off() {
    let rig = rig!();
    let disk = rig.run_dir().join("small");
    fs::create_dir(&disk).unwrap();
    if let Err(error) =
        mount("elbowroom-test", &disk, "tmpfs", MountFlags::empty(), Some(c"size=64k,mode=700"))
    {
        println!("skipped: needs to mount a tmpfs: {error}");
        return;
    }
    let _unmount = Unmount(&disk);
    let mut leases = Leases::open(&disk.join("leases")).unwrap();
    assert_eq!(leases.set(&rig.knob(0), At(5 * MIB), "test").unwrap(), LeaseOutcome::Written);
    let full = std::io::copy(&mut std::io::repeat(0), &mut fs::File::create(disk.join("ballast")).unwrap());
    assert!(full.is_err());
    for value in [4 * MIB, 6 * MIB] {
        let refused = leases.set(&rig.knob(0), At(value), "test").unwrap_err();
        assert!(refused.to_string().ends_with("No space left on device (os error 28)"), "{refused}");
        leases.set(&rig.knob(1), At(value), "test").unwrap_err();
        assert_eq!(rig.limits(), [At(5 * MIB), USERS[1], USERS[2], USERS[3]]);
    }
    assert_eq!(leases.held().count(), 1);
    assert_eq!(leases.release(&rig.knob(0)), LeaseOutcome::Written);
    assert_eq!(rig.limits(), USERS);
    fs::remove_file(disk.join("ballast")).unwrap();
    assert_eq!(leases.set(&rig.knob(1), At(5 * MIB), "test").unwrap(), LeaseOutcome::Written);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}
