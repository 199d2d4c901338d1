//! Several fixes together: each is worked out on the host as those before it leave it, so that claims add up and no file is
//! raised twice for two reasons.

use super::facts::HostFacts;
use super::{CHECKS, examine, run};
use elbowroom_types::finding::{DoctorFinding, FileWrite, Severity};
use std::collections::BTreeSet;

/// The findings to fix, in order, each with the writes as they will be when it is its turn. `wanted` says which may be.
pub fn plan_fixes(facts: &HostFacts, wanted: impl Fn(&DoctorFinding) -> bool) -> Vec<DoctorFinding> {
    let mut facts = facts.clone();
    let mut planned = Vec::new();
    let mut raised: BTreeSet<String> = BTreeSet::new();
    for first in examine(&facts).into_iter().filter(|f| wanted(f) && is_fixable(f)) {
        let Some(check) = CHECKS.iter().find(|c| c.id == first.check) else { continue };
        // The same finding now: an earlier fix may have removed it, or changed what it takes.
        let same =
            |f: &DoctorFinding| f.cgroup == first.cgroup && f.evidence.first() == first.evidence.first();
        let Some(finding) = run(check, &facts).into_iter().find(|f| same(f) && is_fixable(f)) else {
            continue;
        };
        let writes = finding.fix.as_ref().map_or(&[][..], |fix| &fix.writes);
        // After a finding raised a limit, events from before that do not raise it again. Claims only add up.
        if writes.iter().any(|w| raised.contains(&w.file) && !w.file.ends_with("/memory.low")) {
            continue;
        }
        for write in writes {
            raised.insert(write.file.clone());
            facts.apply(write);
        }
        planned.push(finding);
    }
    planned
}

/// Whether `--fix` can do it.
pub fn is_fixable(finding: &DoctorFinding) -> bool {
    finding.fix.as_ref().is_some_and(|fix| !fix.writes.is_empty())
}

/// Whether it makes a host unhealthy.
pub fn is_harmful(finding: &DoctorFinding) -> bool {
    finding.severity > Severity::Info
}

impl HostFacts {
    /// What the host's settings say after a write; its counters stay what they were.
    pub fn apply(&mut self, write: &FileWrite) {
        if let Some(setting) = self.host.settings.get_mut(&write.file) {
            setting.clone_from(&write.to);
            return;
        }
        let Some((dir, file)) = write.file.rsplit_once('/') else { return };
        for group in self.groups.iter_mut().filter(|g| g.dirs.values().any(|d| d == dir)) {
            if let Some(text) = group.files.get_mut(file) {
                text.clone_from(&write.to);
            }
        }
    }
}
