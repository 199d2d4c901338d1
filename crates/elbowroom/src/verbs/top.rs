//! `elbowroom top`: effective against limit against used, and who gets how much of the disks, live.

use crate::cli::TopArgs;
use anyhow::{Result, bail};
use elbowroom_client::api::{ContainerView, ControlRequest, ControlResponse, display_name};
use elbowroom_client::control::ControlClient;
use elbowroom_client::number_format;
use elbowroom_client::output::{Format, json};
use elbowroom_client::table::{Align, clip, table};
use elbowroom_govern::disk::{ContainerDiskStatus, LimitedBy};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Row, Table, TableState};
use std::collections::{HashMap, VecDeque};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Points of a sparkline.
const HISTORY_POINTS: usize = 20;
const SPARKLINE_BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A column: its heading, its width on a terminal, and whether it is there when the output is not one, which has 80 columns.
const COLUMNS: [(&str, Constraint, bool); 13] = [
    ("CONTAINER", Constraint::Min(16), true),
    ("CPU", Constraint::Length(4), true),
    ("BOUNDS", Constraint::Length(8), false),
    ("USED", Constraint::Length(6), true),
    ("used CPU over time", Constraint::Length(HISTORY_POINTS as u16), false),
    ("MEMORY", Constraint::Length(7), true),
    ("HARD", Constraint::Length(7), false),
    ("USED", Constraint::Length(6), true),
    ("MEMORY IS", Constraint::Length(16), false),
    ("READ/s", Constraint::Length(7), true),
    ("WRITE/s", Constraint::Length(7), true),
    ("DISK", Constraint::Length(9), true),
    ("HELD BY", Constraint::Length(8), true),
];
/// Longest label of a container when the output is not a terminal.
const NARROW_LABEL: usize = 14;

/// Runs the table until `q`, or prints it once.
pub(crate) fn top(run_dir: &Path, args: &TopArgs) -> Result<String> {
    let mut client = ControlClient::connect(run_dir)?;
    if args.output.format == Format::Json {
        return json(&fetch(&mut client)?);
    }
    if args.once || !std::io::stdout().is_terminal() {
        let containers = fetch(&mut client)?;
        let history = CpuHistory::default();
        return Ok(plain_screen(&containers, &history));
    }
    run_live(&mut client, Duration::from_micros(args.interval.get().max(50_000)))?;
    Ok(String::new())
}

fn run_live(client: &mut ControlClient, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut history = CpuHistory::default();
    let mut state = TableState::default();
    let outcome = (|| -> Result<()> {
        loop {
            let containers = fetch(client)?;
            history.record(&containers);
            let title = format!(" elbowroom: {} containers  (q quits, arrows scroll) ", containers.len());
            terminal.draw(|frame| draw(frame, &containers, &history, &mut state, title))?;
            let until = Instant::now() + interval;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                if !event::poll(left)? {
                    break;
                }
                let Event::Key(key) = event::read()? else { continue };
                if key.kind != KeyEventKind::Press {
                    continue;
                }
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Down | KeyCode::Char('j') => state.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => state.select_previous(),
                    _ => {}
                }
            }
        }
    })();
    ratatui::restore();
    outcome
}

/// Draws a screen of containers.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    containers: &[ContainerView],
    history: &CpuHistory,
    state: &mut TableState,
    title: String,
) {
    let rows = containers.iter().map(|c| Row::new(row(c, history, 28)));
    let heading = Row::new(COLUMNS.map(|(name, ..)| name)).style(Style::new().add_modifier(Modifier::BOLD));
    let screen = Table::new(rows, COLUMNS.map(|(_, width, _)| width))
        .header(heading)
        .row_highlight_style(Style::new().reversed())
        .block(Block::bordered().title(title));
    frame.render_stateful_widget(screen, frame.area(), state);
}

fn fetch(client: &mut ControlClient) -> Result<Vec<ContainerView>> {
    match client.request(&ControlRequest::List)? {
        ControlResponse::List(containers) => Ok(containers),
        _ => bail!("the agent's answer does not fit the question: is it of another version?"),
    }
}

