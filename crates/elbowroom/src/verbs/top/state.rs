//! What `top` shows, and what keys and the mouse make of it. Pure: the loop in the module above asks the agent and draws.

use super::history::CpuHistory;
use super::node::NodeLine;
use elbowroom_client::api::{ContainerView, display_name};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use std::cmp::{Ordering, Reverse};

/// What rows are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortKey {
    /// Worst first.
    #[default]
    Verdict,
    Name,
    Cpu,
    Memory,
    Disk,
}

impl SortKey {
    const ALL: [Self; 5] = [Self::Verdict, Self::Name, Self::Cpu, Self::Memory, Self::Disk];

    /// As the line above the table says it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Name => "name",
            Self::Cpu => "CPU",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    /// The one `by` places further, as `<` and `>` go.
    fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|key| *key == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }

    fn compare(self, a: &ContainerView, b: &ContainerView) -> Ordering {
        let disk = |c: &ContainerView| c.disk.iter().map(|disk| disk.rbps + disk.wbps).sum::<u64>();
        match self {
            Self::Verdict => b.verdict.severity().cmp(&a.verdict.severity()),
            Self::Name => Ordering::Equal,
            Self::Cpu => Reverse(a.cpu_used_millicpu).cmp(&Reverse(b.cpu_used_millicpu)),
            Self::Memory => Reverse(a.usage.memory).cmp(&Reverse(b.usage.memory)),
            Self::Disk => Reverse(disk(a)).cmp(&Reverse(disk(b))),
        }
        .then_with(|| display_name(a).cmp(&display_name(b)))
    }
}

/// What is on the screen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Table,
    /// The filter is being typed.
    Filter,
    /// The keys.
    Help,
    /// A container's explanation, from this line on.
    Explanation { id: String, text: String, from: usize },
}

/// What the loop has to do.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::verbs) enum TopAction {
    Nothing,
    Quit,
    /// Ask for this container's explanation, and show it.
    Explain(String),
}

/// Everything that a screen is made of.
#[derive(Default)]
pub(super) struct TopState {
    pub(super) containers: Vec<ContainerView>,
    pub(super) node: NodeLine,
    /// When this was so, where that is not now.
    pub(super) moment: Option<String>,
    pub(super) history: CpuHistory,
    pub(super) sort: SortKey,
    pub(super) reversed: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// The container under the bar, by its identifier.
    pub(super) selected: Option<String>,
    /// The first row that is shown.
    pub(super) from: usize,
    /// Rows that the last screen had room for.
    pub(super) rows: usize,
}

impl TopState {
    /// Takes a moment.
    pub(super) fn update(&mut self, containers: Vec<ContainerView>, node: NodeLine) {
        self.history.record(&containers);
        (self.containers, self.node) = (containers, node);
    }

