//! `REPLCONF` on a primary: the options that a connection sets before it asks for data, and the
//! acknowledgements that it sends afterwards.

use crate::{FLOWS_MAX, FlowForm};

/// Announced addresses must be shorter than this, bytes, as in Redis.
const ADDRESS_BYTES_MAX: usize = 46;

/// The prefix of the capability by which a replica requests flows. The maximum number of flows
/// follows. redis-server ignores capabilities that it doesn't know.
pub(crate) const FLOWS_CAPABILITY: &str = "pantala-flows:";

/// The capability by which a replica states that it supports compressed flows.
pub(crate) const LZ4_CAPABILITY: &str = "pantala-lz4";

/// The parts of the dataset that a connection wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Whether keys are omitted.
    pub without_keys: bool,
    /// Whether function libraries are omitted.
    pub without_functions: bool,
}

impl Filter {
    /// Returns whether any part is omitted.
    #[must_use]
    pub fn is_any(self) -> bool {
        self.without_keys || self.without_functions
    }
}

/// The options that a connection has set by `REPLCONF`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// The port at which the replica accepts clients; 0 if the replica hasn't announced one.
    pub port: i64,
    /// The address that the replica announces instead of its peer address.
    pub address: Option<Vec<u8>>,
    /// Whether the replica can detect the end of a snapshot by a mark (`capa eof`).
    pub finds_mark: bool,
    /// Whether the replica supports histories that continue under another ID (`capa psync2`).
    pub supports_psync2: bool,
    /// Maximum number of flows that the replica supports (`capa pantala-flows:<number>`); 0 if it
    /// hasn't announced any.
    pub flows_max: u32,
    /// Whether the replica supports compressed flows (`capa pantala-lz4`).
    pub supports_lz4: bool,
    /// Whether the replica wants only the snapshot and no stream (`rdb-only`).
    pub wants_no_stream: bool,
    /// The parts of the dataset that the replica wants (`rdb-filter-only`).
    pub filter: Filter,
}

/// The reaction of the primary to a `REPLCONF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplconfAction {
    /// Replies `OK`.
    Ok,
    /// Records how many bytes of the stream the replica has, and how many of these bytes it has on
    /// disk. No reply.
    Ack(i64, i64),
    /// Sends this server's offset to its primary, if the server is a replica. No reply.
    GetAck,
    /// Does nothing. No reply.
    Nothing,
}

/// The error reply that rejects a `REPLCONF`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeError(pub Vec<u8>);

fn error(text: &str, word: &[u8]) -> HandshakeError {
    HandshakeError([text.as_bytes(), word].concat())
}

fn number(text: &[u8]) -> Option<i64> {
    pantala_base::number::parse_i64(text)
}

impl Handshake {
    /// Processes the arguments of a `REPLCONF`, without its name. If an option is invalid, the
    /// options before it remain set, as in Redis.
    ///
    /// # Errors
    /// An option or its value is invalid.
    pub fn handle(&mut self, options: &[&[u8]]) -> Result<ReplconfAction, HandshakeError> {
        if !options.len().is_multiple_of(2) {
            return Err(error("ERR syntax error", b""));
        }
        for pair in options.chunks(2) {
            let (name, value) = (pair[0], pair[1]);
            match name.to_ascii_lowercase().as_slice() {
                b"listening-port" => {
                    self.port =
                        number(value).ok_or_else(|| error("ERR value is not an integer or out of range", b""))?;
                }
                b"ip-address" if value.len() < ADDRESS_BYTES_MAX => self.address = Some(value.to_vec()),
                b"ip-address" => {
                    let text = "ERR REPLCONF ip-address provided by replica instance is too long: ";
                    return Err(error(text, format!("{} bytes", value.len()).as_bytes()));
                }
                b"capa" => {
                    self.finds_mark |= value.eq_ignore_ascii_case(b"eof");
                    self.supports_psync2 |= value.eq_ignore_ascii_case(b"psync2");
                    self.supports_lz4 |= value.eq_ignore_ascii_case(LZ4_CAPABILITY.as_bytes());
                    // An invalid number counts as an unknown capability, which is ignored.
                    if let Some(count) = value.strip_prefix(FLOWS_CAPABILITY.as_bytes()).and_then(number) {
                        self.flows_max = u32::try_from(count).unwrap_or(0);
                    }
                }
                b"ack" => {
                    let is_synced = |pair: &&[&[u8]]| pair[0].eq_ignore_ascii_case(b"fack");
                    let synced = options.chunks(2).find(is_synced).and_then(|pair| number(pair[1]));
                    return Ok(number(value)
                        .map_or(ReplconfAction::Nothing, |offset| ReplconfAction::Ack(offset, synced.unwrap_or(0))));
                }
                b"getack" => return Ok(ReplconfAction::GetAck),
                b"rdb-only" => match number(value) {
                    Some(only @ (0 | 1)) => self.wants_no_stream = only == 1,
                    Some(_) => return Err(error("ERR value is out of range, value must between 0 and 1", b"")),
                    None => return Err(error("ERR value is not an integer or out of range", b"")),
                },
                b"rdb-filter-only" => self.set_filter(value)?,
                // Later versions of Redis send this for information. It has no effect.
                b"version" => {}
                _ => return Err(error("ERR Unrecognized REPLCONF option: ", name)),
            }
        }
        Ok(ReplconfAction::Ok)
    }

