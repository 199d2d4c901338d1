//! `elbowroom top`: how each container is doing, what it uses of what it sees, and how much of the disks each gets, live.
//!
//! This asks the agent, waits for keys and draws. What keys do is in `state`, what is drawn in `screen`; both are pure.

mod columns;
mod history;
mod node;
mod screen;
mod severity;
mod state;

use super::containers::{explanation_text, fetch_snapshot};
use anyhow::Result;
use clap::Args;
use columns::{cell, fit};
use elbowroom_client::api::{AgentSnapshot, ContainerView, ControlRequest, ControlResponse};
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{Format, OutputArgs, fold, is_colour_wanted, one_line, unexpected_response};
use elbowroom_linux::timer;
use elbowroom_types::unit::Micros;
use history::CpuHistory;
use node::NodeLine;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::{DefaultTerminal, Frame};
pub(super) use state::TopAction;
use state::{Mode, TopState};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Columns of a screen that is no terminal: what is piped stays below 80.
const PLAIN_WIDTH: usize = 79;

/// Arguments of `top`.
#[derive(Args)]
pub(crate) struct TopArgs {
    /// Time between two screens.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = super::parse_interval)]
    pub(crate) interval: Micros,
    /// Print one screen and stop; the default when the output is not a terminal.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Runs the table until `q`, or prints it once.
pub(crate) fn top(run_dir: &Path, args: &TopArgs) -> Result<String> {
    let mut client = ControlClient::connect(run_dir)?;
    if let Format::Data(data) = args.output.format {
        return data.document(&fetch_snapshot(&mut client)?.shown_containers());
    }
    if args.once || !std::io::stdout().is_terminal() {
        return Ok(plain_screen(&fetch_snapshot(&mut client)?.shown_containers()));
    }
    run_live(&mut client, Duration::from_micros(args.interval.get().max(50_000)))?;
    Ok(String::new())
}

fn run_live(client: &mut ControlClient, interval: Duration) -> Result<()> {
    let mut screen = LiveScreen::open()?;
    loop {
        let snapshot = fetch_snapshot(client)?;
        screen.state.update(snapshot.shown_containers(), NodeLine::now(snapshot.node));
        screen.refresh_explanation(client);
        let until = Instant::now() + interval;
        screen.draw()?;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let Some(event) = next_event(Some(left))? else { break };
            match screen.handle(&event) {
                TopAction::Quit => return Ok(()),
                TopAction::Explain(id) => screen.explain(client, id),
                TopAction::Nothing => {}
            }
            screen.draw()?;
        }
    }
}

/// The next key, click or change of size; `None` where the time is over before.
pub(super) fn next_event(within: Option<Duration>) -> Result<Option<Event>> {
    if within.is_some_and(|within| !event::poll(within).unwrap_or(true)) {
        return Ok(None);
    }
    Ok(Some(event::read()?))
}

/// The terminal as a screen of `top`. Dropping it gives the terminal back.
pub(super) struct LiveScreen {
    terminal: DefaultTerminal,
    state: TopState,
    colour: bool,
}

impl LiveScreen {
    /// Takes the terminal, and its mouse.
    ///
    /// # Errors
    /// As the terminal has it.
    pub(super) fn open() -> Result<Self> {
        let terminal = ratatui::try_init()?;
        elbowroom_client::output::capture_mouse(true);
        Ok(Self { terminal, state: TopState::default(), colour: is_colour_wanted() })
    }

    /// Shows a moment of a recording.
    pub(super) fn show(&mut self, snapshot: AgentSnapshot, moment: String, continues: bool) -> Result<()> {
        if !continues {
            self.state.history = CpuHistory::default();
        }
        self.state.moment = Some(moment);
        self.state
            .update(snapshot.shown_containers(), NodeLine { node: Some(snapshot.node), pressure: None });
        self.draw()
    }

