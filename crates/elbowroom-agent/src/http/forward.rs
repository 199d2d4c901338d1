//! A port of this machine for one person's browser: to the agent's unix socket (`elbowroom dashboard`), or to a recording.
//!
//! # Problem
//! The dashboard is served on a unix socket, which browsers cannot open. A port of 127.0.0.1 can be opened by every user of the machine
//! and, through DNS rebinding, by every web page that a browser on it shows.
//!
//! # Approach
//! A process forwards requests from a port for as long as its terminal is open. It forwards `GET` and `HEAD` only, so a
//! browser changes nothing. The page itself, which needs no token, is this process's own. A client without a token reaches nothing of
//! the agent, whose connections and rate limit all clients of the socket share. A request must name the server by an address
//! ([`super::access`] checks `Host`) and bring the session's token in a header, which no page of another origin can send. The browser gets
//! the token for a *code*, which works once and is in the part of the link that is never sent (after `#`). The process gives up its rights
//! before it parses requests.

use super::access::BearerToken;
use super::routes::asset;
use super::server::{API_SOCKET, RESOURCE_LIMITS, allow_server_calls};
use super::{HttpError, listen};
use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use elbowroom_linux::privilege::{self, Identity};
use hyper::client::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

/// The port, and what opens it.
pub struct Forwarder {
    listener: TcpListener,
    /// Where it listens.
    pub address: SocketAddr,
    socket: PathBuf,
    code: BearerToken,
}

/// What every request has.
pub(super) struct ForwardState {
    target: ForwardTarget,
    session: BearerToken,
    /// What the next browser brings for the session's token.
    code: Mutex<BearerToken>,
    /// Is given the next code when one was used.
    used: Box<dyn Fn(&str) + Send + Sync>,
}

/// What answers requests that bring the session's token.
pub(super) enum ForwardTarget {
    /// The agent, at its socket.
    Agent(PathBuf),
    /// This process.
    Here(Router),
}

impl ForwardState {
    /// A new session, opened by `code`.
    pub(super) fn new(
        target: ForwardTarget,
        code: BearerToken,
        used: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let session = BearerToken::random()?;
        Ok(Arc::new(Self { target, session, code: Mutex::new(code), used: Box::new(used) }))
    }

    /// Whether a request brings the session's token, or the code for it.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION);
        let code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        self.session.matches_header(given) || code.matches_header(given)
    }
}

/// The link that opens a session.
pub fn link(address: SocketAddr, code: &str) -> String {
    format!("http://{address}/#code={code}")
}

impl Forwarder {
    /// Listens on `port` of 127.0.0.1 for the agent of `run_dir`; 0 is any that is free.
    ///
    /// # Errors
    /// No agent serves its API there, this user may not ask it, or the port is taken.
    pub fn listen(run_dir: &Path, port: u16) -> Result<Self> {
        let socket = std::path::absolute(run_dir)?.join(API_SOCKET);
        match std::os::unix::net::UnixStream::connect(&socket) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
                "{}: permission denied: run this as root, or as a member of the group of that file",
                socket.display()
            ),
            Err(_) => bail!(
                "{}: no agent serves its API there: start one with `elbowroom agent`, with api.enabled",
                socket.display()
            ),
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| {
            format!("--port: 127.0.0.1:{port} cannot be had: choose another port, or leave --port out")
        })?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, socket, code: BearerToken::random()? })
    }

    /// What the first link has behind `#code=`.
    pub fn code(&self) -> &str {
        self.code.as_str()
    }

    /// Serves until SIGINT or SIGTERM. Each time a code was used, `used` is told the next one.
    ///
    /// # Errors
    /// When rights cannot be given up.
    pub fn serve(self, used: impl Fn(&str) + Send + Sync + 'static) -> Result<()> {
        drop_privileges(&self.socket)?;
        let state = ForwardState::new(ForwardTarget::Agent(self.socket), self.code, used)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let mut stop = signal(SignalKind::interrupt()).context("waiting for signals")?;
            let mut end = signal(SignalKind::terminate()).context("waiting for signals")?;
            tokio::select! {
                () = serve_browsers(listener, state) => {}
                _ = stop.recv() => {}
                _ = end.recv() => {}
            }
            Ok(())
        })
    }
}

/// Keeps what is needed to connect to `socket`: its group, or where it is for root alone, user 0 without capabilities. A process that is
/// not root stays what it is.
fn drop_privileges(socket: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let file = std::fs::metadata(socket).with_context(|| socket.display().to_string())?;
        let identity = match file.mode() & 0o020 {
            0 => Identity { uid: file.uid(), gid: file.gid() },
            _ => Identity { gid: file.gid(), ..privilege::unprivileged_user() },
        };
        privilege::drop_privileges(identity, RESOURCE_LIMITS).context("giving up root's rights")?;
    } else {
        rustix::thread::set_no_new_privs(true).context("giving up rights")?;
    }
    allow_server_calls()
}

/// Serves browsers on a port of this machine, for ever.
pub(super) async fn serve_browsers(listener: tokio::net::TcpListener, state: Arc<ForwardState>) {
    let known = state.clone();
    let app = Router::new()
        .route("/session", post(session))
        .route("/", get(asset))
        .route("/assets/{*path}", get(asset))
        .fallback(forward)
        .with_state(state);
    listen::serve_local(listener, Arc::new(move |headers: &HeaderMap| known.knows(headers)), app).await;
}

