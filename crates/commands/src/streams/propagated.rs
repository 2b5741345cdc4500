//! Propagated forms of stream commands that differ from the client's command, as in Redis 7.0. The
//! read of a group is propagated as its effect on the group's pending entries and last ID.

use pantala_base::number::Decimal;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_resp::Args;
use pantala_types::stream::{Delivered, Group, IdText, Pending, StreamId, Trim};

/// Propagates the client's `XADD` or `XTRIM`. Replaces the arguments whose effect may depend on the
/// server: the ID becomes the ID of the new entry (`id`), and the threshold becomes the one that an
/// approximate trim reached (`threshold`). Each replacement is given with the index of its
/// argument. Without replacements, the command is propagated unchanged.
pub(super) fn resolved(
    access: &mut Access<'_>,
    args: &Args<'_>,
    id: Option<(usize, StreamId)>,
    threshold: Option<(usize, Trim)>,
    chance: Chance,
) -> Propagated {
    if id.is_none() && threshold.is_none() {
        return access.propagate_verbatim(chance);
    }
    let mut words: Vec<&[u8]> = args.iter().collect();
    let (mut id_text, mut min_id_text, mut length_text) = (IdText::new(), IdText::new(), Decimal::new());
    if let Some((at, id)) = id {
        words[at] = id.write(&mut id_text);
    }
    if let Some((at, threshold)) = threshold {
        // Replaces `~`, because a replica trims exactly.
        words[at - 1] = b"=";
        words[at] = match threshold {
            Trim::Length(length) => length_text.format_u64(length),
            Trim::Id(id) => id.write(&mut min_id_text),
        };
    }
    access.propagate(&words)
}

/// The entries of one stream that an `XREADGROUP` delivered. Records nothing if there is no journal
/// (the stream of changes for replicas and the append-only file).
pub(super) struct Delivery {
    is_journaled: bool,
    noack: bool,
    ids: Vec<StreamId>,
    /// The group's new last ID and its number of entries read.
    group_id: Option<(StreamId, i64)>,
}

impl Delivery {
    /// Creates an empty delivery.
    pub(super) fn new(access: &Access<'_>, noack: bool) -> Self {
        Delivery { is_journaled: access.is_journaled(), noack, ids: Vec::new(), group_id: None }
    }

    /// Records an entry delivered for the first time.
    #[inline]
    pub(super) fn record(&mut self, id: StreamId) {
        if self.is_journaled && !self.noack {
            self.ids.push(id);
        }
    }

    /// Records the state of the group after the delivery.
    pub(super) fn finish(&mut self, group: &Group, done: &Delivered) {
        if self.is_journaled && self.noack && done.entries > 0 {
            self.group_id = Some((group.last_id(), group.entries_read()));
        }
    }

    /// Propagates the delivery to `target`: key, group and consumer. The propagated pending entries
    /// also create the consumer on replicas. With NOACK no pending entries exist, so a separate
    /// command propagates a new consumer.
    pub(super) fn propagate(self, access: &mut Access<'_>, target: [&[u8]; 3], now_ms: i64, created_consumer: bool) {
        // This call is needed even if nothing was recorded. If the journal was switched on during
        // the delivery, the client's call would otherwise be propagated.
        access.propagate_nothing(Omission::Replaced);
        if !self.is_journaled {
            return;
        }
        let [key, group, consumer] = target;
        if created_consumer && self.noack {
            access.propagate(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
        }
        for id in self.ids {
            let mut text = IdText::new();
            let text = id.write(&mut text);
            claim(access, target, text, &Record { id, consumer: None, delivered_ms: now_ms, deliveries: 1 }, text);
        }
        if let Some((last_id, entries_read)) = self.group_id {
            set_group_id(access, key, group, last_id, entries_read);
        }
    }
}

/// A pending entry to propagate: it was delivered or claimed, or no longer exists in the stream.
struct Record {
    id: StreamId,
    /// The entry's consumer; `None` if the entry now belongs to the claimant.
    consumer: Option<Box<[u8]>>,
    delivered_ms: i64,
    deliveries: u64,
}

/// The effect of an `XCLAIM` or `XAUTOCLAIM`. Records nothing if there is no journal.
pub(super) struct Claims {
    is_journaled: bool,
    entries: Vec<Record>,
    last_id: StreamId,
    entries_read: i64,
    is_raised: bool,
}

impl Claims {
    /// Creates an empty record of claims.
    pub(super) fn new(access: &Access<'_>) -> Self {
        let is_journaled = access.is_journaled();
        Claims { is_journaled, entries: Vec::new(), last_id: StreamId::MIN, entries_read: 0, is_raised: false }
    }

