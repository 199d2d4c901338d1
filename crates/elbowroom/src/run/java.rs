//! The agent for HotSpot: where it is installed, and `elbowroom run --java`, by the variable that every HotSpot reads.

use anyhow::{Context, bail, ensure};
use elbowroom_core::launch::{self, JAVA as JAR};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where it is, from the directory of the program: beside it, where `make install` puts it, where `make java` leaves it.
const PLACES: [&str; 3] = [".", "../share/elbowroom", "../java"];

/// The value of [`launch::JAVA_VARIABLE`] for the command.
pub(super) fn options() -> anyhow::Result<OsString> {
    let jar = jar().context("--java")?;
    let jar = jar.to_str().with_context(|| format!("--java: {} is not UTF-8", jar.display()))?;
    ensure!(
        !jar.contains(['"', '\'']),
        "--java: a Java launcher cannot be told of {jar}: move it to a path without quotes"
    );
    let mut options = std::env::var_os(launch::JAVA_VARIABLE).unwrap_or_default();
    launch::append_java_agent(&mut options, jar);
    Ok(options)
}

/// The agent's file, built by `make java`.
pub(crate) fn jar() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("this program's own path")?;
    let directory = program.parent().context("the directory of this program is not known")?;
    let Some(jar) = find(directory) else {
        bail!(
            "there is no {JAR} beside {} or in ../share/elbowroom: `make java` builds it",
            program.display()
        )
    };
    Ok(jar)
}

fn find(directory: &Path) -> Option<PathBuf> {
    PLACES.iter().find_map(|place| directory.join(place).join(JAR).canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

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
