use elbowroom_agent::recorder::delta::{Decoder, Encoder, Part};
use elbowroom_agent::recorder::frame::{HEADER_SIZE, read_all, scan};

/// Arbitrary bytes where a segment of a recording should be: nothing panics, and what is read are frames that are there, each of
/// which reads the same alone with those before it.
pub fn run(data: &[u8]) {
    // As a segment.
    let frames = scan(data);
    assert!(frames.len() <= data.len() / HEADER_SIZE);
    assert!(read_all(data).len() <= frames.len());
    // As frames behind their checksum, of which a fuzzer finds none by itself.
    let mut decoder = Decoder::default();
    for (n, frame) in data.split(|byte| *byte == 0xff).enumerate() {
        if decoder.frame(frame, n == 0).is_ok() {
            let parts: Vec<Part> = decoder.parts();
            let mut again = Decoder::default();
            again.frame(&Encoder::default().frame(&parts, true), true).expect("it was just made");
            assert_eq!(again.parts().len(), parts.len());
        }
    }
}
