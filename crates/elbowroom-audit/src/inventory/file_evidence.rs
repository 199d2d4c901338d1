//! What one file says, whatever it came from.

use super::{AuditBounds, elf};
use crate::rules::config;
use crate::rules::detect::PYTHON_PACKAGES;
use crate::rules::evidence::{DotnetConfig, FileEvidence};
use elbowroom_linux::bounded;
use std::io::{self, Read};

/// Configuration that decides here is short.
const MAX_TEXT_BYTES: u64 = 256 << 10;

/// A text file that says something about a program, by its name. What is in it decides.
fn text(path: &str, text: &str) -> Option<FileEvidence> {
    let (directory, name) = path.rsplit_once('/')?;
    match name {
        "release" => config::java_release(text).map(FileEvidence::JavaRelease),
        "nginx.conf" => Some(FileEvidence::Setting(config::nginx(text))),
        "METADATA" | "PKG-INFO" => {
            let package = directory.rsplit_once('/')?.1;
            let package = package.strip_suffix(".dist-info").or_else(|| package.strip_suffix(".egg-info"))?;
            let (name, version) = package.split_once('-')?;
            let known = PYTHON_PACKAGES.contains(&name);
            known.then(|| FileEvidence::PythonPackage { name: name.to_owned(), version: version.to_owned() })
        }
        _ if name.ends_with(".runtimeconfig.json") => dotnet(text).map(FileEvidence::Dotnet),
        _ if name.ends_with(".cnf") => config::mariadb(text).map(FileEvidence::Setting),
        _ if name.ends_with(".ini") => config::uwsgi(text).map(FileEvidence::Setting),
        _ => None,
    }
}

fn is_text(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["release", "nginx.conf", "METADATA", "PKG-INFO"].contains(&name)
        || name.ends_with(".runtimeconfig.json")
        || name.ends_with(".ini")
        || name.ends_with(".cnf")
}

fn dotnet(text: &str) -> Option<DotnetConfig> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let options = json.get("runtimeOptions")?;
    let framework = ["framework", "includedFrameworks", "frameworks"].iter().find_map(|key| {
        let value = options.get(key)?;
        value.get(0).unwrap_or(value).get("version")?.as_str()
    });
    Some(DotnetConfig { version: framework.map(str::to_owned) })
}

/// What a file and its evidence count of [`AuditBounds::entries`]: one, and one more for each `UNIT` bytes that are kept.
pub(super) fn weight(path: &str, evidence: Option<&FileEvidence>) -> u64 {
    const UNIT: usize = 256;
    /// Half of what a text takes beside its bytes, as a `String` on the heap; each has two quotes in JSON.
    const QUOTE: usize = 28;
    let text = evidence.and_then(|evidence| serde_json::to_vec(evidence).ok()).unwrap_or_default();
    let said = text.len() + QUOTE * text.iter().filter(|byte| **byte == b'"').count();
    1 + ((path.len() + said) / UNIT) as u64
}

/// What a file says; `None` for most. `kept` is memory that is used again from file to file. A file that is larger than
/// the bound is judged by its beginning, and `skipped` says so.
pub fn examine(
    path: &str,
    size: u64,
    mut file: impl Read,
    bounds: &AuditBounds,
    kept: &mut Vec<u8>,
    skipped: &mut Vec<String>,
) -> io::Result<Option<FileEvidence>> {
    kept.clear();
    if is_text(path) {
        if size > MAX_TEXT_BYTES {
            return Ok(None);
        }
        bounded::append(file, MAX_TEXT_BYTES, kept)?;
        return Ok(text(path, &String::from_utf8_lossy(kept)));
    }
    if size < 64 {
        return Ok(None);
    }
    bounded::append(&mut file, 4, kept)?;
    if kept != b"\x7fELF" {
        return Ok(None);
    }
    bounded::append(file, bounds.file - 4, kept)?;
    if size > bounds.file {
        skipped.push(format!("{path}: only the first {} MiB of {}", bounds.file >> 20, size >> 20));
    }
    Ok(elf::read(kept).map(|elf| FileEvidence::Elf(Box::new(elf))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saw(path: &str, bytes: &[u8]) -> Option<FileEvidence> {
        examine(path, bytes.len() as u64, bytes, &AuditBounds::default(), &mut Vec::new(), &mut Vec::new())
            .unwrap()
    }

    #[test]
    fn files_are_told_by_name_and_content() {
        assert!(matches!(saw("/j/release", b"JAVA_VERSION=\"17\"\n"), Some(FileEvidence::JavaRelease(_))));
        assert_eq!(saw("/etc/release", b"Debian\n"), None);
        assert_eq!(saw("/a/b-1.0.dist-info/METADATA", b""), None);
        assert!(matches!(
            saw("/a/joblib-1.4.2.dist-info/METADATA", b""),
            Some(FileEvidence::PythonPackage { .. })
        ));
        assert_eq!(
            saw("/x.runtimeconfig.json", br#"{"runtimeOptions":{"framework":{"version":"8.0.1"}}}"#),
            Some(FileEvidence::Dotnet(DotnetConfig { version: Some("8.0.1".into()) }))
        );
        assert_eq!(saw("/x.runtimeconfig.json", b"[["), None);
        assert_eq!(saw("/bin/script", &[b'#'; 100]), None);
    }

    #[test]
    fn many_short_texts_weigh_as_much_as_they_take() {
        let of = |needed: Vec<String>| {
            FileEvidence::Elf(Box::new(crate::rules::evidence::ElfEvidence { needed, ..Default::default() }))
        };
        let more = weight("", Some(&of(vec!["a".to_owned(); 4096]))) - weight("", Some(&of(Vec::new())));
        let taken = 4096 * (size_of::<String>() + 32);
        assert!(more >= taken as u64 / 256, "{more}");
    }

    #[test]
    fn a_file_over_its_bound_is_said_to_be() {
        let elf = std::fs::read("/bin/true").unwrap();
        let mut skipped = Vec::new();
        let bounds = AuditBounds { file: 4096, ..AuditBounds::default() };
        examine("/x", elf.len() as u64, &elf[..], &bounds, &mut Vec::new(), &mut skipped).unwrap();
        assert_eq!(skipped.len(), 1);
    }
}
