//! The nodes and slots of a cluster, and the parser of redirections.

use std::io;
use std::net::SocketAddr;

use pantala_base::limits::SLOTS;
use pantala_resp::value::Value;

use super::control::{Control, Login, Target, resolve};

/// Maximum number of nodes.
const NODES_MAX: usize = 4096;

/// A cluster's slots and nodes as one thread knows them.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<SocketAddr>,
    /// Index of each slot's node in `nodes`.
    slots: Box<[u16]>,
}

/// The redirection that an error reply contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) slot: u16,
    pub(crate) address: SocketAddr,
    /// Whether the redirection applies only to this request. An ASKING must then precede the
    /// request.
    pub(crate) once: bool,
}

impl Topology {
    /// Queries the server at `contact` with CLUSTER SLOTS. If the server rejects this command,
    /// queries it with CLUSTER SHARDS.
    pub(crate) fn ask(contact: SocketAddr, login: &Login) -> io::Result<Self> {
        let mut control = Control::open(&Target::Tcp(contact), login)?;
        let mut parts = parse_slots(&control.ask(&["CLUSTER", "SLOTS"])?);
        if parts.is_none() {
            parts = parse_shards(&control.order(&["CLUSTER", "SHARDS"])?);
        }
        let parts = parts.ok_or_else(|| invalid("can't parse the server's reply to CLUSTER SLOTS and SHARDS"))?;
        Self::from_parts(&parts, contact)
    }

    fn from_parts(parts: &[Part], contact: SocketAddr) -> io::Result<Self> {
        let mut topology = Self { nodes: Vec::new(), slots: vec![u16::MAX; SLOTS].into() };
        for part in parts {
            // An empty host stands for the host of the queried server.
            let address = match part.host.as_str() {
                "" | "?" => SocketAddr::new(contact.ip(), part.port),
                host => resolve(host, part.port)?,
            };
            let node = topology.node(address).ok_or_else(|| invalid("too many nodes in the cluster"))?;
            if part.first > part.last || usize::from(part.last) >= SLOTS {
                return Err(invalid("a slot is out of range"));
            }
            topology.slots[usize::from(part.first)..=usize::from(part.last)].fill(node as u16);
        }
        let unassigned = topology.slots.iter().filter(|node| **node == u16::MAX).count();
        if unassigned > 0 {
            return Err(invalid(&format!("{unassigned} slots are not assigned to any node of the cluster")));
        }
        Ok(topology)
    }

    /// Returns the index of the node at `address`. Adds the node if it is new. Returns `None` if
    /// there are too many nodes.
    pub(crate) fn node(&mut self, address: SocketAddr) -> Option<usize> {
        if let Some(node) = self.nodes.iter().position(|known| *known == address) {
            return Some(node);
        }
        (self.nodes.len() < NODES_MAX).then(|| {
            self.nodes.push(address);
            self.nodes.len() - 1
        })
    }

    pub(crate) fn node_of(&self, slot: u16) -> usize {
        usize::from(self.slots[usize::from(slot)])
    }

    /// Assigns a slot to its new node.
    pub(crate) fn assign(&mut self, slot: u16, node: usize) {
        self.slots[usize::from(slot)] = node as u16;
    }

    /// Adopts the slots of `newer`. Nodes keep their indexes, so that connections remain valid.
    pub(crate) fn update(&mut self, newer: &Topology) {
        for (slot, node) in newer.slots.iter().enumerate() {
            if let Some(node) = self.node(newer.nodes[usize::from(*node)]) {
                self.slots[slot] = node as u16;
            }
        }
    }
}

/// Parses `MOVED 12 host:port` and `ASK 12 host:port`. An empty host stands for the host of
/// `contact`.
pub(crate) fn redirection(text: &[u8], contact: SocketAddr) -> Option<Redirection> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split(' ');
    let once = match words.next()? {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    let slot = words.next()?.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let address = if host.is_empty() { SocketAddr::new(contact.ip(), port) } else { resolve(host, port).ok()? };
    Some(Redirection { slot, address, once })
}

struct Part {
    first: u16,
    last: u16,
    host: String,
    port: u16,
}

/// Parses the reply to CLUSTER SLOTS: `[[first, last, [host, port, …], …], …]`.
fn parse_slots(answer: &Value) -> Option<Vec<Part>> {
    let Value::Array(ranges) = answer else { return None };
    let part = |range: &Value| {
        let [first, last, Value::Array(primary), ..] = items(range)? else { return None };
        let [host, port, ..] = primary.as_slice() else { return None };
        Some(Part {
            first: number(first)?,
            last: number(last)?,
            host: text(host).unwrap_or_default(),
            port: number(port)?,
        })
    };
    ranges.iter().map(part).collect()
}

