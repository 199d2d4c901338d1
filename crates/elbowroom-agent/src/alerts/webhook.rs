//! A receiver that is an address.

use super::{DeliveryError, StopFlag};
use crate::http_client;
use elbowroom_types::unit::Micros;
use std::time::Duration;

/// Pauses before the second and further attempts.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16)];

/// Posts JSON; answers that say "later", and no answer, are tried again.
pub(super) fn post(url: &str, body: &[u8], timeout: Micros, stop: &StopFlag) -> Result<(), DeliveryError> {
    let mut pauses = RETRY_DELAYS.into_iter();
    loop {
        let error = match post_once(url, body, Duration::from_micros(timeout.get())) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match pauses.next() {
            Some(pause) if is_transient(&error) => {
                if stop.wait(pause) {
                    return Err(DeliveryError::Stopping);
                }
            }
            _ => return Err(error.into()),
        }
    }
}

fn post_once(url: &str, body: &[u8], timeout: Duration) -> Result<(), ureq::Error> {
    match http_client::post(url, [("content-type", "application/json")], body, timeout)?.status() {
        status if status.is_success() => Ok(()),
        status => Err(ureq::Error::StatusCode(status.as_u16())),
    }
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
