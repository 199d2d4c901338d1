//! A hook that is an address.

use super::{HookError, StopFlag};
use elbowroom_linux::bounded;
use elbowroom_types::unit::Micros;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// Pauses before the second and further attempts.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16)];
/// Where systems keep the certificates they trust: Debian and SUSE, Red Hat, Alpine.
pub const CA_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Posts JSON; answers that say "later", and no answer, are tried again.
pub(super) fn post(url: &str, body: &[u8], timeout: Micros, stop: &StopFlag) -> Result<(), HookError> {
    let mut pauses = RETRY_DELAYS.into_iter();
    loop {
        let error = match post_once(url, body, Duration::from_micros(timeout.get())) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match pauses.next() {
            Some(pause) if is_transient(&error) => {
                if stop.wait(pause) {
                    return Err(HookError::Stopping);
                }
            }
            _ => return Err(error.into()),
        }
    }
}

fn post_once(url: &str, body: &[u8], timeout: Duration) -> Result<(), ureq::Error> {
    HTTP_AGENT
        .post(url)
        .config()
        .timeout_global(Some(timeout))
        .build()
        .content_type("application/json")
        .send(body)
        .and_then(|answer| match answer.status() {
            status if status.is_success() => Ok(()),
            // Also where it redirects: what follows one asks there and tells nothing.
            status => Err(ureq::Error::StatusCode(status.as_u16())),
        })
}

/// Whether the same request may succeed later.
fn is_transient(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::StatusCode(code) => *code == 429 || *code >= 500,
        ureq::Error::Timeout(_) | ureq::Error::Io(_) | ureq::Error::HostNotFound => true,
        ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => true,
        _ => false,
    }
}

static HTTP_AGENT: LazyLock<ureq::Agent> = LazyLock::new(|| {
    let tls = TlsConfig::builder().root_certs(root_certs()).build();
    ureq::Agent::config_builder()
        .user_agent(concat!("elbowroom/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        // Alerts are minutes apart: a connection kept open would be closed by the other side anyway.
        .max_idle_connections(0)
        .max_redirects(0)
        .build()
        .into()
});

/// What this system trusts, which may be an organisation's own; what browsers trust where it keeps no list.
fn root_certs() -> RootCerts {
    for path in CA_BUNDLES {
        let Ok(text) = bounded::file(path, bounded::KERNEL_FILE) else { continue };
        let certificates: Vec<_> = parse_pem(&text)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        if !certificates.is_empty() {
            return RootCerts::Specific(Arc::new(certificates));
        }
    }
    RootCerts::WebPki
}
