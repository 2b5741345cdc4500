//! The replicas of a primary: their states and acknowledged offsets.

use std::fmt::Write;

use crate::Handshake;
use crate::schedule::Waiting;

/// The state of a replica. [`ReplicaState::name`] returns Redis's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// The replica waits for a snapshot that hasn't started, since this time (monotonic, ms).
    WaitStart(i64),
    /// The replica waits for the first bytes of a snapshot that has started.
    WaitEnd,
    /// The snapshot is being sent.
    SendBulk,
    /// The snapshot was sent, and the replica follows the stream.
    Online,
}

impl ReplicaState {
    /// Returns the state's name in `INFO`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReplicaState::WaitStart(_) | ReplicaState::WaitEnd => "wait_bgsave",
            ReplicaState::SendBulk => "send_bulk",
            ReplicaState::Online => "online",
        }
    }
}

/// A replica.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The client ID of the replica's connection.
    pub client: u64,
    /// The address of the connection's peer.
    pub peer: String,
    /// The options that the replica has set by `REPLCONF`.
    pub handshake: Handshake,
    /// The replica's state.
    pub state: ReplicaState,
    /// The number of bytes of the stream that the replica has acknowledged.
    pub acked: u64,
    /// The number of bytes of the stream that the replica has on disk.
    pub synced: u64,
    /// When the replica last acknowledged, sent an empty line or became online, in ms of the
    /// monotonic clock.
    pub acked_ms: i64,
    /// Whether the replica has acknowledged bytes that the stream doesn't have.
    pub has_acked_beyond_end: bool,
}

impl Replica {
    /// Returns a replica that waits for a full sync.
    #[must_use]
    pub fn new(client: u64, peer: String, handshake: Handshake, now_ms: i64) -> Self {
        Replica {
            client,
            peer,
            handshake,
            state: ReplicaState::WaitStart(now_ms),
            acked: 0,
            synced: 0,
            acked_ms: now_ms,
            has_acked_beyond_end: false,
        }
    }

    /// Returns the address that clients should use: the announced address or, if there is none, the
    /// peer's.
    #[must_use]
    pub fn address(&self) -> String {
        match &self.handshake.address {
            Some(address) => String::from_utf8_lossy(address).into_owned(),
            None => self.peer.clone(),
        }
    }

    /// Returns the time since the replica's last acknowledgement, s. Returns 0 if the replica isn't
    /// online.
    #[must_use]
    pub fn lag_s(&self, now_ms: i64) -> i64 {
        if self.state == ReplicaState::Online { (now_ms - self.acked_ms).max(0) / 1000 } else { 0 }
    }
}

/// The replicas of a primary.
#[derive(Debug, Default)]
pub struct Replicas {
    /// The replicas in the order in which they asked for data.
    all: Vec<Replica>,
}

impl Replicas {
    /// Adds a replica.
    pub fn add(&mut self, replica: Replica) {
        self.all.push(replica);
    }

    /// Removes a replica. Returns whether it existed.
    pub fn remove(&mut self, client: u64) -> bool {
        let before = self.all.len();
        self.all.retain(|replica| replica.client != client);
        self.all.len() != before
    }

    /// Returns a replica.
    pub fn find(&mut self, client: u64) -> Option<&mut Replica> {
        self.all.iter_mut().find(|replica| replica.client == client)
    }

    /// Returns all replicas.
    pub fn iter(&self) -> impl Iterator<Item = &Replica> {
        self.all.iter()
    }

    /// Returns the number of replicas.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there are no replicas.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Records a replica's acknowledgement: the replica has `offset` bytes, and `synced` of them on
    /// disk. Acknowledged offsets never decrease. An offset after `end`, the end of the stream, is
    /// ignored, because no replica can have such bytes. Returns `false` for the first ignored
    /// offset on the replica's link, and `true` in all other cases.
    pub fn ack(&mut self, client: u64, (offset, synced): (i64, i64), end: u64, now_ms: i64) -> bool {
        let Some(replica) = self.find(client) else { return true };
        let possible = |bytes: i64| u64::try_from(bytes).ok().filter(|bytes| *bytes <= end).unwrap_or(0);
        replica.acked = replica.acked.max(possible(offset));
        replica.synced = replica.synced.max(possible(synced));
        replica.acked_ms = now_ms;
        let is_wrong = offset.max(synced).max(0) as u64 > end;
        !is_wrong || std::mem::replace(&mut replica.has_acked_beyond_end, true)
    }

    /// Records that a replica has sent an empty line. A replica that loads a snapshot sends empty
    /// lines instead of acknowledgements.
    pub fn note_alive(&mut self, client: u64, now_ms: i64) {
        if let Some(replica) = self.find(client) {
            replica.acked_ms = now_ms;
        }
    }

