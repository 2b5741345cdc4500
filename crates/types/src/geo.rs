//! Points on the Earth as scores of a sorted set: 52-bit geohashes, distances, and the score ranges
//! that cover a shape.
//!
//! A geohash is a sequence of halvings of the map: each bit says in which half the point lies.
//! Longitude and latitude are halved alternately, 26 times each. The even bits belong to the
//! latitude. A *step* is one halving of longitude and latitude. The rectangle that remains after
//! fewer than 26 steps corresponds to one contiguous range of scores.
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 20 points of 13 bytes | packed | 23.1 |
//! | 100,000 points of 13 bytes | LargeSet | 37.4 |

use std::f64::consts::PI;

/// Maximum longitude, in degrees. The minimum is its negative.
pub const LONGITUDE_MAX: f64 = 180.0;
/// Maximum latitude, in degrees (EPSG:900913). The minimum is its negative.
pub const LATITUDE_MAX: f64 = 85.05112878;
/// Number of steps in a score.
pub const STEPS_MAX: u32 = 26;

const EARTH_RADIUS_M: f64 = 6_372_797.560856;
/// Half the length of the equator on the map, in meters.
const MERCATOR_MAX_M: f64 = 20_037_726.37;
/// Absolute latitudes, in degrees. If the center of a search is nearer to a pole than the first
/// latitude, the search uses one step less than elsewhere; if it is also nearer than the second
/// latitude, two steps less.
const NEAR_POLE: [f64; 2] = [66.0, 80.0];
/// Length of a geohash as text.
pub const HASH_LEN: usize = 11;

fn radians(degrees: f64) -> f64 {
    degrees * (PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (PI / 180.0)
}

/// A point on the Earth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Degrees east.
    pub longitude: f64,
    /// Degrees north.
    pub latitude: f64,
}

impl Point {
    /// Returns whether the point has a geohash.
    pub fn is_valid(self) -> bool {
        self.longitude.abs() <= LONGITUDE_MAX && self.latitude.abs() <= LATITUDE_MAX
    }

    /// Returns the point's geohash as a score. The point must be valid.
    pub fn score(self) -> f64 {
        Cell::around(self, STEPS_MAX, LATITUDE_MAX).first_score() as f64
    }

    /// Returns the center of the rectangle that a score denotes. As in Redis, any number is a valid
    /// score.
    pub fn of_score(score: f64) -> Point {
        let area = Cell { bits: unsigned(score), steps: STEPS_MAX }.area();
        let middle = |[low, high]: [f64; 2], max: f64| f64::midpoint(low, high).clamp(-max, max);
        Point { longitude: middle(area.longitude, LONGITUDE_MAX), latitude: middle(area.latitude, LATITUDE_MAX) }
    }

    /// Returns the distance to another point, in meters.
    pub fn distance_m(self, other: Point) -> f64 {
        let v = ((radians(other.longitude) - radians(self.longitude)) / 2.0).sin();
        if v == 0.0 {
            return EARTH_RADIUS_M * (radians(other.latitude) - radians(self.latitude)).abs();
        }
        let (from, to) = (radians(self.latitude), radians(other.latitude));
        let u = ((to - from) / 2.0).sin();
        2.0 * EARTH_RADIUS_M * (u * u + from.cos() * to.cos() * v * v).sqrt().asin()
    }

    /// Returns the point's standard geohash, in which latitudes extend to the poles. Each character
    /// holds 5 of the 52 bits. The eleventh character would be incomplete and is always 0, as in
    /// Redis.
    pub fn hash(self) -> [u8; HASH_LEN] {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Cell::around(self, STEPS_MAX, 90.0).bits;
        std::array::from_fn(|index| {
            let shift = (2 * STEPS_MAX).checked_sub((index as u32 + 1) * 5);
            ALPHABET[shift.map_or(0, |shift| bits >> shift & 0x1f) as usize]
        })
    }
}

