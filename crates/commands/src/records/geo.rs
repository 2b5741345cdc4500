//! The records of the geo commands.

use pantala_engine::command::{
    Acl, Argument, ArgumentKind, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route,
};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    GEOADD,
    GEODIST,
    GEOHASH,
    GEOPOS,
    GEORADIUS,
    GEORADIUS_RO,
    GEORADIUSBYMEMBER,
    GEORADIUSBYMEMBER_RO,
    GEOSEARCH,
    GEOSEARCHSTORE,
];

/// Common fields of these commands: their keys determine the shards.
const GEO: Command = Command { group: "geo", acl: Acl::GEO, route: Route::Keys, ..Command::BLANK };

pub(crate) const GEOADD: Command = Command {
    name: "geoadd",
    full_name: "geoadd",
    summary: "Adds members with coordinates to a sorted set, or updates their coordinates",
    since: "3.2.0",
    complexity: "O(log N) per member, N: size of the set",
    history: &[("6.2.0", "Options `CH`, `NX`, `XX`")],
    arity: -5,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of("condition", &[Argument::word("nx", "NX"), Argument::word("xx", "XX")])
            .since("6.2.0")
            .optional(),
        Argument::word("change", "CH").since("6.2.0").optional(),
        Argument::block(
            "longitude_latitude_member",
            &[
                Argument::new("longitude", ArgumentKind::Double),
                Argument::new("latitude", ArgumentKind::Double),
                Argument::string("member"),
            ],
        )
        .multiple(),
    ],
    handler: Handler::Keyed(crate::geo::geoadd),
    ..GEO
};

pub(crate) const GEODIST: Command = Command {
    name: "geodist",
    full_name: "geodist",
    summary: "Returns the distance between two members",
    since: "3.2.0",
    complexity: "O(1)",
    arity: -4,
    flags: flags![READONLY, PLAIN],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("member1"),
        Argument::string("member2"),
        Argument::one_of(
            "unit",
            &[
                Argument::word("m", "M"),
                Argument::word("km", "KM"),
                Argument::word("ft", "FT"),
                Argument::word("mi", "MI"),
            ],
        )
        .optional(),
    ],
    handler: Handler::Keyed(crate::geo::geodist),
    ..GEO
};

pub(crate) const GEOHASH: Command = Command {
    name: "geohash",
    full_name: "geohash",
    summary: "Returns the geohashes of members as strings",
    since: "3.2.0",
    complexity: "O(1) per member",
    arity: -2,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::geo::geohash),
    ..GEO
};

pub(crate) const GEOPOS: Command = Command {
    name: "geopos",
    full_name: "geopos",
    summary: "Returns the longitude and latitude of members",
    since: "3.2.0",
    complexity: "O(1) per member",
    arity: -2,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::geo::geopos),
    ..GEO
};

pub(crate) const GEORADIUS: Command = Command {
    name: "georadius",
    full_name: "georadius",
    summary: "Returns or stores the members within a distance of a point",
    since: "3.2.0",
    complexity: "O(N + log M), N: members in the boxes around the circle, M: size of the set",
    history: &[("6.2.0", "Option `ANY` of `COUNT`"), ("7.0.0", "Units are case-insensitive")],
    deprecated: Some(("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS`")),
    arity: -6,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[
        KeySpec::at(1, &["RO", "access"]),
        KeySpec {
            notes: "",
            flags: &["OW", "update"],
            begin: BeginSearch::Keyword("STORE", 6),
            find: FindKeys::Range { last: 0, step: 1, limit: 0 },
        },
        KeySpec {
            notes: "",
            flags: &["OW", "update"],
            begin: BeginSearch::Keyword("STOREDIST", 6),
            find: FindKeys::Range { last: 0, step: 1, limit: 0 },
        },
    ],
    arguments: &[
        Argument::key("key", 0),
        Argument::new("longitude", ArgumentKind::Double),
        Argument::new("latitude", ArgumentKind::Double),
        Argument::new("radius", ArgumentKind::Double),
        Argument::one_of(
            "unit",
            &[
                Argument::word("m", "M"),
                Argument::word("km", "KM"),
                Argument::word("ft", "FT"),
                Argument::word("mi", "MI"),
            ],
        ),
        Argument::word("withcoord", "WITHCOORD").optional(),
        Argument::word("withdist", "WITHDIST").optional(),
        Argument::word("withhash", "WITHHASH").optional(),
        Argument::block(
            "count",
            &[Argument::integer("count").token("COUNT"), Argument::word("any", "ANY").since("6.2.0").optional()],
        )
        .optional(),
        Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional(),
        Argument::key("key", 1).token("STORE").optional(),
        Argument::key("key", 2).token("STOREDIST").optional(),
    ],
    route: Route::Custom(crate::geo::georadius_route),
    unnamed_keys: Some(crate::geo::georadius_destinations),
    handler: Handler::Keyed(crate::geo::georadius),
    ..GEO
};