/// One screen in less than 80 columns.
pub(super) fn plain_screen(containers: &[ContainerView], history: &CpuHistory) -> String {
    let kept = |cells: Vec<String>| -> Vec<String> {
        let cells = cells.into_iter().zip(COLUMNS);
        cells.filter(|(_, (_, _, narrow))| *narrow).map(|(cell, _)| cell).collect()
    };
    let align = |n: usize| if n == 0 { Align::Left } else { Align::Right };
    let shown = COLUMNS.iter().filter(|(_, _, narrow)| *narrow);
    let heading: Vec<_> = shown.enumerate().map(|(n, (name, ..))| (*name, align(n))).collect();
    let rows: Vec<_> = containers.iter().map(|c| kept(row(c, history, NARROW_LABEL))).collect();
    table(&heading, &rows)
}

fn row(c: &ContainerView, history: &CpuHistory, label_width: usize) -> Vec<String> {
    let sum =
        |rate: fn(&ContainerDiskStatus) -> u64| number_format::short_bytes(c.disk.iter().map(rate).sum());
    let disk = most_constrained(&c.disk);
    vec![
        short_label(&display_name(c), label_width),
        c.view.cpus.to_string(),
        format!("{}-{}", c.view.cpus_lower, c.view.cpus_upper),
        cpus(c.cpu_used_millicpu),
        history.sparkline(&c.id, u64::from(c.view.cpus_upper) * 1_000),
        number_format::short_bytes(c.view.memory.get()),
        number_format::short_bytes(c.view.memory_hard.get()),
        number_format::short_bytes(c.usage.memory.get()),
        c.memory.as_ref().map_or_else(
            || "-".to_owned(),
            |s| format!("{} {}", number_format::colour_name(s.colour), number_format::memory_state(s.state)),
        ),
        sum(|s| s.rbps),
        sum(|s| s.wbps),
        disk.map_or_else(|| "-".to_owned(), used_of_cap),
        disk.map_or("-", |s| number_format::held_by_cell(s.held_by)).to_owned(),
    ]
}

/// CPUs in use, in at most five characters.
fn cpus(millicpu: u64) -> String {
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

/// The disk that matters most to a container: one that holds it back, else the one it uses most of.
fn most_constrained(disks: &[ContainerDiskStatus]) -> Option<&ContainerDiskStatus> {
    let key = |s: &ContainerDiskStatus| (s.held_by != LimitedBy::Nothing, s.used.unwrap_or(0.0));
    disks.iter().max_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal))
}

/// Used and allowed parts of the disk: `12%/40%`; only what is used where all of it is allowed.
fn used_of_cap(s: &ContainerDiskStatus) -> String {
    match s.cap {
        Some(_) => format!("{}/{}", number_format::percent(s.used), number_format::percent(s.cap)),
        None => number_format::percent(s.used),
    }
}

/// What each container used lately.
#[derive(Default)]
pub(super) struct CpuHistory(HashMap<String, VecDeque<u64>>);

impl CpuHistory {
    /// Takes a moment.
    pub(super) fn record(&mut self, containers: &[ContainerView]) {
        self.0.retain(|id, _| containers.iter().any(|c| c.id == *id));
        for c in containers {
            let points = self.0.entry(c.id.clone()).or_default();
            if points.len() == HISTORY_POINTS {
                points.pop_front();
            }
            points.push_back(c.cpu_used_millicpu);
        }
    }

    fn sparkline(&self, id: &str, full: u64) -> String {
        let points = self.0.get(id).into_iter().flatten();
        points.map(|p| SPARKLINE_BARS[((p * 8).checked_div(full).unwrap_or(0) as usize).min(7)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_of_large_numbers_has_less_than_eighty_columns() {
        let cells =
            ["x".repeat(NARROW_LABEL), "1024".into(), cpus(1_024_000), "1024G".into(), "1024G".into()];
        let disk = ["1024K".into(), "1024K".into(), "999%/999%".into(), "others".into()];
        let row: Vec<String> = cells.into_iter().chain(disk).collect();
        let heading: Vec<_> =
            COLUMNS.iter().filter(|(_, _, narrow)| *narrow).map(|(name, ..)| (*name, Align::Left)).collect();
        let text = table(&heading, &[row]);
        assert!(text.lines().all(|line| line.len() < 80), "{text}");
    }

    #[test]
    fn a_sparkline_fills_up_to_the_upper_bound() {
        let mut history = CpuHistory::default();
        history.0.insert("a".into(), VecDeque::from([0, 1_000, 2_000, 9_000]));
        assert_eq!(history.sparkline("a", 2_000), "▁▅██");
        assert_eq!(history.sparkline("a", 0), "▁▁▁▁");
    }
}
