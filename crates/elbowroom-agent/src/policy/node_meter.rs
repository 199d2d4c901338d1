//! The machine itself, for clients that show it beside its containers.

use elbowroom_client::api::NodeView;
use elbowroom_types::sample::{HostEvent, NodeProperties, Tick};
use elbowroom_types::unit::{Bytes, Micros};

/// What the last events said of it.
#[derive(Debug, Default)]
pub(super) struct NodeMeter {
    cpus: u32,
    mem_total: Bytes,
    mem_free: Option<Bytes>,
    mem_available: Option<Bytes>,
    /// When the running one-second window began, and the CPU time used until then.
    window: Option<(Micros, Micros)>,
    cpu_used_millicpu: Option<u64>,
}

impl NodeMeter {
    pub(super) fn apply(&mut self, event: &HostEvent) {
        match event {
            HostEvent::Node(NodeProperties { online, mem_total, .. }) => {
                (self.cpus, self.mem_total) = (online.count(), *mem_total);
            }
            HostEvent::Tick(Tick { now, busy, mem_free, mem_available, .. }) => {
                self.mem_free = Some(*mem_free);
                self.mem_available = mem_available.or(self.mem_available);
                self.update_cpu_used(*now, *busy);
            }
            _ => {}
        }
    }

    pub(super) fn view(&self) -> NodeView {
        NodeView {
            cpus: self.cpus,
            cpu_used_millicpu: self.cpu_used_millicpu,
            memory_total: self.mem_total,
            memory_free: self.mem_free,
            memory_available: self.mem_available,
        }
    }

    /// Keeps `cpu_used_millicpu` at what was used over the last full second.
    fn update_cpu_used(&mut self, now: Micros, busy: Micros) {
        let Some((since, used)) = self.window else {
            self.window = Some((now, busy));
            return;
        };
        let elapsed = now.saturating_sub(since);
        if elapsed >= Micros::secs(1) {
            self.cpu_used_millicpu = Some(busy.saturating_sub(used).get() * 1_000 / elapsed.get());
            self.window = Some((now, busy));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_used_is_that_of_the_last_full_second() {
        let mut machine = NodeMeter::default();
        let mut at = |ms, busy_ms| {
            let tick = Tick { now: Micros::millis(ms), busy: Micros::millis(busy_ms), ..Tick::default() };
            machine.apply(&HostEvent::Tick(tick));
            machine.view().cpu_used_millicpu
        };
        assert_eq!([at(0, 10_000), at(500, 11_000), at(1_000, 11_500)], [None, None, Some(1_500)]);
        assert_eq!([at(1_999, 20_000), at(2_000, 11_750)], [Some(1_500), Some(250)]);
    }
}