pub(crate) const GEORADIUS_RO: Command = Command {
    name: "georadius_ro",
    full_name: "georadius_ro",
    summary: "Returns the members within a distance of a point",
    since: "3.2.10",
    complexity: "O(N + log M), N: members in the boxes around the circle, M: size of the set",
    history: &[("6.2.0", "Option `ANY` of `COUNT`")],
    deprecated: Some(("6.2.0", "`GEOSEARCH` with `BYRADIUS`")),
    arity: -6,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::new("longitude", ArgumentKind::Double),
        Argument::new("latitude", ArgumentKind::Double),
        Argument::new("radius", ArgumentKind::Double),
        Argument::one_of(
            "unit",
            &[
                Argument::word("m", "M"),
                Argument::word("km", "KM"),
                Argument::word("ft", "FT"),
                Argument::word("mi", "MI"),
            ],
        ),
        Argument::word("withcoord", "WITHCOORD").optional(),
        Argument::word("withdist", "WITHDIST").optional(),
        Argument::word("withhash", "WITHHASH").optional(),
        Argument::block(
            "count",
            &[Argument::integer("count").token("COUNT"), Argument::word("any", "ANY").since("6.2.0").optional()],
        )
        .optional(),
        Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional(),
    ],
    handler: Handler::Keyed(crate::geo::georadius_ro),
    ..GEO
};

pub(crate) const GEORADIUSBYMEMBER: Command = Command {
    name: "georadiusbymember",
    full_name: "georadiusbymember",
    summary: "Returns or stores the members within a distance of another member",
    since: "3.2.0",
    complexity: "O(N + log M), N: members in the boxes around the circle, M: size of the set",
    history: &[("7.0.0", "Units are case-insensitive")],
    deprecated: Some(("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS` and `FROMMEMBER`")),
    arity: -5,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[
        KeySpec::at(1, &["RO", "access"]),
        KeySpec {
            notes: "",
            flags: &["OW", "update"],
            begin: BeginSearch::Keyword("STORE", 5),
            find: FindKeys::Range { last: 0, step: 1, limit: 0 },
        },
        KeySpec {
            notes: "",
            flags: &["OW", "update"],
            begin: BeginSearch::Keyword("STOREDIST", 5),
            find: FindKeys::Range { last: 0, step: 1, limit: 0 },
        },
    ],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("member"),
        Argument::new("radius", ArgumentKind::Double),
        Argument::one_of(
            "unit",
            &[
                Argument::word("m", "M"),
                Argument::word("km", "KM"),
                Argument::word("ft", "FT"),
                Argument::word("mi", "MI"),
            ],
        ),
        Argument::word("withcoord", "WITHCOORD").optional(),
        Argument::word("withdist", "WITHDIST").optional(),
        Argument::word("withhash", "WITHHASH").optional(),
        Argument::block("count", &[Argument::integer("count").token("COUNT"), Argument::word("any", "ANY").optional()])
            .optional(),
        Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional(),
        Argument::key("key", 1).token("STORE").optional(),
        Argument::key("key", 2).token("STOREDIST").optional(),
    ],
    route: Route::Custom(crate::geo::georadius_route),
    unnamed_keys: Some(crate::geo::georadius_destinations),
    handler: Handler::Keyed(crate::geo::georadiusbymember),
    ..GEO
};

pub(crate) const GEORADIUSBYMEMBER_RO: Command = Command {
    name: "georadiusbymember_ro",
    full_name: "georadiusbymember_ro",
    summary: "Returns the members within a distance of another member",
    since: "3.2.10",
    complexity: "O(N + log M), N: members in the boxes around the circle, M: size of the set",
    deprecated: Some(("6.2.0", "`GEOSEARCH` with `BYRADIUS` and `FROMMEMBER`")),
    arity: -5,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("member"),
        Argument::new("radius", ArgumentKind::Double),
        Argument::one_of(
            "unit",
            &[
                Argument::word("m", "M"),
                Argument::word("km", "KM"),
                Argument::word("ft", "FT"),
                Argument::word("mi", "MI"),
            ],
        ),
        Argument::word("withcoord", "WITHCOORD").optional(),
        Argument::word("withdist", "WITHDIST").optional(),
        Argument::word("withhash", "WITHHASH").optional(),
        Argument::block("count", &[Argument::integer("count").token("COUNT"), Argument::word("any", "ANY").optional()])
            .optional(),
        Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional(),
    ],
    handler: Handler::Keyed(crate::geo::georadiusbymember_ro),
    ..GEO
};