/// The session's token for a code, which is void from then on.
async fn session(State(state): State<Arc<ForwardState>>, headers: HeaderMap) -> Result<Response, HttpError> {
    let internal = |error: anyhow::Error| {
        HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, elbowroom_client::output::one_line(&error))
    };
    let mut code = state.code.lock().unwrap_or_else(PoisonError::into_inner);
    if !code.matches_header(headers.get(header::AUTHORIZATION)) {
        let message =
            "this link was used before: open the newest one in the terminal of `elbowroom dashboard`";
        return Err(HttpError::new(StatusCode::UNAUTHORIZED, message));
    }
    *code = BearerToken::random().map_err(internal)?;
    (state.used)(code.as_str());
    let token = serde_json::json!({ "token": state.session.as_str() });
    Ok(([(header::CACHE_CONTROL, "no-store")], axum::Json(token)).into_response())
}

/// One request, to the target and back.
async fn forward(State(state): State<Arc<ForwardState>>, request: Request) -> Result<Response, HttpError> {
    let (method, uri) = (request.method(), request.uri());
    if !matches!(*method, Method::GET | Method::HEAD) {
        let message = "`elbowroom dashboard` shows, and changes nothing: use the command line";
        return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    if !state.session.matches_header(request.headers().get(header::AUTHORIZATION)) {
        let message =
            "open the newest link in the terminal of `elbowroom dashboard` or `elbowroom replay --serve`";
        return Err(HttpError::new(StatusCode::UNAUTHORIZED, message));
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let asked =
        Request::builder().method(method).uri(path).header(header::HOST, "localhost").body(Body::empty());
    let asked = asked.map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let socket = match &state.target {
        ForwardTarget::Agent(socket) => socket,
        ForwardTarget::Here(app) => {
            let Ok(answer) = TowerToHyperService::new(app.clone()).call(asked).await;
            return Ok(answer);
        }
    };
    ask_agent(socket, asked).await.map_err(|error| {
        let because = elbowroom_client::output::one_line(&error);
        HttpError::new(StatusCode::BAD_GATEWAY, format!("the agent does not answer: {because}"))
    })
}

async fn ask_agent(socket: &Path, request: Request) -> Result<Response> {
    let stream = UnixStream::connect(socket).await.with_context(|| socket.display().to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the answer, or when the browser leaves it.
    tokio::spawn(connection);
    let mut response = sender.send_request(request).await?;
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(name);
    }
    Ok(response.map(Body::new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An agent that answers every path with the path, and a browser that asks through the forwarder.
    async fn status(state: &Arc<ForwardState>, method: Method, path: &str, token: &str) -> StatusCode {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve_browsers(listener, state.clone()));
        let mut browser = tokio::net::TcpStream::connect(address).await.unwrap();
        let host = if path == "/rebound" { "rebind.example" } else { "127.0.0.1" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        browser.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        browser.read_to_string(&mut answer).await.unwrap();
        server.abort();
        StatusCode::from_bytes(&answer.as_bytes()[9..12]).unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_code_opens_once_and_nothing_is_changed_or_told_without_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(API_SOCKET);
        let agent = tokio::net::UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let answer = async move || {
            count.fetch_add(1, Ordering::Relaxed);
            "here"
        };
        let paths = Router::new().fallback(get(answer));
        let agent = tokio::spawn(listen::serve_unix(agent, paths));
        let codes = Arc::new(Mutex::new(Vec::new()));
        let told = codes.clone();
        let used = move |code: &str| told.lock().unwrap().push(code.to_owned());
        let code = BearerToken::random().unwrap();
        let state = ForwardState::new(ForwardTarget::Agent(socket), code, used).unwrap();
        let first = state.code.lock().unwrap().as_str().to_owned();
        let token = state.session.as_str().to_owned();
        for (method, path, token, expect) in [
            (Method::GET, "/", "", 200),
            (Method::GET, "/assets/none", "", 404),
            (Method::POST, "/", "", 405),
            (Method::GET, "/healthz", "", 401),
            (Method::GET, "/api/v1/status", "", 401),
            (Method::GET, "/api/v1/status", &first, 401),
            (Method::POST, "/session", &token, 401),
            (Method::POST, "/session", &first, 200),
            (Method::POST, "/session", &first, 401),
            (Method::GET, "/api/v1/status", &token, 200),
            (Method::HEAD, "/api/v1/status", &token, 200),
            (Method::POST, "/api/v1/containers/web/detach", &token, 405),
            (Method::GET, "/rebound", &token, 421),
        ] {
            assert_eq!(status(&state, method.clone(), path, token).await, expect, "{method} {path} {token}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2, "no request without the token reaches the agent");
        let next = codes.lock().unwrap().clone();
        assert_eq!(next.len(), 1);
        assert_eq!(status(&state, Method::POST, "/session", &next[0]).await, 200);
        agent.abort();
        let _ = agent.await;
        assert_eq!(status(&state, Method::GET, "/api/v1/status", &token).await, 502);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_recording_is_told_to_holders_of_the_link_alone() {
        let target = ForwardTarget::Here(Router::new().route("/api/v1/status", get(async || "here")));
        let state = ForwardState::new(target, BearerToken::random().unwrap(), |_| {}).unwrap();
        let code = state.code.lock().unwrap().as_str().to_owned();
        let token = state.session.as_str().to_owned();
        for (method, path, token, expect) in [
            (Method::GET, "/", "", 200),
            (Method::GET, "/api/v1/status", "", 401),
            (Method::POST, "/session", &code, 200),
            (Method::GET, "/api/v1/status", &code, 401),
            (Method::GET, "/api/v1/status", &token, 200),
            (Method::GET, "/api/v1/none", &token, 404),
            (Method::GET, "/rebound", &token, 421),
        ] {
            assert_eq!(status(&state, method.clone(), path, token).await, expect, "{method} {path} {token}");
        }
    }
}
