//! What holds for any room that somebody says a node has.

use elbowroom::fleet::reading::Reading;
use elbowroom::fleet::{Ask, judge};
use elbowroom_types::claim::Reserve;
use elbowroom_types::unit::{Bytes, Millicpu, Percent};

/// Placing containers never makes more of it.
pub fn never_grows(reading: &Reading) {
    let disk = Reserve { rbps: Some(1 << 20), ..Reserve::default() };
    let ask = Ask { cpu: Millicpu(250), memory: Bytes::mib(64), disk };
    let room = &reading.room;
    let verdict = judge(room, &ask, Percent::whole(10));
    assert!(verdict.times >= 0.0, "{verdict:?}");
    assert!(judge(&room.least(room), &ask, Percent::whole(10)).times <= verdict.times);
}
