/// A container of a few bytes may ask for all variables.
const MOST: usize = 1024;

/// Arbitrary bytes as what a runtime sends over NRI: nothing panics, and what is answered grows no faster than what was asked.
pub fn run(data: &[u8]) {
    let Ok(answers) = elbowroom_agent::engines::nri::answer(data) else { return };
    assert!(answers.len() <= MOST * data.len(), "{} bytes of answers to {}", answers.len(), data.len());
}
