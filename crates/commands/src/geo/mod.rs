//! Geo commands: coordinates stored as scores of sorted sets.
//!
//! | file | commands |
//! | --- | --- |
//! | `places` | `GEOADD`, `GEODIST`, `GEOHASH`, `GEOPOS` |
//! | `options` | the arguments of the searches |
//! | `search` | `GEORADIUS`, `GEORADIUSBYMEMBER`, `_RO` forms, `GEOSEARCH`, `GEOSEARCHSTORE` |

use pantala_resp::{Reply, Version};
use pantala_types::double;
use pantala_types::geo::Point;
use pantala_types::sorted_set::SortedSetView;

use crate::arguments::is_option;
use crate::errors;

mod options;
mod places;
mod search;
#[cfg(test)]
mod tests;

pub use places::*;
pub use search::*;

/// Returns the coordinates of a member.
fn point_of(set: SortedSetView<'_>, member: &[u8]) -> Option<Point> {
    set.score(member).map(Point::of_score)
}

/// Parses coordinates.
fn parse_point(longitude: &[u8], latitude: &[u8]) -> Result<Point, String> {
    let parse = |text: &[u8]| double::parse(text).ok_or_else(|| errors::NOT_A_FLOAT.to_owned());
    let point = Point { longitude: parse(longitude)?, latitude: parse(latitude)? };
    if point.is_valid() {
        return Ok(point);
    }
    Err(format!("ERR invalid longitude,latitude pair {:.6},{:.6}", point.longitude, point.latitude))
}

/// Parses a unit and returns its length in metres.
fn parse_unit(text: &[u8]) -> Result<f64, String> {
    const UNITS: [(&str, f64); 4] = [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)];
    let unit = UNITS.iter().find(|(name, _)| is_option(text, name));
    unit.map(|(_, metres)| *metres).ok_or_else(|| "ERR unsupported unit provided. please use M, KM, FT, MI".to_owned())
}

/// Replies with a distance as a bulk string with four decimals, also in RESP3.
///
/// As in Redis, the distance is multiplied by 10^4 and then rounded half to even. The result can
/// therefore differ from the exact distance rounded to four decimals.
fn reply_distance(distance: f64, reply: &mut Reply<'_>) {
    /// 10^4, for four decimals.
    const UNITS: f64 = 10_000.0;
    let rounded = (distance * UNITS).round_ties_even() / UNITS;
    reply.bulk(format!("{rounded:.4}").as_bytes());
}

/// Replies with longitude and latitude.
fn reply_point(point: Point, reply: &mut Reply<'_>) {
    reply.array(2);
    reply_human(point.longitude, reply);
    reply_human(point.latitude, reply);
}

/// Replies with a number that has up to 17 decimals.
fn reply_human(number: f64, reply: &mut Reply<'_>) {
    let text = format!("{number:.17}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let text = if text == "-0" { "0" } else { text };
    match reply.version() {
        Version::Resp2 => reply.bulk(text.as_bytes()),
        Version::Resp3 => {
            reply.raw(b",");
            reply.raw(text.as_bytes());
            reply.raw(b"\r\n");
        }
    }
}
