//! `elbowroom record --ring` and `elbowroom replay DIR`: the black box from outside.

use super::containers;
use super::record::{RecordArgs, ReplayArgs};
use super::top::{self, LiveScreen, TopAction};
use anyhow::{Context, Result, ensure};
use elbowroom_agent::http::recording;
use elbowroom_agent::recorder::reader::RecordingCursor;
use elbowroom_agent::recorder::settings::MIN_SIZE;
use elbowroom_agent::recorder::timestamp;
use elbowroom_agent::recorder::writer::RingWriter;
use elbowroom_client::api::AgentSnapshot;
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{Format, say};
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer;
use elbowroom_linux::timer::Ticker;
use elbowroom_types::unit::{Micros, counted};
use ratatui::crossterm::event::KeyCode;
use rustix::process::Signal;
use std::io::IsTerminal;
use std::path::Path;

/// The user is told when the moment shown is more than this before the one asked for.
const MAX_GAP_MS: u64 = 7_000;
const MINUTE_MS: i64 = 60_000;

/// Keeps a ring of what the agent knows until it is told to stop.
pub(crate) fn record(run_dir: &Path, dir: &Path, args: &RecordArgs) -> Result<()> {
    ensure!(args.max_size >= MIN_SIZE, "--max-size: {} is too small: at least {MIN_SIZE}", args.max_size);
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM]).context("blocking signals")?;
    // No agent to ask is an error at first, before anything is made, and later something that passes.
    let first = fetch_snapshot(run_dir)?;
    let mut writer = RingWriter::open(dir, args.max_size)?;
    writer.write(first)?;
    let ticker = Ticker::new(args.every)?;
    let begin = timer::now();
    let mut problem = None;
    loop {
        ticker.wait()?;
        let ended = args.duration.is_some_and(|most: Micros| timer::now().saturating_sub(begin) >= most);
        if ended || signals.next()?.is_some() {
            let (dir, recorded) = (dir.display(), timer::now().saturating_sub(begin));
            say(&format!(
                "{dir}: {recorded} recorded: `elbowroom replay {dir}` shows the last moment, --at another"
            ));
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
    containers::fetch_snapshot(&mut ControlClient::connect(run_dir)?)
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
    let alerts = if lasting == 0 { String::new() } else { format!(", {}", counted(lasting, "alert")) };
    let left_out = match snapshot.left_out {
        0 => String::new(),
        n => format!(" and {n} more that tenants made, which are not recorded"),
    };
    let heading = format!(
        "{}: {}{left_out}{alerts}",
        timestamp::format_local(snapshot.time_unix_ms),
        counted(snapshot.containers.len(), "container")
    );
    format!("{heading}\n{}", top::plain_screen(&snapshot.shown_containers()))
}

fn step_through(mut cursor: RecordingCursor) -> Result<()> {
    let mut screen = LiveScreen::open()?;
    // What was used before another moment is not what the curve shows.
    let mut continues = true;
    loop {
        let moment = timestamp::format_local(cursor.time());
        screen.show(cursor.snapshot()?, moment, continues)?;
        loop {
            let Some(event) = top::next_event(None)? else { continue };
            let key = top::pressed(&event).filter(|_| screen.is_table()).map(|key| key.code);
            if let Some(next) = key.map(|key| step(&mut cursor, key)).transpose()?.flatten() {
                continues = next;
                break;
            }
            if screen.handle(&event) == TopAction::Quit {
                return Ok(());
            }
            screen.draw()?;
        }
    }
}

/// Goes where a key says: whether that is the next moment. `None` where the key is not one of time.
fn step(cursor: &mut RecordingCursor, key: KeyCode) -> Result<Option<bool>> {
    match key {
        KeyCode::Right | KeyCode::Char('l') => {
            cursor.advance()?;
            return Ok(Some(true));
        }
        KeyCode::Left => drop(cursor.previous()?),
        KeyCode::PageDown => cursor.step(MINUTE_MS)?,
        KeyCode::PageUp => cursor.step(-MINUTE_MS)?,
        KeyCode::Home => *cursor = cursor.to_first()?,
        KeyCode::End => *cursor = cursor.to_last()?,
        _ => return Ok(None),
    }
    Ok(Some(false))
}
