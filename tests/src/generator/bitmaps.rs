//! Bitmap commands.

use super::{Check, Generator, Step};

impl Generator {
    pub(super) fn bitmap_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "BITCOUNT",
            "BITFIELD",
            "BITFIELD",
            "BITFIELD_RO",
            "BITOP",
            "BITPOS",
            "GETBIT",
            "SETBIT",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        match name {
            "BITCOUNT" => {
                args.push(self.key());
                if !self.random.one_in(4) {
                    self.bit_range(&mut args);
                }
            }
            "BITPOS" => {
                args.push(self.key());
                args.push(self.bit());
                match self.random.below(4) {
                    0 => {}
                    1 => args.push(self.integer()),
                    _ => self.bit_range(&mut args),
                }
            }
            "GETBIT" => {
                args.push(self.key());
                args.push(self.bit_offset());
            }
            "SETBIT" => {
                args.push(self.key());
                args.push(self.bit_offset());
                args.push(self.bit());
            }
            "BITOP" => {
                let operation = *self.random.pick(&["AND", "OR", "XOR", "NOT"]);
                args.push(self.word(operation));
                args.push(self.key());
                if operation == "NOT" {
                    args.push(self.key());
                } else {
                    self.some_keys(&mut args);
                }
            }
            _ => {
                args.push(self.key());
                for _ in 0..self.random.below(5) {
                    let only_read = name == "BITFIELD_RO" && !self.random.one_in(12);
                    self.field_operation(&mut args, only_read);
                }
            }
        }
        Step::new(args, Check::Exact)
    }

    fn bit(&mut self) -> Vec<u8> {
        if self.random.one_in(15) { self.integer() } else { self.random.below(2).to_string().into_bytes() }
    }

    /// Appends START and END, in bytes or bits.
    fn bit_range(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.integer());
        args.push(self.integer());
        match self.random.below(5) {
            0 => args.push(self.word("BYTE")),
            1 | 2 => args.push(self.word("BIT")),
            _ => {}
        }
    }

    /// Returns an offset: small, near the end of a string, or invalid.
    fn bit_offset(&mut self) -> Vec<u8> {
        match self.random.below(14) {
            0 => self.integer(),
            1 => b"4294967296".to_vec(),
            2 => self.random.below(30_000).to_string().into_bytes(),
            _ => self.random.below(400).to_string().into_bytes(),
        }
    }

    fn field_operation(&mut self, args: &mut Vec<Vec<u8>>, only_read: bool) {
        let kind = if only_read { 0 } else { self.random.below(4) };
        if kind == 3 {
            args.push(self.word("OVERFLOW"));
            let overflow = *self.random.pick(&["WRAP", "SAT", "FAIL", "SAT", "FAIL", "NONE"]);
            args.push(self.word(overflow));
            return;
        }
        args.push(self.word(["GET", "SET", "INCRBY"][kind]));
        let signed = self.random.one_in(2);
        let bits = match self.random.below(12) {
            0 => 66,
            1 => 64,
            2 => 0,
            3..=5 => 8,
            _ => self.random.below(63) + 1,
        };
        args.push(format!("{}{bits}", if signed { 'i' } else { 'u' }).into_bytes());
        let mut offset = self.bit_offset();
        if self.random.one_in(3) {
            offset.insert(0, b'#');
        }
        args.push(offset);
        if kind > 0 {
            args.push(match self.random.below(3) {
                0 => ((self.random.next_u64() as i64) >> self.random.below(64)).to_string().into_bytes(),
                _ => self.integer(),
            });
        }
    }
}
