use elbowroom_profile::pages::measure::areas;

/// Arbitrary bytes as a process' areas: ascending and apart, or an error that names the line.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(areas) = areas(&text, "/bin/sh") else { return };
    assert!(areas.iter().all(|(area, _)| area.first <= area.end), "{areas:?}");
    assert!(areas.windows(2).all(|pair| pair[0].0.end <= pair[1].0.first), "{areas:?}");
}
