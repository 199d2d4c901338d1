//! The node's agent: what it knows, by its HTTP API, and what it is told of pods, on its control socket. Both are sockets in its
//! run directory, and only what is used here is read of its answers (`docs/guide/api.md`).

use crate::claims::PodLabels;
use anyhow::{Context, Result, bail, ensure};
use elbowroom_types::alert::Alert;
use elbowroom_types::container::Pod;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::unit::Bytes;
use elbowroom_types::verdict::Verdict;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes as Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The source of labels, as `elbowroom show` tells it.
pub(crate) const LABELS_BY: &str = "elbowroom-kube";

/// How long the agent may take; it answers in milliseconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read: a thousand containers are a few megabytes. It is in memory twice, and this program has 128 MiB.
const MAX_RESPONSE_BYTES: usize = 32 << 20;

/// What the agent knew at one moment.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiSnapshot {
    /// When, in milliseconds since 1970.
    pub(crate) time_unix_ms: u64,
    pub(crate) containers: Vec<ApiContainer>,
    pub(crate) alerts: ApiAlerts,
}

/// One container.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiContainer {
    /// The engine's identifier.
    pub(crate) id: String,
    /// The name in its pod.
    pub(crate) name: Option<String>,
    pub(crate) pod: Option<Pod>,
    pub(crate) labels: ContainerLabels,
    /// The source of its labels.
    pub(crate) labels_by: Option<String>,
    pub(crate) disk: Vec<ApiContainerDisk>,
    pub(crate) memory: Option<ApiContainerMemory>,
    /// How it is doing; of an agent that says more, what is known here.
    #[serde(deserialize_with = "verdict_or_ok")]
    pub(crate) verdict: Verdict,
}

/// Where a container stands at a disk.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiContainerDisk {
    pub(crate) name: String,
    /// The part of the disk it may take; `None` for all of it.
    pub(crate) cap: Option<f64>,
    /// Whether that is in force.
    pub(crate) enforced: bool,
}

/// Where a container's memory stands.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiContainerMemory {
    /// What was taken from it since it last needed all.
    pub(crate) lent: Bytes,
}

/// What is wrong.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiAlerts {
    #[serde(deserialize_with = "understood")]
    pub(crate) lasting: Vec<ApiAlert>,
}

/// A verdict that can be read: a newer agent has words that nothing here waits for.
fn verdict_or_ok<'de, D: Deserializer<'de>>(from: D) -> Result<Verdict, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).unwrap_or_default())
}

/// Those alerts that can be read: a newer agent has kinds that nothing here waits for.
fn understood<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ApiAlert>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// An alert with the names of what it is about.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiAlert {
    #[serde(flatten)]
    pub(crate) alert: Alert,
    pub(crate) disk_name: Option<String>,
    pub(crate) container: Option<ApiContainerRef>,
    /// When it began, in milliseconds since 1970.
    #[serde(default)]
    pub(crate) since_unix_ms: u64,
}

/// A container, by its identifier.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiContainerRef {
    pub(crate) id: String,
}

/// What is asked on the control socket.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum AgentCommand<'a> {
    Label {
        container: &'a str,
        by: &'a str,
        #[serde(flatten)]
        labels: &'a PodLabels,
        #[serde(skip_serializing_if = "Option::is_none")]
        for_seconds: Option<u64>,
        /// What is known of labels here is old when these are given: another program's word may be newer, and stays.
        keep_others: bool,
    },
}

/// The agent of a run directory.
#[derive(Clone, Debug)]
pub(crate) struct AgentClient {
    run_dir: PathBuf,
}