/// Parses the reply to CLUSTER SHARDS: `[[slots, [first, last, …], nodes, [[id, …, port, …, ip, …,
/// role, master, …], …]], …]`.
fn parse_shards(answer: &Value) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    for shard in items(answer)? {
        let slots = items(field(shard, "slots")?)?;
        let primary = items(field(shard, "nodes")?)?.iter().find(|node| {
            field(node, "role").and_then(text).is_some_and(|role| role == "master" || role == "primary")
        })?;
        let host = field(primary, "ip").or_else(|| field(primary, "endpoint")).and_then(text).unwrap_or_default();
        let port = number(field(primary, "port")?)?;
        for range in slots.chunks_exact(2) {
            parts.push(Part { first: number(&range[0])?, last: number(&range[1])?, host: host.clone(), port });
        }
    }
    Some(parts)
}

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    items(value)?.chunks_exact(2).find(|pair| text(&pair[0]).is_some_and(|key| key == name)).map(|pair| &pair[1])
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Bulk(bytes) | Value::Simple(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Integer(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pantala_resp::value::parse_reply;

    fn contact() -> SocketAddr {
        "10.0.0.9:7000".parse().unwrap()
    }

    fn value(text: &str) -> Value {
        parse_reply(text.replace(' ', "\r\n").as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn slots_are_read() {
        let answer = value(
            "*2 *3 :0 :8191 *3 $0  :7001 $1 a *4 :8192 :16383 *3 $8 10.0.0.2 :7002 $1 b *3 $8 10.0.0.3 :7003 $1 c ",
        );
        let topology = Topology::from_parts(&parse_slots(&answer).unwrap(), contact()).unwrap();
        assert_eq!(topology.nodes, ["10.0.0.9:7001".parse().unwrap(), "10.0.0.2:7002".parse().unwrap()]);
        assert_eq!((topology.node_of(8191), topology.node_of(8192)), (0, 1));
    }

    #[test]
    fn shards_are_read() {
        let answer = value(
            "*1 *4 $5 slots *4 :0 :99 :100 :16383 $5 nodes *2 \
             *6 $4 port :1 $2 ip $8 10.0.0.2 $4 role $7 replica \
             *6 $4 port :2 $2 ip $8 10.0.0.3 $4 role $6 master ",
        );
        let topology = Topology::from_parts(&parse_shards(&answer).unwrap(), contact()).unwrap();
        assert_eq!(topology.nodes, ["10.0.0.3:2".parse().unwrap()]);
    }

    #[test]
    fn gaps_are_reported() {
        let answer = value("*1 *3 :0 :16382 *2 $0  :7001 ");
        let error = Topology::from_parts(&parse_slots(&answer).unwrap(), contact()).unwrap_err();
        assert!(error.to_string().starts_with("1 slots"), "{error}");
        assert!(parse_slots(&value("-ERR ")).is_none());
    }

    #[test]
    fn redirections_are_read() {
        let read = |text: &str| redirection(text.as_bytes(), contact());
        let to = |slot, address: &str, once| Some(Redirection { slot, address: address.parse().unwrap(), once });
        assert_eq!(read("MOVED 16383 127.0.0.1:7001"), to(16383, "127.0.0.1:7001", false));
        assert_eq!(read("ASK 0 ::1:7001"), to(0, "[::1]:7001", true));
        assert_eq!(read("MOVED 1 :7001"), to(1, "10.0.0.9:7001", false));
        for text in ["MOVED 16384 127.0.0.1:1", "ERR x", "MOVED", "MOVED 1", "ASK 1 127.0.0.1", "MOVED x 1:1"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn an_update_keeps_the_indexes_of_nodes() {
        let part = |first, last, port| Part { first, last, host: String::new(), port };
        let mut known = Topology::from_parts(&[part(0, 99, 1), part(100, 16383, 2)], contact()).unwrap();
        let newer = Topology::from_parts(&[part(0, 199, 2), part(200, 16383, 3)], contact()).unwrap();
        known.update(&newer);
        assert_eq!((known.node_of(0), known.node_of(200), known.nodes.len()), (1, 2, 3));
        known.assign(0, 0);
        assert_eq!(known.node_of(0), 0);
    }
}
