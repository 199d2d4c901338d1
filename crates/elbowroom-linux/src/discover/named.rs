//! Engines whose containers have the names in their cgroups: `elbowroom run`, and machines of systemd.

use super::record::{EngineRecord, parse_labels};
use super::state_file::read_json_stamped;
use crate::root::{ReadError, Root, if_present};
use elbowroom_types::label::LabelPolicy;
use std::collections::HashMap;
use std::path::Path;

/// What systemd-machined knows of a machine, by its name.
const MACHINES: &str = "run/systemd/machines";

/// What machined knows of a machine, if it is a container: a virtual machine's processes are the host's.
pub(super) fn machine(root: &Root, name: &str) -> Result<Option<EngineRecord>, ReadError> {
    let text = if_present(root.read(Path::new(MACHINES).join(name)))?.unwrap_or_default();
    Ok(text.lines().any(|line| line == "CLASS=container").then(|| EngineRecord::named(name)))
}

/// A container of `elbowroom run`, with the labels that it left in `dir`.
pub(super) fn run_container(root: &Root, dir: Option<&Path>, name: &str) -> Result<EngineRecord, ReadError> {
    let known = EngineRecord::named(name);
    let Some(file) = dir.map(|dir| dir.join(name)) else { return Ok(known) };
    Ok(match read_json_stamped::<HashMap<String, String>>(root, &file)? {
        Some((labels, stamp)) => {
            // Root's own words: no container's maker can write there.
            EngineRecord {
                labels: parse_labels(&labels, LabelPolicy::All).as_promised(),
                state: Some((file, stamp)),
                ..known
            }
        }
        None => known,
    })
}
