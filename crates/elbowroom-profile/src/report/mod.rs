//! The one form in which every profiler reports: tables on the terminal, JSON, and one HTML page that needs nothing else.
//!
//! A profiler makes two things: its *answer*, a value that serializes and holds every number, and a [`ProfileDocument`], the same for
//! people. [`ReportArgs`] are the options; [`ReportArgs::emit`] prints and writes. Shape of the JSON: `{"profile": NAME, "version":
//! ..., "overhead": {...}, "answer": {...}}`, and in profiles that are kept `"text"`, what the terminal shows.
//!
//! The page has no script and loads nothing: figures are SVG inside it, and follow the reader's light or dark theme through
//! CSS. Everything that is written into it is escaped, names of programs and functions too: they are foreign text.

mod flame_graph;
mod html;
mod number;
mod svg;
mod text;

pub(crate) use flame_graph::FlameGraph;
pub(crate) use number::{percent, short_count};

use crate::overhead::ProfilerOverhead;
use anyhow::{Context, Result};
use elbowroom_client::output::{Format, say};
use elbowroom_client::profile_store::ProfileStore;
use elbowroom_client::table::Align;
use serde::Serialize;
use std::path::PathBuf;

/// How a profile is given out; to be flattened into a verb's arguments.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// How to print the answer.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Also write a page with figures, one file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Keep the profile, for `elbowroom profile list` and the dashboard; the oldest go when there are many.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    store: ProfileStoreArgs,
}

/// Where profiles are kept.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ProfileStoreArgs {
    /// Directory below which profiles are kept, the agent's.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/elbowroom", env = "ELBOWROOM_STATE_DIR")]
    state_dir: PathBuf,
}

impl ProfileStoreArgs {
    /// The profiles there.
    pub(crate) fn open(&self) -> ProfileStore {
        ProfileStore::at(&self.state_dir)
    }
}

/// A profile for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProfileDocument {
    /// What was profiled, such as `Start-up`: the page's heading.
    pub(crate) title: String,
    /// Facts that every number depends on: (`kernel`, `6.18.44`), (`engine`, `docker 20.10.24`).
    pub(crate) facts: Vec<(String, String)>,
    /// What was found, in the order of reading.
    pub(crate) sections: Vec<ReportSection>,
}

/// The running kernel's release, a fact that every profile depends on.
pub(crate) fn kernel_fact() -> (String, String) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    ("kernel".to_owned(), release)
}

/// One thing that was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportSection {
    /// A few words.
    pub(crate) title: String,
    /// What the reader must know to read what follows: units, and what is counted.
    pub(crate) text: String,
    /// Tables and figures.
    pub(crate) blocks: Vec<ReportBlock>,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub(crate) enum ReportBlock {
    /// Rows under a heading; on the terminal and on the page.
    Table(ReportTable),
    /// Lines over an axis; on the page only.
    Lines(LineChart),
    /// Bars made of parts; on the page only.
    Bars(BarChart),
    /// A flame graph; on the page only.
    Flame(FlameGraph),
    /// One sentence of warning or advice; on the terminal and on the page.
    Note(String),
}

/// Rows under a heading. Every row has as many cells as there are columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportTable {
    /// Names of columns; numbers are set to the right.
    pub(crate) columns: Vec<(&'static str, Align)>,
    /// Cells.
    pub(crate) rows: Vec<Vec<String>>,
}