pub(crate) const GEOSEARCH: Command = Command {
    name: "geosearch",
    full_name: "geosearch",
    summary: "Returns the members inside a circle or a box",
    since: "6.2.0",
    complexity: "O(N + log M), N: members in the boxes around the shape, M: size of the set",
    history: &[("7.0.0", "Units are case-insensitive")],
    arity: -7,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of(
            "from",
            &[
                Argument::string("member").token("FROMMEMBER"),
                Argument::block(
                    "longitude_latitude",
                    &[
                        Argument::new("longitude", ArgumentKind::Double),
                        Argument::new("latitude", ArgumentKind::Double),
                    ],
                )
                .token("FROMLONLAT"),
            ],
        ),
        Argument::one_of(
            "by",
            &[
                Argument::block(
                    "circle",
                    &[
                        Argument::new("radius", ArgumentKind::Double).token("BYRADIUS"),
                        Argument::one_of(
                            "unit",
                            &[
                                Argument::word("m", "M"),
                                Argument::word("km", "KM"),
                                Argument::word("ft", "FT"),
                                Argument::word("mi", "MI"),
                            ],
                        ),
                    ],
                ),
                Argument::block(
                    "box",
                    &[
                        Argument::new("width", ArgumentKind::Double).token("BYBOX"),
                        Argument::new("height", ArgumentKind::Double),
                        Argument::one_of(
                            "unit",
                            &[
                                Argument::word("m", "M"),
                                Argument::word("km", "KM"),
                                Argument::word("ft", "FT"),
                                Argument::word("mi", "MI"),
                            ],
                        ),
                    ],
                ),
            ],
        ),
        Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional(),
        Argument::block("count", &[Argument::integer("count").token("COUNT"), Argument::word("any", "ANY").optional()])
            .optional(),
        Argument::word("withcoord", "WITHCOORD").optional(),
        Argument::word("withdist", "WITHDIST").optional(),
        Argument::word("withhash", "WITHHASH").optional(),
    ],
    handler: Handler::Keyed(crate::geo::geosearch),
    ..GEO
};

pub(crate) const GEOSEARCHSTORE: Command = Command {
    name: "geosearchstore",
    full_name: "geosearchstore",
    summary: "Stores the members inside a circle or a box in another key",
    since: "6.2.0",
    complexity: "O(N + log M), N: members in the boxes around the shape, M: size of the set",
    history: &[("7.0.0", "Units are case-insensitive")],
    arity: -8,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["OW", "update"]), KeySpec::at(2, &["RO", "access"])],
    arguments: &[
        Argument::key("destination", 0),
        Argument::key("source", 1),
        Argument::one_of(
            "from",
            &[
                Argument::string("member").token("FROMMEMBER"),
                Argument::block(
                    "longitude_latitude",
                    &[
                        Argument::new("longitude", ArgumentKind::Double),
                        Argument::new("latitude", ArgumentKind::Double),
                    ],
                )
                .token("FROMLONLAT"),
            ],
        ),
        Argument::one_of(
            "by",
            &[
                Argument::block(
                    "circle",
                    &[
                        Argument::new("radius", ArgumentKind::Double).token("BYRADIUS"),
                        Argument::one_of(
                            "unit",
                            &[
                                Argument::word("m", "M"),
                                Argument::word("km", "KM"),
                                Argument::word("ft", "FT"),
                                Argument::word("mi", "MI"),
                            ],
                        ),
                    ],
                ),
                Argument::block(
                    "box",
                    &[
                        Argument::new("width", ArgumentKind::Double).token("BYBOX"),
                        Argument::new("height", ArgumentKind::Double),
                        Argument::one_of(
                            "unit",
                            &[
                                Argument::word("m", "M"),
                                Argument::word("km", "KM"),
                                Argument::word("ft", "FT"),
                                Argument::word("mi", "MI"),
                            ],
                        ),
                    ],
                ),
            ],
        ),
        Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional(),
        Argument::block("count", &[Argument::integer("count").token("COUNT"), Argument::word("any", "ANY").optional()])
            .optional(),
        Argument::word("storedist", "STOREDIST").optional(),
    ],
    handler: Handler::Keyed(crate::geo::geosearchstore),
    ..GEO
};
