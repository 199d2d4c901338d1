use elbowroom_agent::view_server::abi::{FuseOp, FuseRequest, OUT_HEADER};
use elbowroom_agent::view_server::host_files::HostFiles;
use elbowroom_agent::view_server::fuse_server::FuseServer;
use elbowroom_agent::view_server::slots::Slots;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use std::sync::LazyLock;

static SLOTS: LazyLock<Slots> = LazyLock::new(|| {
    let slots = Slots::create(4, 2).expect("shared memory");
    for name in ["c0", "c1"] {
        slots
            .add(name, (0, 0), &[100; 64], &ContainerSnapshot::EMPTY, &[CpuTimes::default(); 2])
            .expect("a free slot");
    }
    slots
});

/// Whatever comes out of `/dev/fuse`: every request with a whole header gets exactly one answer, of the length it says,
/// with the name it came with.
pub fn run(bytes: &[u8]) {
    let Ok(request) = FuseRequest::decode(bytes) else { return };
    let mut out = Vec::new();
    // No host: what is under test is what the kernel says, not what files say.
    let answered = FuseServer::new(&SLOTS, HostFiles::new("/nonexistent")).answer(&request, &mut out);
    assert_eq!(answered, request.op != FuseOp::Silent);
    if answered {
        assert!(out.len() >= OUT_HEADER);
        assert_eq!(out[0..4], (out.len() as u32).to_ne_bytes());
        assert_eq!(out[8..16], request.unique.to_ne_bytes());
        assert_eq!(SLOTS.counters().failed, 0, "a page panicked");
    }
}
