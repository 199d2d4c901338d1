//! What a person may choose about views; everything else follows from the paper.

use elbowroom_types::unit::{Micros, Percent};
use serde::{Deserialize, Serialize};

/// How effective CPU moves between its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuRule {
    /// Algorithm 1 as printed: one CPU up or down per period, a flat sum over all containers, any slack is slack. The
    /// extensions of [`ViewRules`] are off, whatever their fields say.
    Paper,
    /// Effective CPU is what weighted max-min fairness would give. It is down within 200 ms and up within a second, where single
    /// steps need dozens of periods on a big machine. It is right for programs that do not follow their view, which leave no slack
    /// to find. See [`super::waterfill`], `docs/decisions/0005-default-rule.md` and `docs/decisions/0039-calm-cpu-view.md`.
    #[default]
    Waterfill,
}

/// The choices. Every field has a default; an unknown field is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct ViewRules {
    /// How effective CPU moves between its bounds.
    pub cpu: CpuRule,
    /// Count a container's fair share level by level among siblings that have processes, bind it by the tightest quota and
    /// cpuset of all its ancestors, and grant it no memory that a group above it has promised to others
    /// (`docs/decisions/0031-memory-of-groups.md`). Off: by its own settings, among all containers of the machine, as if
    /// they were siblings.
    pub hierarchy: bool,
    /// Measure CPU time on the CPUs that the container may use, where ticks carry per-CPU times. Off: all CPUs count, also those
    /// where the container cannot go.
    pub cpuset_slack: bool,
    /// Leave groups that used no CPU time for [`ViewRules::idle_after`] out of the sum behind LOWER.
    ///
    /// Hazard: LOWER is then no longer a guarantee. When the sleepers wake, it falls back at once, and a program that
    /// sized itself by the higher bound has more threads than its share carries. Off by default for that reason:
    /// growth above LOWER, one step per period, finds the same room without promising it.
    pub idle_siblings: bool,
    /// How long a group must use nothing before it counts as idle.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub idle_after: Micros,
    /// Count effective memory that was granted and is not filled yet as taken, and divide what is left among all that ask
    /// in one period. Off: the paper, where containers that fill slowly are promised more than there is, and are all
    /// thrown back to their soft limits when they come for it.
    pub memory_promises: bool,
    /// Count memory as free that the kernel would reclaim without hurting a container (`MemAvailable` less what is protected), leave
    /// to others what they have reserved, and fall back when reclaim hurts, not when it runs; with [`ViewRules::memory_promises`], grow
    /// slowly beyond what hurt (`docs/decisions/0038-memory-on-warm-hosts.md`). Off: the paper, where only `MemFree` counts, which page
    /// cache brings down to the watermarks on every machine that has been up for a day.
    pub reclaimable_memory: bool,
    /// A container that used more than this part of its effective CPU is busy (the paper's 95 %).
    pub cpu_busy: Percent,
    /// A container that uses more than this part of its effective memory is pressed (the paper's 90 %).
    pub memory_pressed: Percent,
    /// Effective memory grows by this part of what is left up to the hard limit (the paper's 10 %).
    pub memory_step: Percent,
}

impl ViewRules {
    /// The paper's algorithms and constants, nothing else.
    pub const fn paper() -> Self {
        Self {
            cpu: CpuRule::Paper,
            hierarchy: false,
            cpuset_slack: false,
            idle_siblings: false,
            idle_after: Micros::secs(1),
            memory_promises: false,
            reclaimable_memory: false,
            cpu_busy: Percent::whole(95),
            memory_pressed: Percent::whole(90),
            memory_step: Percent::whole(10),
        }
    }

    /// The choices as they apply: [`CpuRule::Paper`] has no extensions. Its three thresholds stay what the file says.
    #[must_use]
    pub const fn in_force(self) -> Self {
        match self.cpu {
            CpuRule::Paper => Self {
                cpu_busy: self.cpu_busy,
                memory_pressed: self.memory_pressed,
                memory_step: self.memory_step,
                ..Self::paper()
            },
            CpuRule::Waterfill => self,
        }
    }
}

impl Default for ViewRules {
    fn default() -> Self {
        Self {
            cpu: CpuRule::Waterfill,
            hierarchy: true,
            cpuset_slack: true,
            memory_promises: true,
            reclaimable_memory: true,
            ..Self::paper()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_as_people_write_it() {
        let text = r#"{"cpu": "waterfill", "idle_after": "250ms", "memory_step": "0.5%"}"#;
        let policy: ViewRules = serde_json::from_str(text).unwrap();
        assert_eq!((policy.cpu, policy.idle_after), (CpuRule::Waterfill, Micros::millis(250)));
        assert_eq!(policy.cpu_busy, Percent::whole(95), "the rest are defaults");
    }

    #[test]
    fn a_field_that_does_not_exist_or_has_no_unit_is_refused() {
        for text in [
            r#"{"hierachy": true}"#,
            r#"{"cpu_busy": 95}"#,
            r#"{"cpu_busy": "95"}"#,
            r#"{"idle_after": "1"}"#,
        ] {
            assert!(serde_json::from_str::<ViewRules>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rule_that_does_not_exist_is_refused_with_those_that_do() {
        let refused = serde_json::from_str::<ViewRules>(r#"{"cpu": "adaptive"}"#).unwrap_err().to_string();
        assert!(
            refused.starts_with("unknown variant `adaptive`, expected `paper` or `waterfill`"),
            "{refused}"
        );
    }

    #[test]
    fn a_policy_writes_and_reads_back() {
        for idle_after in [Micros(1), Micros(1_000_500), Micros::secs(90)] {
            let policy = ViewRules { idle_after, ..ViewRules::default() };
            let text = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<ViewRules>(&text).unwrap(), policy, "{text}");
        }
    }

    #[test]
    fn the_paper_has_no_extensions_whatever_the_fields_say() {
        let asked = ViewRules { cpu: CpuRule::Paper, idle_siblings: true, ..ViewRules::default() };
        assert_eq!(asked.in_force(), ViewRules::paper());
        assert_eq!(ViewRules::default().in_force(), ViewRules::default());
    }
}
