//! Connections: how many, how long, and for which clients.
//!
//! A client that does not read is cut off after [`WRITE_TIMEOUT`], one that does not ask after [`HEADER_TIMEOUT`]. When all connections
//! are taken, a new one replaces another ([`ConnectionTable`]). A [`RateLimiter`] bounds how fast connections are accepted, and each
//! client's requests have one of their own ([`ClientQuotas`]). Each listener has its own of all that: root is served at the unix socket,
//! however many clients come over the network.

use super::access::{self, HttpPeer, RequiredToken};
use super::client_quota::ClientQuotas;
use super::connection_table::{ConnectionEntry, ConnectionTable};
use super::rate_limiter::RateLimiter;
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::header::{self, HeaderMap};
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

/// Whether a request on the network brings what its client is known by. Such a client waits for no stranger, and loses its connection to
/// none.
pub(super) type IsKnown = Arc<dyn Fn(&HeaderMap) -> bool + Send + Sync>;

/// Serves the unix socket, for ever.
pub(super) async fn serve_unix(listener: UnixListener, app: Router) {
    let peer = |stream: &UnixStream| Some(HttpPeer::Unix { uid: stream.peer_cred().ok()?.uid() });
    accept_each(listener, None, peer, |stream, client| {
        tokio::spawn(serve_connection(stream, client, None, app.clone()))
    })
    .await
}

/// Serves TCP, with TLS where there is a certificate, for ever. Its clients are known by the token.
pub(super) async fn serve_tcp(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    gate: RequiredToken,
    app: Router,
) {
    let is_known = gate.clone().map(|token| -> IsKnown {
        Arc::new(move |headers: &HeaderMap| token.matches_header(headers.get(header::AUTHORIZATION)))
    });
    accept_each(
        listener,
        is_known,
        |_| Some(HttpPeer::Tcp),
        |stream, client| {
            let _ = stream.set_nodelay(true);
            let (tls, gate, app) = (tls.clone(), gate.clone(), app.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve_connection(stream, client, gate, app).await,
                    Some(tls) => {
                        let accepted = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = accepted {
                            serve_connection(stream, client, gate, app).await;
                        }
                    }
                }
            })
        },
    )
    .await
}

/// Serves TCP on this machine, for ever, for an `app` that identifies clients itself and decides what strangers may ask.
pub(super) async fn serve_local(listener: TcpListener, is_known: IsKnown, app: Router) {
    accept_each(
        listener,
        Some(is_known),
        |_| Some(HttpPeer::Tcp),
        |stream, client| {
            let _ = stream.set_nodelay(true);
            tokio::spawn(serve_connection(stream, client, None, app.clone()))
        },
    )
    .await
}

/// A connection's client, and what it has of the way in by which it came.
#[derive(Clone)]
struct ConnectionContext {
    peer: HttpPeer,
    entry: Arc<ConnectionEntry>,
    is_known: Option<IsKnown>,
    quotas: Arc<ClientQuotas>,
}

/// All clients that come by one way, for ever.
async fn accept_each<L>(
    mut listener: L,
    is_known: Option<IsKnown>,
    peer_of: impl Fn(&L::Io) -> Option<HttpPeer>,
    welcome: impl Fn(L::Io, ConnectionContext) -> JoinHandle<()>,
) where
    L: Listener<Io: AsFd>,
{
    let table = Arc::new(ConnectionTable::default());
    let (pace, quotas) = (RateLimiter::default(), Arc::new(ClientQuotas::default()));
    loop {
        pace.acquire().await;
        let (stream, _) = listener.accept().await;
        let Some(peer) = peer_of(&stream) else { continue };
        let Some(entry) = table.admit(peer, MAX_CONNECTIONS) else { continue };
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        let (is_known, quotas) = (is_known.clone(), quotas.clone());
        let client = ConnectionContext { peer, entry: entry.clone(), is_known, quotas };
        entry.set_task(welcome(stream, client).abort_handle());
    }
}

