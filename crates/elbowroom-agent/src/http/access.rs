//! Which clients may ask.
//!
//! Over the unix socket, the users that may open it: root and a group. Over TCP, clients with the token. Only a loopback address may do
//! without a token: then programs on this machine may ask, but no web page that a browser on it shows.

use super::HttpError;
use anyhow::{Context, Result, ensure};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use elbowroom_linux::bounded;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Shortest token that is accepted: 22 characters of base64 are 128 bits, and people count badly.
const MIN_TOKEN_LEN: usize = 16;
/// Largest body that is not refused at sight. None is ever read.
const MAX_BODY: u64 = 64 << 10;

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HttpPeer {
    /// A process of this user, by the kernel's word.
    Unix { uid: u32 },
    /// A client on the network.
    Tcp,
}

/// The secret of the network's clients.
pub(super) struct BearerToken(String);

impl BearerToken {
    /// Reads it: the file's one line.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text =
            bounded::file_text(path, bounded::SETTINGS_FILE).with_context(|| path.display().to_string())?;
        let mode = std::fs::metadata(path).with_context(|| path.display().to_string())?.mode();
        ensure!(mode & 0o004 == 0, "{}: every user can read it: chmod o= it", path.display());
        let token = text.trim();
        ensure!(
            token.len() >= MIN_TOKEN_LEN && token.bytes().all(|b| b.is_ascii_graphic()),
            "{}: a token is one line of at least {MIN_TOKEN_LEN} letters and digits: `openssl rand -hex 16` makes one",
            path.display()
        );
        Ok(Self(token.to_owned()))
    }

    /// A new one, of 128 bits from the kernel.
    pub(super) fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .context("asking the kernel for random numbers")?;
        ensure!(filled == bytes.len(), "the kernel gave {filled} of {} random bytes", bytes.len());
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The token itself.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this header is `Bearer TOKEN`; takes as long for a token that is nearly right as for one that is not.
    pub(super) fn matches_header(&self, header: Option<&HeaderValue>) -> bool {
        let given = header.and_then(|value| value.as_bytes().split_at_checked(7));
        given.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(token.ct_eq(self.0.as_bytes()))
        })
    }
}

/// What is asked of the network's clients.
pub(super) type RequiredToken = Option<Arc<BearerToken>>;

/// Lets a request through, or not.
pub(super) async fn check_access(
    State(gate): State<RequiredToken>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<HttpPeer>().copied();
    match authorize(&gate, peer, &request) {
        Ok(()) => {
            let mut response = next.run(request).await;
            let nosniff = HeaderValue::from_static("nosniff");
            response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
            response
        }
        Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED => {
            ([(header::WWW_AUTHENTICATE, "Bearer realm=\"elbowroom\"")], refusal).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}

fn authorize(gate: &RequiredToken, peer: Option<HttpPeer>, request: &Request) -> Result<(), HttpError> {
    let headers = request.headers();
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY) {
        return Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "nothing here reads a body: send none"));
    }
    match (peer, gate) {
        (Some(HttpPeer::Unix { .. }), _) => Ok(()),
        (_, Some(token)) => {
            let public = request.method() == Method::GET && is_public(request.uri().path());
            if public || token.matches_header(headers.get(header::AUTHORIZATION)) {
                return Ok(());
            }
            let message = "the token is missing or wrong: send `Authorization: Bearer TOKEN`";
            Err(HttpError::new(StatusCode::UNAUTHORIZED, message))
        }
        (_, None) if is_local_host_header(headers) => Ok(()),
        (_, None) => {
            // A stranger's name that resolves to 127.0.0.1 would make every page of the web a client (DNS rebinding).
            let message = "without a token only an address is a host name here: ask 127.0.0.1 or localhost, or set api.token_file";
            Err(HttpError::new(StatusCode::MISDIRECTED_REQUEST, message))
        }
    }
}

/// What says nothing about this node: the dashboard's files, and whether an agent answers.
pub(super) fn is_public(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz") || path.starts_with("/assets/")
}

/// Whether the client, which may be a browser, calls this server by an address or as `localhost`.
fn is_local_host_header(headers: &HeaderMap) -> bool {
    // HTTP/1.0 needs none; browsers send one always.
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    const TOKEN: &str = "0123456789abcdef";

    fn status(gate: Option<&str>, peer: HttpPeer, path: &str, headers: &[(&str, &str)]) -> u16 {
        let gate = gate.map(|token| Arc::new(BearerToken(token.to_owned())));
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        authorize(&gate, Some(peer), &request).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_the_whole_token_opens_the_door() {
        let check = |header: &str, expect| {
            let got = status(Some(TOKEN), HttpPeer::Tcp, "/metrics", &[("authorization", header)]);
            assert_eq!(got, expect, "{header:?}");
        };
        check("Bearer 0123456789abcdef", 200);
        check("bearer 0123456789abcdef", 200);
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdeF",
            "Bearer ",
            "Bearer",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "",
        ] {
            check(wrong, 401);
        }
        assert_eq!(status(Some(TOKEN), HttpPeer::Tcp, "/metrics", &[]), 401);
    }

    #[test]
    fn what_says_nothing_about_the_node_needs_no_token() {
        for (path, expect) in [
            ("/", 200),
            ("/assets/app.js", 200),
            ("/healthz", 200),
            ("/readyz", 200),
            ("/api/v1/status", 401),
            ("/assets", 401),
        ] {
            assert_eq!(status(Some(TOKEN), HttpPeer::Tcp, path, &[]), expect, "{path}");
        }
    }

    #[test]
    fn without_a_token_a_page_of_the_web_is_no_client() {
        for (host, expect) in [
            ("localhost:9273", 200),
            ("127.0.0.1:9273", 200),
            ("[::1]:9273", 200),
            ("rebind.example:9273", 421),
            ("localhost.rebind.example", 421),
            ("", 421),
        ] {
            assert_eq!(status(None, HttpPeer::Tcp, "/metrics", &[("host", host)]), expect, "{host:?}");
        }
        assert_eq!(status(None, HttpPeer::Unix { uid: 7 }, "/metrics", &[("host", "anything")]), 200);
    }

    #[test]
    fn a_body_that_is_announced_to_be_large_is_refused_unread() {
        let got = status(None, HttpPeer::Unix { uid: 0 }, "/", &[("content-length", "70000")]);
        assert_eq!(got, 413);
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_none() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let check = |text: &str, mode, expect: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let said = BearerToken::read(&path)
                .map_or_else(|error| elbowroom_client::output::one_line(&error), |token| token.0);
            assert!(said.contains(expect), "{text:?}: {said}");
        };
        check("0123456789abcdef\n", 0o600, TOKEN);
        check("0123456789abcdef\n", 0o644, "every user can read it");
        check("short\n", 0o600, "at least 16");
        check("two lines, which is\none too many\n", 0o600, "one line");
        assert!(BearerToken::read(&dir.path().join("none")).is_err());
    }
}
