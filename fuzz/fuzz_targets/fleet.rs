//! Arbitrary bytes as the snapshot of an agent: nothing panics, and whatever room it says there is, placing containers never makes more
//! of it.
#![no_main]

use elbowroom::fleet::reading::read;
use elbowroom_core::fleet::{Ask, judge};
use elbowroom_core::govern::claim::Reserve;
use elbowroom_core::unit::{Bytes, Millicpu, Percent};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(reading) = read(data) else { return };
    let ask = Ask {
        cpu: Millicpu(250),
        memory: Bytes::mib(64),
        disk: Reserve { rbps: Some(1 << 20), ..Reserve::default() },
    };
    let room = &reading.room;
    let verdict = judge(room, &ask, Percent::whole(10));
    assert!(verdict.times >= 0.0, "{verdict:?}");
    assert!(judge(&room.least(room), &ask, Percent::whole(10)).times <= verdict.times);
    let back = serde_json::to_vec(&reading).expect("numbers and words");
    assert!(serde_json::from_slice::<elbowroom::fleet::reading::Reading>(&back).is_ok());
});