/// One connection, until either end has enough of it.
async fn serve_connection<S>(stream: S, client: ConnectionContext, gate: RequiredToken, app: Router)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let app = app
        .layer(middleware::from_fn_with_state(gate, access::check_access))
        .layer(middleware::from_fn_with_state(client.clone(), limit_rate))
        .layer(Extension(client.peer));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(app));
    // Whatever a client did wrong is its own affair, and there may be ten thousand of them.
    let _ = served.await;
    drop(client);
}

/// One request, when its turn has come.
async fn limit_rate(State(client): State<ConnectionContext>, request: Request, next: Next) -> Response {
    client.entry.mark_active();
    let is_known = client.is_known.as_ref().is_some_and(|is_known| is_known(request.headers()));
    if is_known {
        client.entry.mark_authenticated();
    }
    let quota = client.quotas.of(client.peer, is_known);
    quota.pace.acquire().await;
    quota.count(next.run(request).await)
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
    const MORE_THAN_ALL: usize = 3 * MAX_CONNECTIONS;

    /// Asks on a connection; the status of the answer.
    async fn ask(stream: &mut TcpStream, token: &str) -> Option<String> {
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut answer = [0; 1_024];
        let len = stream.read(&mut answer).await.ok().filter(|len| *len > 12)?;
        Some(String::from_utf8_lossy(&answer[9..12.min(len)]).into_owned())
    }

    /// Asks without the token, as long as there is an answer.
    async fn ask_on(address: SocketAddr) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        while ask(&mut stream, "0123456789abcdef").await.is_some() {}
    }

    /// Serves an answer to clients with the token; returns the address and the token.
    async fn serve(answer: Vec<u8>) -> (SocketAddr, String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let token = BearerToken::random().unwrap();
        let text = token.as_str().to_owned();
        let app = Router::new().route("/", get(async move || answer.clone()));
        (address, text, tokio::spawn(serve_tcp(listener, None, Some(Arc::new(token)), app)))
    }

    async fn connections(address: SocketAddr) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        for _ in 0..MORE_THAN_ALL {
            connections.push(TcpStream::connect(address).await.unwrap());
        }
        connections
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_holder_of_the_token_gets_in_and_stays_while_all_connections_and_more_are_held() {
        let (address, text, server) = serve(b"here".to_vec()).await;
        let held = connections(address).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut client, &text).await.as_deref(), Some("200"));
        let more = connections(address).await;
        let mut last = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut last, "0123456789abcdef").await.as_deref(), Some("200"), "the page is for all");
        assert_eq!(ask(&mut client, &text).await.as_deref(), Some("200"));
        drop((held, more));
        server.abort();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn unread_answers_are_bounded_for_each_client() {
        // Far more than the kernel keeps for a connection.
        let (address, text, server) = serve(vec![b'x'; 24 << 20]).await;
        let (mut unread, known) = (Vec::new(), text.as_str());
        for (token, expect) in [(known, "200"), (known, "200"), (known, "503"), ("0123456789abcdef", "200")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert_eq!(ask(&mut stream, token).await.as_deref(), Some(expect));
            unread.push(stream);
        }
        drop(unread);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if ask(&mut stream, known).await.as_deref() == Some("200") {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "answers that were dropped still count");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.abort();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_holder_of_the_token_waits_for_no_stranger() {
        let (address, text, server) = serve(b"here".to_vec()).await;
        let strangers: Vec<_> = (2..MAX_CONNECTIONS).map(|_| tokio::spawn(ask_on(address))).collect();
        let mut client = TcpStream::connect(address).await.unwrap();
        let asked = async {
            for _ in 0..600 {
                assert_eq!(ask(&mut client, &text).await.as_deref(), Some("200"));
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(40), asked).await;
        in_time.expect("at the pace of all of them it would be more than a minute");
        strangers.iter().for_each(JoinHandle::abort);
        server.abort();
    }
}