/// Returns whether a distance is within a limit. For antipodes rounding may make the distance NaN
/// (the arcsine of more than 1). As in Redis, NaN is within any limit.
fn is_within(distance_m: f64, limit_m: f64) -> bool {
    distance_m.is_nan() || distance_m <= limit_m
}

/// Converts a score to an unsigned integer as Redis's compiled C code does on x86-64, even for
/// scores for which the C standard leaves the result undefined.
fn unsigned(score: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    let signed = |score: f64| if (-HALF..HALF).contains(&score) { score as i64 } else { i64::MIN };
    if score < HALF { signed(score) as u64 } else { signed(score - HALF) as u64 ^ 1 << 63 }
}

/// Inserts a zero above each bit of a number.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, EVEN),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Extracts the even bits: the inverse of [`spread`].
fn gather(bits: u64) -> u32 {
    let mut bits = bits & EVEN;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

/// Mask of the even bits, which belong to the latitude.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Minimum and maximum of both coordinates, in degrees.
#[derive(Clone, Copy, Debug)]
struct Area {
    longitude: [f64; 2],
    latitude: [f64; 2],
}

/// The rectangle of a geohash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    steps: u32,
}

impl Cell {
    /// Returns the rectangle that contains a point after `steps` steps, on a map whose latitudes
    /// end at `latitude_max`.
    fn around(point: Point, steps: u32, latitude_max: f64) -> Cell {
        let cells = (1u64 << steps) as f64;
        let part = |value: f64, max: f64| ((value + max) / (max + max) * cells) as u32;
        let bits = spread(part(point.latitude, latitude_max)) | spread(part(point.longitude, LONGITUDE_MAX)) << 1;
        Cell { bits, steps }
    }

    fn area(self) -> Area {
        let cells = (1u64 << self.steps) as f64;
        let side = |number: u32, max: f64| {
            let at = |number: f64| -max + number / cells * (max + max);
            [at(f64::from(number)), at(f64::from(number) + 1.0)]
        };
        Area { longitude: side(gather(self.bits >> 1), LONGITUDE_MAX), latitude: side(gather(self.bits), LATITUDE_MAX) }
    }

    /// Returns the lowest score in the rectangle.
    fn first_score(self) -> u64 {
        self.bits << (2 * (STEPS_MAX - self.steps))
    }

    /// Returns the rectangle that is `east` rectangles to the east and `north` to the north,
    /// wrapping around in both directions.
    fn neighbor(self, east: i64, north: i64) -> Cell {
        let mask = u32::MAX >> (u32::BITS - self.steps);
        // As in Redis, a point exactly on the eastern or northern edge of the map yields a
        // rectangle whose number is one too large. To keep this number, the mask is applied only if
        // the rectangle moves.
        let moved = |number: u32, by: i64| if by == 0 { number } else { (i64::from(number) + by) as u32 & mask };
        let (longitude, latitude) = (moved(gather(self.bits >> 1), east), moved(gather(self.bits), north));
        Cell { bits: spread(latitude) | spread(longitude) << 1, steps: self.steps }
    }
}

/// The shape of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// All points within a distance.
    Circle {
        /// In meters.
        radius_m: f64,
    },
    /// An axis-aligned box.
    Rectangle {
        /// From west to east, in meters.
        width_m: f64,
        /// From south to north, in meters.
        height_m: f64,
    },
}

/// A shape around a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Center of the shape.
    pub center: Point,
    /// The shape.
    pub shape: Shape,
}

impl Search {
    /// Returns the distance of a point from the center, in meters, if the point is inside.
    pub fn distance_m(&self, point: Point) -> Option<f64> {
        let distance = self.center.distance_m(point);
        let inside = match self.shape {
            Shape::Circle { radius_m } => is_within(distance, radius_m),
            Shape::Rectangle { width_m, height_m } => {
                let west_east = point.distance_m(Point { longitude: self.center.longitude, ..point });
                let south_north = point.distance_m(Point { latitude: self.center.latitude, ..point });
                is_within(west_east, width_m / 2.0) && is_within(south_north, height_m / 2.0)
            }
        };
        inside.then_some(distance)
    }

