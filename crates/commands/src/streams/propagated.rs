//! Forms in which stream commands are propagated that differ from what clients send: those of
//! Redis 7.0. A group's read becomes what it did to the group's pending entries and last id.

use pantala_base::number::Decimal;
use pantala_engine::access::Access;
use pantala_resp::Args;
use pantala_types::stream::{Delivered, Group, IdText, Pending, StreamId, Trim};

/// Propagates the client's `XADD` or `XTRIM` with what it has left open: the id of the entry, and
/// the threshold of an approximate trim, each with its index. Nothing open: as the client sent it.
pub(super) fn settled(
    access: &mut Access<'_>,
    args: &Args<'_>,
    id: Option<(usize, StreamId)>,
    threshold: Option<(usize, Trim)>,
) {
    if id.is_none() && threshold.is_none() {
        return;
    }
    let mut words: Vec<&[u8]> = args.iter().collect();
    let (mut id_text, mut least_text, mut length_text) = (IdText::new(), IdText::new(), Decimal::new());
    if let Some((at, id)) = id {
        words[at] = id.write(&mut id_text);
    }
    if let Some((at, threshold)) = threshold {
        // In front of the threshold is the `~`.
        words[at - 1] = b"=";
        words[at] = match threshold {
            Trim::Length(length) => length_text.format_u64(length),
            Trim::Id(id) => id.write(&mut least_text),
        };
    }
    access.propagate(&words);
}

/// The entries of one stream that an `XREADGROUP` delivered. Nothing is noted without a journal.
pub(super) struct Delivery {
    is_journaled: bool,
    noack: bool,
    ids: Vec<StreamId>,
    /// Last id and entries read of the group, to be set.
    group_id: Option<(StreamId, i64)>,
}

impl Delivery {
    /// Returns a delivery of nothing yet.
    pub(super) fn new(access: &Access<'_>, noack: bool) -> Self {
        Delivery { is_journaled: access.is_journaled(), noack, ids: Vec::new(), group_id: None }
    }

    /// Notes an entry that the group had not read.
    #[inline]
    pub(super) fn note(&mut self, id: StreamId) {
        if self.is_journaled && !self.noack {
            self.ids.push(id);
        }
    }

    /// Notes the group after the delivery.
    pub(super) fn end(&mut self, group: &Group, done: &Delivered) {
        if self.is_journaled && self.noack && done.entries > 0 {
            self.group_id = Some((group.last_id(), group.entries_read()));
        }
    }

    /// Propagates the delivery to a consumer: its key, group and name. That it was created is told
    /// by what it has pending, unless it has nothing pending for want of acknowledgements.
    pub(super) fn propagate(self, access: &mut Access<'_>, whose: [&[u8]; 3], now_ms: i64, created_consumer: bool) {
        // Also where the journal was switched on since the delivery began.
        access.propagate_nothing();
        if !self.is_journaled {
            return;
        }
        let [key, group, consumer] = whose;
        if created_consumer && self.noack {
            access.propagate(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
        }
        for id in self.ids {
            let mut text = IdText::new();
            let text = id.write(&mut text);
            claim(access, whose, text, &Noted { id, consumer: None, delivered_ms: now_ms, deliveries: 1 }, text);
        }
        if let Some((last_id, entries_read)) = self.group_id {
            set_group_id(access, key, group, last_id, entries_read);
        }
    }
}

/// A pending entry that was claimed, or found to be deleted.
struct Noted {
    id: StreamId,
    /// Who has it, unless it is the claimant.
    consumer: Option<Box<[u8]>>,
    delivered_ms: i64,
    deliveries: u64,
}

/// What an `XCLAIM` or `XAUTOCLAIM` did. Nothing is noted without a journal.
pub(super) struct Claims {
    is_journaled: bool,
    entries: Vec<Noted>,
    last_id: StreamId,
    entries_read: i64,
    is_raised: bool,
}

impl Claims {
    /// Returns claims of nothing yet.
    pub(super) fn new(access: &Access<'_>) -> Self {
        let is_journaled = access.is_journaled();
        Claims { is_journaled, entries: Vec::new(), last_id: StreamId::MIN, entries_read: 0, is_raised: false }
    }

    /// Notes an entry that was claimed, or one of any consumer that is gone from the stream.
    pub(super) fn note(&mut self, pending: &Pending<'_>, is_claimed: bool) {
        if self.is_journaled {
            let &Pending { id, consumer, delivered_ms, deliveries } = pending;
            let consumer = (!is_claimed).then(|| consumer.into());
            self.entries.push(Noted { id, consumer, delivered_ms, deliveries });
        }
    }

    /// Notes the group after the claims, and whether its last id was raised before them.
    pub(super) fn end(&mut self, group: &Group, is_raised: bool) {
        (self.last_id, self.entries_read, self.is_raised) = (group.last_id(), group.entries_read(), is_raised);
    }

    /// Propagates the claims of the client's command: one command for each entry, its id as it is
    /// among `sent`, if it is.
    pub(super) fn propagate(self, access: &mut Access<'_>, args: &Args<'_>, sent: &Args<'_>) {
        access.propagate_nothing();
        if self.entries.is_empty() {
            if self.is_raised {
                set_group_id(access, args.at(1), args.at(2), self.last_id, self.entries_read);
            }
            return;
        }
        let whose = [args.at(1), args.at(2), args.at(3)];
        let (mut id_text, mut last_text) = (IdText::new(), IdText::new());
        let last_id = self.last_id.write(&mut last_text);
        let mut sent = sent.iter();
        for entry in &self.entries {
            let id = sent.find(|argument| StreamId::parse(argument, 0) == Some(entry.id));
            let id = id.unwrap_or_else(|| entry.id.write(&mut id_text));
            claim(access, whose, id, entry, last_id);
        }
    }
}

/// Propagates that a consumer has an entry pending. A deleted entry is told in the same way: the
/// claim of it removes it from the pending ones.
fn claim(access: &mut Access<'_>, whose: [&[u8]; 3], id: &[u8], entry: &Noted, last_id: &[u8]) {
    let [key, group, claimant] = whose;
    let consumer = entry.consumer.as_deref().unwrap_or(claimant);
    let (mut time, mut deliveries) = (Decimal::new(), Decimal::new());
    let time = time.format_i64(entry.delivered_ms);
    // Redis counts deliveries without a sign, and writes them with one.
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

/// Propagates what a group has read up to.
fn set_group_id(access: &mut Access<'_>, key: &[u8], group: &[u8], last_id: StreamId, entries_read: i64) {
    let (mut id, mut read) = (IdText::new(), Decimal::new());
    let (id, read) = (last_id.write(&mut id), read.format_i64(entries_read));
    access.propagate(&[b"XGROUP", b"SETID", key, group, id, b"ENTRIESREAD", read]);
}
