//! Leases on plain directories that stand for cgroups: what holds whatever the kernel does. Real cgroups, processes that
//! die and hostile ledgers are in `tests/live_lease/`.

use super::*;
use elbowroom_types::unit::Limit::{At, Max};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::MetadataExt;

struct FakeCgroup {
    dir: tempfile::TempDir,
}

impl FakeCgroup {
    fn new() -> Self {
        let fake = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(fake.dir.path().join("group")).unwrap();
        for file in ["cgroup.procs", "memory.high", "memory.max"] {
            fs::write(fake.dir.path().join("group").join(file), "max\n").unwrap();
        }
        fake
    }

    fn ledger(&self) -> PathBuf {
        self.dir.path().join(DIR)
    }

    fn open(&self) -> Leases {
        Leases::open(&self.ledger()).unwrap()
    }

    fn knob(&self, file: &str) -> CgroupKnob {
        let dir = self.dir.path().join("group");
        let inode = fs::metadata(&dir).unwrap().ino();
        CgroupKnob { dir, inode, file: file.to_owned(), key: None, unset: UnsetValue::Max }
    }

    fn knobs(&self) -> [CgroupKnob; 2] {
        ["memory.high", "memory.max"].map(|file| self.knob(file))
    }
}

#[test]
fn a_file_that_this_kernel_lacks_is_refused_and_a_group_that_is_gone_is_gone() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let (lacking, knob) = (fake.knob("memory.reclaim"), fake.knob("memory.high"));
    let refused = leases.set(&lacking, At(1), "test").unwrap();
    assert_eq!(refused, LeaseOutcome::Refused(KnobError::Refused(Errno::NOENT)));
    leases.set(&knob, At(1), "test").unwrap();
    fs::remove_dir_all(&knob.dir).unwrap();
    assert_eq!(leases.set(&knob, At(2), "test").unwrap(), LeaseOutcome::Gone);
    assert_eq!((leases.held().count(), leases.set(&knob, At(2), "test").unwrap()), (0, LeaseOutcome::Gone));
}

#[test]
fn a_holder_that_hears_of_lost_leases_has_none_that_were_set_since() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let [high, max] = fake.knobs();
    leases.set(&high, At(1), "test").unwrap();
    leases.holder.depose().unwrap();
    guard::end_all(&leases.ledger, guard::EndCause::Silence).unwrap();
    // Between the write that was held up and the next beat, something else is done.
    assert_eq!(leases.set(&max, At(2), "test").unwrap(), LeaseOutcome::Written);
    assert_eq!(leases.heartbeat(), [high.clone(), max.clone()]);
    assert_eq!((leases.held().count(), high.read(), max.read()), (0, Ok(Max), Ok(Max)));
    leases.set(&max, At(2), "test").unwrap();
    assert_eq!((leases.heartbeat(), max.read()), (Vec::new(), Ok(At(2))));
}

#[test]
fn what_is_adopted_is_the_value_from_before_and_ours_is_set_beside_it() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let knob = fake.knob("memory.high");
    let one_more = |leases: &mut Leases| {
        let more = |before: Limit<u64>| At(before.value().unwrap_or_default() + 1);
        leases.set_with(&knob, more, CgroupKnob::write, "test").unwrap()
    };
    assert_eq!(one_more(&mut leases), LeaseOutcome::Written);
    knob.write(At(7)).unwrap();
    assert_eq!(one_more(&mut leases), LeaseOutcome::Foreign { found: At(7) });
    leases.adopt(&knob);
    assert_eq!((one_more(&mut leases), knob.read()), (LeaseOutcome::Written, Ok(At(8))));
    // What is ours is not adopted.
    leases.adopt(&knob);
    assert_eq!((one_more(&mut leases), knob.read()), (LeaseOutcome::Unchanged, Ok(At(8))));
    // Written over, and not noticed yet.
    knob.write(At(20)).unwrap();
    leases.adopt(&knob);
    assert_eq!((one_more(&mut leases), knob.read()), (LeaseOutcome::Written, Ok(At(21))));
    assert_eq!((leases.release(&knob), knob.read()), (LeaseOutcome::Written, Ok(At(20))));
}

#[test]
fn limits_on_disks_are_in_a_ledger_of_their_own_and_under_the_same_guard() {
    let fake = FakeCgroup::new();
    let [high, max] = fake.knobs();
    let disks = fake.ledger().join(DISKS);
    let hold = || {
        let (mut leases, mut of_disks) = (fake.open(), Leases::open(&disks).unwrap());
        leases.set(&high, At(1), "test").unwrap();
        of_disks.set(&max, At(2), "test").unwrap();
        // Both end without a word.
        let left = LeaseSnapshot::read(&fake.ledger()).unwrap();
        assert_eq!(left.in_cgroup(Some(high.inode)).len(), 2);
    };
    hold();
    assert_eq!((high.read(), max.read()), (Ok(At(1)), Ok(At(2))));
    let mut guard = LeaseGuard::new(fake.ledger());
    guard.check();
    assert_eq!((high.read(), max.read()), (Ok(Max), Ok(Max)));
    hold();
    assert_eq!(restore(&fake.ledger()).unwrap().leases.len(), 2);
    assert_eq!((high.read(), max.read()), (Ok(Max), Ok(Max)));
    guard.restore_and_remove();
    assert!(!fake.ledger().exists());
}

