//! The agent as a source: one question a second, however many look.

use super::source::refuse;
use super::{Answer, Moments, Refusal, Source};
use anyhow::{Context, Result, bail};
use axum::http::StatusCode;
use elbowroom_client::api::{ContainerView, Explanation, FindingsReport, Request, Response, Snapshot};
use elbowroom_client::kept::Kept;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// Time between two snapshots.
const PERIOD_MS: u64 = 1_000;
/// How long the newest snapshot says how things are.
const FRESH: Duration = Duration::from_secs(5);
/// How long an answer may take; the agent itself gives up earlier and says why.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer: several thousand containers.
const LONGEST: u64 = 64 << 20;
/// Questions about single containers that are under way at once.
const ASKING: usize = 2;
/// A process that has had nobody to ask for this long belongs to an agent that is gone. One that is not starts another.
const ALONE: Duration = Duration::from_secs(60);

/// The agent, as the API knows it.
pub(super) struct Agent {
    moments: Moments,
    /// Where it answers the API.
    feed: PathBuf,
    /// When it last answered.
    answered: Mutex<Option<Instant>>,
    asking: Arc<Semaphore>,
}

impl Agent {
    pub(super) fn new(feed: &Path) -> Self {
        Self {
            moments: Moments::new(),
            feed: feed.to_owned(),
            answered: Mutex::new(None),
            asking: Arc::new(Semaphore::new(ASKING)),
        }
    }

    /// Takes a snapshot a second, for as long as there is an agent; an error says that there is none.
    pub(super) async fn follow(&self) -> Result<()> {
        let mut feed: Option<Feed> = None;
        let mut alone = Instant::now();
        let mut told = false;
        loop {
            match self.snapshot(&mut feed).await {
                Ok(snapshot) => {
                    (alone, told) = (Instant::now(), false);
                    *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(alone);
                    self.moments.take(*snapshot);
                }
                Err(error) => {
                    feed = None;
                    // Both processes start at once, and this one may be the first.
                    if alone.elapsed() > FRESH && !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            because = elbowroom_client::output::one_line(&error),
                            "the agent gives the API no snapshot"
                        );
                    }
                    if alone.elapsed() > ALONE {
                        bail!("no agent answers any more");
                    }
                }
            }
            // In the middle of a second, so that a snapshot that is a little late is still of that second.
            let into = (elbowroom_linux::timer::unix_ms() + PERIOD_MS / 2) % PERIOD_MS;
            tokio::time::sleep(Duration::from_millis(PERIOD_MS - into)).await;
        }
    }

    async fn snapshot(&self, feed: &mut Option<Feed>) -> Result<Box<Snapshot>> {
        if feed.is_none() {
            *feed = Some(Feed::connect(&self.feed).await?);
        }
        let feed = feed.as_mut().expect("there is one, or was just made");
        match feed.ask(&Request::Snapshot).await? {
            Response::Snapshot(snapshot) => Ok(snapshot),
            Response::Error(message) => bail!("{message}"),
            _ => bail!("the agent's answer does not fit the question: is it of another version?"),
        }
    }

    /// Asks one thing on a connection of its own; `refused` is what it means when the agent answers with an error.
    fn ask<T: Send + 'static>(
        &self,
        request: Request,
        refused: StatusCode,
        take: impl FnOnce(Response) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let Ok(seat) = self.asking.clone().try_acquire_owned() else {
            return refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many ask the agent at this moment: try again",
            );
        };
        let feed = self.feed.clone();
        Box::pin(async move {
            let answer = async { Feed::connect(&feed).await?.ask(&request).await }.await;
            drop(seat);
            let unavailable = |message: String| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message);
            match answer {
                Ok(Response::Error(message)) => Err(Refusal::new(refused, message)),
                Ok(response) => {
                    take(response).ok_or_else(|| unavailable("the agent is of another version".into()))
                }
                Err(error) => Err(unavailable(elbowroom_client::output::one_line(&error))),
            }
        })
    }
}

impl Source for Agent {
    fn moments(&self) -> &Moments {
        &self.moments
    }

    fn is_fresh(&self) -> Result<(), Refusal> {
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        match answered.map(|at| at.elapsed()) {
            Some(ago) if ago > FRESH => {
                let message = format!("the agent has not answered for {} s: look at its log", ago.as_secs());
                Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message))
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, container: String) -> Answer<Explanation> {
        self.ask(Request::Explain(container), StatusCode::NOT_FOUND, |response| match response {
            Response::Explain(explanation) => Some(*explanation),
            _ => None,
        })
    }

    fn findings(&self) -> Answer<FindingsReport> {
        self.ask(Request::Findings, StatusCode::INTERNAL_SERVER_ERROR, |response| match response {
            Response::Findings(findings) => Some(*findings),
            _ => None,
        })
    }

    fn profiles(&self) -> Answer<Vec<Kept>> {
        self.ask(Request::Profiles, StatusCode::INTERNAL_SERVER_ERROR, |response| match response {
            Response::Profiles(profiles) => Some(profiles),
            _ => None,
        })
    }

    fn profile(&self, name: String) -> Answer<String> {
        self.ask(Request::Profile(name), StatusCode::NOT_FOUND, |response| match response {
            Response::Profile(text) => Some(text),
            _ => None,
        })
    }

    fn attach(&self, container: String, attached: bool) -> Answer<ContainerView> {
        let request = if attached { Request::Attach(container) } else { Request::Detach(container) };
        self.ask(request, StatusCode::CONFLICT, |response| match response {
            Response::Container(container) => Some(*container),
            _ => None,
        })
    }
}

/// A connection to the agent.
struct Feed(BufReader<UnixStream>);

impl Feed {
    async fn connect(path: &Path) -> Result<Self> {
        let connected = UnixStream::connect(path).await;
        Ok(Self(BufReader::new(connected.with_context(|| format!("connecting to {}", path.display()))?)))
    }

    async fn ask(&mut self, request: &Request) -> Result<Response> {
        tokio::time::timeout(PATIENCE, self.exchange(request)).await.context("the agent does not answer")?
    }

    async fn exchange(&mut self, request: &Request) -> Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.0.write_all(&line).await.context("asking the agent")?;
        let mut answer = Vec::new();
        (&mut self.0)
            .take(LONGEST)
            .read_until(b'\n', &mut answer)
            .await
            .context("reading the agent's answer")?;
        if answer.last() != Some(&b'\n') {
            bail!("the agent closed the connection: it is stopping, or restarting");
        }
        serde_json::from_slice(&answer).context("the agent's answer: is it of another version?")
    }
}
