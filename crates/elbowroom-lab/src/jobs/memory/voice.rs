//! What passes between the experiment and the agent: the applications' records, and what the agent says it decided.

use super::Decided;
use super::story::Who;
use crate::product::Product;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// An application's record, in a file that the agent reads.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    /// The file.
    pub(crate) file: PathBuf,
    /// What the application has promised, in transactions a second.
    pub(crate) objective: u32,
}

impl Voice {
    /// Says what was served of what was asked for in the last second. A reader sees this record or the one before, whole.
    pub(crate) fn say(&self, served: f64, offered: f64) -> Result<()> {
        let new = self.file.with_extension("new");
        let record =
            format!("served={served:.1} offered={offered:.1} objective={} kind=throughput\n", self.objective);
        fs::write(&new, record).with_context(|| format!("while writing {}", new.display()))?;
        fs::rename(&new, &self.file).with_context(|| format!("while replacing {}", self.file.display()))
    }
}

/// The agent's decisions about the containers, gathered while it remembers them.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    known: BTreeSet<(u64, Who)>,
    /// In the order in which they were heard of.
    pub(super) all: Vec<Decided>,
}

impl Decisions {
    /// Asks for a container's last decisions; `begin` is when the first phase began, in nanoseconds of the monotonic clock. One that
    /// the agent does not know, or no more, has none.
    pub(super) fn ask(&mut self, agent: &Product, who: Who, id: &str, begin: u64) -> Result<()> {
        let Ok(text) = agent.ask(&["explain", id]) else { return Ok(()) };
        let answer: Value = serde_json::from_str(&text).context("while reading `elbowroom explain`")?;
        for decision in decisions(&answer) {
            let at = decision["at"].as_u64().context("a decision has no time")?;
            let what = decision["what"].as_str().context("a decision says not what")?;
            if self.known.insert((at, who)) {
                let mib = ["amount", "high", "ceiling"].iter().find_map(|key| decision[*key].as_u64());
                let ms = (at as i64 * 1000 - begin as i64) / 1_000_000;
                self.all.push(Decided { ms, who, what: what.to_owned(), mib: mib.map(|bytes| bytes >> 20) });
            }
        }
        Ok(())
    }
}

/// The memory governor's decisions in what `elbowroom explain` answers.
fn decisions(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["memory"]["decisions"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_about_memory_are_found_in_what_explain_answers() {
        let answer =
            serde_json::json!({"memory": {"decisions": [{"at": 1, "what": "lend", "amount": 1 << 20}]}});
        assert_eq!(decisions(&answer).count(), 1);
        assert_eq!(decisions(&serde_json::json!({})).count(), 0);
    }
}
