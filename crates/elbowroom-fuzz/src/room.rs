//! What holds for any room that an agent, or Prometheus, says a node has.

use elbowroom::fleet::placement::{PlacementRequest, evaluate};
use elbowroom::fleet::reading::NodeReading;
use elbowroom_types::claim::DiskReservation;
use elbowroom_types::unit::{Bytes, Millicpu, Percent};

/// Placing containers never makes more of it.
pub fn never_grows(reading: &NodeReading) {
    let disk = DiskReservation { rbps: Some(1 << 20), ..DiskReservation::default() };
    let ask = PlacementRequest { cpu: Millicpu(250), memory: Bytes::mib(64), disk };
    let room = &reading.room;
    let verdict = evaluate(room, &ask, Percent::whole(10));
    assert!(verdict.times >= 0.0, "{verdict:?}");
    assert!(evaluate(&room.min_of(room), &ask, Percent::whole(10)).times <= verdict.times);
}
