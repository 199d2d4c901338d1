//! The machine on one line: CPU, memory, and how much of the time tasks waited for them.

use super::columns::cpus;
use super::severity::Level;
use elbowroom_client::api::NodeView;
use elbowroom_client::number_format::short_bytes;
use elbowroom_linux::proc;
use elbowroom_linux::root::Root;

/// The machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLine {
    pub(super) node: Option<NodeView>,
    /// `some avg10` of cpu, memory and io (`Documentation/accounting/psi.rst`), in hundredths of a percent; `None` where the kernel
    /// has no PSI, and in recordings.
    pub(super) pressure: Option<[u32; 3]>,
}

impl NodeLine {
    /// The machine now.
    pub(super) fn now(node: NodeView) -> Self {
        Self { node: Some(node), pressure: read_pressure() }
    }

    /// In words, a part each; the pressures have how bad they are.
    pub(super) fn parts(&self) -> Vec<(String, Level)> {
        let mut parts = Vec::new();
        if let Some(node) = self.node {
            let used = node.cpu_used_millicpu.map_or_else(|| "-".to_owned(), cpus);
            parts.push((format!("CPU {used}/{}", node.cpus), Level::Calm));
            let used = node.memory_used().map_or_else(|| "-".to_owned(), |used| short_bytes(used.get()));
            parts.push((format!("memory {used}/{}", short_bytes(node.memory_total.get())), Level::Calm));
        }
        if let Some(pressure) = self.pressure {
            parts.push(("waiting for".to_owned(), Level::Calm));
            for (what, part) in ["cpu", "memory", "io"].into_iter().zip(pressure) {
                let level = match part {
                    BAD.. => Level::Bad,
                    FELT.. => Level::Felt,
                    _ => Level::Calm,
                };
                parts.push((format!("{what} {}%", part / 100), level));
            }
        }
        parts
    }
}

/// From this part of the time on a person would notice.
const FELT: u32 = 1_000;
/// From this part of the time on work takes markedly longer.
const BAD: u32 = 4_000;

fn read_pressure() -> Option<[u32; 3]> {
    let root = Root::host().ok()?;
    let read = |name: &str| {
        let text = root.read(format!("/proc/pressure/{name}")).ok()?;
        Some(proc::pressure(&text).ok()?.some.avg10)
    };
    Some([read("cpu")?, read("memory")?, read("io")?])
}