#[test]
fn what_is_written_while_its_record_is_made_stays() {
    let fake = FakeCgroup::new();
    let knob = fake.knob("memory.high");
    for leased in [false, true] {
        knob.write(Max).unwrap();
        let mut leases = fake.open();
        if leased {
            leases.set(&knob, At(5), "test").unwrap();
        }
        // Between the first look at the knob and the write.
        let value = |_| {
            knob.write(At(77)).unwrap();
            At(6)
        };
        let outcome = leases.set_with(&knob, value, CgroupKnob::write, "test").unwrap();
        assert_eq!(outcome, LeaseOutcome::Foreign { found: At(77) });
        assert_eq!((leases.held().count(), knob.read()), (0, Ok(At(77))));
    }
}

#[test]
fn a_record_that_could_not_be_read_back_is_not_written_and_nothing_is_set() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let knob = fake.knob("memory.high");
    let error = leases.set(&knob, At(1), &"x".repeat(20_000)).unwrap_err();
    assert!(error.to_string().contains("File too large"), "{error}");
    assert_eq!((leases.held().count(), knob.read()), (0, Ok(Max)));
}

#[test]
fn leases_of_groups_that_are_gone_are_forgotten_and_no_others() {
    let (fake, other) = (FakeCgroup::new(), FakeCgroup::new());
    let mut leases = fake.open();
    let (gone, stays) = (fake.knob("memory.high"), other.knob("memory.high"));
    for knob in [&gone, &stays] {
        leases.set(knob, At(1), "test").unwrap();
    }
    fs::remove_dir_all(&gone.dir).unwrap();
    leases.forget_gone();
    assert_eq!(leases.held().map(|record| &record.knob).collect::<Vec<_>>(), [&stays]);
    let files = fs::read_dir(fake.ledger()).unwrap().map(|file| file.unwrap().file_name());
    assert_eq!(files.filter(|name| name.to_string_lossy().ends_with(".json")).count(), 1);
}

#[test]
fn a_look_at_leases_sees_those_of_this_boot_and_removes_none() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let [high, max] = fake.knobs();
    leases.set(&high, At(7), "test").unwrap();
    leases.set(&max, At(9), "test").unwrap();
    let record = fake.ledger().join(leases.held().next().unwrap().name());
    let text = fs::read_to_string(&record).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&record, text.replace(boot.trim(), "another")).unwrap();
    let held = LeaseSnapshot::read(&fake.ledger()).unwrap();
    let before = |knob: &CgroupKnob, text: &str| {
        value_before_leases(held.in_cgroup(Some(knob.inode)), &knob.file, text)
    };
    assert_eq!((before(&high, "7\n"), before(&max, "9\n")), (None, Some("max\n".to_owned())));
    assert_eq!(
        (before(&max, "8\n"), held.in_cgroup(None).len(), held.in_cgroup(Some(0)).len()),
        (None, 0, 0)
    );
    assert!(record.exists());
    assert!(LeaseSnapshot::read(&fake.ledger().join("none")).unwrap().in_cgroup(Some(high.inode)).is_empty());
}

#[test]
fn a_value_that_cannot_be_read_is_never_written_over() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let knob = fake.knob("memory.high");
    fs::write(knob.dir.join(&knob.file), "nonsense\n").unwrap();
    assert!(matches!(
        leases.set(&knob, At(1), "test").unwrap(),
        LeaseOutcome::Refused(KnobError::Malformed(_))
    ));
    assert_eq!(fs::read_to_string(knob.dir.join(&knob.file)).unwrap(), "nonsense\n");
}

#[test]
fn a_lease_that_cannot_be_ended_stays_on_record_with_the_value_from_before() {
    let fake = FakeCgroup::new();
    let knob = fake.knob("memory.high");
    knob.write(At(70)).unwrap();
    let mut leases = fake.open();
    leases.set(&knob, At(50), "test").unwrap();
    fs::write(knob.dir.join(&knob.file), "nonsense\n").unwrap();
    assert!(matches!(leases.release(&knob), LeaseOutcome::Refused(KnobError::Malformed(_))));
    drop(leases);
    let mut next = fake.open();
    assert_eq!(next.before(&knob), Some(At(70)));
    knob.write(At(50)).unwrap();
    assert_eq!((next.release(&knob), knob.read()), (LeaseOutcome::Written, Ok(At(70))));
}

#[test]
fn at_a_clean_end_nothing_is_left_of_the_ledger() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    leases.set(&fake.knob("memory.high"), At(5), "test").unwrap();
    leases.release_all();
    drop(leases);
    LeaseGuard::new(fake.ledger()).restore_and_remove();
    assert!(!fake.ledger().exists());
    // Nor is anything made where there never was one.
    LeaseGuard::new(fake.ledger()).restore_and_remove();
    assert!(restore(&fake.ledger()).unwrap().leases.is_empty() && !fake.ledger().exists());
}

