//! Connections: how many, how long, and for whom.
//!
//! A client that does not read is cut off after [`WRITE_WITHIN`], one that does not ask after [`ASK_WITHIN`], and those who
//! come when all seats are taken are sent away at once. Connections and requests go at a [`Pace`]. Each way in has seats and a
//! pace of its own: however many come over the network, root finds a seat at the unix socket.

use super::access::{self, Gate, Peer};
use super::pace::Pace;
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
pub(super) const SEATS: usize = 256;
/// How long a client may take to send a whole request's head, from when it is connected or was answered.
const ASK_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take none of what is there for it.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// How long agreeing on TLS may take.
const SHAKE_HANDS_WITHIN: Duration = Duration::from_secs(5);
/// Bytes that the kernel keeps for a client that reads slowly.
const SEND_BUFFER: usize = 256 << 10;
/// Longest head of a request, and what is buffered of an answer.
const BUFFER: usize = 16 << 10;
/// Most fields of a head.
const MOST_HEADERS: usize = 64;
/// Serves the unix socket, for ever.
pub(super) async fn unix(listener: UnixListener, app: Router) {
    each(listener, |stream, place| {
        let Ok(credentials) = stream.peer_cred() else { return };
        let peer = Peer::Unix { uid: credentials.uid() };
        tokio::spawn(serve(stream, peer, None, app.clone(), place));
    })
    .await
}

/// Serves TCP, with TLS where there is a certificate, for ever.
pub(super) async fn tcp(listener: TcpListener, tls: Option<TlsAcceptor>, gate: Gate, app: Router) {
    each(listener, |stream, place| {
        let _ = stream.set_nodelay(true);
        let (tls, gate, app) = (tls.clone(), gate.clone(), app.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, Peer::Tcp, gate, app, place).await,
                Some(tls) => {
                    let shaken = tokio::time::timeout(SHAKE_HANDS_WITHIN, tls.accept(stream)).await;
                    if let Ok(Ok(stream)) = shaken {
                        serve(stream, Peer::Tcp, gate, app, place).await;
                    }
                }
            }
        });
    })
    .await
}

/// What a connection has of the way in by which it came.
struct Place {
    _seat: OwnedSemaphorePermit,
    pace: Arc<Pace>,
}

/// Everybody who comes by one way, for ever.
async fn each<L>(mut listener: L, welcome: impl Fn(L::Io, Place))
where
    L: Listener<Io: AsFd>,
{
    let seats = Arc::new(Semaphore::new(SEATS));
    let pace = Arc::new(Pace::new());
    loop {
        pace.turn().await;
        let (stream, _) = listener.accept().await;
        let Ok(seat) = seats.clone().try_acquire_owned() else { continue };
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        welcome(stream, Place { _seat: seat, pace: pace.clone() });
    }
}

/// One connection, until either end has enough of it.
async fn serve<S>(stream: S, peer: Peer, gate: Gate, app: Router, place: Place)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_WITHIN));
    let app = app
        .layer(middleware::from_fn_with_state(gate, access::check))
        .layer(middleware::from_fn_with_state(place.pace.clone(), in_turn))
        .layer(Extension(peer));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ASK_WITHIN)
        .max_buf_size(BUFFER)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(app));
    // Whatever a client did wrong is its own affair, and there may be ten thousand of them.
    let _ = served.await;
    drop(place);
}

/// One request, when its turn has come.
async fn in_turn(State(pace): State<Arc<Pace>>, request: Request, next: Next) -> Response {
    pace.turn().await;
    next.run(request).await
}
