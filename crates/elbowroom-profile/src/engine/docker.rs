//! Docker by its API over the Unix socket: a start is the one request that `docker start` sends, without the command line's own
//! cost.

use super::bundle::{DIRECTORIES, LINKS, PATH, present_host_paths};
use super::{
    ContainerOptions, ENGINE_TIMEOUT, EngineError, EngineKind, EngineUse, LABEL, NAME_PREFIX, ProfilerRun,
    StartTarget, file_error,
};
use elbowroom_linux::bounded;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// An answer of the engine; lists of thousands of containers are shorter.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;

/// A daemon that answers.
#[derive(Debug)]
pub(super) struct DockerEngine {
    pub(super) socket: PathBuf,
    pub(super) version: String,
    options: ContainerOptions,
}

impl DockerEngine {
    /// At `host`, such as `unix:///run/docker.sock`; where the environment says, without it.
    pub(super) fn open(options: &ContainerOptions, host: Option<&str>) -> Result<Self, EngineError> {
        let said = || std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".into());
        let host = host.map_or_else(said, str::to_owned);
        let silent = |why: String| EngineError::Unresponsive {
            engine: EngineKind::Docker,
            address: host.strip_prefix("unix://").unwrap_or(&host).to_owned(),
            why,
            variable: "DOCKER_HOST",
        };
        let Some(socket) = host.strip_prefix("unix://").map(PathBuf::from) else {
            return Err(silent("only a daemon of this machine can be profiled".into()));
        };
        let mut docker = Self { socket, version: String::new(), options: options.clone() };
        let (status, answer) =
            docker.request("GET", "/version", &[]).map_err(|error| silent(error.to_string()))?;
        // The profiler that removes what is left there may have another directory.
        docker.socket = std::path::absolute(&docker.socket).map_err(file_error("finding", &docker.socket))?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        match answer["Version"].as_str() {
            Some(version) if status == 200 => docker.version = version.to_owned(),
            _ => return Err(silent(format!("it is no Docker: status {status}"))),
        }
        Ok(docker)
    }

    /// Which daemon it is, for [`ProfilerRun::record_engine`].
    fn engine_use(&self) -> EngineUse {
        let address = format!("unix://{}", self.socket.display());
        EngineUse { kind: EngineKind::Docker, address: Some(address), namespace: None }
    }

    pub(super) fn has_image(&self, image: &str) -> Result<(), EngineError> {
        self.expect_success(
            &format!("find the image {image}"),
            "GET",
            &format!("/images/{}/json", percent_encoded(image)),
            &[],
        )
        .map(|_| ())
    }

    /// An image of directories and links, for the host's programs.
    pub(super) fn import(&self, run: &ProfilerRun) -> Result<(), EngineError> {
        run.record_engine(&self.engine_use())?;
        let path = format!("/images/create?fromSrc=-&repo={NAME_PREFIX}&tag={}", run.tag);
        let answer = self.expect_success("import an image", "POST", &path, &root_archive())?;
        // Progress, one object a line; an error is one of them, under status 200.
        let text = String::from_utf8_lossy(&answer);
        let error = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find_map(|line| line["error"].as_str().map(str::to_owned));
        error.map_or(Ok(()), |said| Err(refused("import an image", said)))
    }

    pub(super) fn create(
        &self,
        run: &ProfilerRun,
        subject: &StartTarget,
        name: &str,
    ) -> Result<(), EngineError> {
        run.record_engine(&self.engine_use())?;
        let binds: Vec<String> = present_host_paths().map(|path| format!("{path}:{path}:ro")).collect();
        let mut host = json!({"NetworkMode": self.options.network.as_deref().unwrap_or("none")});
        let mut body = json!({"Labels": {LABEL: run.tag}});
        match subject {
            StartTarget::Host(words) => {
                body["Image"] = json!(format!("{NAME_PREFIX}:{}", run.tag));
                body["Cmd"] = json!(words);
                body["Env"] = json!([PATH]);
                host["Binds"] = json!(binds);
                host["Tmpfs"] = json!({"/tmp": ""});
            }
            StartTarget::Image(image, words) => {
                body["Image"] = json!(image);
                if !words.is_empty() {
                    body["Cmd"] = json!(words);
                }
            }
            StartTarget::Bundle(_) => unreachable!("`prepare` refuses bundles with an engine"),
        }
        if let Some(runtime) = &self.options.runtime {
            host["Runtime"] = json!(runtime);
        }
        body["HostConfig"] = host;
        let path = format!("/containers/create?name={name}");
        self.expect_success("make a container", "POST", &path, body.to_string().as_bytes()).map(|_| ())
    }

    pub(super) fn start(&self, name: &str) -> Result<(), EngineError> {
        self.expect_success("start a container", "POST", &format!("/containers/{name}/start"), &[])
            .map(|_| ())
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), EngineError> {
        let path = format!("/containers/{name}?force=1&v=1");
        // Conflict: another program is removing it.
        self.delete(&format!("remove the container {name}"), &path, &[404, 409])
    }

