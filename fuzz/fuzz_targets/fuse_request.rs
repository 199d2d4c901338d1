//! Whatever comes out of `/dev/fuse`: every request with a whole header gets exactly one answer, of the length it says,
//! with the name it came with.

#![no_main]

use elbowroom_agent::view_server::abi::{Op, OUT_HEADER, Request};
use elbowroom_agent::view_server::hosttext::HostText;
use elbowroom_agent::view_server::server::Server;
use elbowroom_agent::view_server::slots::Slots;
use elbowroom_view::pages::facts::{CpuTimes, Facts};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static SLOTS: LazyLock<Slots> = LazyLock::new(|| {
    let slots = Slots::create(4, 2).expect("shared memory");
    for name in ["c0", "c1"] {
        slots.add(name, 0, &[100; 64], &Facts::EMPTY, &[CpuTimes::default(); 2]).expect("a free slot");
    }
    slots
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = Request::decode(bytes) else { return };
    let mut out = Vec::new();
    // No host: what is under test is what the kernel says, not what files say.
    let answered = Server::new(&SLOTS, HostText::new("/nonexistent")).answer(&request, &mut out);
    assert_eq!(answered, request.op != Op::Silent);
    if answered {
        assert!(out.len() >= OUT_HEADER);
        assert_eq!(out[0..4], (out.len() as u32).to_ne_bytes());
        assert_eq!(out[8..16], request.unique.to_ne_bytes());
        assert_eq!(SLOTS.counters().failed, 0, "a page panicked");
    }
});
