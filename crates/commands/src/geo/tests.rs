//! Tests of the geo commands. The expected replies were compared with those of redis-server 7.0.15.

use crate::testing::TestServer;

fn sicily() -> TestServer {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("GEOADD Sicily 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2"),
        ("GEOADD Sicily CH NX 0 0 Palermo 12.758489 38.788135 edge1 17.241510 38.788135 edge2", ":2"),
    ]);
    server
}

#[test]
fn coordinates_and_distances() {
    let mut server = sicily();
    server.expect(&[
        ("ZSCORE Sicily Palermo", "3479099956230698"),
        ("GEODIST Sicily Palermo Catania", "166274.1516"),
        ("GEODIST Sicily Palermo Catania KM", "166.2742"),
        ("GEODIST Sicily Palermo nosuch", "$-1"),
        // The distance lies almost exactly between two values with four decimals (…1766 and
        // …1767). The result must be rounded as Redis rounds it.
        ("ZADD far 2075282280908570 a 1125889133641687 b", ":2"),
        ("GEODIST far a b", "9830317.1766"),
        ("GEODIST Sicily Palermo Catania x", "-ERR unsupported unit provided. please use M, KM, FT, MI"),
        ("GEOHASH Sicily Palermo nosuch", "*2 sqc8b49rny0 $-1"),
        ("GEOPOS Sicily Palermo nosuch", "*2 *2 13.36138933897018433 38.11555639549629859 *-1"),
        ("GEOADD Sicily 200 100 x", "-ERR invalid longitude,latitude pair 200.000000,100.000000"),
        ("GEOADD Sicily 1 2", "-ERR wrong number of arguments for 'geoadd' command"),
        ("GEOADD Sicily 1 2 x 3", "-ERR syntax error"),
    ]);
}

#[test]
fn searches_and_their_options() {
    let mut server = sicily();
    server.expect(&[
        ("GEORADIUS Sicily 15 37 200 km ASC", "*2 Catania Palermo"),
        ("GEORADIUS Sicily 15 37 200 km WITHDIST COUNT 1", "*1 *2 Catania 56.4413"),
        (
            "GEORADIUSBYMEMBER Sicily Palermo 100 km WITHHASH DESC",
            "*2 *2 edge1 :3479273021651468 *2 Palermo :3479099956230698",
        ),
        ("GEOSEARCH Sicily FROMLONLAT 15 37 BYBOX 400 400 km ASC", "*4 Catania Palermo edge2 edge1"),
        ("GEOSEARCH Sicily FROMMEMBER nosuch BYRADIUS 1 m", "-ERR could not decode requested zset member"),
        (
            "GEOSEARCH Sicily BYRADIUS 1 m WITHDIST ASC",
            "-ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GEOSEARCH",
        ),
        ("GEOSEARCH missing FROMMEMBER x BYRADIUS 1 m", "*0"),
        ("GEOSEARCHSTORE to Sicily FROMLONLAT 15 37 BYRADIUS 100 km STOREDIST", ":1"),
        ("ZRANGE to 0 -1", "*1 Catania"),
        ("GEORADIUS Sicily 15 37 200 km STORE first STORE to", ":2"),
        ("EXISTS first to", ":1"),
        ("GEORADIUS missing 15 37 200 km STORE to", ":0"),
        ("EXISTS to", ":0"),
        ("GEORADIUS_RO Sicily 15 37 200 km STORE to", "-ERR syntax error"),
        (
            "GEORADIUS Sicily 15 37 200 km STORE to WITHDIST",
            "-ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
        ),
    ]);
}
