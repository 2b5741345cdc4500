//! HyperLogLog commands, on keys that mostly have a HyperLogLog.

use super::{Check, Generator, Step};

impl Generator {
    pub(super) fn hyperloglog_command(&mut self) -> Step {
        let name = *self
            .random
            .pick(&["PFADD", "PFADD", "PFADD", "PFADD", "PFCOUNT", "PFCOUNT", "PFMERGE", "PFDEBUG", "GET", "OBJECT"]);
        let mut args = vec![name.as_bytes().to_vec()];
        match name {
            "PFADD" => {
                args.push(self.hyperloglog_key());
                let count = *self.random.pick(&[0, 1, 1, 2, 5, 20, 200]);
                for _ in 0..count {
                    let element = self.random.below(3000).to_string().into_bytes();
                    args.push(element);
                }
            }
            "PFDEBUG" => {
                let sub = *self.random.pick(&["DECODE", "DECODE", "ENCODING", "TODENSE", "GETREG", "NOSUCH"]);
                args.push(self.word(sub));
                args.push(self.hyperloglog_key());
            }
            "OBJECT" => {
                args.push(self.word("ENCODING"));
                args.push(self.hyperloglog_key());
            }
            _ => {
                for _ in 0..*self.random.pick(&[1, 1, 2, 4]) {
                    args.push(self.hyperloglog_key());
                    if name == "GET" {
                        break;
                    }
                }
            }
        }
        Step::new(args, Check::Exact)
    }

    /// Returns one of a few keys that other commands rarely access.
    fn hyperloglog_key(&mut self) -> Vec<u8> {
        if self.random.one_in(20) {
            return self.key();
        }
        format!("hll:{}", self.random.below(6)).into_bytes()
    }
}
