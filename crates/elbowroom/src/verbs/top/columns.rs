//! The columns of `top`: what is in them, how wide they are, and which of them a terminal has room for.

use super::history::{CpuHistory, HISTORY_POINTS};
use super::state::SortKey;
use elbowroom_client::api::{ContainerView, display_name};
use elbowroom_client::number_format;
use elbowroom_client::table::{Align, clip};
use elbowroom_govern::disk::{ContainerDiskStatus, HeldBy};

/// Blanks between two columns.
const GAP: usize = 2;
/// A name gets no more than this, however wide the terminal is.
const MAX_NAME: usize = 40;

/// A column of `top`.
pub(super) struct TopColumn {
    pub(super) name: &'static str,
    pub(super) align: Align,
    /// Its least width; the name's and the reason's are more where there is room.
    least: usize,
    /// Those with higher numbers go first where the terminal is narrow.
    rank: u8,
    /// What a click on its heading sorts by.
    pub(super) sort: Option<SortKey>,
    pub(super) cell: fn(&ContainerView, &CpuHistory) -> String,
}

impl TopColumn {
    /// Its name in its width.
    pub(super) fn heading(&self, width: usize) -> String {
        self.set(self.name, width)
    }

    fn set(&self, text: &str, width: usize) -> String {
        match self.align {
            Align::Left => format!("{text:<width$}"),
            Align::Right => format!("{text:>width$}"),
        }
    }
}

const fn column(
    name: &'static str,
    align: Align,
    (least, rank): (usize, u8),
    sort: Option<SortKey>,
    cell: fn(&ContainerView, &CpuHistory) -> String,
) -> TopColumn {
    TopColumn { name, align, least, rank, sort, cell }
}

/// From left to right.
pub(super) const COLUMNS: [TopColumn; 13] = [
    column("CONTAINER", Align::Left, (16, 0), Some(SortKey::Name), |c, _| display_name(c)),
    column("VERDICT", Align::Left, (14, 0), Some(SortKey::Verdict), |c, _| c.verdict.status.to_string()),
    column("CPU", Align::Right, (9, 0), Some(SortKey::Cpu), |c, _| {
        format!("{}/{}", cpus(c.cpu_used_millicpu), c.view.cpus)
    }),
    column("MEMORY", Align::Right, (11, 0), Some(SortKey::Memory), |c, _| {
        let [used, seen] = [c.usage.memory, c.view.memory].map(|size| number_format::short_bytes(size.get()));
        format!("{used}/{seen}")
    }),
    column("LIMIT", Align::Right, (5, 3), None, |c, _| number_format::short_bytes(c.view.memory_hard.get())),
    column("READ/s", Align::Right, (6, 1), Some(SortKey::Disk), |c, _| rate(c, |disk| disk.rbps)),
    column("WRITE/s", Align::Right, (7, 1), Some(SortKey::Disk), |c, _| rate(c, |disk| disk.wbps)),
    column("DISK", Align::Right, (9, 2), Some(SortKey::Disk), |c, _| {
        most_constrained(&c.disk).map_or_else(|| "-".to_owned(), used_of_cap)
    }),
    column("HELD BY", Align::Left, (7, 2), None, |c, _| {
        most_constrained(&c.disk).map_or("-", |disk| number_format::held_by_cell(disk.held_by)).to_owned()
    }),
    column("CPU OVER TIME", Align::Left, (HISTORY_POINTS, 4), None, |c, history| {
        history.sparkline(&c.id, u64::from(c.view.cpus_upper) * 1_000)
    }),
    column("BOUNDS", Align::Right, (8, 6), None, |c, _| {
        format!("{}-{}", c.view.cpus_lower, c.view.cpus_upper)
    }),
    column("MORE MEMORY", Align::Left, (28, 7), None, |c, _| {
        c.memory.as_ref().map_or_else(
            || "-".to_owned(),
            |s| {
                let state = number_format::shown_memory_state(s.colour, c.verdict.status, s.state);
                [number_format::more_memory(s.colour, c.verdict.status)]
                    .into_iter()
                    .chain(state)
                    .collect::<Vec<_>>()
                    .join(", ")
            },
        )
    }),
    column("WHY", Align::Left, (32, 5), None, |c, _| c.verdict.reason.clone()),
];

