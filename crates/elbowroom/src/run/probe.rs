//! `elbowroom run --probe`: asks a source beside the command, for as long as the command runs, and tells the agent.

use elbowroom_agent::probes::settings::ProbeSettings;
use elbowroom_agent::probes::{PollerCount, ProbePoller};
use elbowroom_client::api::ControlRequest;
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::say;
use std::cell::RefCell;
use std::path::Path;

/// Starts asking. The agent may come and go, and may know the container a moment later: what it did not hear it is told again, and the
/// reason is said here once.
pub(super) fn start_poller(
    probe: ProbeSettings,
    run_dir: &Path,
    container: &str,
) -> std::io::Result<ProbePoller> {
    let (run_dir, container) = (run_dir.to_owned(), container.to_owned());
    let (client, told) = (RefCell::new(None), RefCell::new(String::new()));
    ProbePoller::start(probe, 0, &PollerCount::default(), move |record| {
        let problem = match record {
            Ok(record) => {
                let mut client = client.borrow_mut();
                let request = ControlRequest::Probe { container: format!("/elbowroom/{container}"), record };
                let asked = match client.take() {
                    Some(client) => Ok(client),
                    None => ControlClient::connect(&run_dir),
                };
                match asked.and_then(|mut asked| asked.request(&request).map(|_| asked)) {
                    Ok(asked) => {
                        *client = Some(asked);
                        String::new()
                    }
                    Err(error) => elbowroom_client::output::one_line(&error),
                }
            }
            Err(problem) => problem,
        };
        if !problem.is_empty() && problem != *told.borrow() {
            say(&format!("elbowroom: probe: {problem}"));
        }
        let was_heard = problem.is_empty();
        told.replace(problem);
        was_heard
    })
}
