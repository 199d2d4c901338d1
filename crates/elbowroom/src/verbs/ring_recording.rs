//! `elbowroom record --ring` and `elbowroom replay DIR`: the black box from outside.

use super::top::{self, CpuHistory};
use crate::cli::{RecordArgs, ReplayArgs};
use anyhow::{Context, Result, ensure};
use elbowroom_agent::http::recording;
use elbowroom_agent::recorder::reader::RecordingCursor;
use elbowroom_agent::recorder::settings::MIN_SIZE;
use elbowroom_agent::recorder::timestamp;
use elbowroom_agent::recorder::writer::RingWriter;
use elbowroom_client::api::{AgentSnapshot, ControlRequest, ControlResponse};
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{Format, say, unexpected_response};
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer;
use elbowroom_linux::timer::Ticker;
use elbowroom_types::unit::Micros;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;
use rustix::process::Signal;
use std::io::IsTerminal;
use std::path::Path;

/// A moment that is so much before the one asked for is said to be another.
const MAX_GAP_MS: u64 = 2_000;
const MINUTE_MS: i64 = 60_000;

/// Keeps a ring of what the agent knows until it is told to stop.
pub(crate) fn record(run_dir: &Path, dir: &Path, args: &RecordArgs) -> Result<()> {
    ensure!(args.max_size >= MIN_SIZE, "--max-size: {} is too small: at least {MIN_SIZE}", args.max_size);
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM]).context("blocking signals")?;
    let mut writer = RingWriter::open(dir, args.max_size)?;
    // Nobody to ask is an error at first, and later something that passes.
    writer.write(fetch_snapshot(run_dir)?)?;
    let ticker = Ticker::new(args.every)?;
    let begin = timer::now();
    let mut problem = None;
    loop {
        ticker.wait()?;
        let ended = args.duration.is_some_and(|most: Micros| timer::now().saturating_sub(begin) >= most);
        if ended || signals.next()?.is_some() {
            return Ok(());
        }
        let now = fetch_snapshot(run_dir).and_then(|snapshot| writer.write(snapshot)).err();
        let now = now.map(|error| elbowroom_client::output::one_line(&error));
        if now != problem {
            say(now.as_deref().unwrap_or("recording again"));
            problem = now;
        }
    }
}

fn fetch_snapshot(run_dir: &Path) -> Result<AgentSnapshot> {
    match ControlClient::connect(run_dir)?.request(&ControlRequest::Snapshot)? {
        ControlResponse::Snapshot(snapshot) => Ok(*snapshot),
        _ => unexpected_response(),
    }
}

/// Shows a moment.
pub(crate) fn replay(args: &ReplayArgs) -> Result<String> {
    let dir = &args.file;
    let asked = args
        .at
        .as_deref()
        .map(|text| timestamp::parse(text, elbowroom_linux::timer::unix_ms()))
        .transpose()?;
    if let Some(address) = args.serve {
        recording::serve(dir, asked, address)?;
        return Ok(String::new());
    }
    let cursor = match asked {
        Some(time) => RecordingCursor::at(dir, time)?,
        None => RecordingCursor::last(dir)?,
    };
    if let Some(asked) = asked
        && asked.saturating_sub(cursor.time()) > MAX_GAP_MS
    {
        say(&format!(
            "nothing was recorded then; this is the last moment before it, {}",
            timestamp::format_local(cursor.time())
        ));
    }
    if let Format::Data(data) = args.output.format {
        return data.document(&cursor.snapshot()?);
    }
    if !std::io::stdout().is_terminal() {
        return Ok(screen(&cursor.snapshot()?));
    }
    step_through(cursor)?;
    Ok(String::new())
}

/// One screen, as `top` has it.
fn screen(snapshot: &AgentSnapshot) -> String {
    let lasting = snapshot.alerts.lasting.len();
    let alerts = if lasting == 0 { String::new() } else { format!(", {lasting} alerts") };
    let heading = format!(
        "{}: {} containers{alerts}",
        timestamp::format_local(snapshot.time_unix_ms),
        snapshot.containers.len()
    );
    format!("{heading}\n{}", top::plain_screen(&snapshot.containers, &CpuHistory::default()))
}

fn step_through(mut cursor: RecordingCursor) -> Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut state = TableState::default();
    let outcome = (|| -> Result<()> {
        let mut history = CpuHistory::default();
        loop {
            let snapshot = cursor.snapshot()?;
            history.record(&snapshot.containers);
            let (time, containers) = (timestamp::format_local(cursor.time()), snapshot.containers.len());
            let title = format!(
                " {time}: {containers} containers  (left/right 1 step, page up/down 1 min, home/end, q quits) "
            );
            terminal.draw(|frame| top::draw(frame, &snapshot.containers, &history, &mut state, title))?;
            let key = loop {
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => break key,
                    Event::Resize(..) => break KeyCode::Null.into(),
                    _ => {}
                }
            };
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Right | KeyCode::Char('l') => drop(cursor.advance()?),
                KeyCode::Left | KeyCode::Char('h') => {
                    cursor.previous()?;
                    // What was used before that is not what the curve shows.
                    history = CpuHistory::default();
                }
                KeyCode::PageUp | KeyCode::PageDown => {
                    cursor.step(if key.code == KeyCode::PageDown { MINUTE_MS } else { -MINUTE_MS })?;
                    history = CpuHistory::default();
                }
                KeyCode::Home => (cursor, history) = (cursor.to_first()?, CpuHistory::default()),
                KeyCode::End => (cursor, history) = (cursor.to_last()?, CpuHistory::default()),
                KeyCode::Down | KeyCode::Char('j') => state.select_next(),
                KeyCode::Up | KeyCode::Char('k') => state.select_previous(),
                _ => {}
            }
        }
    })();
    ratatui::restore();
    outcome
}
