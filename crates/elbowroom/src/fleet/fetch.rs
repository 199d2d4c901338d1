//! One question to one agent over HTTP, within bounds of time and memory, whatever the other side sends. Redirections are not followed: a
//! token is for the address that it was given for.

use super::address::NodeAddress;
use anyhow::{Context, Result, bail, ensure};
use axum::body::{Body, Bytes, to_bytes};
use elbowroom_linux::bounded;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Longest head of an answer.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// What all questions have in common.
pub(crate) struct FleetClient {
    authorization: Option<HeaderValue>,
    tls: TlsConnector,
    /// How long one answer may take, from the first look-up to its last byte.
    pub(crate) timeout: Duration,
    /// Longest answer, in bytes.
    pub(crate) max_body_bytes: usize,
}

impl FleetClient {
    /// Reads token and certificates; `authority` is a PEM file of trusted certificates; without it, this system's are trusted.
    pub(crate) fn new(
        token: Option<&Path>,
        authority: Option<&Path>,
        within: Duration,
        longest: usize,
    ) -> Result<Self> {
        let authorization = token.map(read_bearer_token).transpose()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("setting TLS up")?
            .with_root_certificates(root_certificates(authority)?)
            .with_no_client_auth();
        Ok(Self {
            authorization,
            tls: TlsConnector::from(Arc::new(config)),
            timeout: within,
            max_body_bytes: longest,
        })
    }

    /// The body of a good answer.
    pub(crate) async fn get(&self, way: &NodeAddress, path: &str) -> Result<Bytes> {
        match tokio::time::timeout(self.timeout, self.fetch(way, path)).await {
            Ok(answer) => answer,
            Err(_) => bail!("no answer within {} s", self.timeout.as_secs_f64()),
        }
    }

    async fn fetch(&self, way: &NodeAddress, path: &str) -> Result<Bytes> {
        match way {
            NodeAddress::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.context("connecting")?;
                // Root and a group may ask here; no token is sent.
                self.exchange(stream, "localhost", path, None).await
            }
            NodeAddress::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.context("connecting")?;
                let named =
                    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
                let token = self.authorization.as_ref();
                if !tls {
                    return self.exchange(stream, &named, path, token).await;
                }
                let name = ServerName::try_from(host.clone())
                    .with_context(|| format!("{host}: no name that a certificate could have"))?;
                let stream = self.tls.connect(name, stream).await.context("agreeing on TLS")?;
                self.exchange(stream, &named, path, token).await
            }
        }
    }

    async fn exchange<S>(
        &self,
        stream: S,
        host: &str,
        path: &str,
        token: Option<&HeaderValue>,
    ) -> Result<Bytes>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(stream)).await?;
        let driver = ConnectionTask(tokio::spawn(connection));
        let mut request = Request::get(path)
            .header(HOST, host)
            .header(USER_AGENT, concat!("elbowroom/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let answer = sender.send_request(request.body(Body::empty())?).await.context("asking")?;
        let status = answer.status();
        let body = Body::new(answer.into_body());
        let body =
            to_bytes(body, if status == StatusCode::OK { self.max_body_bytes } else { MAX_HEAD_BYTES }).await;
        drop(driver);
        match status {
            StatusCode::OK => {
                body.with_context(|| format!("an answer of at most {} bytes", self.max_body_bytes))
            }
            status => bail!("{}", refusal_text(status, &body.unwrap_or_default())),
        }
    }
}

/// A connection that ends with its question.
struct ConnectionTask(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why there is no answer, in the words of the agent where it has some, and the way out.
fn refusal_text(status: StatusCode, body: &[u8]) -> String {
    let way_out = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": does --token-file hold its token?",
        StatusCode::NOT_FOUND => ": is it an agent of Elbowroom, and not an older one?",
        _ => "",
    };
    let said = serde_json::from_slice::<serde_json::Value>(body).ok();
    let said = said.as_ref().and_then(|said| said.get("error")).and_then(|error| error.as_str());
    let said =
        said.map(|said| format!(", {:?}", said.chars().take(160).collect::<String>())).unwrap_or_default();
    format!("it answered {}{said}{way_out}", status.as_u16())
}

fn read_bearer_token(file: &Path) -> Result<HeaderValue> {
    let text = bounded::file_text(file, bounded::SETTINGS_FILE)
        .with_context(|| format!("--token-file: {}", file.display()))?;
    let token = text.trim();
    ensure!(!token.is_empty(), "--token-file: {} is empty", file.display());
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .with_context(|| format!("--token-file: {} is not one line of plain characters", file.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn root_certificates(authority: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let files = authority
        .map_or_else(|| elbowroom_agent::http_client::CA_BUNDLES.map(Path::new).to_vec(), |file| vec![file]);
    for file in files {
        let certificates =
            CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match certificates {
            Ok(certificates) => {
                store.add_parsable_certificates(certificates);
                if authority.is_some() {
                    ensure!(
                        !store.is_empty(),
                        "--ca: {}: no certificate is in it: write a PEM file",
                        file.display()
                    );
                }
                return Ok(store);
            }
            Err(error) if authority.is_some() => {
                return Err(error).with_context(|| format!("--ca: {}", file.display()));
            }
            // A system without a list of its own trusts no server; a request over TLS fails and says so.
            Err(_) => {}
        }
    }
    Ok(store)
}
