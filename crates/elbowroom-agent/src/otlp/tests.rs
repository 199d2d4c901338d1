use super::*;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;
use std::io::Read;
use std::net::TcpListener;

/// What comes of a push to a collector that gives `answer`, after it has read the head and more of the request.
fn push_to(answer: Vec<u8>) -> Result<(), PushError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = OtlpSettings {
        endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
        ..OtlpSettings::default()
    };
    let collector = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\nbody") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        // A client that has read enough closes the connection.
        let _ = stream.write_all(&answer);
        String::from_utf8(request).unwrap()
    });
    let outcome = push(&settings.url().unwrap(), &settings, b"body");
    let request = collector.join().unwrap().to_lowercase();
    assert!(request.starts_with("post /v1/metrics http/1.1\r\n"), "{request}");
    assert!(request.contains("content-type: application/x-protobuf\r\n"), "{request}");
    assert!(request.contains("content-encoding: gzip\r\n"), "{request}");
    outcome
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn what_a_collector_says_is_told() {
    let partial = |points, message: &str| {
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: points, error_message: message.into() };
        ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec()
    };
    let refusal = PushRefusal { message: "no such tenant".into() }.encode_to_vec();
    for (answer, expect) in [
        (answer("200 OK", "", b""), None),
        (answer("202 Accepted", "", b"{}"), None),
        (answer("200 OK", "", &partial(0, "only a word")), None),
        (answer("200 OK", "", &partial(3, "too old")), Some("it dropped 3 of the values: too old")),
        (answer("400 Bad Request", "", &refusal), Some("it answered 400 Bad Request: no such tenant")),
        (answer("404 Not Found", "", b"<html>"), Some("it answered 404 Not Found")),
        (answer("307 Temporary Redirect", "Location: /else\r\n", b""), Some("it answered 307")),
        (answer("200 OK", "", &vec![b'x'; 1 << 20]), Some("its answer: longer than 65536 bytes")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut".to_vec(), Some("its answer: ")),
        (b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), Some("")),
    ] {
        let outcome = push_to(answer.clone()).err().map(|error| error.to_string());
        let head = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
        match (&outcome, expect) {
            (None, None) => {}
            (Some(said), Some(expect)) => assert!(said.starts_with(expect), "{head}: {said}"),
            _ => panic!("{head}: {outcome:?}"),
        }
    }
}

#[test]
fn a_pause_that_is_asked_for_is_kept_within_bounds() {
    for (header, expect) in [
        ("Retry-After: 30\r\n", Some(Duration::from_secs(30))),
        ("Retry-After: 999999999999\r\n", Some(MAX_RETRY_AFTER)),
        ("Retry-After: -1\r\n", None),
        ("Retry-After: soon\r\n", None),
        ("", None),
    ] {
        let error = push_to(answer("503 Service Unavailable", header, b"")).unwrap_err();
        assert_eq!(asked_pause(&error.into()), expect, "{header:?}");
    }
}

#[test]
fn a_long_reason_is_cut() {
    let refusal = PushRefusal { message: "x".repeat(10_000) }.encode_to_vec();
    let said = push_to(answer("400 Bad Request", "", &refusal)).unwrap_err().to_string();
    assert!(said.len() < 300, "{said}");
}
