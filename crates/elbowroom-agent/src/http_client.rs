//! Posts to addresses that the configuration names: webhooks, and collectors of metrics.

use elbowroom_linux::bounded;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use ureq::http::{Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// Where systems keep the certificates they trust: Debian and SUSE, Red Hat, Alpine.
pub const CA_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Posts `body` once. Every status is an answer, a redirect too: what follows one asks there and tells nothing.
///
/// # Errors
/// Where there is no answer; `timeout` is for all of it, also for a body that is read later.
pub(crate) fn post<'a>(
    url: &str,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: &[u8],
    timeout: Duration,
) -> Result<Response<ureq::Body>, ureq::Error> {
    let request =
        HTTP_AGENT.post(url).config().timeout_global(Some(timeout)).http_status_as_error(false).build();
    headers.into_iter().fold(request, |request, (name, value)| request.header(name, value)).send(body)
}

/// Scheme and host of an address, which is all of it that is no secret.
pub(crate) fn shown_address(url: &str) -> String {
    let uri: Option<Uri> = url.parse().ok();
    uri.as_ref()
        .and_then(|uri| Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?.host())))
        .unwrap_or_default()
}

static HTTP_AGENT: LazyLock<ureq::Agent> = LazyLock::new(|| {
    let tls = TlsConfig::builder().root_certs(root_certs()).build();
    ureq::Agent::config_builder()
        .user_agent(concat!("elbowroom/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        // Posts are seconds to minutes apart: a connection kept open would be closed by the other side anyway.
        .max_idle_connections(0)
        .max_redirects(0)
        .build()
        .into()
});

/// The certificates that this system trusts, which may be an organisation's own; those that browsers trust if it keeps no list.
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
