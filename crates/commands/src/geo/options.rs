//! Parses the arguments of a search. The parser needs the sorted set, because the centre may be one
//! of its members, and because the first error must be the one that Redis reports.

use pantala_base::number::parse_i64;
use pantala_resp::Args;
use pantala_types::double;
use pantala_types::geo::{Point, Search, Shape};
use pantala_types::sorted_set::SortedSetView;

use super::{parse_point, parse_unit, point_of};
use crate::arguments::{c_string, is_option};
use crate::errors;

/// The command that searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `GEORADIUS`, or, with `stores` false, `GEORADIUS_RO`.
    Radius { stores: bool },
    /// `GEORADIUSBYMEMBER`, or, with `stores` false, `GEORADIUSBYMEMBER_RO`.
    RadiusByMember { stores: bool },
    /// `GEOSEARCH`.
    Search,
    /// `GEOSEARCHSTORE`.
    SearchStore,
}

impl Kind {
    /// Returns the index of the argument that is the searched key.
    pub(super) fn source(self) -> usize {
        if self == Kind::SearchStore { 2 } else { 1 }
    }

    fn is_search(self) -> bool {
        matches!(self, Kind::Search | Kind::SearchStore)
    }

    /// Returns whether the command accepts the option `STORE key`.
    fn takes_store(self) -> bool {
        matches!(self, Kind::Radius { stores: true } | Kind::RadiusByMember { stores: true })
    }
}

/// The order of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Nearest,
    Farthest,
}

/// The parsed arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) search: Search,
    /// The unit of the distances in the reply, in metres.
    pub(super) unit_m: f64,
    pub(super) with_distance: bool,
    pub(super) with_hash: bool,
    pub(super) with_point: bool,
    /// Maximum number of results.
    pub(super) count: Option<usize>,
    /// `ANY`: whether to stop as soon as `count` results were found, even if members that were not
    /// visited are nearer.
    pub(super) any: bool,
    pub(super) sort: Option<Sort>,
    /// Index of the destination key.
    pub(super) destination: Option<usize>,
    pub(super) stores_distances: bool,
}

/// The parts that are parsed before the other options: the centre and the shape.
#[derive(Default)]
struct Parts {
    center: Option<Point>,
    by_member: bool,
    by_point: bool,
    circle: Option<(Shape, f64)>,
    rectangle: Option<(Shape, f64)>,
}

impl Options {
    /// Parses the arguments. `set` is the searched sorted set, if the key exists.
    pub(super) fn parse(args: &Args<'_>, kind: Kind, set: Option<SortedSetView<'_>>) -> Result<Self, Vec<u8>> {
        let mut parts = Parts::default();
        let mut options = Options {
            search: Search { center: Point { longitude: 0.0, latitude: 0.0 }, shape: Shape::Circle { radius_m: 0.0 } },
            unit_m: 1.0,
            with_distance: false,
            with_hash: false,
            with_point: false,
            count: None,
            any: false,
            sort: None,
            destination: None,
            stores_distances: false,
        };
        let first = match kind {
            Kind::Radius { .. } => {
                parts.center = Some(parse_point(args.at(2), args.at(3))?);
                parts.circle = Some(parse_circle(args.at(4), args.at(5))?);
                6
            }
            Kind::RadiusByMember { .. } => {
                if let Some(set) = set {
                    parts.center = Some(center_of(set, args.at(2))?);
                    parts.circle = Some(parse_circle(args.at(3), args.at(4))?);
                }
                5
            }
            Kind::Search => 2,
            Kind::SearchStore => {
                options.destination = Some(1);
                3
            }
        };
        options.parse_words(args, first, kind, set, &mut parts)?;
        options.check(args, kind, &parts)?;
        // If the key is missing, centre and shape may be missing too. The caller then searches
        // nothing.
        if let Some(center) = parts.center {
            options.search.center = center;
        }
        if let Some((shape, unit_m)) = parts.circle.or(parts.rectangle) {
            (options.search.shape, options.unit_m) = (shape, unit_m);
        }
        Ok(options)
    }

