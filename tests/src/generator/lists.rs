//! List commands.

use super::{Check, Generator, Step};

/// Number of keys that contain most lists. There are few keys, so that the lists grow long.
pub(super) const KEYS: usize = 5;

pub(super) fn key(number: usize) -> Vec<u8> {
    format!("list:{number}").into_bytes()
}

impl Generator {
    pub(super) fn list_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "LINDEX",
            "LINSERT",
            "LLEN",
            "LMOVE",
            "LMPOP",
            "LPOP",
            "LPOS",
            "LPUSH",
            "LPUSH",
            "LPUSHX",
            "LRANGE",
            "LRANGE",
            "LREM",
            "LSET",
            "LSET",
            "LSET",
            "LTRIM",
            "RPOP",
            "RPOPLPUSH",
            "RPUSH",
            "RPUSH",
            "RPUSH",
            "RPUSHX",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        if name == "LMPOP" {
            self.popping(&mut args);
            return Step::new(args, Check::Exact);
        }
        args.push(self.list_key());
        match name {
            "LINDEX" => args.push(self.place()),
            "LINSERT" => {
                let side = *self.random.pick(&["BEFORE", "AFTER"]);
                args.push(self.word(side));
                args.push(self.element());
                args.push(self.element());
            }
            "LMOVE" => {
                args.push(self.list_key());
                self.end(&mut args);
                self.end(&mut args);
            }
            "LPOP" | "RPOP" if self.random.one_in(3) => args.push(self.place()),
            "LPOS" => {
                args.push(self.element());
                self.lpos_options(&mut args);
            }
            "LPUSH" | "RPUSH" | "LPUSHX" | "RPUSHX" => {
                let most = if self.random.one_in(12) { 120 } else { 8 };
                for _ in 0..self.random.below(most) + 1 {
                    args.push(self.element());
                }
            }
            "LRANGE" => {
                args.push(self.place());
                args.push(self.place());
            }
            // Most ranges keep most of the list, so that long lists exist.
            "LTRIM" => {
                args.push(self.place());
                args.push(if self.random.one_in(3) { self.place() } else { b"-1".to_vec() });
            }
            "LREM" => {
                args.push(self.place());
                args.push(self.element());
            }
            "LSET" => {
                args.push(self.place());
                args.push(self.element());
            }
            "RPOPLPUSH" => args.push(self.list_key()),
            _ => {}
        }
        Step::new(args, Check::Exact)
    }

    fn list_key(&mut self) -> Vec<u8> {
        if self.random.one_in(5) { self.key() } else { key(self.random.below(KEYS)) }
    }

    /// Returns an element, mostly one of a few, so that searches find some.
    fn element(&mut self) -> Vec<u8> {
        match self.random.below(10) {
            0 => self.value(),
            1 => self.integer(),
            2..=5 => self.random.below(12).to_string().into_bytes(),
            _ => {
                let letter = b'a' + self.random.below(6) as u8;
                vec![letter; 1 + self.random.below(3)]
            }
        }
    }

    /// Returns an index or a count: near the ends, or arbitrary.
    fn place(&mut self) -> Vec<u8> {
        match self.random.below(12) {
            0 => self.integer(),
            1..=4 => format!("-{}", self.random.below(20) + 1).into_bytes(),
            _ => self.random.below(20).to_string().into_bytes(),
        }
    }

    fn end(&mut self, args: &mut Vec<Vec<u8>>) {
        let end = *self.random.pick(&["LEFT", "RIGHT", "LEFT", "RIGHT", "LEFT", "RIGHT", "LEFT", "RIGHT", "MIDDLE"]);
        args.push(self.word(end));
    }

    /// Appends `numkeys key [key …] LEFT|RIGHT [COUNT count]`.
    fn popping(&mut self, args: &mut Vec<Vec<u8>>) {
        let keys = self.random.below(3) + 1;
        args.push(if self.random.one_in(10) { self.place() } else { keys.to_string().into_bytes() });
        for _ in 0..keys {
            args.push(self.list_key());
        }
        self.end(args);
        if self.random.one_in(2) {
            args.push(self.word("COUNT"));
            args.push(self.place());
        }
    }

    fn lpos_options(&mut self, args: &mut Vec<Vec<u8>>) {
        for _ in 0..*self.random.pick(&[0, 0, 1, 1, 2, 3]) {
            let option = *self.random.pick(&["RANK", "COUNT", "MAXLEN"]);
            args.push(self.word(option));
            args.push(self.place());
        }
    }
}