    /// Returns the number of online replicas that have acknowledged this many bytes.
    #[must_use]
    pub fn acked(&self, offset: u64) -> usize {
        let has = |replica: &&Replica| replica.state == ReplicaState::Online && replica.acked >= offset;
        self.all.iter().filter(has).count()
    }

    /// Returns the number of online replicas that have this many bytes on disk.
    #[must_use]
    pub fn synced(&self, offset: u64) -> usize {
        let has = |replica: &&Replica| replica.state == ReplicaState::Online && replica.synced >= offset;
        self.all.iter().filter(has).count()
    }

    /// Returns the number of online replicas whose last acknowledgement is at most `lag_s_max`
    /// seconds old.
    #[must_use]
    pub fn good(&self, lag_s_max: u64, now_ms: i64) -> usize {
        let is_good =
            |replica: &&Replica| replica.state == ReplicaState::Online && replica.lag_s(now_ms) as u64 <= lag_s_max;
        self.all.iter().filter(is_good).count()
    }

    /// Returns the replicas that wait for a snapshot to start.
    #[must_use]
    pub fn waiting(&self, now_ms: i64) -> Vec<Waiting> {
        let waiting = |replica: &Replica| match replica.state {
            ReplicaState::WaitStart(since) => {
                Some(Waiting { since_ms: now_ms - since, finds_mark: replica.handshake.finds_mark })
            }
            _ => None,
        };
        self.all.iter().filter_map(waiting).collect()
    }

    /// Returns the lines of `INFO replication` about replicas.
    #[must_use]
    pub fn info(&self, now_ms: i64) -> String {
        let mut text = String::new();
        for (number, replica) in self.all.iter().enumerate() {
            // Writing to a String can't fail.
            let _ = write!(
                text,
                "slave{number}:ip={},port={},state={},offset={},lag={}\r\n",
                replica.address(),
                replica.handshake.port,
                replica.state.name(),
                replica.acked,
                replica.lag_s(now_ms),
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(client: u64, state: ReplicaState) -> Replica {
        let handshake = Handshake { port: 6380, finds_mark: true, ..Handshake::default() };
        Replica { state, ..Replica::new(client, "10.0.0.1".to_owned(), handshake, 1000) }
    }

    #[test]
    fn only_replicas_online_count() {
        let mut replicas = Replicas::default();
        replicas.add(replica(1, ReplicaState::Online));
        replicas.add(replica(2, ReplicaState::SendBulk));
        replicas.add(replica(3, ReplicaState::Online));
        for client in [1, 2] {
            assert!(replicas.ack(client, (50, 30), 50, 3000));
        }
        assert!(replicas.ack(1, (20, 20), 50, 3000));
        assert_eq!((replicas.synced(30), replicas.synced(31)), (1, 0));
        assert_eq!((replicas.acked(50), replicas.acked(0), replicas.acked(51)), (1, 2, 0));
        assert_eq!((replicas.good(1, 4500), replicas.good(3, 4500)), (1, 2));
        replicas.note_alive(3, 4000);
        assert_eq!((replicas.good(1, 4500), replicas.acked(50), replicas.acked(0)), (2, 1, 2));
        assert!(replicas.remove(1) && !replicas.remove(1));
        assert_eq!(replicas.len(), 2);
    }

    #[test]
    fn offsets_beyond_the_end_of_the_stream_are_ignored() {
        let mut replicas = Replicas::default();
        replicas.add(replica(1, ReplicaState::Online));
        assert!(replicas.ack(1, (i64::MIN, -1), 100, 2000));
        assert!(!replicas.ack(1, (101, 0), 100, 2000));
        assert!(replicas.ack(1, (i64::MAX, i64::MAX), 100, 3000), "it is reported once");
        assert_eq!((replicas.acked(1), replicas.synced(1), replicas.good(0, 3000)), (0, 0, 1));
        assert!(replicas.ack(1, (100, 99), 100, 3000));
        assert_eq!((replicas.acked(100), replicas.synced(99), replicas.synced(100)), (1, 1, 0));
    }

    #[test]
    fn lines_are_those_of_redis() {
        let mut replicas = Replicas::default();
        replicas.add(replica(1, ReplicaState::WaitStart(1000)));
        replicas.add(replica(2, ReplicaState::SendBulk));
        replicas.add(replica(3, ReplicaState::Online));
        replicas.find(3).expect("it is there").handshake.address = Some(b"example.org".to_vec());
        replicas.ack(3, (17, 0), 17, 2000);
        let expected = "slave0:ip=10.0.0.1,port=6380,state=wait_bgsave,offset=0,lag=0\r\n\
                        slave1:ip=10.0.0.1,port=6380,state=send_bulk,offset=0,lag=0\r\n\
                        slave2:ip=example.org,port=6380,state=online,offset=17,lag=3\r\n";
        assert_eq!(replicas.info(5999), expected);
        assert_eq!(replicas.waiting(1700), [Waiting { since_ms: 700, finds_mark: true }]);
    }
}
