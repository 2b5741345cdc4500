//! Searches for members in a shape: `GEORADIUS`, `GEOSEARCH` and their variants.

use std::cmp::Ordering;

use pantala_engine::access::{Access, SessionView};
use pantala_engine::db::WrongType;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::SortedSet;
use pantala_types::geo::Point;
use pantala_types::pack::Element;
use pantala_types::sorted_set::{Builder, ScoreRange, SortedSetView};
use pantala_types::sorting::{sort_all, sort_part};

use super::options::{Kind, Options, Sort};
use super::{reply_distance, reply_point};
use crate::arguments::is_option;
use crate::elements::write;
use crate::errors;
use crate::sorted_sets::{pack_limits, store};

/// A member inside the shape.
#[derive(Clone, Copy)]
struct Hit<'a> {
    member: Element<'a>,
    score: f64,
    distance_m: f64,
    point: Point,
}

/// `GEORADIUS key longitude latitude radius unit [options] [STORE key|STOREDIST key]`.
pub fn georadius(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    search(access, args, Kind::Radius { stores: true }, reply);
}

/// `GEORADIUS_RO key longitude latitude radius unit [options]`.
pub fn georadius_ro(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    search(access, args, Kind::Radius { stores: false }, reply);
}

/// `GEORADIUSBYMEMBER key member radius unit [options] [STORE key|STOREDIST key]`.
pub fn georadiusbymember(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    search(access, args, Kind::RadiusByMember { stores: true }, reply);
}

/// `GEORADIUSBYMEMBER_RO key member radius unit [options]`.
pub fn georadiusbymember_ro(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    search(access, args, Kind::RadiusByMember { stores: false }, reply);
}

/// `GEOSEARCH key FROMMEMBER member|FROMLONLAT longitude latitude BYRADIUS radius unit|BYBOX width
/// height unit [options]`.
pub fn geosearch(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    search(access, args, Kind::Search, reply);
}

/// `GEOSEARCHSTORE destination source`, then the arguments of `GEOSEARCH`, and the option
/// `STOREDIST`.
pub fn geosearchstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    search(access, args, Kind::SearchStore, reply);
}

/// Appends the route of `GEORADIUS` and `GEORADIUSBYMEMBER`: the shards of the searched key and of
/// all destinations.
pub fn georadius_route(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    shards.push(keyspace.place(args.at(1)).shard);
    georadius_destinations(args, &mut |index, _| shards.push(keyspace.place(args.at(index)).shard));
}

/// Visits every destination of a `GEORADIUS` or `GEORADIUSBYMEMBER` call. A call may repeat `STORE`
/// and `STOREDIST`, and stores its result at the last destination. The key specifications locate
/// only the first destination of each option.
pub fn georadius_destinations(args: &Args<'_>, visit: &mut dyn FnMut(usize, usize)) {
    const STORE_SPEC: usize = 1;
    /// Index of the first option of `GEORADIUSBYMEMBER`. `GEORADIUS` has its unit there.
    const FIRST_OPTION: usize = 5;
    let mut index = FIRST_OPTION;
    while index + 1 < args.len() {
        if is_option(args.at(index), "STORE") || is_option(args.at(index), "STOREDIST") {
            visit(index + 1, STORE_SPEC);
            index += 1;
        }
        index += 1;
    }
}

fn search(access: &mut Access<'_>, args: &Args<'_>, kind: Kind, reply: &mut Reply<'_>) {
    let (source, limits) = (access.key(args, kind.source()), pack_limits(access));
    let mut db = access.db(&source);
    let set = match db.read_as::<SortedSet>(&source) {
        Ok(set) => set,
        Err(WrongType) => return reply.error(errors::WRONG_TYPE),
    };
    let options = match Options::parse(args, kind, set) {
        Ok(options) => options,
        Err(error) => return reply.error_bytes(&error),
    };
    let hits = set.map(|set| found(set, &options)).unwrap_or_default();
    let Some(destination) = options.destination else { return reply_hits(&hits, &options, reply) };
    let mut builder = Builder::with_capacity(hits.len());
    for hit in &hits {
        let score = if options.stores_distances { hit.distance_m / options.unit_m } else { hit.score };
        hit.member.with_bytes(|member| builder.merge(member, score, |same| same));
    }
    let result = builder.finish(limits);
    let event = match kind {
        Kind::SearchStore => &Event(EventClass::SortedSet, "geosearchstore"),
        _ => &Event(EventClass::SortedSet, "georadiusstore"),
    };
    store(access, &access.key(args, destination), result, event, reply);
}

/// Returns the members inside the shape, limited and sorted by the options.
fn found<'a>(set: SortedSetView<'a>, options: &Options) -> Vec<Hit<'a>> {
    let enough = if options.any { options.count.unwrap_or(usize::MAX) } else { usize::MAX };
    let mut hits = Vec::new();
    for (min, max) in options.search.score_ranges() {
        let range = ScoreRange { min, max, min_excluded: false, max_excluded: true };
        for (member, score) in set.range(set.score_range(&range), false) {
            if hits.len() >= enough {
                break;
            }
            let point = Point::of_score(score);
            if let Some(distance_m) = options.search.distance_m(point) {
                hits.push(Hit { member, score, distance_m, point });
            }
        }
    }
    let wanted = options.count.map_or(hits.len(), |count| count.min(hits.len()));
    if let Some(sort) = options.sort {
        // Which of several equally distant members are chosen, and in which order, is the same as
        // in Redis, because clients see it.
        let order = |one: &Hit<'_>, two: &Hit<'_>| match sort {
            Sort::Nearest => by_distance(one, two),
            Sort::Farthest => by_distance(one, two).reverse(),
        };
        if wanted < hits.len() { sort_part(&mut hits, 0..wanted, order) } else { sort_all(&mut hits, order) }
    }
    hits.truncate(wanted);
    hits
}

/// Compares two members by distance. As in Redis, if either distance is NaN, the first member is
/// less.
fn by_distance(one: &Hit<'_>, two: &Hit<'_>) -> Ordering {
    one.distance_m.partial_cmp(&two.distance_m).unwrap_or(Ordering::Less)
}

fn reply_hits(hits: &[Hit<'_>], options: &Options, reply: &mut Reply<'_>) {
    let extras = [options.with_distance, options.with_hash, options.with_point].into_iter().filter(|&on| on).count();
    reply.array(hits.len());
    for hit in hits {
        if extras > 0 {
            reply.array(1 + extras);
        }
        write(hit.member, reply);
        if options.with_distance {
            reply_distance(hit.distance_m / options.unit_m, reply);
        }
        if options.with_hash {
            reply.integer(integer_of(hit.score));
        }
        if options.with_point {
            reply_point(hit.point, reply);
        }
    }
}

/// Converts a score to an integer as C does on x86-64. A value out of range becomes `i64::MIN`.
fn integer_of(score: f64) -> i64 {
    if score < i64::MAX as f64 { score as i64 } else { i64::MIN }
}
