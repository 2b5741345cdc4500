//! `REPLCONF` on a primary: the options that a connection sets before it asks for data, and the
//! acknowledgements that it sends afterwards.

/// Announced addresses must be shorter than this, bytes, as in Redis.
const ADDRESS_BYTES_MAX: usize = 46;

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
