//! `[api]` of the configuration.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Whether and where the HTTP API is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiSettings {
    /// Whether there is one.
    pub enabled: bool,
    /// Whose members may ask over `<run-dir>/api.sock`, beside root. Where there is no such group it is root alone.
    pub group: String,
    /// Address and port for TCP, for example `127.0.0.1:9273`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// File with the token that is asked for over TCP. Only a loopback address may do without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            group: "elbowroom".to_owned(),
            listen: None,
            token_file: None,
            tls_certificate: None,
            tls_key: None,
        }
    }
}

impl ApiSettings {
    /// Where to listen for TCP.
    pub fn address(&self) -> Result<Option<SocketAddr>> {
        let parse = |text: &String| {
            text.parse().with_context(|| {
                format!(
                    "api.listen: {text:?} is no address with a port: write for example \"127.0.0.1:9273\""
                )
            })
        };
        self.listen.as_ref().map(parse).transpose()
    }

    /// Certificate and key.
    pub fn tls(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.tls_certificate.as_ref().zip(self.tls_key.as_ref())
    }

    /// Refuses what would be open to all, or can never work. Whether files and ports can be had is the API's own affair:
    /// views do not wait for it.
    pub(crate) fn validate(&self) -> Result<()> {
        let address = self.address()?;
        for (key, path) in [
            ("token_file", &self.token_file),
            ("tls_certificate", &self.tls_certificate),
            ("tls_key", &self.tls_key),
        ] {
            let Some(path) = path else { continue };
            ensure!(path.is_absolute(), "api.{key}: {} is no absolute path", path.display());
            ensure!(address.is_some(), "api.{key}: nothing listens on TCP: set api.listen too");
        }
        ensure!(
            self.tls_certificate.is_some() == self.tls_key.is_some(),
            "api.tls_certificate and api.tls_key: one is of no use without the other"
        );
        if let Some(address) = address {
            ensure!(
                address.ip().is_loopback() || self.token_file.is_some(),
                "api.listen: {address} is open to the network: set api.token_file, or listen on 127.0.0.1"
            );
        }
        Ok(())
    }
}
