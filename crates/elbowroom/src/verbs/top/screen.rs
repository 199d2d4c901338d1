//! A screen of `top`, as a pure function of what is known and how large the terminal is.

use super::columns::{begins, cell, fit};
use super::severity::{Level, level};
use super::state::{Mode, SortKey, TopState};
use elbowroom_client::api::display_name;
use elbowroom_client::table::clip;
use elbowroom_types::unit::counted;
use elbowroom_types::visible::Visible;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Lines above the first row: the machine, the containers, the headings.
const ABOVE: u16 = 3;
/// Lines below the last row: what is the matter with a container, the command that helps, the keys.
const BELOW: u16 = 3;

const KEYS: &str = "\
up down j k     choose a container         Enter  explain it; Esc goes back
pgup pgdn home end  further                / f F4 show only names with a text
s    worst first (as at the start)         Esc    take the filter away, or quit
c P  most CPU first                        r I    reverse the order
m M  most memory first                     < >    order by another column
d    most disk traffic first               g G    the first, the last container
n    by name                               ?      this page
                                           q F10  quit

The wheel scrolls. A click chooses a row, a second one explains it. A click on
a heading orders by it.

CPU      CPUs used in the last second / CPUs that the container sees
MEMORY   memory used / memory that the container sees; LIMIT is its hard limit
DISK     part of the disk used / part that it may use now; HELD BY what stops it
waiting for   part of the last 10 s that some task waited for it (PSI)";

/// Rows of a table on a terminal of this height.
pub(super) fn table_rows(height: u16) -> usize {
    usize::from(height.saturating_sub(ABOVE + BELOW))
}

/// The line of the first row.
pub(super) const fn first_row() -> u16 {
    ABOVE
}

/// What a click on the headings sorts by, at this column of a terminal of this width.
pub(super) fn heading_at(width: u16, at: u16) -> Option<SortKey> {
    let shown = fit(usize::from(width));
    let column = begins(&shown).iter().rposition(|begin| *begin <= usize::from(at))?;
    shown[column].0.sort
}

/// Draws the screen. Without `colour` only weight and reversal tell.
pub(super) fn draw(state: &TopState, colour: bool, area: Rect, buffer: &mut Buffer) {
    let screen = Screen { state, colour, area };
    match &state.mode {
        Mode::Help => screen.page(buffer, "Keys", KEYS, 0),
        Mode::Explanation { text, from, .. } => {
            screen.page(buffer, "Up, down and page keys scroll, Enter or Esc goes back", text, *from);
        }
        Mode::Table | Mode::Filter => {
            screen.head(buffer);
            screen.table(buffer);
            screen.foot(buffer);
        }
    }
}

struct Screen<'a> {
    state: &'a TopState,
    colour: bool,
    area: Rect,
}

