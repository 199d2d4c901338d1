//! How bad it is with a container: the order of rows, and their colour.

use elbowroom_client::api::ContainerView;
use elbowroom_govern::disk::LimitedBy;
use elbowroom_types::probe::Colour;

/// Worse ones are greater.
pub(super) fn severity(c: &ContainerView) -> u8 {
    let needs_memory = c.memory.as_ref().is_some_and(|memory| memory.colour == Colour::Red);
    let waits_for_disk = c.disk.iter().any(|disk| disk.held_by != LimitedBy::Nothing);
    2 * u8::from(needs_memory) + u8::from(waits_for_disk)
}

/// The same in a word.
pub(super) fn status(c: &ContainerView) -> String {
    match severity(c) {
        0 => "ok",
        1 => "waiting (disk)",
        _ => "waiting (memory)",
    }
    .to_owned()
}

/// Why, in a sentence.
pub(super) fn reason(_: &ContainerView) -> String {
    String::new()
}
