//! `/proc/cpuinfo` (arch/x86/kernel/cpu/proc.c `show_cpuinfo`, arch/arm64/kernel/cpuinfo.c `c_show`).
//!
//! | line | shown |
//! |---|---|
//! | records | the host's, byte for byte, of the CPUs online in the view, under their real numbers |
//! | `siblings` | computed: CPUs shown of the same `physical id` |
//! | `cpu cores` | computed: cores shown of the same `physical id` |
//! | `cpu MHz` and every other line | host: what the processor is and does, the same for every program that runs on it |
//! | text that belongs to no CPU | host (`platform`, `model` at the end on some architectures) |
//!
//! `cpu MHz` is as of the last change of the view, for the page is not rendered again for it.
//!
//! Records take constant room, so that a further CPU adds bytes and moves none: where a computed number or the frequency is
//! shorter than the host's, spaces follow the record's last line.

use super::snapshot::ContainerSnapshot;
use super::text::push_line;
use std::collections::{BTreeMap, BTreeSet};

/// Room for a frequency: `9999.999`.
const MHZ_WIDTH: usize = 8;

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, host: &str) -> String {
    let (online, present) = (facts.shown_online(), facts.shown_present());
    let records: Vec<CpuinfoRecord> = host
        .split_inclusive("\n\n")
        .map(CpuinfoRecord::new)
        .filter(|r| r.processor.is_none_or(|cpu| online.contains(cpu) && present.contains(cpu)))
        .collect();
    let mut packages: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for record in &records {
        if let Some(id) = record.physical_id {
            let (siblings, cores) = packages.entry(id).or_default();
            *siblings += 1;
            cores.insert(record.core_id.unwrap_or(""));
        }
    }
    let mut out = String::with_capacity(host.len().min(records.len() << 12));
    for record in &records {
        record.push(&mut out, record.physical_id.and_then(|id| packages.get(id)));
    }
    out
}

struct CpuinfoRecord<'a> {
    text: &'a str,
    processor: Option<u32>,
    physical_id: Option<&'a str>,
    core_id: Option<&'a str>,
}

impl<'a> CpuinfoRecord<'a> {
    fn new(text: &'a str) -> Self {
        let mut record = Self { text, processor: None, physical_id: None, core_id: None };
        for (key, value) in text.lines().filter_map(key_value) {
            match key {
                "processor" => record.processor = value.parse().ok(),
                "physical id" => record.physical_id = Some(value),
                "core id" => record.core_id = Some(value),
                _ => {}
            }
        }
        record
    }

    fn push(&self, out: &mut String, package: Option<&(usize, BTreeSet<&str>)>) {
        let body = self.text.trim_end_matches('\n');
        let mut missing = 0;
        let mut lines = body.split('\n').peekable();
        while let Some(line) = lines.next() {
            let kept = match (key_value(line), package) {
                (Some((key @ ("siblings" | "cpu cores"), value)), Some((siblings, cores))) => {
                    let n = if key == "siblings" { *siblings } else { cores.len() }.to_string();
                    missing += value.len().saturating_sub(n.len());
                    format!("{}{n}", line.strip_suffix(value).unwrap_or(line))
                }
                (Some(("cpu MHz", value)), _) => {
                    missing += MHZ_WIDTH.saturating_sub(value.len());
                    line.to_owned()
                }
                _ => line.to_owned(),
            };
            let width = if lines.peek().is_none() { kept.len() + missing } else { 0 };
            push_line(out, &kept, width);
        }
        out.extend(std::iter::repeat_n('\n', self.text.len() - body.len()).skip(1));
    }
}

fn key_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    Some((key.trim_end(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::text::{Padding, fit};

    fn host(cpus: u32) -> String {
        let record = |n| {
            let (package, core) = (n / 8, n % 8 / 2);
            format!(
                "processor\t: {n}\nmodel name\t: AMD EPYC\ncpu MHz\t\t: {}.124\nphysical id\t: {package}\n\
                 siblings\t: 8\ncore id\t\t: {core}\ncpu cores\t: 4\nflags\t\t: fpu sse\npower management:\n\n",
                800 + 300 * n
            )
        };
        (0..cpus).map(record).collect()
    }

    fn facts(online: &str, present: &str) -> ContainerSnapshot {
        ContainerSnapshot {
            online: online.parse().unwrap(),
            present: present.parse().unwrap(),
            ..ContainerSnapshot::EMPTY
        }
    }

    #[test]
    fn records_of_online_cpus_keep_their_numbers_and_count_their_visible_siblings() {
        let page = text(&facts("4-6,9", "0-15"), &host(16));
        let all = |key| page.lines().filter_map(key_value).filter(move |(k, _)| *k == key).map(|(_, v)| v);
        assert!(all("processor").eq(["4", "5", "6", "9"]));
        assert!(all("siblings").eq(["3", "3", "3", "1"]));
        assert!(all("cpu cores").eq(["2", "2", "2", "1"]));
        assert!(page.ends_with("power management:\n\n"));
    }

    #[test]
    fn all_the_cpus_of_a_machine_are_the_hosts_text_byte_for_byte() {
        let host = host(16).replace("800.124", "1800.124");
        assert_eq!(text(&facts("0-15", "0-15"), &host), host);
    }

    #[test]
    fn records_keep_their_place_when_cpus_and_frequencies_change() {
        let host16 = host(16).replace("siblings\t: 8", "siblings\t: 12");
        let size = text(&facts("0-15", "0-15"), &host16).len() as u32;
        let place = |online: &str, host: &str| {
            let page =
                String::from_utf8(fit(&text(&facts(online, "0-15"), host), size, Padding::Spaces)).unwrap();
            assert_eq!(page.len() as u32, size);
            page.find("processor\t: 2").unwrap()
        };
        let slow = host16.replace("1400.124", "400.124").replace("1100.124", "400.124");
        assert_eq!(place("0-2", &host16), place("0-15", &host16));
        assert_eq!(place("0-2", &slow), place("0-2", &host16));
    }

    #[test]
    fn text_that_is_no_cpus_passes_and_records_without_packages_are_left_alone() {
        let host =
            "processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n\nHardware\t: board\n";
        assert_eq!(
            text(&facts("1", "0-1"), host),
            "processor\t: 1\nBogoMIPS\t: 50.00\n\nHardware\t: board\n"
        );
    }
}
