use elbowroom_linux::watch::{CgroupEvent, parse_fanotify};
use std::os::unix::ffi::OsStrExt;

/// Smallest event.
const METADATA: usize = 24;
const WATCHED: [(u64, usize); 2] = [(7, 0), (u64::MAX, 5)];

/// Arbitrary bytes as events of fanotify: a notice is of a hierarchy that is watched and has its name from the buffer, and events
/// say the same alone as together.
pub fn run(data: &[u8]) {
    let mut together = Vec::new();
    parse_fanotify(data, &WATCHED, &mut together);
    assert!(together.len() <= data.len() / METADATA);
    for notice in &together {
        match notice {
            CgroupEvent::Tree { hierarchy, .. } => assert!([0, 5].contains(hierarchy)),
            CgroupEvent::File { hierarchy, name, .. } => {
                let name = name.as_bytes();
                assert!([0, 5].contains(hierarchy) && !name.contains(&0));
                assert!(name.is_empty() || data.windows(name.len()).any(|part| part == name));
            }
            CgroupEvent::Overflow => {}
        }
    }
    let (mut alone, mut rest) = (Vec::new(), data);
    while let Some(head) = rest.first_chunk::<METADATA>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (event, others) =
            rest.split_at(if length < METADATA { rest.len() } else { length.min(rest.len()) });
        parse_fanotify(event, &WATCHED, &mut alone);
        rest = others;
    }
    assert_eq!(alone, together);
}
