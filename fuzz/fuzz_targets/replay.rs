#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| elbowroom_fuzz::replay(data));
