//! The flows of one replica's full sync, on the primary: which of them have been requested, and
//! which have been sent.
//!
//! The replica's own connection has flow 0. The replica requests each other flow once, on a
//! connection of its own. A request proves with the sync's token that it comes from this replica.

use crate::Mark;

/// Maximum number of flows of a full sync.
pub const FLOWS_MAX: u32 = 16;

/// The form in which a replica receives a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowForm {
    /// Number of flows. 1 means that the snapshot has no further connections.
    pub count: u32,
    /// Whether the flows are compressed. If there is only one flow, it never is.
    pub is_compressed: bool,
}

impl FlowForm {
    /// A snapshot with a single flow.
    pub const SINGLE: FlowForm = FlowForm { count: 1, is_compressed: false };
}

/// The reason why a request for a flow is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowError {
    /// No full sync has this token.
    UnknownToken,
    /// The sync has no such flow, or the flow needs no request.
    WrongIndex,
    /// The flow was requested before.
    Taken,
}

impl FlowError {
    /// Returns the error reply.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            FlowError::UnknownToken => "ERR the token belongs to no full synchronization in progress",
            FlowError::WrongIndex => "ERR the full synchronization has no such flow",
            FlowError::Taken => "ERR the flow was already requested",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Missing,
    Attached,
    Sent,
}

/// The flows of a full sync, see the head of this module.
#[derive(Debug)]
pub struct Flows {
    token: Mark,
    flows: Vec<Flow>,
    /// When the flows were announced to the replica, in ms of the monotonic clock.
    since_ms: i64,
}

impl Flows {
    /// Returns the state of `count` flows that are announced to a replica now.
    #[must_use]
    pub fn new(token: Mark, count: u32, now_ms: i64) -> Self {
        let mut flows = vec![Flow::Missing; count as usize];
        flows[0] = Flow::Attached;
        Flows { token, flows, since_ms: now_ms }
    }

    /// Returns the token.
    #[must_use]
    pub fn token(&self) -> &Mark {
        &self.token
    }

    /// Attaches a connection that requests a flow. Returns the index of the flow.
    ///
    /// # Errors
    /// There is no such flow, or it was requested before.
    pub fn attach(&mut self, index: i64) -> Result<usize, FlowError> {
        let index = usize::try_from(index).map_err(|_| FlowError::WrongIndex)?;
        match self.flows.get_mut(index) {
            None => Err(FlowError::WrongIndex),
            Some(_) if index == 0 => Err(FlowError::WrongIndex),
            Some(flow @ Flow::Missing) => {
                *flow = Flow::Attached;
                Ok(index)
            }
            Some(_) => Err(FlowError::Taken),
        }
    }

    /// Records that the whole flow was sent. Returns whether this was the last flow.
    pub fn note_sent(&mut self, index: usize) -> bool {
        let was_sent = std::mem::replace(&mut self.flows[index], Flow::Sent) == Flow::Sent;
        !was_sent && self.flows.iter().all(|flow| *flow == Flow::Sent)
    }

    /// Returns whether the whole flow was sent.
    #[must_use]
    pub fn is_sent(&self, index: usize) -> bool {
        self.flows[index] == Flow::Sent
    }

    /// Returns the first flow that the replica has not requested within `timeout_ms`.
    #[must_use]
    pub fn late(&self, now_ms: i64, timeout_ms: i64) -> Option<usize> {
        let is_late = now_ms - self.since_ms > timeout_ms;
        self.flows.iter().position(|flow| *flow == Flow::Missing).filter(|_| is_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_is_requested_once() {
        let mut flows = Flows::new([b'a'; 40], 3, 0);
        assert_eq!(flows.attach(2), Ok(2));
        assert_eq!(flows.attach(2), Err(FlowError::Taken));
        for index in [0, 3, -1, i64::MIN, i64::MAX] {
            assert_eq!(flows.attach(index), Err(FlowError::WrongIndex), "{index}");
        }
        assert_eq!(flows.attach(1), Ok(1));
        assert!(!flows.note_sent(1));
        assert_eq!(flows.attach(1), Err(FlowError::Taken));
    }

    #[test]
    fn the_sync_has_been_sent_when_all_flows_have() {
        let mut flows = Flows::new([b'a'; 40], 2, 0);
        assert_eq!(flows.attach(1), Ok(1));
        assert!(!flows.note_sent(0) && flows.is_sent(0) && !flows.is_sent(1));
        assert!(!flows.note_sent(0));
        assert!(flows.note_sent(1) && !flows.note_sent(1));
    }

    #[test]
    fn a_missing_flow_is_late_after_the_timeout() {
        let mut flows = Flows::new([b'a'; 40], 3, 1000);
        assert_eq!(flows.attach(1), Ok(1));
        assert_eq!((flows.late(2000, 1000), flows.late(2001, 1000)), (None, Some(2)));
        assert_eq!(flows.attach(2), Ok(2));
        assert_eq!(flows.late(i64::MAX, 1000), None);
    }
}
