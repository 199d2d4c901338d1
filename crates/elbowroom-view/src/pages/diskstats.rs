//! `/proc/diskstats` (block/genhd.c `diskstats_show`).
//!
//! | field | shown |
//! |---|---|
//! | rows, major, minor, name | host: the devices it has |
//! | reads, sectors read, writes, sectors written, discards, sectors discarded | container, of devices it used; else 0 |
//! | merges, times, in flight, flushes | 0: no kernel counts them per cgroup |
//!
//! How many columns a row has is the host's. A row that does not begin with two numbers and a name is left out; a device
//! that the host's text lacks is not shown. cgroup v1 and v2 give the same page. Counters are for whole devices, as cgroups
//! keep them: the rows of partitions are 0. Columns are one space apart, as the kernel has them, and spaces at its end keep a row's length.

use super::snapshot::ContainerSnapshot;
use super::text::{max_of_width, push_line};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoStat;

/// Bytes of a sector in this file, whatever the device's own.
const SECTOR: u64 = 512;
/// A column after the name: where it is, how wide, what it counts.
type DiskstatsColumn = (usize, usize, fn(&IoStat) -> u64);
/// The columns that a container has.
const COLUMNS: [DiskstatsColumn; 6] = [
    (0, 12, |io| io.rios),
    (2, 14, |io| io.rbytes.get() / SECTOR),
    (4, 12, |io| io.wios),
    (6, 14, |io| io.wbytes.get() / SECTOR),
    (11, 12, |io| io.dios),
    (13, 14, |io| io.dbytes.get() / SECTOR),
];

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, host: &str) -> String {
    let mut out = String::with_capacity(host.len() * 2);
    for line in host.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(Ok(major)), Some(Ok(minor)), Some(name)) =
            (words.next().map(str::parse::<u32>), words.next().map(str::parse::<u32>), words.next())
        else {
            continue;
        };
        let io = facts.disks().iter().find(|io| io.device == DeviceNumber::new(major, minor));
        let mut row = format!("{major:4} {minor:7} {name}");
        let mut length = row.len();
        for (i, _) in words.enumerate() {
            let (width, n) = match COLUMNS.iter().find(|(at, ..)| *at == i) {
                None => (1, 0),
                Some(&(_, width, of)) => (width, io.map_or(0, of).min(max_of_width(width as u32))),
            };
            row.push_str(&format!(" {n}"));
            length += 1 + width;
        }
        push_line(&mut out, &row, length);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Bytes;

    const HOST: &str = " 254       0 vda 56813 17505 4272642 13196 18089 17042 2868096 6568 0 6804 20174 6209 36 515672 343 2179 66\n\
        \x20254       1 vda1 5 5 5 5 5 5 5 5 5 5 5\ngarbage\n 8 x sda 1\n";

    fn facts(n: u64) -> ContainerSnapshot {
        let mut facts = ContainerSnapshot { nr_disks: 2, ..ContainerSnapshot::EMPTY };
        let io = IoStat {
            rios: n,
            rbytes: Bytes(n),
            wios: n,
            wbytes: Bytes(n),
            dios: n,
            dbytes: Bytes(n),
            ..IoStat::EMPTY
        };
        facts.io[0] = IoStat { device: DeviceNumber::new(254, 0), ..io };
        facts.io[1] = IoStat { device: DeviceNumber::new(9, 9), ..io };
        facts
    }

    #[test]
    fn devices_are_the_hosts_and_counters_the_containers() {
        let page = text(&facts(1_024), HOST);
        let rows: Vec<&str> = page.lines().map(str::trim_end).collect();
        assert_eq!(
            rows,
            [
                " 254       0 vda 1024 0 2 0 1024 0 2 0 0 0 0 1024 0 2 0 0 0",
                " 254       1 vda1 0 0 0 0 0 0 0 0 0 0 0"
            ]
        );
    }

    #[test]
    fn its_length_never_changes() {
        assert_eq!(text(&facts(0), HOST).len(), text(&facts(u64::MAX), HOST).len());
    }
}