    /// Draws what is known now.
    pub(super) fn draw(&mut self) -> Result<()> {
        let (state, colour) = (&mut self.state, self.colour);
        self.terminal.draw(|frame: &mut Frame<'_>| {
            state.scroll(screen::table_rows(frame.area().height));
            let area = frame.area();
            screen::draw(state, colour, area, frame.buffer_mut());
        })?;
        Ok(())
    }

    /// A key or a click.
    pub(super) fn handle(&mut self, event: &Event) -> TopAction {
        match event {
            Event::Key(key) if key.kind == KeyEventKind::Press => self.state.key(*key),
            Event::Mouse(mouse) => {
                let width = self.terminal.size().map_or(0, |size| size.width);
                self.state.mouse(*mouse, screen::first_row(), |at| screen::heading_at(width, at))
            }
            _ => TopAction::Nothing,
        }
    }

    /// Whether keys go to the table: not while a filter is typed or a page is read.
    pub(super) fn is_table(&self) -> bool {
        self.state.mode == Mode::Table
    }

    fn explain(&mut self, client: &mut ControlClient, id: String) {
        let text = fetch_explanation(client, &id).unwrap_or_else(|error| one_line(&error));
        self.state.mode = Mode::Explanation {
            id,
            text: fold(&text, self.terminal.size().ok().map(|size| usize::from(size.width))),
            from: 0,
        };
    }

    /// What is read stays true while it is read; that of a container that ended stays as it was.
    fn refresh_explanation(&mut self, client: &mut ControlClient) {
        if let Mode::Explanation { id, text, .. } = &mut self.state.mode
            && let Ok(now) = fetch_explanation(client, id)
        {
            *text = fold(&now, self.terminal.size().ok().map(|size| usize::from(size.width)));
        }
    }
}

impl Drop for LiveScreen {
    fn drop(&mut self) {
        elbowroom_client::output::capture_mouse(false);
        ratatui::restore();
    }
}

/// The key of an event, where it is one that was pressed.
pub(super) fn pressed(event: &Event) -> Option<KeyEvent> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => Some(*key),
        _ => None,
    }
}

fn fetch_explanation(client: &mut ControlClient, id: &str) -> Result<String> {
    match client.request(&ControlRequest::Explain(id.to_owned()))? {
        ControlResponse::Explain(explanation) => Ok(explanation_text(&explanation, timer::now())),
        _ => unexpected_response(),
    }
}

