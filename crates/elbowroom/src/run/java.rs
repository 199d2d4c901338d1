//! `elbowroom run --java`: the agent for HotSpot, by the variable that every HotSpot reads.

use anyhow::{Context, bail, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What the launcher of every Java program inserts before its own options.
pub(crate) const VARIABLE: &str = "JAVA_TOOL_OPTIONS";

/// The agent's file, built by `make java`.
const JAR: &str = "elbowroom-agent.jar";

/// Where it is, from the directory of the program: beside it, where `make install` puts it, where `make java` leaves it.
const PLACES: [&str; 3] = [".", "../share/elbowroom", "../java"];

/// The value of [`VARIABLE`] for the command.
pub(crate) fn options() -> anyhow::Result<OsString> {
    let program = std::env::current_exe().context("--java")?;
    let directory = program.parent().context("--java: the directory of this program is not known")?;
    let Some(jar) = find(directory) else {
        bail!(
            "--java: there is no {JAR} beside {} or in ../share/elbowroom: `make java` builds it",
            program.display()
        )
    };
    append(std::env::var_os(VARIABLE), &jar)
}

fn find(directory: &Path) -> Option<PathBuf> {
    PLACES.iter().find_map(|place| directory.join(place).join(JAR).canonicalize().ok())
}

/// Adds the agent behind whatever is there, once.
fn append(before: Option<OsString>, jar: &Path) -> anyhow::Result<OsString> {
    let jar = jar.to_str().with_context(|| format!("--java: {} is not UTF-8", jar.display()))?;
    // HotSpot knows quotes, and nothing to quote a quote with (Arguments::parse_options_buffer).
    ensure!(
        !jar.contains(['"', '\'']),
        "--java: a Java launcher cannot be told of {jar}: move it to a path without quotes"
    );
    let agent = if jar.contains(char::is_whitespace) {
        format!("\"-javaagent:{jar}\"")
    } else {
        format!("-javaagent:{jar}")
    };
    let mut options = before.unwrap_or_default();
    if options.to_string_lossy().contains(&agent) {
        return Ok(options);
    }
    if !options.is_empty() {
        options.push(" ");
    }
    options.push(agent);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_added_once_behind_what_is_there() {
        let check = |before: Option<&str>, jar: &str, after: &str| {
            assert_eq!(append(before.map(Into::into), Path::new(jar)).unwrap(), after);
        };
        check(None, "/a.jar", "-javaagent:/a.jar");
        check(Some(""), "/a.jar", "-javaagent:/a.jar");
        check(Some("-Xmx1g"), "/a.jar", "-Xmx1g -javaagent:/a.jar");
        check(Some("-Xmx1g -javaagent:/a.jar"), "/a.jar", "-Xmx1g -javaagent:/a.jar");
        check(None, "/my programs/a.jar", "\"-javaagent:/my programs/a.jar\"");
        assert!(append(None, Path::new("/it's/a.jar")).is_err());
    }

    #[test]
    fn the_jar_beside_the_program_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let (bin, share) = (root.path().join("bin"), root.path().join("share/elbowroom"));
        for directory in [&bin, &share] {
            std::fs::create_dir_all(directory).unwrap();
        }
        assert_eq!(find(&bin), None);
        std::fs::write(share.join(JAR), "").unwrap();
        assert_eq!(find(&bin), Some(share.join(JAR).canonicalize().unwrap()));
        std::fs::write(bin.join(JAR), "").unwrap();
        assert_eq!(find(&bin), Some(bin.join(JAR).canonicalize().unwrap()));
    }
}
