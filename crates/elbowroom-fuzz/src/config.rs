use elbowroom_agent::config::{normalized_toml, probe_label_toml};

/// Arbitrary bytes as a configuration, and as a container's label that says where its probe is: what is taken is the same when it is
/// written out and read again, and what a label may say, a configuration may say.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let of_label = probe_label_toml(&text);
    if let Ok(of_label) = &of_label {
        assert!(
            !of_label.lines().any(|line| line.starts_with("exec = [\"")),
            "a label starts no program: {of_label}"
        );
    }
    for config in [normalized_toml(&text), of_label].into_iter().flatten() {
        assert_eq!(normalized_toml(&config).expect("it was one"), config);
    }
}