    /// The rows: those that the filter lets through, in order.
    pub(super) fn visible(&self) -> Vec<&ContainerView> {
        let wanted = self.filter.to_lowercase();
        let fits = |c: &&ContainerView| {
            [&display_name(c), &c.id, &c.path].iter().any(|name| name.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<&ContainerView> = self.containers.iter().filter(fits).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// The place of the selected row among `rows`.
    pub(super) fn place(&self, rows: &[&ContainerView]) -> Option<usize> {
        rows.iter().position(|c| Some(&c.id) == self.selected.as_ref())
    }

    /// The container that the lines below the table are about: the selected one, or else the first.
    pub(super) fn told(&self) -> Option<&ContainerView> {
        let rows = self.visible();
        rows.get(self.place(&rows).unwrap_or(0)).copied()
    }

    /// Scrolls as far as needed for the selected row to be among `rows` rows.
    pub(super) fn scroll(&mut self, rows: usize) {
        self.rows = rows;
        let visible = self.visible();
        let (place, length) = (self.place(&visible), visible.len());
        if let Some(place) = place {
            self.from = self.from.min(place).max((place + 1).saturating_sub(rows));
        }
        self.from = self.from.min(length.saturating_sub(rows));
    }

    /// A key.
    pub(super) fn key(&mut self, key: KeyEvent) -> TopAction {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return TopAction::Quit;
        }
        match &mut self.mode {
            Mode::Table => return self.table_key(key.code),
            Mode::Filter => self.filter_key(key.code),
            Mode::Help => self.mode = Mode::Table,
            Mode::Explanation { from, text, .. } => match key.code {
                KeyCode::Down | KeyCode::Char('j') => *from = (*from + 1).min(text.lines().count()),
                KeyCode::Up | KeyCode::Char('k') => *from = from.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => {
                    *from = (*from + self.rows).min(text.lines().count())
                }
                KeyCode::PageUp => *from = from.saturating_sub(self.rows),
                KeyCode::Home | KeyCode::Char('g') => *from = 0,
                KeyCode::End | KeyCode::Char('G') => *from = text.lines().count().saturating_sub(self.rows),
                KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => self.mode = Mode::Table,
                _ => {}
            },
        }
        TopAction::Nothing
    }

    fn table_key(&mut self, key: KeyCode) -> TopAction {
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return TopAction::Quit,
            // First what narrows the view, then the view.
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return TopAction::Quit,
            KeyCode::Enter => {
                return self.told().map_or(TopAction::Nothing, |c| TopAction::Explain(c.id.clone()));
            }
            // The second key is that of top(1), htop, btop or less.
            KeyCode::Char('/' | 'f') | KeyCode::F(3 | 4) => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('s') => self.sort = SortKey::Verdict,
            KeyCode::Char('n') => self.sort = SortKey::Name,
            KeyCode::Char('c' | 'P') => self.sort = SortKey::Cpu,
            KeyCode::Char('m' | 'M') => self.sort = SortKey::Memory,
            KeyCode::Char('d') => self.sort = SortKey::Disk,
            KeyCode::Char('>') | KeyCode::Right => self.sort = self.sort.step(1),
            KeyCode::Char('<') | KeyCode::Left => self.sort = self.sort.step(SortKey::ALL.len() - 1),
            KeyCode::Char('r' | 'I') => self.reversed = !self.reversed,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(self.rows as isize),
            KeyCode::PageUp => self.step(-(self.rows as isize)),
            KeyCode::Home | KeyCode::Char('g') => self.choose(false),
            KeyCode::End | KeyCode::Char('G') => self.choose(true),
            _ => {}
        }
        TopAction::Nothing
    }

    fn filter_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Down => self.step(1),
            KeyCode::Up => self.step(-1),
            KeyCode::Char(c) if self.filter.len() < MAX_FILTER => self.filter.push(c),
            _ => {}
        }
    }

    /// A wheel or a click. `table` is the screen's line of the first row, and `heading` what a click on the line above it sorts by.
    pub(super) fn mouse(
        &mut self,
        event: MouseEvent,
        table: u16,
        heading: impl Fn(u16) -> Option<SortKey>,
    ) -> TopAction {
        let steps = match event.kind {
            MouseEventKind::ScrollDown => WHEEL_ROWS,
            MouseEventKind::ScrollUp => -WHEEL_ROWS,
            MouseEventKind::Down(MouseButton::Left) if self.mode == Mode::Table => {
                return self.click(event, table, heading);
            }
            _ => return TopAction::Nothing,
        };
        match &mut self.mode {
            Mode::Explanation { from, text, .. } => {
                *from = from.saturating_add_signed(steps).min(text.lines().count());
            }
            _ => self.step(steps),
        }
        TopAction::Nothing
    }

    fn click(
        &mut self,
        event: MouseEvent,
        table: u16,
        heading: impl Fn(u16) -> Option<SortKey>,
    ) -> TopAction {
        if event.row + 1 == table {
            self.sort = heading(event.column).unwrap_or(self.sort);
            return TopAction::Nothing;
        }
        let Some(row) = event.row.checked_sub(table) else { return TopAction::Nothing };
        let clicked = self.visible().get(self.from + usize::from(row)).map(|c| c.id.clone());
        match clicked {
            // The second click on a row is Enter.
            Some(id) if self.selected.as_ref() == Some(&id) => TopAction::Explain(id),
            Some(id) => {
                self.selected = Some(id);
                TopAction::Nothing
            }
            None => TopAction::Nothing,
        }
    }

    fn choose(&mut self, last: bool) {
        let rows = self.visible();
        let chosen = if last { rows.last() } else { rows.first() };
        self.selected = chosen.map(|c| c.id.clone());
    }

    fn step(&mut self, by: isize) {
        let rows = self.visible();
        let Some(last) = rows.len().checked_sub(1) else { return };
        let to = match self.place(&rows) {
            Some(place) => place.saturating_add_signed(by).min(last),
            None if by < 0 => last,
            None => 0,
        };
        self.selected = Some(rows[to].id.clone());
    }
}

/// Rows that a notch of the wheel moves.
const WHEEL_ROWS: isize = 3;
/// Most bytes of a filter.
const MAX_FILTER: usize = 64;
