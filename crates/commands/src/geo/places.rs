//! Adds members (`GEOADD`) and returns their distances and coordinates (`GEODIST`, `GEOHASH`,
//! `GEOPOS`).

use pantala_base::number::Decimal;
use pantala_engine::access::Access;
use pantala_engine::db::WrongType;
use pantala_resp::{Args, Reply};
use pantala_types::SortedSet;
use pantala_types::sorted_set::AddOptions;

use super::{parse_point, parse_unit, point_of, reply_distance, reply_point};
use crate::arguments::is_option;
use crate::sorted_sets::add_scores;
use crate::{errors, propagated};

/// `GEOADD key [NX|XX] [CH] longitude latitude member [longitude latitude member …]`.
pub fn geoadd(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (mut options, mut count_changed, mut index) = (AddOptions::default(), false, 2);
    while let Some(option) = args.get(index) {
        if is_option(option, "NX") {
            options.nx = true;
        } else if is_option(option, "XX") {
            options.xx = true;
        } else if is_option(option, "CH") {
            count_changed = true;
        } else {
            break;
        }
        index += 1;
    }
    let places = args.tail(index);
    if places.is_empty() || !places.len().is_multiple_of(3) || (options.nx && options.xx) {
        return reply.error(errors::SYNTAX);
    }
    let mut scores = Vec::with_capacity(places.len() / 3);
    let mut words: Vec<Vec<u8>> = Vec::new();
    let is_journaled = access.is_journaled();
    for at in (0..places.len()).step_by(3) {
        match parse_point(places.at(at), places.at(at + 1)) {
            Ok(point) => {
                let score = point.score();
                if is_journaled {
                    words.push(Decimal::new().format_i64(score as i64).to_vec());
                    words.push(places.at(at + 2).to_vec());
                }
                scores.push(score);
            }
            Err(error) => return reply.error(&error),
        }
    }
    let members = scores.into_iter().enumerate().map(|(number, score)| (places.at(number * 3 + 2), score));
    let has_changed = add_scores(access, args, members, options, count_changed, reply);
    if is_journaled && has_changed {
        // As in Redis, GEOADD is propagated as ZADD, with the geohash cells as scores.
        let head = [&b"zadd"[..]].into_iter().chain(args.iter().take(index).skip(1));
        propagated::words(access, head.chain(words.iter().map(Vec::as_slice)));
    }
}

/// `GEODIST key member1 member2 [M|KM|FT|MI]`.
pub fn geodist(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let unit_m = match args.get(4) {
        None => 1.0,
        Some(_) if args.len() > 5 => return reply.error(errors::SYNTAX),
        Some(unit) => match parse_unit(unit) {
            Ok(unit_m) => unit_m,
            Err(error) => return reply.error(&error),
        },
    };
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<SortedSet>(&key) {
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.null(),
        Ok(Some(set)) => match (point_of(set, args.at(2)), point_of(set, args.at(3))) {
            (Some(from), Some(to)) => reply_distance(from.distance_m(to) / unit_m, reply),
            _ => reply.null(),
        },
    }
}

/// `GEOHASH key [member …]`.
pub fn geohash(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let Ok(set) = db.read_as::<SortedSet>(&key) else { return reply.error(errors::WRONG_TYPE) };
    let members = args.tail(2);
    reply.array(members.len());
    for member in members {
        match set.and_then(|set| point_of(set, member)) {
            Some(point) => reply.bulk(&point.hash()),
            None => reply.null(),
        }
    }
}

/// `GEOPOS key [member …]`.
pub fn geopos(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let Ok(set) = db.read_as::<SortedSet>(&key) else { return reply.error(errors::WRONG_TYPE) };
    let members = args.tail(2);
    reply.array(members.len());
    for member in members {
        match set.and_then(|set| point_of(set, member)) {
            Some(point) => reply_point(point, reply),
            None => reply.null_array(),
        }
    }
}
