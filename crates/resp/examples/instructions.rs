//! Repeats one operation, so that its instructions can be counted:
//!
//! ```text
//! cargo build --release -p pantala-resp --example instructions
//! for n in 10000 20000; do valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!   target/release/examples/instructions get $n 2>&1 | grep Collected; done
//! ```
//!
//! The difference of the two counts, divided by 10,000, is the cost of one operation without the
//! program's startup. Operations: `get`, `set`, `get-resumed` (in two pieces), `bulk`, `integer`,
//! `ok`.

use std::hint::black_box;

use pantala_resp::{ArgRange, Limits, Parser, Reply, Version};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000123\r\n";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let operation = arguments.next().unwrap_or_else(|| "get".into());
    let times: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let mut set =
        [b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000123\r\n$256\r\n".as_slice(), &[b'v'; 256], b"\r\n"].concat();
    let mut get = GET.to_vec();
    let value = [b'v'; 256];
    let mut out = Vec::with_capacity(4_096);
    let mut parser = Parser::new();
    let mut ranges: Vec<ArgRange> = Vec::with_capacity(16);
    let limits = Limits::default();
    for n in 0..times {
        ranges.clear();
        out.clear();
        match operation.as_str() {
            "get" => assert!(parser.parse(black_box(&mut get), &mut ranges, black_box(&limits)).is_ok()),
            "set" => assert!(parser.parse(black_box(&mut set), &mut ranges, black_box(&limits)).is_ok()),
            "get-resumed" => {
                assert_eq!(parser.parse(black_box(&mut get[..20]), &mut ranges, &limits), Ok(None));
                assert!(parser.parse(black_box(&mut get), &mut ranges, &limits).is_ok());
            }
            "bulk" => Reply::new(black_box(&mut out), Version::Resp2).bulk(black_box(&value)),
            "integer" => Reply::new(black_box(&mut out), Version::Resp2).integer(black_box(n as i64 + 100_000)),
            "ok" => Reply::new(black_box(&mut out), Version::Resp2).ok(),
            _ => {}
        }
        black_box(&ranges);
    }
}
