//! Decisions as sentences, with the numbers that decided.

use super::member::MemoryMember;
use super::pool::MemoryPool;
use super::{recall, to_bytes};
use elbowroom_types::probe::Colour;

/// Why nothing is saved where harm could not be seen.
pub(super) const NO_PRESSURE: &str = "the kernel does not count how long it waits for memory (memory.pressure: cgroup v2, with PSI), so harm could not be seen";
pub(super) const NOT_ENFORCED: &str = "memory.mode is not enforce";
pub(super) const NOT_WATCHED: &str = "how long it waits for memory was not measured for long enough";

pub(super) fn lend(giver: &MemoryMember, needer: &str, pool: &MemoryPool) -> String {
    format!(
        "{} has no use for more, {needer} has, and {} are free; it uses {}, and its minimum of {} stays",
        colour_text(giver),
        size(pool.free),
        size(giver.usage()),
        size(giver.minimum),
    )
}

pub(super) fn ask(giver: &MemoryMember, needer: &str) -> String {
    format!(
        "{} has no use for all of its {}, {needer} has: its view shows less, so that its programs can give some back",
        colour_text(giver),
        size(giver.usage())
    )
}

pub(super) fn recall(giver: &MemoryMember, needer: &str, short: f64) -> String {
    format!(
        "it uses {} and is entitled to {}; {needer} misses its objective and is entitled to {} more than it has",
        size(giver.usage()),
        size(recall::entitled_usage(giver)),
        size(short),
    )
}

pub(super) fn drain(giver: &MemoryMember) -> String {
    format!("no process is in it, and {} of page cache are left behind", size(giver.usage()))
}

pub(super) fn hold(harm: &str, returned: bool) -> String {
    match returned {
        true => format!("its own load returned: {harm}; it has all of its memory again"),
        false => format!("a loan hurt: {harm}"),
    }
}

pub(super) fn stalled(part: f64) -> String {
    format!("it waited for memory for {} of the time", percent(part))
}

pub(super) fn refaulted(refault: f64, taken: f64) -> String {
    format!("{} of the {} that it gave came back at once", size(refault), size(taken))
}

pub(super) fn overcommit(path: &str, reserved: f64, total: f64) -> String {
    let whose = if path == "/" { "the machine has".to_owned() } else { format!("{path} has") };
    format!(
        "{} are reserved and {whose} {} for containers: reservations shrink by weight until there is more memory, or a container \
         elsewhere",
        size(reserved),
        size(total),
    )
}

pub(super) fn starved(member: &MemoryMember, owed: f64) -> String {
    format!(
        "{} misses its objective with {} and is entitled to {}, which others hold and the kernel cannot take: make them give it back \
         (a heap that shrinks, a smaller buffer pool), or add swap",
        member.name,
        size(member.usage()),
        size(owed),
    )
}

pub(super) fn saves(harm: f64) -> String {
    format!("no container needs it; harm is at {} of what may be", percent(harm))
}

pub(super) fn waits(stall: f64, budget: f64) -> String {
    format!("it waits for memory {:.2}% of the time; {:.2}% may be", stall * 100.0, budget * 100.0)
}

pub(super) fn comes_back(rate: f64, harmless: f64) -> String {
    format!("{} of its memory come back every second; {} may", size(rate), size(harmless))
}

pub(super) fn foreign(container: &str) -> String {
    format!(
        "another program set the protection of {container} that was the agent's: the agent leaves it alone for ten minutes"
    )
}

fn colour_text(member: &MemoryMember) -> &'static str {
    match member.colour() {
        Colour::Green => "a container that serves everything that is asked",
        Colour::Yellow => "a container that does better than its objective",
        Colour::Red => "a container that misses its objective",
    }
}

fn size(amount: f64) -> String {
    to_bytes(amount).to_string()
}

/// `17%`; one decimal where a whole number says little.
fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() < 9.95 && percent != 0.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}