/// Columns that `width` characters have room for, with the width that each of them gets.
pub(super) fn fit(width: usize) -> Vec<(&'static TopColumn, usize)> {
    const ALL: &[TopColumn] = &COLUMNS;
    let needed = |rank: u8| -> usize {
        let shown = ALL.iter().filter(|column| column.rank <= rank);
        shown.map(|column| column.least + GAP).sum::<usize>().saturating_sub(GAP)
    };
    let most = ALL.iter().map(|column| column.rank).filter(|rank| needed(*rank) <= width).max().unwrap_or(0);
    let mut spare = width.saturating_sub(needed(most));
    let mut shown: Vec<(&TopColumn, usize)> =
        ALL.iter().filter(|column| column.rank <= most).map(|column| (column, column.least)).collect();
    for (column, width) in &mut shown {
        let more = match column.name {
            "CONTAINER" => spare.min(MAX_NAME - column.least),
            "WHY" => spare,
            _ => 0,
        };
        (*width, spare) = (*width + more, spare - more);
    }
    shown
}

/// Where each of them begins.
pub(super) fn begins(shown: &[(&TopColumn, usize)]) -> Vec<usize> {
    let begin = |n: usize| shown[..n].iter().map(|(_, width)| width + GAP).sum();
    (0..shown.len()).map(begin).collect()
}

/// A cell in its width, as it may be shown.
pub(super) fn cell(column: &TopColumn, width: usize, c: &ContainerView, history: &CpuHistory) -> String {
    let text = (column.cell)(c, history);
    let text = if column.name == "CONTAINER" { short_label(&text, width) } else { clip(&text, width) };
    column.set(&text, width)
}

/// CPUs in use, in at most five characters.
pub(super) fn cpus(millicpu: u64) -> String {
    let cpus = millicpu as f64 / 1_000.0;
    if millicpu < 99_995 { format!("{cpus:.2}") } else { format!("{cpus:.0}") }
}

/// A name as it fits; of a path it is the end that tells.
fn short_label(label: &str, width: usize) -> String {
    let length = label.chars().count();
    if !label.starts_with('/') || length <= width {
        return clip(label, width);
    }
    clip(&["~".to_owned(), label.chars().skip(length - width + 1).collect()].concat(), width)
}

fn rate(c: &ContainerView, of: fn(&ContainerDiskStatus) -> u64) -> String {
    number_format::short_bytes(c.disk.iter().map(of).sum())
}

/// The disk that matters most to a container: one that holds it back, else the one it uses most of.
fn most_constrained(disks: &[ContainerDiskStatus]) -> Option<&ContainerDiskStatus> {
    let key = |s: &ContainerDiskStatus| (s.held_by != HeldBy::Nothing, s.used.unwrap_or(0.0));
    disks.iter().max_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal))
}

/// Used and allowed parts of the disk: `12%/40%`; only what is used where all of it is allowed.
fn used_of_cap(s: &ContainerDiskStatus) -> String {
    match s.cap {
        Some(_) => format!("{}/{}", number_format::percent(s.used), number_format::percent(s.cap)),
        None => number_format::percent(s.used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_columns_come_with_more_width_and_none_is_cut() {
        let mut before = 0;
        for width in 60..300 {
            let shown = fit(width);
            let used: usize = shown.iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP;
            assert!(used <= width, "{used} of {width}");
            assert!(shown.iter().all(|(column, width)| column.name.len() <= *width));
            assert!(shown.len() >= before, "at {width}");
            before = shown.len();
        }
        let at_eighty: Vec<&str> = fit(80).iter().map(|(column, _)| column.name).collect();
        assert_eq!(at_eighty, ["CONTAINER", "VERDICT", "CPU", "MEMORY", "READ/s", "WRITE/s"]);
        assert_eq!(before, COLUMNS.len());
    }

    #[test]
    fn of_a_path_the_end_is_shown() {
        assert_eq!(short_label("/system.slice/web.service", 12), "~web.service");
        assert_eq!(short_label("a-long-name-of-one", 8), "a-long-~");
    }
}
