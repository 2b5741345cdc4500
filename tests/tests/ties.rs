//! Sorting with ties and a limit, compared with redis-server: places at equal distances, and
//! elements of equal weight. If elements are equal, the steps of the sorting algorithm determine
//! which of them are within the limit. Pantala must therefore perform the same steps as Redis.

use pantala_tests::reply::show;
use pantala_tests::{Client, Random, Server, for_each_backend};

/// Number of datasets, and number of queries for each.
const ROUNDS: usize = 60;
const QUERIES: usize = 60;
/// Numbers of elements. Some numbers are near 7 and 40, where Redis's quicksort changes its
/// strategy. Others are near 128, the limit of a listpack.
const LENGTHS: &[usize] = &[1, 2, 3, 6, 7, 8, 9, 15, 40, 41, 42, 48, 90, 127, 128, 129, 200, 500, 1_500];
/// Scores that are set by `ZADD` instead of `GEOADD`. GEO commands accept any score as a place, and
/// extreme scores are at the edge of the map.
const FAR_SCORES: &[&str] = &["-1", "inf", "-inf", "1e30", "4503599627370496", "0", "0.5"];

struct Pair {
    ours: Client,
    theirs: Client,
}

impl Pair {
    fn both(&mut self, args: &[Vec<u8>]) {
        self.ours.send(args);
        self.theirs.send(args);
        let (given, right) = (self.ours.receive_raw().1, self.theirs.receive_raw().1);
        let shown = || args.iter().take(12).map(|arg| show(arg)).collect::<Vec<_>>().join(" ");
        assert!(given == right, "{}\n gives   {}\n must be {}", shown(), show(&given), show(&right));
    }

    fn call(&mut self, words: &str) {
        self.both(&words.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
    }
}

fn for_each_pair(test: &str, run: impl Fn(&mut Random, &mut Pair)) {
    let seed = Random::seed(test);
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut random = Random::from_seed(seed);
        let mut pair = Pair { ours: server.connect(), theirs: reference.connect() };
        for _ in 0..ROUNDS {
            pair.call("FLUSHALL");
            run(&mut random, &mut pair);
        }
        drop(pair);
        server.assert_sound();
    });
}

/// Adds members at places. Several members may be at the same place.
fn fill_places(random: &mut Random, pair: &mut Pair, len: usize) {
    let places = *random.pick(&[1, 2, 3, 10, 1_000]);
    let center = (random.between(-170, 170), random.between(-80, 80));
    let mut words = vec![String::from("ZADD"), String::from("places")];
    let is_far = random.one_in(4);
    if !is_far {
        words[0] = String::from("GEOADD");
    }
    for member in 0..len {
        // The places lie in four directions from the middle, so that different places have equal
        // distances.
        let place = random.below(places) as i64;
        let (east, north) = [(1, 0), (-1, 0), (0, 1), (0, -1), (0, 0)][place as usize % 5];
        let step = place / 5;
        if is_far {
            words.push((*random.pick(FAR_SCORES)).to_owned());
        } else {
            words.push(format!("{}.{:04}", center.0 + east, step));
            words.push(format!("{}.{:04}", center.1 + north, step));
        }
        words.push(format!("member:{member}"));
    }
    pair.both(&words.into_iter().map(String::into_bytes).collect::<Vec<_>>());
    // Adds the middle itself, and the point on the opposite side of the globe. Due to rounding, the
    // distance of the opposite point may be NaN.
    pair.call(&format!("GEOADD places {} {} middle", center.0, center.1));
    let opposite = if center.0 > 0 { center.0 - 180 } else { center.0 + 180 };
    pair.call(&format!("GEOADD places {opposite} {} opposite:1 {opposite} {} opposite:2", -center.1, -center.1));
}

#[test]
fn places_at_equal_distances() {
    for_each_pair("places_at_equal_distances", |random, pair| {
        let len = *random.pick(LENGTHS);
        fill_places(random, pair, len);
        for _ in 0..QUERIES {
            let radius = *random.pick(&["0.5", "1", "111", "150", "300", "20000", "100000"]);
            let mut words = match random.below(3) {
                0 => format!("GEORADIUSBYMEMBER places middle {radius} km"),
                1 => format!("GEOSEARCH places FROMMEMBER middle BYRADIUS {radius} km"),
                _ => format!("GEOSEARCH places FROMMEMBER opposite:1 BYBOX {radius} {radius} km"),
            };
            words += *random.pick(&["", " ASC", " DESC"]);
            if !random.one_in(5) {
                words += &format!(" COUNT {}", 1 + random.below(len + 4));
                words += *random.pick(&["", "", " ANY"]);
            }
            words += *random.pick(&["", " WITHDIST", " WITHHASH WITHCOORD"]);
            pair.call(&words);
        }
        // The stored members show which members at equal distances were within the limit.
        for order in ["ASC", "DESC"] {
            pair.call(&format!(
                "GEOSEARCHSTORE stored places FROMMEMBER middle BYRADIUS 30000 km COUNT {} {order}",
                1 + len / 2
            ));
            pair.call("ZRANGE stored 0 -1 WITHSCORES");
        }
    });
}

#[test]
fn elements_of_equal_weight() {
    for_each_pair("elements_of_equal_weight", |random, pair| {
        let len = *random.pick(LENGTHS);
        let weights = *random.pick(&[1, 2, 5, 50]);
        for element in 0..len {
            // One in six elements has no weight. SORT puts such elements before all others.
            if !random.one_in(6) {
                pair.call(&format!("SET weight:{element} w{}", random.below(weights)));
            }
        }
        let elements: Vec<String> = (0..len).map(|_| random.below(len).to_string()).collect();
        pair.call(&format!("RPUSH list {}", elements.join(" ")));
        for _ in 0..QUERIES {
            let mut words = String::from("SORT list BY weight:* ALPHA");
            words += *random.pick(&["", " DESC"]);
            if !random.one_in(5) {
                words += &format!(" LIMIT {} {}", random.between(-1, len as i64), random.between(-1, len as i64));
            }
            words += *random.pick(&["", " GET # GET weight:*", " STORE stored"]);
            pair.call(&words);
        }
        pair.call("LRANGE stored 0 -1");
    });
}
