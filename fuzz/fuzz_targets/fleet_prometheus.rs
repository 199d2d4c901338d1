//! Arbitrary bytes as the answer of Prometheus: no panic, and whatever room a node has there, placing containers never makes more of
//! it.
#![no_main]

#[path = "common/room.rs"]
mod room;

use elbowroom::fleet::prometheus::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(nodes) = read(data) else { return };
    for reading in nodes.into_values().flatten() {
        room::never_grows(&reading);
        serde_json::to_vec(&reading).expect("numbers and words");
    }
});