    /// Returns the form of a snapshot for this replica. The primary permits `permitted.count`
    /// flows, and compresses them if `permitted.is_compressed` is true and the replica supports it.
    #[must_use]
    pub fn flows(&self, permitted: FlowForm) -> FlowForm {
        let supports = self.finds_mark && !self.filter.is_any() && !self.wants_no_stream;
        match self.flows_max.min(permitted.count).min(FLOWS_MAX) {
            count @ 2.. if supports => FlowForm { count, is_compressed: permitted.is_compressed && self.supports_lz4 },
            _ => FlowForm::SINGLE,
        }
    }

    fn set_filter(&mut self, wanted: &[u8]) -> Result<(), HandshakeError> {
        self.filter = Filter { without_keys: true, without_functions: true };
        for part in wanted.split(|byte| byte.is_ascii_whitespace()).filter(|part| !part.is_empty()) {
            if !part.eq_ignore_ascii_case(b"functions") {
                return Err(error("ERR Unsupported rdb-filter-only option: ", part));
            }
            self.filter.without_functions = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(handshake: &mut Handshake, words: &str) -> Result<ReplconfAction, String> {
        let words: Vec<&[u8]> = words.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes).collect();
        handshake.handle(&words).map_err(|error| String::from_utf8(error.0).expect("text"))
    }

    #[test]
    fn a_replica_identifies_itself() {
        let mut replica = Handshake::default();
        let said = "listening-port 6380 ip-address 10.0.0.1 capa eof CAPA PSYNC2 capa other rdb-only 1 version 7.2";
        assert_eq!(handle(&mut replica, said), Ok(ReplconfAction::Ok));
        let expected = Handshake {
            port: 6380,
            address: Some(b"10.0.0.1".to_vec()),
            finds_mark: true,
            supports_psync2: true,
            flows_max: 0,
            supports_lz4: false,
            wants_no_stream: true,
            filter: Filter::default(),
        };
        assert_eq!(replica, expected);
        assert_eq!(replica.handle(&[b"rdb-filter-only", b"functions"]), Ok(ReplconfAction::Ok));
        assert_eq!(replica.filter, Filter { without_keys: true, without_functions: false });
        assert_eq!(replica.handle(&[b"rdb-filter-only", b""]), Ok(ReplconfAction::Ok));
        assert_eq!(replica.filter, Filter { without_keys: true, without_functions: true });
        assert!(replica.filter.is_any() && !Filter::default().is_any());
    }

    #[test]
    fn the_number_of_flows_is_the_lower_maximum() {
        let with = |words: &str| {
            let mut replica = Handshake::default();
            assert_eq!(handle(&mut replica, words), Ok(ReplconfAction::Ok), "{words}");
            replica
        };
        let replica = with("capa eof capa psync2 capa pantala-flows:4");
        let permitted = |count: u32| FlowForm { count, is_compressed: true };
        let count = |replica: &Handshake, flows_max: u32| replica.flows(permitted(flows_max)).count;
        assert_eq!([0, 1, 2, 4, 5].map(|flows_max| count(&replica, flows_max)), [1, 1, 2, 4, 4]);
        let greedy = with("capa eof capa pantala-flows:4294967295");
        assert_eq!((count(&greedy, 8), count(&greedy, u32::MAX)), (8, FLOWS_MAX));
        let compressing = with("capa eof capa pantala-flows:4 capa pantala-lz4");
        assert_eq!(compressing.flows(permitted(4)), permitted(4));
        assert_eq!(compressing.flows(permitted(1)), FlowForm::SINGLE);
        let plain = FlowForm { count: 4, is_compressed: false };
        assert_eq!((compressing.flows(plain), replica.flows(permitted(4))), (plain, plain));
        for words in [
            "capa eof",
            "capa pantala-flows:4",
            "capa eof capa pantala-flows:",
            "capa eof capa pantala-flows:x",
            "capa eof capa pantala-flows:-3",
            "capa eof capa pantala-flows:4294967296",
            "capa eof capa pantala-flows:4 rdb-only 1",
            "capa eof capa pantala-flows:4 rdb-filter-only functions",
        ] {
            assert_eq!(with(words).flows(permitted(4)), FlowForm::SINGLE, "{words}");
        }
    }

    #[test]
    fn acknowledgements_are_not_answered() {
        let mut replica = Handshake::default();
        assert_eq!(handle(&mut replica, "ack 17"), Ok(ReplconfAction::Ack(17, 0)));
        assert_eq!(handle(&mut replica, "ACK 17 fack 16"), Ok(ReplconfAction::Ack(17, 16)));
        assert_eq!(handle(&mut replica, "ack x"), Ok(ReplconfAction::Nothing));
        assert_eq!(handle(&mut replica, "getack *"), Ok(ReplconfAction::GetAck));
    }

    #[test]
    fn errors_are_those_of_redis() {
        let long = format!("ip-address {}", "1".repeat(ADDRESS_BYTES_MAX));
        let cases = [
            ("capa", "ERR syntax error"),
            ("listening-port x", "ERR value is not an integer or out of range"),
            ("rdb-only 2", "ERR value is out of range, value must between 0 and 1"),
            ("rdb-only x", "ERR value is not an integer or out of range"),
            ("rdb-filter-only keys", "ERR Unsupported rdb-filter-only option: keys"),
            ("x y", "ERR Unrecognized REPLCONF option: x"),
            (&long, "ERR REPLCONF ip-address provided by replica instance is too long: 46 bytes"),
        ];
        for (words, expected) in cases {
            assert_eq!(handle(&mut Handshake::default(), words), Err(expected.to_owned()), "{words}");
        }
        let longest = format!("ip-address {}", "1".repeat(ADDRESS_BYTES_MAX - 1));
        assert_eq!(handle(&mut Handshake::default(), &longest), Ok(ReplconfAction::Ok));
    }
}
