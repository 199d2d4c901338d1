//! What a running agent knows, and no file tells: containers that were killed for memory and are gone, and the verdict of one container.

use crate::checks::HostFacts;
use elbowroom_client::api::{ContainerView, ControlRequest, ControlResponse, display_name};
use elbowroom_client::control::ControlClient;
use elbowroom_types::finding::{DoctorFinding, FindingFix, Severity};
use elbowroom_types::verdict::Verdict;
use elbowroom_types::verdict::VerdictStatus;
use std::path::Path;

/// The agent, where one answers. What it does not know is no error here: the doctor needs no agent.
pub(super) struct AgentKnowledge(Option<ControlClient>);

impl AgentKnowledge {
    /// Connects to the agent of `run_dir`.
    pub(super) fn open(run_dir: &Path) -> Self {
        Self(ControlClient::connect(run_dir).ok())
    }

    fn ask(&mut self, request: &ControlRequest) -> Option<ControlResponse> {
        self.0.as_mut()?.request(request).ok()
    }

    /// One finding for each container that was killed for memory within the last hour and is not there now. None without an agent.
    pub(super) fn killed_and_gone(&mut self, facts: &HostFacts) -> Vec<DoctorFinding> {
        let Some(ControlResponse::List(ended)) = self.ask(&ControlRequest::Ended) else { return Vec::new() };
        let is_there = |view: &ContainerView| facts.containers().any(|group| group.path == view.path);
        let killed = |view: &&ContainerView| view.verdict.status == VerdictStatus::Killed && !is_there(view);
        ended.iter().filter(killed).map(finding).collect()
    }

    /// What the agent says of the container at a cgroup path, in one word, one sentence and perhaps one command.
    pub(super) fn verdict(&mut self, path: &str) -> Option<Verdict> {
        match self.ask(&ControlRequest::Show(path.to_owned()))? {
            ControlResponse::Container(container) => Some(container.verdict),
            _ => None,
        }
    }
}

/// The check that finds the same in containers that run.
const CHECK: &str = "oom-killed";
/// The check that has no container to name.
const NAMELESS_CHECK: &str = "host-out-of-memory";

fn finding(view: &ContainerView) -> DoctorFinding {
    let fix = view.verdict.command.as_ref().map(|command| FindingFix {
        commands: vec![command.clone()],
        // Its files are gone: this is for a person to type, or for what starts it again.
        writes: Vec::new(),
    });
    let found = DoctorFinding::new(Severity::Critical, format!("It is gone: {}.", view.verdict.reason))
        .for_cgroup(Some(display_name(view)), &view.path)
        .with_fix(fix)
        .with_advice("`elbowroom list -a` lists the containers that ended within the last hour.");
    DoctorFinding {
        check: CHECK.to_owned(),
        reference: "Documentation/admin-guide/cgroup-v2.rst, memory.events oom_kill".to_owned(),
        ..found
    }
}

/// The findings with those of the dead in front. What only says that some process was killed somewhere is left out then.
pub(super) fn with_deaths(
    mut deaths: Vec<DoctorFinding>,
    findings: Vec<DoctorFinding>,
) -> Vec<DoctorFinding> {
    let are_named = !deaths.is_empty();
    let says_nothing_new =
        |f: &DoctorFinding| are_named && f.check == NAMELESS_CHECK && f.severity < Severity::Critical;
    deaths.extend(findings.into_iter().filter(|f| !says_nothing_new(f)));
    deaths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_with_a_name_takes_the_place_of_one_without() {
        let found = |check: &str, severity| DoctorFinding {
            check: check.to_owned(),
            ..DoctorFinding::new(severity, "x")
        };
        let checks =
            |findings: Vec<DoctorFinding>| -> Vec<String> { findings.into_iter().map(|f| f.check).collect() };
        let host = || vec![found(NAMELESS_CHECK, Severity::Warning), found("other", Severity::Info)];
        let dead = || vec![found(CHECK, Severity::Critical)];
        assert_eq!(checks(with_deaths(dead(), host())), [CHECK, "other"]);
        assert_eq!(checks(with_deaths(Vec::new(), host())), [NAMELESS_CHECK, "other"]);
        let by_host = vec![found(NAMELESS_CHECK, Severity::Critical)];
        assert_eq!(checks(with_deaths(dead(), by_host)), [CHECK, NAMELESS_CHECK]);
    }
}
