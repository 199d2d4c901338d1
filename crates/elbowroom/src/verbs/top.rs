//! `elbowroom top`: effective against limit against used, live.

use super::containers::{json, label};
use super::table::clip;
use crate::api::{ContainerView, Request, Response};
use crate::cli::{Format, TopArgs};
use crate::client::Client;
use anyhow::{Result, bail};
use elbowroom_core::unit::Bytes;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Row, Table, TableState};
use std::collections::{HashMap, VecDeque};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Points of a sparkline.
const HISTORY: usize = 20;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HEADING: [&str; 8] =
    ["CONTAINER", "CPU", "BOUNDS", "USED", "used CPU over time", "MEMORY", "HARD", "USED"];

/// Runs the table until `q`, or prints it once.
pub(crate) fn top(run_dir: &Path, args: &TopArgs) -> Result<String> {
    let mut client = Client::connect(run_dir)?;
    if args.output.format == Format::Json {
        return json(&fetch(&mut client)?);
    }
    if args.once || !std::io::stdout().is_terminal() {
        let containers = fetch(&mut client)?;
        let mut history = History::default();
        history.take(&containers);
        let rows: Vec<Vec<String>> = containers.iter().map(|c| row(c, &history)).collect();
        let heading = HEADING.map(|name| (name, super::table::Align::Left));
        return Ok(super::table::table(&heading, &rows));
    }
    live(&mut client, Duration::from_micros(args.interval.get().max(50_000)))?;
    Ok(String::new())
}

fn live(client: &mut Client, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut history = History::default();
    let mut state = TableState::default();
    let outcome = (|| -> Result<()> {
        loop {
            let containers = fetch(client)?;
            history.take(&containers);
            terminal.draw(|frame| {
                let rows = containers.iter().map(|c| Row::new(row(c, &history)));
                let widths = [
                    Constraint::Min(16),
                    Constraint::Length(4),
                    Constraint::Length(8),
                    Constraint::Length(6),
                    Constraint::Length(HISTORY as u16),
                    Constraint::Length(9),
                    Constraint::Length(9),
                    Constraint::Length(9),
                ];
                let title = format!(" elbowroom: {} containers  (q quits, arrows scroll) ", containers.len());
                let table = Table::new(rows, widths)
                    .header(Row::new(HEADING).style(Style::new().add_modifier(Modifier::BOLD)))
                    .row_highlight_style(Style::new().reversed())
                    .block(Block::bordered().title(title));
                frame.render_stateful_widget(table, frame.area(), &mut state);
            })?;
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

fn fetch(client: &mut Client) -> Result<Vec<ContainerView>> {
    match client.ask(&Request::List)? {
        Response::List(containers) => Ok(containers),
        _ => bail!("the agent's answer does not fit the question: is it of another version?"),
    }
}

fn row(c: &ContainerView, history: &History) -> Vec<String> {
    vec![
        clip(&label(c), 28),
        c.view.cpus.to_string(),
        format!("{}-{}", c.view.cpus_lower, c.view.cpus_upper),
        format!("{:.2}", c.cpu_used_millicpu as f64 / 1_000.0),
        history.sparkline(&c.id, u64::from(c.view.cpus_upper) * 1_000),
        short(c.view.memory),
        short(c.view.memory_hard),
        short(c.usage.memory),
    ]
}

fn short(bytes: Bytes) -> String {
    match bytes.get() >> 20 {
        mib if mib >= 10 << 10 => format!("{:.1}GiB", mib as f64 / 1024.0),
        mib => format!("{mib}MiB"),
    }
}

/// What each container used lately.
#[derive(Default)]
struct History(HashMap<String, VecDeque<u64>>);

impl History {
    fn take(&mut self, containers: &[ContainerView]) {
        self.0.retain(|id, _| containers.iter().any(|c| c.id == *id));
        for c in containers {
            let points = self.0.entry(c.id.clone()).or_default();
            if points.len() == HISTORY {
                points.pop_front();
            }
            points.push_back(c.cpu_used_millicpu);
        }
    }

    fn sparkline(&self, id: &str, full: u64) -> String {
        let points = self.0.get(id).into_iter().flatten();
        points.map(|p| BARS[((p * 8).checked_div(full).unwrap_or(0) as usize).min(7)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_fills_up_to_the_upper_bound() {
        let mut history = History::default();
        history.0.insert("a".into(), VecDeque::from([0, 1_000, 2_000, 9_000]));
        assert_eq!(history.sparkline("a", 2_000), "▁▅██");
        assert_eq!(history.sparkline("a", 0), "▁▁▁▁");
    }
}
