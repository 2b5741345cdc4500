//! Geo commands.

use super::{Check, Generator, Step};

/// Number of keys that contain most places.
pub(super) const KEYS: usize = 4;

pub(super) fn key(number: usize) -> Vec<u8> {
    format!("geo:{number}").into_bytes()
}

impl Generator {
    pub(super) fn geo_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "GEOADD",
            "GEOADD",
            "GEOADD",
            "GEODIST",
            "GEOHASH",
            "GEOPOS",
            "GEORADIUS",
            "GEORADIUS_RO",
            "GEORADIUSBYMEMBER",
            "GEORADIUSBYMEMBER_RO",
            "GEOSEARCH",
            "GEOSEARCH",
            "GEOSEARCHSTORE",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        if name == "GEOSEARCHSTORE" {
            args.push(self.geo_key());
        }
        args.push(self.geo_key());
        match name {
            "GEOADD" => {
                if self.random.one_in(4) {
                    let option = *self.random.pick(&["NX", "XX", "CH"]);
                    args.push(self.word(option));
                }
                for _ in 0..self.random.below(5) + 1 {
                    self.place_on_earth(&mut args);
                    args.push(self.town());
                }
            }
            "GEODIST" => {
                args.push(self.town());
                args.push(self.town());
                if self.random.one_in(2) {
                    args.push(self.unit());
                }
            }
            "GEOHASH" | "GEOPOS" => {
                for _ in 0..self.random.below(5) {
                    args.push(self.town());
                }
            }
            _ => self.geo_search(name, &mut args),
        }
        Step::new(args, Check::Exact)
    }

    fn geo_key(&mut self) -> Vec<u8> {
        if self.random.one_in(15) { self.key() } else { key(self.random.below(KEYS)) }
    }

    fn town(&mut self) -> Vec<u8> {
        format!("town{}", self.random.below(60)).into_bytes()
    }

    /// Appends longitude and latitude: anywhere, in one small region, or at the map's edges.
    fn place_on_earth(&mut self, args: &mut Vec<Vec<u8>>) {
        let thousandth =
            |random: &mut crate::Random, low: i64, high: i64| random.between(low * 1000, high * 1000) as f64 / 1000.0;
        let (longitude, latitude) = match self.random.below(12) {
            0 => (
                *self.random.pick(&[-180.0, 180.0, 0.0, 181.0]),
                *self.random.pick(&[-85.05112878, 85.05112878, 0.0, 86.0]),
            ),
            1..=5 => (thousandth(&mut self.random, -180, 180), thousandth(&mut self.random, -85, 85)),
            _ => (13.0 + thousandth(&mut self.random, 0, 4), 36.0 + thousandth(&mut self.random, 0, 3)),
        };
        args.push(longitude.to_string().into_bytes());
        args.push(latitude.to_string().into_bytes());
    }

    fn unit(&mut self) -> Vec<u8> {
        let unit = *self.random.pick(&["m", "km", "km", "ft", "mi", "cm"]);
        self.word(unit)
    }

    /// Returns a length without its unit.
    fn length(&mut self) -> Vec<u8> {
        match self.random.below(10) {
            0 => self.float(),
            1 => b"0".to_vec(),
            2 => (self.random.below(25_000)).to_string().into_bytes(),
            _ => (self.random.below(4000) as f64 / 10.0).to_string().into_bytes(),
        }
    }

    fn geo_search(&mut self, name: &str, args: &mut Vec<Vec<u8>>) {
        if name.starts_with("GEOSEARCH") {
            self.middle_and_shape(args);
        } else {
            if name.starts_with("GEORADIUSBYMEMBER") {
                args.push(self.town());
            } else {
                self.place_on_earth(args);
            }
            args.push(self.length());
            args.push(self.unit());
        }
        let shows = !name.ends_with("STORE") || self.random.one_in(10);
        let mut stores = false;
        for _ in 0..self.random.below(4) {
            let option =
                *self.random.pick(&["WITHDIST", "WITHHASH", "WITHCOORD", "COUNT", "COUNT", "ASC", "DESC", "STORE"]);
            match option {
                "COUNT" => {
                    args.push(self.word("COUNT"));
                    let count = self.random.between(-1, 12);
                    args.push(count.to_string().into_bytes());
                    if self.random.one_in(3) {
                        args.push(self.word("ANY"));
                    }
                }
                "STORE" if name.ends_with("STORE") => args.push(self.word("STOREDIST")),
                // A second STORE would be rejected, or override the first.
                "STORE" if !stores && name.starts_with("GEORADIUS") && self.random.one_in(2) => {
                    let word = *self.random.pick(&["STORE", "STOREDIST"]);
                    args.push(self.word(word));
                    args.push(self.geo_key());
                    stores = true;
                }
                "STORE" => {}
                "ASC" | "DESC" => args.push(self.word(option)),
                _ if shows => args.push(self.word(option)),
                _ => {}
            }
        }
    }

    fn middle_and_shape(&mut self, args: &mut Vec<Vec<u8>>) {
        for _ in 0..if self.random.one_in(20) { 2 } else { 1 } {
            if self.random.one_in(2) {
                args.push(self.word("FROMMEMBER"));
                args.push(self.town());
            } else {
                args.push(self.word("FROMLONLAT"));
                self.place_on_earth(args);
            }
        }
        for _ in 0..*self.random.pick(&[1, 1, 1, 1, 1, 1, 1, 1, 0, 2]) {
            let circle = self.random.one_in(2);
            args.push(self.word(if circle { "BYRADIUS" } else { "BYBOX" }));
            args.push(self.length());
            if !circle {
                args.push(self.length());
            }
            args.push(self.unit());
        }
    }
}
