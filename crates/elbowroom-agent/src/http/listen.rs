//! Connections: how many, how long, and for whom.
//!
//! A client that does not read is cut off after [`WRITE_TIMEOUT`], one that does not ask after [`HEADER_TIMEOUT`], and those who
//! come when all are taken have the place of another ([`ConnectionTable`]). Connections and requests go at a [`RateLimiter`]. Each way in has
//! connections and a pace of its own: however many come over the network, root is served at the unix socket.

use super::access::{self, HttpPeer, RequiredToken};
use super::connection_table::{ConnectionEntry, ConnectionTable};
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
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

/// Connections that are served at once by one way in.
pub(super) const MAX_CONNECTIONS: usize = if cfg!(test) { 32 } else { 256 };
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
    let peer = |stream: &UnixStream| Some(HttpPeer::Unix { uid: stream.peer_cred().ok()?.uid() });
    accept_each(listener, peer, |stream, peer, place| {
        tokio::spawn(serve_connection(stream, peer, None, app.clone(), place))
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
    accept_each(
        listener,
        |_| Some(HttpPeer::Tcp),
        |stream, peer, place| {
            let _ = stream.set_nodelay(true);
            let (tls, gate, app) = (tls.clone(), gate.clone(), app.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve_connection(stream, peer, gate, app, place).await,
                    Some(tls) => {
                        let shaken = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = shaken {
                            serve_connection(stream, peer, gate, app, place).await;
                        }
                    }
                }
            })
        },
    )
    .await
}

/// What a connection has of the way in by which it came.
struct ConnectionContext {
    entry: Arc<ConnectionEntry>,
    rate_limiter: Arc<RateLimiter>,
}

/// All clients that come by one way, for ever.
async fn accept_each<L>(
    mut listener: L,
    peer_of: impl Fn(&L::Io) -> Option<HttpPeer>,
    welcome: impl Fn(L::Io, HttpPeer, ConnectionContext) -> JoinHandle<()>,
) where
    L: Listener<Io: AsFd>,
{
    let table = Arc::new(ConnectionTable::default());
    let pace = Arc::new(RateLimiter::new());
    loop {
        pace.acquire().await;
        let (stream, _) = listener.accept().await;
        let Some(peer) = peer_of(&stream) else { continue };
        let Some(entry) = table.admit(peer, MAX_CONNECTIONS) else { continue };
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        let place = ConnectionContext { entry: entry.clone(), rate_limiter: pace.clone() };
        entry.set_task(welcome(stream, peer, place).abort_handle());
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
        .layer(Extension(peer))
        .layer(Extension(place.entry.clone()));
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
    if let Some(connection) = request.extensions().get::<Arc<ConnectionEntry>>() {
        connection.mark_active();
    }
    pace.acquire().await;
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::access::BearerToken;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// More than are served at a time.
    const CROWD: usize = 3 * MAX_CONNECTIONS;

    /// Asks on a connection; the status of the answer.
    async fn ask(stream: &mut TcpStream, token: &str) -> Option<String> {
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut answer = [0; 1_024];
        let len = stream.read(&mut answer).await.ok().filter(|len| *len > 12)?;
        Some(String::from_utf8_lossy(&answer[9..12.min(len)]).into_owned())
    }

    async fn crowd(address: SocketAddr) -> Vec<TcpStream> {
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        crowd
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_has_the_token_gets_in_and_stays_while_all_connections_and_more_are_held() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let token = BearerToken::random().unwrap();
        let text = token.as_str().to_owned();
        let app = Router::new().route("/", get(async || "here"));
        let server = tokio::spawn(serve_tcp(listener, None, Some(Arc::new(token)), app));
        let held = crowd(address).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut client, &text).await.as_deref(), Some("200"));
        let more = crowd(address).await;
        let mut last = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut last, "0123456789abcdef").await.as_deref(), Some("200"), "the page is for all");
        assert_eq!(ask(&mut client, &text).await.as_deref(), Some("200"));
        drop((held, more));
        server.abort();
    }
}
