#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pantala_fuzz_targets::resp::run(input));
