//! Connections: how many, how long, and for whom.
//!
//! A client that does not read is cut off after [`WRITE_TIMEOUT`], one that does not ask after [`HEADER_TIMEOUT`], and those who
//! come when all seats are taken are sent away at once. Connections and requests go at a [`RateLimiter`]. Each way in has seats and a
//! pace of its own: however many come over the network, root finds a seat at the unix socket.

use super::access::{self, HttpPeer, RequiredToken};
use super::rate_limiter::RateLimiter;
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

/// Connections that are served at once by one way in.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// How long a client may take to send a whole request's head, from when it is connected or was answered.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take none of what is there for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long agreeing on TLS may take.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that the kernel keeps for a client that reads slowly.
const SEND_BUFFER: usize = 256 << 10;
/// Longest head of a request, and what is buffered of an answer.
const BUFFER: usize = 16 << 10;
/// Most fields of a head.
const MAX_HEADERS: usize = 64;
/// Serves the unix socket, for ever.
pub(super) async fn serve_unix(listener: UnixListener, app: Router) {
    accept_each(listener, |stream, place| {
        let Ok(credentials) = stream.peer_cred() else { return };
        let peer = HttpPeer::Unix { uid: credentials.uid() };
        tokio::spawn(serve_connection(stream, peer, None, app.clone(), place));
    })
    .await
}

/// Serves TCP, with TLS where there is a certificate, for ever.
pub(super) async fn serve_tcp(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    gate: RequiredToken,
    app: Router,
) {
    accept_each(listener, |stream, place| {
        let _ = stream.set_nodelay(true);
        let (tls, gate, app) = (tls.clone(), gate.clone(), app.clone());
        tokio::spawn(async move {
            match tls {
                None => serve_connection(stream, HttpPeer::Tcp, gate, app, place).await,
                Some(tls) => {
                    let shaken = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, tls.accept(stream)).await;
                    if let Ok(Ok(stream)) = shaken {
                        serve_connection(stream, HttpPeer::Tcp, gate, app, place).await;
                    }
                }
            }
        });
    })
    .await
}

/// What a connection has of the way in by which it came.
struct ConnectionContext {
    _permit: OwnedSemaphorePermit,
    rate_limiter: Arc<RateLimiter>,
}

/// Everybody who comes by one way, for ever.
async fn accept_each<L>(mut listener: L, welcome: impl Fn(L::Io, ConnectionContext))
where
    L: Listener<Io: AsFd>,
{
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let pace = Arc::new(RateLimiter::new());
    loop {
        pace.acquire().await;
        let (stream, _) = listener.accept().await;
        let Ok(seat) = seats.clone().try_acquire_owned() else { continue };
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        welcome(stream, ConnectionContext { _permit: seat, rate_limiter: pace.clone() });
    }
}

/// One connection, until either end has enough of it.
async fn serve_connection<S>(
    stream: S,
    peer: HttpPeer,
    gate: RequiredToken,
    app: Router,
    place: ConnectionContext,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let app = app
        .layer(middleware::from_fn_with_state(gate, access::check_access))
        .layer(middleware::from_fn_with_state(place.rate_limiter.clone(), limit_rate))
        .layer(Extension(peer));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(app));
    // Whatever a client did wrong is its own affair, and there may be ten thousand of them.
    let _ = served.await;
    drop(place);
}

/// One request, when its turn has come.
async fn limit_rate(State(pace): State<Arc<RateLimiter>>, request: Request, next: Next) -> Response {
    pace.acquire().await;
    next.run(request).await
}
