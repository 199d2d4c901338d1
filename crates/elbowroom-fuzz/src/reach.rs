use elbowroom_linux::reach::scan_maps;

/// Arbitrary bytes as a process' areas: nothing is seen in a part that is not seen in the whole.
pub fn run(data: &[u8]) {
    let pages = Some((0, 0x2d));
    let whole = scan_maps(data, pages);
    for line in data.split(|byte| *byte == b'\n') {
        let part = scan_maps(line, pages);
        assert!(whole.page || !part.page);
        assert!(whole.openmp || !part.openmp);
        assert!(whole.libc || !part.libc);
        assert!(whole.java_native || !part.java_native);
    }
    assert!(!scan_maps(data, None).page);
}
