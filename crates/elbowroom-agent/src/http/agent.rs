//! The agent as a source: a snapshot a second, however many look, and one in five while nothing happens and no stream is read.

use super::rate_limiter::RateLimiter;
use super::{HttpError, SnapshotSource, SnapshotStore, SourceFuture};
use anyhow::{Context, Result, bail};
use axum::http::StatusCode;
use elbowroom_client::api::{
    AgentSnapshot, ContainerView, ControlRequest, ControlResponse, Explanation, FindingsReport, NetworkReport,
};
use elbowroom_client::profile_store::StoredProfile;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// Time between two snapshots.
const PERIOD_MS: u64 = 1_000;
/// How long the newest snapshot says how things are: without news the next one comes after five seconds.
const FRESH_FOR: Duration = Duration::from_secs(8);
/// How long an answer may take; the agent itself gives up earlier and says why.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest answer: several thousand containers.
const MAX_RESPONSE: usize = 64 << 20;
/// Questions about single containers that are under way at once.
const MAX_QUERIES: usize = 2;
/// How long another one waits for its turn: an open page asks several at once, and of all connections each may ask before.
const QUERY_TURN: Duration = Duration::from_secs(3);
/// Time between two attempts to connect where the queue of connections is full: of such as are refused there.
const CONNECT_RETRY: Duration = Duration::from_millis(1);
/// A process that has had no agent to ask for this long belongs to an agent that is gone. One that is not starts another.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);

/// The agent, as the API knows it.
pub(super) struct AgentSource {
    snapshots: SnapshotStore,
    /// Where it answers the API.
    feed: PathBuf,
    /// When it last answered.
    last_answer: Mutex<Option<Instant>>,
    query_permits: Arc<Semaphore>,
    /// However many clients there are, the policy process is asked no more often.
    query_pace: Arc<RateLimiter>,
}

impl AgentSource {
    pub(super) fn new(feed: &Path) -> Self {
        Self {
            snapshots: SnapshotStore::new(),
            feed: feed.to_owned(),
            last_answer: Mutex::new(None),
            query_permits: Arc::new(Semaphore::new(MAX_QUERIES)),
            query_pace: Arc::default(),
        }
    }

    /// Takes snapshots for as long as there is an agent; an error says that there is none.
    pub(super) async fn poll_snapshots(&self) -> Result<()> {
        let mut feed: Option<FeedConnection> = None;
        let mut alone = Instant::now();
        let mut told = false;
        loop {
            match self.snapshot(&mut feed).await {
                Ok(snapshot) => {
                    (alone, told) = (Instant::now(), false);
                    *self.last_answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(alone);
                    self.snapshots.insert(*snapshot);
                }
                Err(error) => {
                    feed = None;
                    // Both processes start at once, and this one may be the first.
                    if alone.elapsed() > FRESH_FOR && !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            because = elbowroom_client::output::one_line(&error),
                            "the agent gives the API no snapshot"
                        );
                    }
                    if alone.elapsed() > ORPHAN_TIMEOUT {
                        bail!("no agent answers any more");
                    }
                }
            }
            // In the middle of a second, so that a snapshot that is a little late is still of that second.
            let into = (elbowroom_linux::timer::unix_ms() + PERIOD_MS / 2) % PERIOD_MS;
            tokio::time::sleep(Duration::from_millis(PERIOD_MS - into)).await;
        }
    }

    /// The next one: at once where a stream is read, else when there is news.
    async fn snapshot(&self, feed: &mut Option<FeedConnection>) -> Result<Box<AgentSnapshot>> {
        if feed.is_none() {
            *feed = Some(FeedConnection::connect(&self.feed).await?);
        }
        let feed = feed.as_mut().expect("there is one, or was just made");
        let request = match self.snapshots.newest() {
            Some(newest) if !self.snapshots.has_streams() => {
                ControlRequest::SnapshotAfter(newest.snapshot.time_unix_ms)
            }
            _ => ControlRequest::Snapshot,
        };
        match feed.ask(&request).await? {
            ControlResponse::Snapshot(snapshot) => Ok(snapshot),
            ControlResponse::Error(message) => bail!("{message}"),
            _ => bail!("the agent's answer does not fit the question: is it of another version?"),
        }
    }

    /// Asks one thing on a connection of its own; `refused` is what it means when the agent answers with an error.
    fn query<T: Send + 'static>(
        &self,
        request: ControlRequest,
        refused: StatusCode,
        take: impl FnOnce(ControlResponse) -> Option<T> + Send + 'static,
    ) -> SourceFuture<T> {
        let (feed, permits, pace) = (self.feed.clone(), self.query_permits.clone(), self.query_pace.clone());
        Box::pin(async move {
            let unavailable = |message: String| HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message);
            let turn = async {
                pace.acquire().await;
                permits.acquire_owned().await
            };
            let Ok(Ok(permit)) = tokio::time::timeout(QUERY_TURN, turn).await else {
                return Err(unavailable("too many ask the agent at this moment: try again".into()));
            };
            let answer = async { FeedConnection::connect(&feed).await?.ask(&request).await }.await;
            drop(permit);
            match answer {
                Ok(ControlResponse::Error(message)) => Err(HttpError::new(refused, message)),
                Ok(response) => {
                    take(response).ok_or_else(|| unavailable("the agent is of another version".into()))
                }
                Err(error) => Err(unavailable(elbowroom_client::output::one_line(&error))),
            }
        })
    }
}