#[test]
fn what_is_written_to_the_ledger_is_what_is_read() {
    let fake = FakeCgroup::new();
    let mut leases = fake.open();
    let knob = fake.knob("memory.high");
    leases.set(&knob, At(5), "said \"why\"\n").unwrap();
    let record = leases.held().next().unwrap().clone();
    let bytes = fs::read(fake.ledger().join(record.name())).unwrap();
    assert_eq!(LeaseRecord::parse(&record.name(), &bytes).unwrap(), record);
    assert_eq!((record.before, record.ours.as_slice(), record.knob), (Max, &[At(5)][..], knob));
    for cut in 0..bytes.len() {
        assert!(LeaseRecord::parse("x.json", &bytes[..cut]).is_err(), "{cut} bytes");
    }
}

#[derive(Clone, Debug)]
enum LeaseStep {
    Set(usize, Limit<u64>),
    Tighten(usize, Limit<u64>),
    Release(usize),
    ReleaseAll,
    /// Another program writes.
    Foreign(usize, Limit<u64>),
    /// The holder dies, and another one begins.
    Die,
    /// The guard takes everything away.
    Depose,
}

fn steps() -> impl Strategy<Value = Vec<LeaseStep>> {
    let ours = || (2..9u64).prop_map(At);
    // No other program writes the very values that are ours: they could not be told from ours.
    let foreign = || prop_oneof![Just(Max), (12..19u64).prop_map(At)];
    let step = prop_oneof![
        4 => (0..2usize, ours()).prop_map(|(knob, value)| LeaseStep::Set(knob, value)),
        4 => (0..2usize, prop_oneof![Just(Max), ours()]).prop_map(|(knob, value)| LeaseStep::Tighten(knob, value)),
        2 => (0..2usize).prop_map(LeaseStep::Release),
        1 => Just(LeaseStep::ReleaseAll),
        2 => (0..2usize, foreign()).prop_map(|(knob, value)| LeaseStep::Foreign(knob, value)),
        1 => Just(LeaseStep::Die),
        1 => Just(LeaseStep::Depose),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn whatever_happens_the_users_last_value_is_in_force_in_the_end(steps in steps(), users in any::<bool>()) {
        let fake = FakeCgroup::new();
        let knobs = fake.knobs();
        let mut last = [Max, if users { At(15) } else { Max }];
        knobs[1].write(last[1]).unwrap();
        let mut leases = fake.open();
        for step in steps {
            match step {
                LeaseStep::Set(i, value) => {
                    let outcome = leases.set(&knobs[i], value, "test").unwrap();
                    let now = knobs[i].read().unwrap();
                    match outcome {
                        LeaseOutcome::Written | LeaseOutcome::Unchanged => prop_assert_eq!(now, value),
                        LeaseOutcome::Foreign { found } => prop_assert_eq!((now, found), (last[i], last[i])),
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                LeaseStep::Tighten(i, value) => {
                    let outcome = leases.tighten(&knobs[i], value, "test").unwrap();
                    if !matches!(outcome, LeaseOutcome::Foreign { .. }) {
                        prop_assert_eq!(knobs[i].read().unwrap(), value.min(last[i]));
                    }
                }
                LeaseStep::Release(i) => {
                    leases.release(&knobs[i]);
                    prop_assert_eq!(knobs[i].read().unwrap(), last[i]);
                }
                LeaseStep::ReleaseAll => {
                    leases.release_all();
                }
                LeaseStep::Foreign(i, value) => {
                    knobs[i].write(value).unwrap();
                    last[i] = value;
                }
                LeaseStep::Die => {
                    drop(leases);
                    leases = fake.open();
                    prop_assert_eq!([knobs[0].read().unwrap(), knobs[1].read().unwrap()], last);
                }
                LeaseStep::Depose => {
                    leases.holder.depose().unwrap();
                    guard::end_all(&leases.ledger, guard::EndCause::Silence).unwrap();
                    leases.heartbeat();
                    prop_assert_eq!(leases.held().count(), 0);
                    prop_assert_eq!([knobs[0].read().unwrap(), knobs[1].read().unwrap()], last);
                }
            }
            // A record for each value of ours, and for nothing else.
            let ours = knobs.iter().zip(last).filter(|(knob, last)| knob.read() != Ok(*last)).count();
            prop_assert!(leases.held().count() >= ours);
        }
        drop(leases);
        restore(&fake.ledger()).unwrap();
        prop_assert_eq!([knobs[0].read().unwrap(), knobs[1].read().unwrap()], last);
        prop_assert!(restore(&fake.ledger()).unwrap().leases.is_empty());
    }

    #[test]
    fn no_bytes_make_a_record_that_could_do_harm(name in ".{0,20}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(record) = LeaseRecord::parse(&name, &bytes) {
            prop_assert!(record.knob.is_plausible());
        }
    }
}