    /// Returns the distance from the center to the farthest point of the shape, in meters.
    fn reach_m(&self) -> f64 {
        match self.shape {
            Shape::Circle { radius_m } => radius_m,
            Shape::Rectangle { width_m, height_m } => {
                ((width_m / 2.0) * (width_m / 2.0) + (height_m / 2.0) * (height_m / 2.0)).sqrt()
            }
        }
    }

    /// Returns the bounding box of the shape.
    fn bounds(&self) -> Area {
        let (width, height) = match self.shape {
            Shape::Circle { radius_m } => (radius_m, radius_m),
            Shape::Rectangle { width_m, height_m } => (width_m / 2.0, height_m / 2.0),
        };
        let Point { longitude, latitude } = self.center;
        let north = degrees(height / EARTH_RADIUS_M);
        // The side nearer to a pole spans more degrees of longitude.
        let wide = if latitude < 0.0 { latitude - north } else { latitude + north };
        let east = degrees(width / EARTH_RADIUS_M / radians(wide).cos());
        Area { longitude: [longitude - east, longitude + east], latitude: [latitude - north, latitude + north] }
    }

    /// Returns the number of steps after which rectangles are about as large as the shape.
    fn steps(&self) -> u32 {
        let mut reach = self.reach_m();
        if reach == 0.0 {
            return STEPS_MAX;
        }
        let mut steps = 1i32;
        while reach < MERCATOR_MAX_M {
            reach *= 2.0;
            steps += 1;
        }
        steps -= 2;
        steps -= NEAR_POLE.iter().filter(|&&limit| self.center.latitude.abs() > limit).count() as i32;
        steps.clamp(1, STEPS_MAX as i32) as u32
    }

    /// Returns whether the shape extends beyond the neighbors of the middle rectangle.
    fn reaches_beyond(middle: Cell, bounds: Area) -> bool {
        middle.neighbor(0, 1).area().latitude[1] < bounds.latitude[1]
            || middle.neighbor(0, -1).area().latitude[0] > bounds.latitude[0]
            || middle.neighbor(1, 0).area().longitude[1] < bounds.longitude[1]
            || middle.neighbor(-1, 0).area().longitude[0] > bounds.longitude[0]
    }