impl AgentClient {
    pub(crate) fn at(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned() }
    }

    /// Whether the run directory was deleted: a mount of it never shows the one that takes its place.
    pub(crate) fn is_deleted(&self) -> bool {
        std::fs::metadata(&self.run_dir).is_ok_and(|directory| directory.nlink() == 0)
    }

    /// What it knows of pods.
    pub(crate) async fn snapshot(&self) -> Result<ApiSnapshot> {
        let path = self.run_dir.join("api.sock");
        let asking = async {
            let stream = UnixStream::connect(&path).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let request =
                Request::get("/api/v1/pods").header("host", "localhost").body(Empty::<Body>::new())?;
            let answering = async {
                let answer = sender.send_request(request).await?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), MAX_RESPONSE_BYTES).collect().await;
                let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
                ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body).trim());
                serde_json::from_slice(&body).context("its answer: is it of another version?")
            };
            // The connection is driven here, and ends with the answer.
            tokio::select! {
                answer = answering => answer,
                end = connection => { end?; bail!("it closed the connection") }
            }
        };
        tokio::time::timeout(REQUEST_TIMEOUT, asking)
            .await
            .unwrap_or_else(|_| bail!("no answer in {} s", REQUEST_TIMEOUT.as_secs()))
            .with_context(|| format!("asking the agent on {}", path.display()))
    }

    /// Gives a container labels, for `for_seconds` or as long as it runs, unless another program's are there. Returns the agent's
    /// reason where it refuses that.
    pub(crate) async fn label(
        &self,
        container: &str,
        labels: &PodLabels,
        for_seconds: Option<u64>,
    ) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct LabelResponse {
            error: Option<String>,
        }
        let path = self.run_dir.join("agent.sock");
        let asking = async {
            let mut stream = UnixStream::connect(&path).await?;
            let command =
                AgentCommand::Label { container, by: LABELS_BY, labels, for_seconds, keep_others: true };
            let mut line = serde_json::to_vec(&command)?;
            line.push(b'\n');
            stream.write_all(&line).await?;
            let mut answer = Vec::new();
            while answer.last() != Some(&b'\n') {
                let mut next = (&mut stream).take((MAX_RESPONSE_BYTES - answer.len()) as u64);
                ensure!(next.read_buf(&mut answer).await? > 0, "its answer has no end");
            }
            let answer: LabelResponse =
                serde_json::from_slice(&answer).context("its answer: is it of another version?")?;
            Ok(answer.error)
        };
        tokio::time::timeout(REQUEST_TIMEOUT, asking)
            .await
            .unwrap_or_else(|_| bail!("no answer in {} s", REQUEST_TIMEOUT.as_secs()))
            .with_context(|| format!("asking the agent on {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn questions_are_as_the_agent_reads_them() {
        let labels = PodLabels {
            promised: BTreeMap::from([("elbowroom.dev/priority".to_owned(), "50".to_owned())]),
            asked: BTreeMap::new(),
        };
        let line = |for_seconds| {
            let (container, keep_others) = ("abc", true);
            let asked =
                AgentCommand::Label { container, by: LABELS_BY, labels: &labels, for_seconds, keep_others };
            serde_json::to_string(&asked).unwrap()
        };
        let given = r#"{"label":{"container":"abc","by":"elbowroom-kube","promised":{"elbowroom.dev/priority":"50"},"asked":{}"#;
        assert_eq!(line(None), format!(r#"{given},"keep_others":true}}}}"#));
        assert_eq!(line(Some(120)), format!(r#"{given},"for_seconds":120,"keep_others":true}}}}"#));
    }

    #[tokio::test]
    async fn an_answer_that_would_fill_this_programs_memory_is_given_up() {
        use std::io::{Read, Write};
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let given = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let _ = peer.read(&mut [0; 4096]).unwrap();
            let (piece, mut given) = ([b' '; 64 << 10], 0);
            let mut more = peer.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while more.is_ok() {
                more = peer.write_all(&piece);
                given += piece.len();
            }
            given
        });
        assert!(AgentClient::at(dir.path()).snapshot().await.is_err());
        let given = given.join().unwrap();
        assert!(given < 48 << 20, "{given}");
    }

    #[test]
    fn an_alert_of_a_newer_agent_hides_no_other() {
        let known = r#"{"kind": "OVERCOMMIT", "since": 1, "text": "3 GiB promised"}"#;
        let newer = r#"{"kind": "UNHEARD_OF", "since": {"seconds": 1}, "text": "new"}"#;
        let snapshot =
            format!(r#"{{"time_unix_ms": 7, "alerts": {{"lasting": [{newer}, {known}, 3], "newer": 1}}}}"#);
        let snapshot: ApiSnapshot = serde_json::from_str(&snapshot).unwrap();
        let texts: Vec<&str> = snapshot.alerts.lasting.iter().map(|view| view.alert.text.as_str()).collect();
        assert_eq!((snapshot.time_unix_ms, &texts[..]), (7, &["3 GiB promised"][..]));
    }

    #[test]
    fn what_is_read_is_in_the_apis_document() {
        let document = include_str!("../../elbowroom-agent/src/http/openapi.json");
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        for (schema, fields) in [
            ("PodsSnapshot", &["time_unix_ms", "containers", "alerts"][..]),
            ("ContainerView", &["id", "name", "pod", "labels", "labels_by", "disk", "memory", "verdict"]),
            ("Verdict", &["status", "reason", "raise"]),
            ("ContainerDiskStatus", &["name", "cap", "enforced"]),
            ("ContainerMemoryStatus", &["lent"]),
            ("ContainerRef", &["id"]),
            ("AlertView", &["kind", "severity", "topic", "text", "disk_name", "container", "since_unix_ms"]),
        ] {
            let there = &document["components"]["schemas"][schema]["properties"];
            for field in fields {
                assert!(there.get(field).is_some(), "{schema}.{field}");
            }
        }
    }
}