impl SnapshotSource for AgentSource {
    fn snapshots(&self) -> &SnapshotStore {
        &self.snapshots
    }

    fn check_fresh(&self) -> Result<(), HttpError> {
        let answered = *self.last_answer.lock().unwrap_or_else(PoisonError::into_inner);
        match answered.map(|at| at.elapsed()) {
            Some(ago) if ago > FRESH_FOR => {
                let message = format!("the agent has not answered for {} s: look at its log", ago.as_secs());
                Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message))
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, container: String) -> SourceFuture<Explanation> {
        self.query(ControlRequest::Explain(container), StatusCode::NOT_FOUND, |response| match response {
            ControlResponse::Explain(explanation) => Some(*explanation),
            _ => None,
        })
    }

    fn network(&self, container: String) -> SourceFuture<NetworkReport> {
        self.query(ControlRequest::Network(container), StatusCode::NOT_FOUND, |response| match response {
            ControlResponse::Network(report) => Some(report),
            _ => None,
        })
    }

    fn findings(&self) -> SourceFuture<FindingsReport> {
        self.query(ControlRequest::Findings, StatusCode::INTERNAL_SERVER_ERROR, |response| match response {
            ControlResponse::Findings(findings) => Some(*findings),
            _ => None,
        })
    }

    fn profiles(&self) -> SourceFuture<Vec<StoredProfile>> {
        self.query(ControlRequest::Profiles, StatusCode::INTERNAL_SERVER_ERROR, |response| match response {
            ControlResponse::Profiles(profiles) => Some(profiles),
            _ => None,
        })
    }

    fn profile(&self, name: String) -> SourceFuture<String> {
        self.query(ControlRequest::Profile(name), StatusCode::NOT_FOUND, |response| match response {
            ControlResponse::Profile(text) => Some(text),
            _ => None,
        })
    }

    fn attach(&self, container: String, attached: bool) -> SourceFuture<ContainerView> {
        let request =
            if attached { ControlRequest::Attach(container) } else { ControlRequest::Detach(container) };
        self.query(request, StatusCode::CONFLICT, |response| match response {
            ControlResponse::Container(container) => Some(*container),
            _ => None,
        })
    }
}

/// A connection to the agent.
struct FeedConnection(UnixStream);

impl FeedConnection {
    async fn connect(path: &Path) -> Result<Self> {
        let connecting = async {
            loop {
                match UnixStream::connect(path).await {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        tokio::time::sleep(CONNECT_RETRY).await;
                    }
                    connected => return connected,
                }
            }
        };
        let connected =
            tokio::time::timeout(QUERY_TURN, connecting).await.unwrap_or_else(|late| Err(late.into()));
        Ok(Self(connected.with_context(|| format!("connecting to {}", path.display()))?))
    }

    async fn ask(&mut self, request: &ControlRequest) -> Result<ControlResponse> {
        tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(request))
            .await
            .context("the agent does not answer")?
    }

    async fn exchange(&mut self, request: &ControlRequest) -> Result<ControlResponse> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.0.write_all(&line).await.context("asking the agent")?;
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let room = MAX_RESPONSE.saturating_sub(answer.len());
            let got = (&mut self.0).take(room as u64).read_buf(&mut answer).await;
            if got.context("reading the agent's answer")? == 0 {
                bail!("the agent closed the connection, or its answer is longer than {MAX_RESPONSE} bytes");
            }
        }
        serde_json::from_slice(&answer).context("the agent's answer: is it of another version?")
    }
}