    /// Returns half-open score ranges that cover all members inside the shape. The ranges belong to
    /// the middle rectangle, then to those of its neighbors that the shape may reach: north, south,
    /// east, west, then the corners. This is Redis's order, which `COUNT … ANY` exposes.
    pub fn score_ranges(&self) -> Vec<(f64, f64)> {
        /// Offsets east and north of each rectangle.
        const AROUND: [(i64, i64); 9] = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut middle = Cell::around(self.center, self.steps(), LATITUDE_MAX);
        let bounds = self.bounds();
        if middle.steps > 1 && Self::reaches_beyond(middle, bounds) {
            middle = Cell::around(self.center, middle.steps - 1, LATITUDE_MAX);
        }
        let area = middle.area();
        let is_needed = |(east, north): (i64, i64)| {
            // After one step, the map has four rectangles, so the neighbors on opposite sides are
            // the same rectangle. So all neighbors are needed, even if the shape doesn't reach one
            // of the sides.
            middle.steps < 2
                || !(north < 0 && area.latitude[0] < bounds.latitude[0]
                    || north > 0 && area.latitude[1] > bounds.latitude[1]
                    || east < 0 && area.longitude[0] < bounds.longitude[0]
                    || east > 0 && area.longitude[1] > bounds.longitude[1])
        };
        let mut cells: Vec<Cell> = Vec::with_capacity(AROUND.len());
        for (east, north) in AROUND.into_iter().filter(|&around| is_needed(around)) {
            let cell = middle.neighbor(east, north);
            // A very large shape reaches the same rectangle from opposite sides. As in Redis, only
            // consecutive duplicates are dropped, and never a duplicate of the middle rectangle. So
            // a search may return a member twice.
            if cells.len() < 2 || cells.last() != Some(&cell) {
                cells.push(cell);
            }
        }
        let end = |cell: &Cell| Cell { bits: cell.bits + 1, ..*cell }.first_score() as f64;
        cells.iter().map(|cell| (cell.first_score() as f64, end(cell))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PALERMO: Point = Point { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: Point = Point { longitude: 15.087269, latitude: 37.502669 };

    /// The expected values come from redis-server 7.0.15.
    #[test]
    fn scores_hashes_and_distances() {
        assert_eq!(PALERMO.score(), 3_479_099_956_230_698.0);
        assert_eq!(CATANIA.score(), 3_479_447_370_796_909.0);
        let decoded = Point::of_score(PALERMO.score());
        assert_eq!((decoded.longitude, decoded.latitude), (13.361_389_338_970_184, 38.115_556_395_496_3));
        assert_eq!(&decoded.hash(), b"sqc8b49rny0");
        let distance = decoded.distance_m(Point::of_score(CATANIA.score()));
        assert_eq!(format!("{distance:.4}"), "166274.1516");
    }

    #[test]
    fn ranges_cover_all_points_inside() {
        let mut random = crate::testing::Random::with_printed_seed("geo");
        let mut part = |max: f64| (random.below(2_000_001) as f64 / 1_000_000.0 - 1.0) * max;
        for _ in 0..3_000 {
            let center = Point { longitude: part(179.0), latitude: part(60.0) };
            let size = part(1.0).abs().powi(6) * 1_000_000.0;
            let shape = if part(1.0) > 0.0 {
                Shape::Circle { radius_m: size }
            } else {
                Shape::Rectangle { width_m: size, height_m: part(1.0).abs() * size }
            };
            let search = Search { center, shape };
            let ranges = search.score_ranges();
            for _ in 0..20 {
                let near = size / 100_000.0;
                let point = Point { longitude: center.longitude + part(near), latitude: center.latitude + part(near) };
                if point.is_valid() && search.distance_m(Point::of_score(point.score())).is_some() {
                    let score = point.score();
                    assert!(
                        ranges.iter().any(|(from, to)| (*from..*to).contains(&score)),
                        "{search:?} misses {point:?}: {ranges:?}"
                    );
                }
            }
        }
    }

    /// Near a pole, a circle spans far more degrees of longitude than at the equator.
    #[test]
    fn circles_across_a_pole() {
        for (center, other, radius_m) in [
            ((45.0, 65.0), (-135.0, 85.05), 5_009_431.0),
            ((-0.15307903289794922, 85.0), (0.3515625, 85.00019260486917), 4891.94),
            ((-4.952119588851929, 85.0), (11.25, 85.0511), 156_544.0),
        ] {
            let stored = |(longitude, latitude)| Point { longitude, latitude }.score();
            let search = Search { center: Point::of_score(stored(center)), shape: Shape::Circle { radius_m } };
            let score = stored(other);
            assert!(search.distance_m(Point::of_score(score)).is_some());
            assert!(search.score_ranges().iter().any(|(from, to)| (*from..*to).contains(&score)), "{search:?}");
        }
    }

    #[test]
    fn any_score_denotes_a_point() {
        for score in [-1.0, 0.0, 1e18, 1e19, 1e30, -1e30, f64::INFINITY, f64::NEG_INFINITY, 0.5] {
            assert!(Point::of_score(score).is_valid(), "{score}");
        }
    }

    #[test]
    fn edges_of_the_map() {
        for (longitude, latitude) in [(180.0, LATITUDE_MAX), (-180.0, -LATITUDE_MAX), (180.0, 0.0)] {
            let point = Point { longitude, latitude };
            assert!(point.is_valid());
            let ranges = Search { center: point, shape: Shape::Circle { radius_m: 1000.0 } }.score_ranges();
            assert!(!ranges.is_empty());
        }
        assert!(!Point { longitude: 180.1, latitude: 0.0 }.is_valid());
        assert!(!Point { longitude: 0.0, latitude: 85.1 }.is_valid());
        assert!(!Point { longitude: f64::NAN, latitude: 0.0 }.is_valid());
    }
}