/// Lines over a numeric axis.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineChart {
    /// What the figure shows.
    pub(crate) title: String,
    /// Quantity and unit of the horizontal axis.
    pub(crate) x: String,
    /// Quantity and unit of the vertical axis, which begins at 0.
    pub(crate) y: String,
    /// Name, and points by ascending x.
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Horizontal bars of parts that add up.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarChart {
    /// What the figure shows.
    pub(crate) title: String,
    /// Unit of a bar's length.
    pub(crate) unit: String,
    /// Names of the parts, the same in every bar.
    pub(crate) parts: Vec<String>,
    /// Name of a bar, and the length of each part.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

#[derive(Serialize)]
struct ProfileEnvelope<'a, T: Serialize> {
    profile: &'a str,
    version: &'a str,
    overhead: &'a ProfilerOverhead,
    answer: &'a T,
    /// What the terminal shows, in profiles that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

impl ReportArgs {
    /// Opens what will be written, so that a path that cannot be is refused before anything is measured.
    ///
    /// # Errors
    /// The page's file cannot be made.
    pub(crate) fn prepare(&self) -> Result<()> {
        if let Some(path) = &self.html {
            std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .with_context(|| format!("while opening {} to write the page", path.display()))?;
        }
        if self.keep {
            let profiles = self.store.open();
            profiles.create_dir().with_context(|| format!("while making {}", profiles.dir().display()))?;
        }
        Ok(())
    }

    /// Prints the answer, and writes the page and keeps the profile where that is wanted. `name` is the profiler's verb.
    ///
    /// # Errors
    /// Standard output is closed, or the page or the profile cannot be written.
    pub(crate) fn emit<T: Serialize>(
        &self,
        name: &str,
        report: &ProfileDocument,
        overhead: &ProfilerOverhead,
        answer: &T,
    ) -> Result<()> {
        if let Some(path) = &self.html {
            std::fs::write(path, html::page(report, overhead))
                .with_context(|| format!("while writing {}", path.display()))?;
        }
        let version = env!("CARGO_PKG_VERSION");
        let envelope = ProfileEnvelope { profile: name, version, overhead, answer, text: None };
        let text = match self.format {
            Format::Text => text::report(report, overhead),
            Format::Data(data) => data.document(&envelope)?,
        };
        elbowroom_client::output::write_stdout(&text)?;
        if self.keep {
            let profiles = self.store.open();
            let text = text::report(report, overhead);
            let kept = profiles
                .save(
                    name,
                    &elbowroom_client::output::json(&ProfileEnvelope { text: Some(&text), ..envelope })?,
                )
                .with_context(|| format!("while keeping the profile in {}", profiles.dir().display()))?;
            say(&format!("elbowroom: kept as {kept}"));
        }
        Ok(())
    }
}

/// What the profiler itself cost, in words.
fn overhead_text(overhead: &ProfilerOverhead) -> String {
    let lost = match overhead.lost {
        0 => String::new(),
        lost => format!("; {lost} samples were lost"),
    };
    format!(
        "The profiler itself used {:.1} ms of CPU while {:.1} s passed, {:.2} % of one CPU{lost}.",
        overhead.cpu.get() as f64 / 1e3,
        overhead.wall.get() as f64 / 1e6,
        overhead.percent_of_one_cpu()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Micros;

    pub(super) fn example() -> (ProfileDocument, ProfilerOverhead) {
        let table = ReportTable {
            columns: vec![("PROGRAM", Align::Left), ("MS", Align::Right)],
            rows: vec![vec!["<script>".into(), "1.5".into()]],
        };
        let lines = LineChart {
            title: "Latency".into(),
            x: "starts per second".into(),
            y: "ms".into(),
            lines: vec![("p99 & all".into(), vec![(1.0, 100.0), (2.0, 250.0)])],
        };
        let bars = BarChart {
            title: "CPU".into(),
            unit: "ms".into(),
            parts: vec!["kernel".into(), "user".into()],
            bars: vec![("runc".into(), vec![3.0, 1.0])],
        };
        let flame = FlameGraph::of([("a;b<c>".to_owned(), 3), ("a;d".to_owned(), 1)]);
        let blocks = vec![
            ReportBlock::Table(table),
            ReportBlock::Lines(lines),
            ReportBlock::Bars(bars),
            ReportBlock::Flame(flame),
            ReportBlock::Note("Look \"twice\".".into()),
        ];
        let section = ReportSection { title: "Found".into(), text: "Milliseconds.".into(), blocks };
        let report = ProfileDocument {
            title: "Start-up".into(),
            facts: vec![("kernel".into(), "6.1".into())],
            sections: vec![section],
        };
        (report, ProfilerOverhead { cpu: Micros(2_500), wall: Micros::secs(1), lost: 2 })
    }

    #[test]
    fn the_page_is_one_file_without_script_and_foreign_text_is_only_text() {
        let (report, overhead) = example();
        let page = html::page(&report, &overhead);
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
        assert!(page.contains("b&lt;c&gt;") && page.contains("p99 &amp; all"), "{page}");
        for outside in ["http://", "https://", "url(", "@import", "<link", "src="] {
            let inside = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!inside.contains(outside), "{outside} in {page}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.matches("<svg").count() == 3 && page.matches("</svg>").count() == 3);
    }

    #[test]
    fn the_terminal_has_tables_and_notes_and_what_it_cost() {
        let (report, overhead) = example();
        let text = text::report(&report, &overhead);
        for part in ["Start-up", "kernel  6.1", "<script>", "Look \"twice\".", "2.5 ms of CPU", "2 samples"] {
            assert!(text.replace('\n', " ").contains(part), "{part} is not in:\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }
}