    /// Records a pending entry. Either it was claimed (`is_claimed`), or it no longer exists in the
    /// stream.
    pub(super) fn record(&mut self, pending: &Pending<'_>, is_claimed: bool) {
        if self.is_journaled {
            let &Pending { id, consumer, delivered_ms, deliveries } = pending;
            let consumer = (!is_claimed).then(|| consumer.into());
            self.entries.push(Record { id, consumer, delivered_ms, deliveries });
        }
    }

    /// Records the state of the group after the claims. `is_raised` says whether the command raised
    /// the group's last ID before the claims.
    pub(super) fn finish(&mut self, group: &Group, is_raised: bool) {
        (self.last_id, self.entries_read, self.is_raised) = (group.last_id(), group.entries_read(), is_raised);
    }

    /// Propagates the claims, one command per entry. An ID that is among `sent` is propagated in
    /// the client's spelling.
    pub(super) fn propagate(self, access: &mut Access<'_>, args: &Args<'_>, sent: &Args<'_>) -> Propagated {
        let propagated = access.propagate_nothing(Omission::Replaced);
        if self.entries.is_empty() {
            if self.is_raised {
                set_group_id(access, args.at(1), args.at(2), self.last_id, self.entries_read);
            }
            return propagated;
        }
        let target = [args.at(1), args.at(2), args.at(3)];
        let (mut id_text, mut last_text) = (IdText::new(), IdText::new());
        let last_id = self.last_id.write(&mut last_text);
        let mut sent = sent.iter();
        for entry in &self.entries {
            let id = sent.find(|argument| StreamId::parse(argument, 0) == Some(entry.id));
            let id = id.unwrap_or_else(|| entry.id.write(&mut id_text));
            claim(access, target, id, entry, last_id);
        }
        propagated
    }
}

/// Propagates a pending entry of a consumer as an `XCLAIM`. For an entry that was deleted from the
/// stream, a replica that runs the `XCLAIM` removes the entry from the pending entries.
fn claim(access: &mut Access<'_>, target: [&[u8]; 3], id: &[u8], entry: &Record, last_id: &[u8]) {
    let [key, group, claimant] = target;
    let consumer = entry.consumer.as_deref().unwrap_or(claimant);
    let (mut time, mut deliveries) = (Decimal::new(), Decimal::new());
    let time = time.format_i64(entry.delivered_ms);
    // Redis counts deliveries as unsigned integers, but formats the count as a signed one.
    let deliveries = deliveries.format_i64(entry.deliveries as i64);
    access.propagate(&[
        b"XCLAIM",
        key,
        group,
        consumer,
        b"0",
        id,
        b"TIME",
        time,
        b"RETRYCOUNT",
        deliveries,
        b"FORCE",
        b"JUSTID",
        b"LASTID",
        last_id,
    ]);
}

/// Propagates a group's last ID and its number of entries read.
fn set_group_id(access: &mut Access<'_>, key: &[u8], group: &[u8], last_id: StreamId, entries_read: i64) {
    let (mut id, mut read) = (IdText::new(), Decimal::new());
    let (id, read) = (last_id.write(&mut id), read.format_i64(entries_read));
    access.propagate(&[b"XGROUP", b"SETID", key, group, id, b"ENTRIESREAD", read]);
}