impl Screen<'_> {
    /// Text on a line from a column on, as far as there is room; the column behind it.
    fn put(&self, buffer: &mut Buffer, line: u16, column: usize, text: &str, style: Style) -> usize {
        let room = usize::from(self.area.width).saturating_sub(column);
        if line < self.area.height && room > 0 {
            buffer.set_stringn(column as u16, line, &*Visible::line(text), room, style);
        }
        column + text.chars().count()
    }

    fn style(&self, level: Level) -> Style {
        let style = match level {
            Level::Calm => return Style::new(),
            Level::Felt => Style::new(),
            Level::Bad => Style::new().add_modifier(Modifier::BOLD),
        };
        match (self.colour, level) {
            (false, _) => style,
            (true, Level::Bad) => style.fg(Color::Red),
            (true, _) => style.fg(Color::Yellow),
        }
    }

    fn head(&self, buffer: &mut Buffer) {
        let state = self.state;
        let mut column = 0;
        for (part, level) in state.node.parts() {
            column = self.put(buffer, 0, column, &part, self.style(level)) + 2;
        }
        let all = state.containers.len();
        let ill = state.containers.iter().filter(|c| level(c) > Level::Calm).count();
        let mut words = format!("{}, {ill} not ok, by {}", counted(all, "container"), state.sort.name());
        if state.reversed {
            words += " reversed";
        }
        if !state.filter.is_empty() {
            words += &format!(", {} with \"{}\"", state.visible().len(), state.filter);
        }
        if let Some(moment) = &state.moment {
            words = format!("{moment}: {words}");
        }
        self.put(buffer, 1, 0, &words, Style::new());
    }

    fn table(&self, buffer: &mut Buffer) {
        let state = self.state;
        let shown = fit(usize::from(self.area.width));
        let begins = begins(&shown);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        for ((column, width), begin) in shown.iter().zip(&begins) {
            let style = match column.sort == Some(state.sort) {
                true => bold.add_modifier(Modifier::UNDERLINED),
                false => bold,
            };
            self.put(buffer, ABOVE - 1, *begin, &column.heading(*width), style);
        }
        let rows = state.visible();
        for (line, c) in rows.iter().skip(state.from).take(table_rows(self.area.height)).enumerate() {
            let line = ABOVE + line as u16;
            let chosen = state.selected.as_ref() == Some(&c.id);
            let base = if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            if chosen {
                buffer.set_style(Rect { y: line, height: 1, ..self.area }, base);
            }
            for ((column, width), begin) in shown.iter().zip(&begins) {
                let style = match column.name {
                    "CONTAINER" | "VERDICT" | "WHY" => base.patch(self.style(level(c))),
                    _ => base,
                };
                self.put(buffer, line, *begin, &cell(column, *width, c, &state.history), style);
            }
        }
    }

    fn foot(&self, buffer: &mut Buffer) {
        if let Some(c) = self.state.told() {
            let words = format!("{}: {}", display_name(c), c.verdict.reason);
            self.put(buffer, self.area.height.saturating_sub(3), 0, &words, self.style(level(c)));
            if let Some(command) = &c.verdict.command {
                self.put(
                    buffer,
                    self.area.height.saturating_sub(2),
                    0,
                    &format!("$ {command}"),
                    Style::new(),
                );
            }
        }
        let dim = Style::new().add_modifier(Modifier::DIM);
        let words = match (&self.state.mode, &self.state.moment) {
            (Mode::Filter, _) => {
                format!("filter: {}_   Enter keeps it, Esc takes it away", self.state.filter)
            }
            (_, Some(_)) => {
                "left right  a step   pgup pgdn  a minute   home end   ? keys   q quit".to_owned()
            }
            _ => "? keys   / filter   Enter explain   s c m d n < > order   q quit".to_owned(),
        };
        self.put(buffer, self.area.height.saturating_sub(1), 0, &words, dim);
    }

    /// A page of text under a line that says what it is; long lines go on below.
    fn page(&self, buffer: &mut Buffer, title: &str, text: &str, from: usize) {
        self.put(buffer, 0, 0, title, Style::new().add_modifier(Modifier::DIM));
        let width = usize::from(self.area.width).max(1);
        let room = usize::from(self.area.height.saturating_sub(2));
        for (line, words) in text.lines().skip(from).take(room).enumerate() {
            self.put(buffer, line as u16 + 2, 0, &clip(words, width), Style::new());
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::verbs::top::node::NodeLine;
    use elbowroom_client::api::{ContainerView, NodeView};
    use elbowroom_types::unit::Bytes;
    use elbowroom_types::verdict::{Verdict, VerdictStatus};
    use ratatui::crossterm::event::KeyCode;

    const MIB: u64 = 1 << 20;

    /// A container that uses `cpu` thousandths of a CPU and `memory` MiB.
    pub(in crate::verbs::top) fn container(
        name: &str,
        cpu: u64,
        memory: u64,
        verdict: Verdict,
    ) -> ContainerView {
        let view = serde_json::json!({
            "cpus": 2, "millicpu": 2_000, "cpus_lower": 1, "cpus_upper": 4, "online": "0-1", "present": "0-3", "possible": "0-3",
            "memory": 512 * MIB, "memory_soft": 128 * MIB, "memory_hard": 1024 * MIB, "swap_max": null
        });
        let container = serde_json::json!({
            "id": format!("id-of-{name}"), "name": name, "engine": "docker", "pod": null, "path": format!("/docker/{name}"),
            "attached": true, "attach_note": null, "missing": [], "view_dir": "/run/elbowroom/views/x", "view": view,
            "usage": {"cpu": 0, "throttled": null, "memory": memory * MIB}, "cpu_used_millicpu": cpu, "disk": []
        });
        ContainerView { verdict, ..serde_json::from_value(container).unwrap() }
    }

    fn bad(status: VerdictStatus, reason: &str) -> Verdict {
        Verdict { status, reason: reason.into(), ..Verdict::default() }
    }

    pub(in crate::verbs::top) fn state() -> TopState {
        let containers = vec![
            container("web", 240, 122, Verdict::default()),
            container(
                "database-of-the-shop",
                1_500,
                410,
                bad(VerdictStatus::Throttled, "its quota stopped it for 40% of the time"),
            ),
            container(
                "oomer",
                0,
                60,
                bad(VerdictStatus::Killed, "killed 8 times in 60 s at its limit of 64MiB"),
            ),
        ];
        let node = NodeView {
            cpus: 4,
            cpu_used_millicpu: Some(1_760),
            memory_total: Bytes::gib(16),
            memory_free: Some(Bytes::gib(1)),
            memory_available: Some(Bytes::gib(9)),
        };
        let mut state = TopState::default();
        state.update(containers, NodeLine { node: Some(node), pressure: Some([312, 0, 4_120]) });
        state
    }

    fn buffer(state: &TopState, width: u16, height: u16, colour: bool) -> Buffer {
        let area = Rect { x: 0, y: 0, width, height };
        let mut buffer = Buffer::empty(area);
        draw(state, colour, area, &mut buffer);
        buffer
    }

    fn lines(state: &TopState, width: u16, height: u16) -> Vec<String> {
        let buffer = buffer(state, width, height, false);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn eighty_columns_have_whole_words() {
        let expect = [
            "CPU 1.76/4  memory 7.0G/16G  waiting for  cpu 3%  memory 0%  io 41%",
            "3 containers, 2 not ok, by verdict",
            "CONTAINER               VERDICT                 CPU       MEMORY  READ/s  WRITE/s",
            "oomer                   killed               0.00/2     60M/512M       0        0",
            "database-of-the-shop    throttled            1.50/2    410M/512M       0        0",
            "web                     ok                   0.24/2    122M/512M       0        0",
            "oomer: killed 8 times in 60 s at its limit of 64MiB",
            "$ docker update --memory 128m oomer",
            "? keys   / filter   Enter explain   s c m d n < > order   q quit",
        ];
        let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut state = state();
        state.containers[2].verdict.command = Some("docker update --memory 128m oomer".to_owned());
        let shown = lines(&state, 80, 9);
        let squeezed: Vec<String> = shown.iter().map(|line| squeeze(line)).collect();
        assert_eq!(squeezed, expect.map(squeeze), "{shown:#?}");
        assert!(shown.iter().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn wider_terminals_show_more_and_the_widest_say_why() {
        let heading = |width| lines(&state(), width, 9)[2].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(heading(120), "CONTAINER VERDICT CPU MEMORY LIMIT READ/s WRITE/s DISK HELD BY");
        assert_eq!(
            heading(200),
            "CONTAINER VERDICT CPU MEMORY LIMIT READ/s WRITE/s DISK HELD BY CPU OVER TIME BOUNDS MORE MEMORY WHY"
        );
        let shown = lines(&state(), 200, 9);
        assert!(shown[3].contains("killed 8 times in 60 s at"), "{shown:#?}");
        for (width, height) in [(1, 1), (20, 4), (60, 2), (80, 3), (300, 50)] {
            assert!(
                lines(&state(), width, height).iter().all(|line| line.chars().count() <= usize::from(width))
            );
        }
    }

    #[test]
    fn bad_is_red_and_without_colour_bold() {
        let style = |colour, y| buffer(&state(), 80, 9, colour)[(0, y)].style();
        assert_eq!((style(true, 3).fg, style(true, 4).fg), (Some(Color::Red), Some(Color::Yellow)));
        assert_eq!(style(true, 5).fg, Some(Color::Reset));
        assert_eq!(style(false, 3).fg, Some(Color::Reset));
        assert!(style(false, 3).add_modifier.contains(Modifier::BOLD));
    }

    #[test]
    fn hostile_names_and_explanations_cannot_draw() {
        let mut state = state();
        state.containers[0] = container("a\n\x1b[2Jb", 0, 0, bad(VerdictStatus::Killed, "x\x07"));
        state.mode = Mode::Explanation { id: String::new(), text: "one\n\x1b[31mtwo".into(), from: 1 };
        let shown = lines(&state, 80, 8);
        assert_eq!(shown[2], "\\u{1b}[31mtwo");
        state.mode = Mode::Table;
        assert!(lines(&state, 80, 8).concat().contains("a\\n\\u{1b}[2Jb"));
    }

    #[test]
    fn the_keys_fit_eighty_by_twenty_four_and_none_is_missing() {
        let mut state = state();
        state.key(KeyCode::Char('?').into());
        let shown = lines(&state, 80, 24).join("\n");
        assert!(KEYS.lines().all(|line| shown.contains(line.trim_end()) && line.len() <= 80), "{shown}");
    }

    #[test]
    fn a_click_on_a_heading_finds_its_column() {
        assert_eq!(heading_at(80, 0), Some(SortKey::Name));
        assert_eq!(heading_at(80, 30), Some(SortKey::Verdict));
        assert_eq!(heading_at(80, 89), Some(SortKey::Disk));
    }
}
