//! `elbowroom profile list` and `show`: profiles that `--keep` has kept.

use super::report::ProfileStoreArgs;
use anyhow::{Context, Result, bail};
use clap::Args;
use elbowroom_client::output::{DataFormat, Format, write_stdout};
use elbowroom_client::profile_store::StoredProfile;
use elbowroom_client::table::{Align, table};
use serde::Deserialize;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Arguments of `profile list`.
#[derive(Args)]
pub(super) struct ProfileListArgs {
    #[command(flatten)]
    store: ProfileStoreArgs,
    /// How to print the answer.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Arguments of `profile show`.
#[derive(Args)]
pub(super) struct ProfileShowArgs {
    /// Its name, as `profile list` says it.
    name: String,
    #[command(flatten)]
    store: ProfileStoreArgs,
    /// How to print it.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What is needed of a kept profile to show it.
#[derive(Deserialize)]
struct StoredProfileText {
    text: String,
}

/// `profile list`.
pub(super) fn list(args: &ProfileListArgs) -> Result<ExitCode> {
    let profiles = args.store.open();
    let all = profiles.list().with_context(|| format!("while reading {}", profiles.dir().display()))?;
    match args.format {
        Format::Data(data) => write_stdout(&data.document(&all)?)?,
        Format::Text if all.is_empty() => {
            write_stdout(&format!("no profiles in {}: --keep keeps one\n", profiles.dir().display()))?;
        }
        Format::Text => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
            write_stdout(&list_text(&all, now))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `profile show`.
pub(super) fn show(args: &ProfileShowArgs) -> Result<ExitCode> {
    let profiles = args.store.open();
    let read =
        profiles.read(&args.name).with_context(|| format!("while reading {}", profiles.dir().display()))?;
    let Some(text) = read else {
        bail!(
            "no profile is called {:?} in {}: `elbowroom profile list` names them",
            args.name,
            profiles.dir().display()
        )
    };
    match args.format {
        Format::Data(DataFormat::Json) => write_stdout(&text)?,
        Format::Data(data) => {
            let kept: serde_json::Value = serde_json::from_str(&text)
                .with_context(|| format!("while reading {} in {}", args.name, profiles.dir().display()))?;
            write_stdout(&data.document(&kept)?)?;
        }
        Format::Text => {
            let shown: StoredProfileText = serde_json::from_str(&text)
                .with_context(|| format!("while reading {} in {}", args.name, profiles.dir().display()))?;
            write_stdout(&shown.text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_text(all: &[StoredProfile], now: u64) -> String {
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|kept| {
            let kib = kept.bytes.div_ceil(1024);
            vec![
                kept.name.clone(),
                kept.kind.clone(),
                ago(now.saturating_sub(kept.time_unix_ms)),
                kib.to_string(),
            ]
        })
        .collect();
    table(
        &[("NAME", Align::Left), ("KIND", Align::Left), ("AGO", Align::Right), ("KIB", Align::Right)],
        &rows,
    )
}

/// A length of time in its largest whole unit.
fn ago(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_and_how_long_ago() {
        let kept = StoredProfile {
            name: "pages-5000".into(),
            kind: "pages".into(),
            time_unix_ms: 5_000,
            bytes: 1_025,
        };
        assert_eq!(
            list_text(&[kept], 3_605_000),
            "NAME        KIND   AGO  KIB\npages-5000  pages  60m    2\n"
        );
        assert_eq!([0, 119_999, 7_200_000, 200_000_000].map(ago), ["0s", "119s", "2h", "2d"]);
    }
}