    pub(super) fn forget_image(&self, tag: &str) -> Result<(), EngineError> {
        // Conflict: a container still uses it.
        self.delete("remove its image", &format!("/images/{NAME_PREFIX}:{tag}?force=1"), &[404])
    }

    /// Names of containers that any profiler made.
    pub(super) fn list(&self) -> Result<Vec<String>, EngineError> {
        let filters = percent_encoded(&json!({"label": [LABEL]}).to_string());
        let path = format!("/containers/json?all=1&filters={filters}");
        let answer = self.expect_success("list containers", "GET", &path, &[])?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let names = answer.as_array().into_iter().flatten().filter_map(|row| row["Names"][0].as_str());
        Ok(names.map(|name| name.trim_start_matches('/').to_owned()).collect())
    }

    /// Removes; an answer of `fine` is as good.
    fn delete(&self, what: &str, path: &str, fine: &[u16]) -> Result<(), EngineError> {
        match self.request("DELETE", path, &[]) {
            Ok((status, _)) if fine.contains(&status) => Ok(()),
            Ok((status, answer)) if status >= 300 => Err(refused(what, error_message(status, &answer))),
            Ok(_) => Ok(()),
            Err(error) => Err(refused(what, error.to_string())),
        }
    }

    fn expect_success(
        &self,
        what: &str,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Vec<u8>, EngineError> {
        match self.request(method, path, body) {
            Ok((status, answer)) if status < 300 => Ok(answer),
            Ok((status, answer)) => Err(refused(what, error_message(status, &answer))),
            Err(error) => Err(refused(what, error.to_string())),
        }
    }

    /// Version 1.0 of HTTP, so that an answer is everything up to the connection's end.
    fn request(&self, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ENGINE_TIMEOUT))?;
        stream.set_write_timeout(Some(ENGINE_TIMEOUT))?;
        let kind = if body.first() == Some(&b'{') { "application/json" } else { "application/x-tar" };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let answer = bounded::bytes(stream, MAX_RESPONSE_BYTES)?;
        split_response(&answer)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP"))
    }
}

/// Status and body of an answer.
pub fn split_response(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n")?;
    let status = std::str::from_utf8(&answer[..end]).ok()?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[end + 4..].to_vec()))
}

/// What an answer says that is no success: a line, and not a long one.
pub fn error_message(status: u16, answer: &[u8]) -> String {
    let json: Value = serde_json::from_slice(answer).unwrap_or_default();
    let text = json["message"].as_str().map_or_else(|| format!("status {status}"), str::to_owned);
    text.chars().take(400).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn refused(what: &str, said: String) -> EngineError {
    EngineError::Refused {
        engine: EngineKind::Docker,
        what: what.to_owned(),
        said: said.replace(['\n', '\r'], " "),
    }
}

/// Percent-encoded, but for what images are called.
fn percent_encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// A tar archive (POSIX.1-1988 ustar) of directories and links.
fn root_archive() -> Vec<u8> {
    let mut archive = Vec::new();
    for name in DIRECTORIES {
        let mode = if name == "tmp" { "0001777" } else { "0000755" };
        archive.extend(entry(&format!("{name}/"), mode, b'5', ""));
    }
    for name in LINKS.into_iter().filter(|name| Path::new("/usr").join(name).is_dir()) {
        archive.extend(entry(name, "0000777", b'2', &format!("usr/{name}")));
    }
    archive.extend([0; 1024]);
    archive
}

fn entry(name: &str, mode: &str, kind: u8, target: &str) -> [u8; 512] {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, mode);
    put(108, "0000000");
    put(116, "0000000");
    put(124, "00000000000");
    put(136, "00000000000");
    // The sum is taken with spaces in its own place.
    put(148, "        ");
    put(157, target);
    put(257, "ustar");
    put(263, "00");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        assert_eq!(split_response(b"HTTP/1.0 204 No Content\r\nA: b\r\n\r\n"), Some((204, Vec::new())));
        assert_eq!(split_response(b"HTTP/1.1 404 Not Found\r\n\r\n{}"), Some((404, b"{}".to_vec())));
        assert_eq!(split_response(b"nonsense"), None);
        assert_eq!(error_message(404, br#"{"message":"no such image"}"#), "no such image");
        assert_eq!(error_message(500, b"<html>"), "status 500");
    }

    #[test]
    fn nothing_of_a_name_becomes_part_of_a_request() {
        assert_eq!(percent_encoded("a/b:c@sha256:0"), "a/b:c@sha256:0");
        assert_eq!(percent_encoded("a b\r\nX: y?z"), "a%20b%0D%0AX:%20y%3Fz");
    }

    #[test]
    fn tar_reads_the_archive_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root.tar");
        std::fs::write(&path, root_archive()).unwrap();
        let listed = std::process::Command::new("tar").arg("-tf").arg(&path).output().unwrap();
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(
            listed.status.success() && names.contains("etc/alternatives/") && names.contains("bin"),
            "{listed:?}"
        );
    }
}
