//! The process `elbowroom api-server`: opens what only root can open, drops its rights ([`privilege::unprivileged_user`]), and serves.
//!
//! It holds two things of the agent: its own sockets, and the right to ask on `<run-dir>/feed.sock`
//! (`docs/decisions/0017-api-process.md`). What it cannot open now, such as a port that is taken, it tries again later; over
//! the unix socket it serves meanwhile.

use super::access::BearerToken;
use super::agent::AgentSource;
use super::settings::ApiSettings;
use super::{listen, router, tls};
use crate::view_server::roles::{AgentRole, RoleLock};
use anyhow::{Context, Result, ensure};
use elbowroom_client::control::FEED_SOCKET;
use elbowroom_linux::privilege::ProcessRlimits;
use elbowroom_linux::seccomp::{COMMON_CALLS, allow_only};
use elbowroom_linux::{privilege, process, unix_socket};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

/// Its unix socket, below the run directory.
pub(crate) const API_SOCKET: &str = "api.sock";
/// How the dashboard is opened, as the log says it.
const OPEN: &str = "`elbowroom dashboard` opens it in a browser";
/// How long after a port was taken it is asked for again.
const BIND_RETRY: Duration = Duration::from_secs(5);
/// What this process may have at most. A thousand busy containers' history is 150 MB, and every client some kilobytes.
pub(super) const RESOURCE_LIMITS: ProcessRlimits =
    ProcessRlimits { files: 1_024, data: 512 << 20, forks: false };
/// The system calls of a server, beside those of every program.
const SERVER_CALLS: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socket,
    libc::SYS_socketpair,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];
/// As `nice`: views and governors first.
const NICE: i32 = 10;
/// As `oom_score_adj`: history is the first thing that this agent can do without.
const OOM_SCORE_ADJ: i32 = 500;

/// What TCP needs.
struct TcpEndpoint {
    address: SocketAddr,
    token: Option<Arc<BearerToken>>,
    tls: Option<TlsAcceptor>,
    /// The port, where it could be had at once.
    listener: Option<TcpListener>,
}

/// Serves until it is told to stop.
pub fn main(run_dir: &Path, settings: &ApiSettings) -> Result<()> {
    let _ = rustix::thread::set_name(c"elbowroom-api");
    let role = RoleLock::open_api(run_dir).context("taking the API server's role")?;
    ensure!(role.acquire(AgentRole::Api), "{}: an API server is at work here already", run_dir.display());
    let unix = listen_unix(run_dir, &settings.group)?;
    // Views do not wait for a certificate, and neither does the unix socket.
    let network = tcp_endpoint(settings).unwrap_or_else(|error| {
        tracing::error!(
            because = elbowroom_client::output::one_line(&error),
            "the API is not on TCP: correct this, then end this process"
        );
        None
    });
    drop_privileges(run_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(serve(unix, network))
}

/// Listens on `<run-dir>/api.sock`, for root and the group.
fn listen_unix(run_dir: &Path, group: &str) -> Result<UnixListener> {
    let path = run_dir.join(API_SOCKET);
    let gid = privilege::group_id(group);
    let mode = if gid.is_some() { 0o660 } else { 0o600 };
    let listener =
        unix_socket::listen(&path, mode, gid).with_context(|| format!("listening on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    match gid {
        Some(_) => {
            tracing::info!(socket = %path.display(), group, "serving the API and the dashboard; {OPEN}")
        }
        None => {
            tracing::info!(socket = %path.display(), because = format!("no group {group}"), "serving the API and the dashboard for root only; {OPEN}")
        }
    }
    Ok(listener)
}

/// Reads what only root can read.
fn tcp_endpoint(settings: &ApiSettings) -> Result<Option<TcpEndpoint>> {
    let Some(address) = settings.address()? else { return Ok(None) };
    let token = settings
        .token_file
        .as_deref()
        .map(BearerToken::read)
        .transpose()
        .context("api.token_file")?
        .map(Arc::new);
    let tls = settings.tls().map(|(certificate, key)| tls::acceptor(certificate, key)).transpose();
    let tls = tls.context("api.tls_certificate, api.tls_key")?;
    if tls.is_none() && !address.ip().is_loopback() {
        tracing::warn!(%address, because = "there is no certificate", "the API's token crosses the network in the clear");
    }
    let listener = listen_tcp(address).map_err(|error| {
        tracing::error!(
            because = elbowroom_client::output::one_line(&error),
            "the API is not on TCP yet: trying again"
        );
    });
    Ok(Some(TcpEndpoint { address, token, tls, listener: listener.ok() }))
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("api.listen: {address} cannot be had: end the program that has it, or choose another port")
    })?;
    listener.set_nonblocking(true)?;
    tracing::info!(%address, "serving the API");
    Ok(listener)
}

/// Gives up every right that was needed until here.
fn drop_privileges(run_dir: &Path) -> Result<()> {
    let _ = process::set_oom_score_adj(OOM_SCORE_ADJ);
    let _ = rustix::process::setpriority_process(None, NICE);
    // Below a directory that this process could not go through by then, the feed is reached from here.
    std::env::set_current_dir(run_dir).with_context(|| run_dir.display().to_string())?;
    privilege::drop_privileges(privilege::unprivileged_user(), RESOURCE_LIMITS)
        .context("giving up root's rights")?;
    allow_server_calls()
}

/// Lets this process make the system calls of a server and no other. It must have set `no_new_privs`.
pub(super) fn allow_server_calls() -> Result<()> {
    match allow_only(&[COMMON_CALLS, SERVER_CALLS]) {
        // Its numbers are not known here.
        Err(rustix::io::Errno::NOSYS) => {
            tracing::warn!(
                because = "no list for this architecture",
                "this server runs without a seccomp filter"
            );
            Ok(())
        }
        done => done.context("installing the seccomp filter"),
    }
}

async fn serve(unix: UnixListener, network: Option<TcpEndpoint>) -> Result<()> {
    let agent = Arc::new(AgentSource::new(&PathBuf::from(FEED_SOCKET)));
    let unix = tokio::net::UnixListener::from_std(unix)?;
    tokio::spawn(listen::serve_unix(unix, router(agent.clone())));
    if let Some(TcpEndpoint { address, token, tls, listener }) = network {
        let app = router(agent.clone());
        tokio::spawn(async move {
            let mut listener = listener;
            let listener = loop {
                match listener.take().or_else(|| listen_tcp(address).ok()) {
                    Some(listener) => break listener,
                    None => tokio::time::sleep(BIND_RETRY).await,
                }
            };
            let listener =
                tokio::net::TcpListener::from_std(listener).expect("it is a socket, and does not block");
            listen::serve_tcp(listener, tls, token, app).await;
        });
    }
    let mut stop = signal(SignalKind::terminate()).context("waiting for signals")?;
    process::forget_start();
    tokio::select! {
        ended = agent.poll_snapshots() => ended,
        _ = stop.recv() => Ok(()),
    }
}
