//! Arbitrary bytes as the answer of Prometheus: no panic, and whatever room a node has there, placing containers never makes more of
//! it.
#![no_main]

use elbowroom::fleet::prometheus::read;
use elbowroom_core::fleet::{Ask, judge};
use elbowroom_core::govern::claim::Reserve;
use elbowroom_core::unit::{Bytes, Millicpu, Percent};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(nodes) = read(data) else { return };
    let ask = Ask {
        cpu: Millicpu(250),
        memory: Bytes::mib(64),
        disk: Reserve { rbps: Some(1 << 20), ..Reserve::default() },
    };
    for reading in nodes.into_values().flatten() {
        let room = &reading.room;
        let verdict = judge(room, &ask, Percent::whole(10));
        assert!(verdict.times >= 0.0, "{verdict:?}");
        assert!(judge(&room.least(room), &ask, Percent::whole(10)).times <= verdict.times);
        serde_json::to_vec(&reading).expect("numbers and words");
    }
});