    fn parse_words(
        &mut self,
        args: &Args<'_>,
        first: usize,
        kind: Kind,
        set: Option<SortedSetView<'_>>,
        parts: &mut Parts,
    ) -> Result<(), Vec<u8>> {
        let mut index = first;
        while let Some(word) = args.get(index) {
            let is = |option: &str| is_option(word, option);
            let left = args.len() - index - 1;
            index += 1;
            if is("WITHDIST") {
                self.with_distance = true;
            } else if is("WITHHASH") {
                self.with_hash = true;
            } else if is("WITHCOORD") {
                self.with_point = true;
            } else if is("ANY") {
                self.any = true;
            } else if is("ASC") {
                self.sort = Some(Sort::Nearest);
            } else if is("DESC") {
                self.sort = Some(Sort::Farthest);
            } else if left >= 1 && is("COUNT") {
                let count = parse_i64(args.at(index)).ok_or(errors::NOT_AN_INTEGER)?;
                let count = usize::try_from(count).ok().filter(|&count| count > 0);
                self.count = Some(count.ok_or("ERR COUNT must be > 0")?);
                index += 1;
            } else if left >= 1 && kind.takes_store() && (is("STORE") || is("STOREDIST")) {
                self.destination = Some(index);
                self.stores_distances = is("STOREDIST");
                index += 1;
            } else if kind == Kind::SearchStore && is("STOREDIST") {
                self.stores_distances = true;
            } else if kind.is_search() {
                index += parse_part(args, index, word, set, parts)?;
            } else {
                return Err(errors::SYNTAX.into());
            }
        }
        Ok(())
    }

    fn check(&mut self, args: &Args<'_>, kind: Kind, parts: &Parts) -> Result<(), Vec<u8>> {
        if self.destination.is_some() && (self.with_distance || self.with_hash || self.with_point) {
            let command = if kind == Kind::SearchStore { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(format!("ERR {command} is not compatible with WITHDIST, WITHHASH and WITHCOORD options").into());
        }
        let exactly_one = |of: &str| {
            [b"ERR exactly one of ", of.as_bytes(), b" can be specified for ", c_string(args.at(0))].concat()
        };
        if kind.is_search() && !(parts.by_member || parts.by_point) {
            return Err(exactly_one("FROMMEMBER or FROMLONLAT"));
        }
        if kind.is_search() && parts.circle.is_none() && parts.rectangle.is_none() {
            return Err(exactly_one("BYRADIUS and BYBOX"));
        }
        if self.any && self.count.is_none() {
            return Err("ERR the ANY argument requires COUNT argument".into());
        }
        // With `COUNT` and without `ANY`, the result is the nearest members, so they must be
        // sorted.
        if self.count.is_some() && self.sort.is_none() && !self.any {
            self.sort = Some(Sort::Nearest);
        }
        Ok(())
    }
}

/// Parses the arguments of `FROMMEMBER`, `FROMLONLAT`, `BYRADIUS` or `BYBOX`, starting at `index`.
/// Returns the number of these arguments.
fn parse_part(
    args: &Args<'_>,
    index: usize,
    word: &[u8],
    set: Option<SortedSetView<'_>>,
    parts: &mut Parts,
) -> Result<usize, Vec<u8>> {
    let left = args.len() - index;
    let is = |option: &str| is_option(word, option);
    if left >= 1 && !parts.by_point && is("FROMMEMBER") {
        if let Some(set) = set {
            parts.center = Some(center_of(set, args.at(index))?);
        }
        parts.by_member = true;
        Ok(1)
    } else if left >= 2 && !parts.by_member && is("FROMLONLAT") {
        parts.center = Some(parse_point(args.at(index), args.at(index + 1))?);
        parts.by_point = true;
        Ok(2)
    } else if left >= 2 && parts.rectangle.is_none() && is("BYRADIUS") {
        parts.circle = Some(parse_circle(args.at(index), args.at(index + 1))?);
        Ok(2)
    } else if left >= 3 && parts.circle.is_none() && is("BYBOX") {
        parts.rectangle = Some(parse_rectangle(args.at(index), args.at(index + 1), args.at(index + 2))?);
        Ok(3)
    } else {
        Err(errors::SYNTAX.into())
    }
}

fn center_of(set: SortedSetView<'_>, member: &[u8]) -> Result<Point, &'static str> {
    point_of(set, member).ok_or("ERR could not decode requested zset member")
}

fn parse_circle(radius: &[u8], unit: &[u8]) -> Result<(Shape, f64), String> {
    let radius = double::parse(radius).ok_or("ERR need numeric radius")?;
    if radius < 0.0 {
        return Err("ERR radius cannot be negative".into());
    }
    let unit_m = parse_unit(unit)?;
    Ok((Shape::Circle { radius_m: radius * unit_m }, unit_m))
}

fn parse_rectangle(width: &[u8], height: &[u8], unit: &[u8]) -> Result<(Shape, f64), String> {
    let width = double::parse(width).ok_or("ERR need numeric width")?;
    let height = double::parse(height).ok_or("ERR need numeric height")?;
    if width < 0.0 || height < 0.0 {
        return Err("ERR height or width cannot be negative".into());
    }
    let unit_m = parse_unit(unit)?;
    Ok((Shape::Rectangle { width_m: width * unit_m, height_m: height * unit_m }, unit_m))
}
