//! What each container used lately, as a curve of a line's height.

use elbowroom_client::api::ContainerView;
use std::collections::{HashMap, VecDeque};

/// Points of a curve.
pub(super) const HISTORY_POINTS: usize = 20;
const SPARKLINE_BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// CPU that each container used lately, by its identifier.
#[derive(Default)]
pub(super) struct CpuHistory(HashMap<String, VecDeque<u64>>);

impl CpuHistory {
    /// Takes a moment.
    pub(super) fn record(&mut self, containers: &[ContainerView]) {
        self.0.retain(|id, _| containers.iter().any(|c| c.id == *id));
        for c in containers {
            let points = self.0.entry(c.id.clone()).or_default();
            if points.len() == HISTORY_POINTS {
                points.pop_front();
            }
            points.push_back(c.cpu_used_millicpu);
        }
    }

    /// The curve of a container; `full` thousandths of a CPU are its whole height.
    pub(super) fn sparkline(&self, id: &str, full: u64) -> String {
        let points = self.0.get(id).into_iter().flatten();
        points.map(|p| SPARKLINE_BARS[((p * 8).checked_div(full).unwrap_or(0) as usize).min(7)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_fills_up_to_the_upper_bound() {
        let mut history = CpuHistory::default();
        history.0.insert("a".into(), VecDeque::from([0, 1_000, 2_000, 9_000]));
        assert_eq!(history.sparkline("a", 2_000), "▁▅██");
        assert_eq!(history.sparkline("a", 0), "▁▁▁▁");
    }
}
