use elbowroom_client::api::ControlRequest;

/// Arbitrary bytes as what is asked on the agent's socket: a request that is written again asks the same.
pub fn run(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(request) = serde_json::from_slice::<ControlRequest>(line) else { continue };
        let text = serde_json::to_vec(&request).expect("numbers and words");
        assert!(!text.contains(&b'\n'), "a request is one line");
        let again = serde_json::from_slice::<ControlRequest>(&text).expect("it was one");
        match (&again, &request) {
            // Numbers of many digits come back within their last one.
            (
                ControlRequest::Probe { container, record },
                ControlRequest::Probe { container: asked, record: told },
            ) => {
                assert_eq!((container, record.kind, record.colour), (asked, told.kind, told.colour));
            }
            _ => assert_eq!(again, request),
        }
    }
}