/// One screen in less than 80 columns, the worst first.
pub(super) fn plain_screen(containers: &[ContainerView]) -> String {
    let state = TopState { containers: containers.to_vec(), ..TopState::default() };
    let shown = fit(PLAIN_WIDTH);
    let line = |cells: Vec<String>| cells.join("  ").trim_end().to_owned() + "\n";
    let heading = shown.iter().map(|(column, width)| column.heading(*width)).collect();
    let rows = state
        .visible()
        .into_iter()
        .map(|c| line(shown.iter().map(|(column, width)| cell(column, *width, c, &state.history)).collect()));
    line(heading) + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::screen::tests::state;
    use super::*;
    use ratatui::crossterm::event::{KeyCode, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

    fn names(state: &TopState) -> Vec<&str> {
        state.visible().iter().filter_map(|c| c.name.as_deref()).collect()
    }

    fn press(state: &mut TopState, keys: &str) -> TopAction {
        keys.chars().map(|c| state.key(KeyCode::Char(c).into())).last().unwrap_or(TopAction::Nothing)
    }

    #[test]
    fn the_worst_is_first_and_keys_sort() {
        let mut state = state();
        assert_eq!(names(&state), ["oomer", "database-of-the-shop", "web"]);
        for (keys, order) in [
            ("c", ["database-of-the-shop", "web", "oomer"]),
            ("r", ["oomer", "web", "database-of-the-shop"]),
            ("rm", ["database-of-the-shop", "web", "oomer"]),
            ("n", ["database-of-the-shop", "oomer", "web"]),
            ("M", ["database-of-the-shop", "web", "oomer"]),
            ("n<", ["oomer", "database-of-the-shop", "web"]),
            (">>", ["database-of-the-shop", "web", "oomer"]),
        ] {
            press(&mut state, keys);
            assert_eq!(names(&state), order, "{keys}");
        }
    }

    #[test]
    fn a_filter_narrows_and_escape_takes_it_away_before_it_quits() {
        let mut state = state();
        press(&mut state, "/WEq");
        assert_eq!(names(&state), [""; 0]);
        state.key(KeyCode::Backspace.into());
        state.key(KeyCode::Enter.into());
        assert_eq!(names(&state), ["web"]);
        assert_eq!(state.key(KeyCode::Esc.into()), TopAction::Nothing);
        assert_eq!(names(&state).len(), 3);
        assert_eq!(state.key(KeyCode::Esc.into()), TopAction::Quit);
        assert_eq!(press(&mut state, "q"), TopAction::Quit);
        assert_eq!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), TopAction::Quit);
    }

    #[test]
    fn keys_of_other_programs_do_what_they_do_there() {
        let mut state = state();
        for (key, order) in [
            (KeyCode::Right, ["database-of-the-shop", "oomer", "web"]),
            (KeyCode::Char('I'), ["web", "oomer", "database-of-the-shop"]),
            (KeyCode::Left, ["web", "database-of-the-shop", "oomer"]),
        ] {
            state.key(key.into());
            assert_eq!(names(&state), order, "{key}");
        }
        press(&mut state, "G");
        assert_eq!(state.selected.as_deref(), Some("id-of-oomer"));
        // Rows are chosen while the filter is typed.
        state.key(KeyCode::F(4).into());
        press(&mut state, "b");
        state.key(KeyCode::Down.into());
        state.key(KeyCode::Enter.into());
        assert_eq!((names(&state).len(), state.selected.as_deref()), (2, Some("id-of-web")));
        state.rows = 2;
        state.mode = Mode::Explanation { id: String::new(), text: "a\nb\nc\n".into(), from: 0 };
        let from = |state: &TopState| matches!(state.mode, Mode::Explanation { from: 1, .. });
        state.key(KeyCode::End.into());
        assert!(from(&state));
        state.key(KeyCode::Home.into());
        assert!(!from(&state));
        state.key(KeyCode::Esc.into());
        assert_eq!(state.key(KeyCode::F(10).into()), TopAction::Quit);
    }

    #[test]
    fn enter_explains_the_container_whose_lines_stand_below_and_a_chosen_one_stays_when_rows_move() {
        assert_eq!(TopState::default().key(KeyCode::Enter.into()), TopAction::Nothing);
        let mut state = state();
        let first = TopAction::Explain("id-of-oomer".to_owned());
        assert_eq!(state.key(KeyCode::Enter.into()), first);
        press(&mut state, "jj");
        press(&mut state, "c");
        let chosen = TopAction::Explain("id-of-database-of-the-shop".to_owned());
        assert_eq!(state.key(KeyCode::Enter.into()), chosen);
        state.scroll(1);
        assert_eq!(state.from, 0);
        press(&mut state, "jj");
        state.scroll(1);
        assert_eq!(state.from, 2);
    }

    #[test]
    fn a_click_chooses_a_row_a_second_one_explains_it_and_headings_sort() {
        let mut state = state();
        let click = |row, column| MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column,
            row,
            modifiers: KeyModifiers::NONE,
        };
        let heading = |at| screen::heading_at(80, at);
        assert_eq!(state.mouse(click(4, 0), 3, heading), TopAction::Nothing);
        let explained = TopAction::Explain("id-of-database-of-the-shop".to_owned());
        assert_eq!(state.mouse(click(4, 0), 3, heading), explained);
        state.mouse(click(2, 0), 3, heading);
        assert_eq!(names(&state)[1], "oomer");
        assert_eq!(state.mouse(click(20, 0), 3, heading), TopAction::Nothing);
    }

    #[test]
    fn what_is_piped_has_less_than_eighty_columns() {
        let text = plain_screen(&state().containers);
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(text.starts_with("CONTAINER") && text.lines().nth(1).unwrap().starts_with("oomer"), "{text}");
    }
}
