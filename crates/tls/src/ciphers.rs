//! Protocol versions and cipher suites, parsed from lists in OpenSSL's format.

use rustls::crypto::aws_lc_rs::cipher_suite as suites;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

use crate::options::Agreement;

/// A cipher suite of TLS 1.2: OpenSSL's name, the suite, and the keywords that select it.
type Known = (&'static str, SupportedCipherSuite, &'static [&'static str]);

/// The TLS 1.2 suites that rustls supports, in order of preference.
static TLS12: [Known; 6] = [
    (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        &["AECDSA", "ECDSA", "AES", "AES256", "AESGCM", "SHA384"],
    ),
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        &["AECDSA", "ECDSA", "AES", "AES128", "AESGCM", "SHA256"],
    ),
    (
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        &["AECDSA", "ECDSA", "CHACHA20", "SHA256"],
    ),
    (
        "ECDHE-RSA-AES256-GCM-SHA384",
        suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        &["ARSA", "AES", "AES256", "AESGCM", "SHA384"],
    ),
    (
        "ECDHE-RSA-AES128-GCM-SHA256",
        suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        &["ARSA", "AES", "AES128", "AESGCM", "SHA256"],
    ),
    (
        "ECDHE-RSA-CHACHA20-POLY1305",
        suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        &["ARSA", "CHACHA20", "SHA256"],
    ),
];

/// Keywords that select every suite in [`TLS12`], because all of these suites have these
/// properties.
const EVERY: [&str; 9] = ["ALL", "DEFAULT", "HIGH", "ECDHE", "EECDH", "KECDHE", "KEECDH", "TLSV1.2", "SECURE128"];

/// The suites of TLS 1.3, in order of preference.
static TLS13: [(&str, SupportedCipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", suites::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", suites::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", suites::TLS13_CHACHA20_POLY1305_SHA256),
];

/// Returns the protocol versions of `tls-protocols`.
///
/// # Errors
/// A version is unknown, or older than TLS 1.2.
pub fn versions(protocols: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut found = Vec::new();
    for name in protocols.split_whitespace() {
        if name.eq_ignore_ascii_case("TLSv1.3") {
            found.push(&version::TLS13);
        } else if name.eq_ignore_ascii_case("TLSv1.2") {
            found.push(&version::TLS12);
        } else if ["TLSv1", "TLSv1.1"].iter().any(|old| name.eq_ignore_ascii_case(old)) {
            return Err(format!(
                "'{name}' in tls-protocols is not supported: it is insecure. Use 'TLSv1.2', 'TLSv1.3' or both"
            ));
        } else {
            return Err(format!(
                "Invalid tls-protocols specified: '{name}'. Use a combination of 'TLSv1.2' and 'TLSv1.3'"
            ));
        }
    }
    if found.is_empty() {
        found = vec![&version::TLS12, &version::TLS13];
    }
    Ok(found)
}

/// Returns the cipher suites of `tls-ciphers` and `tls-ciphersuites`.
///
/// # Errors
/// A list names a suite that rustls doesn't support, or `tls-ciphers` selects no suite.
pub fn cipher_suites(agreement: &Agreement) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut all = tls13(&agreement.ciphersuites)?;
    all.extend(tls12(&agreement.ciphers)?);
    Ok(all)
}

fn tls13(list: &str) -> Result<Vec<SupportedCipherSuite>, String> {
    if list.is_empty() {
        return Ok(TLS13.iter().map(|(_, suite)| *suite).collect());
    }
    let find = |name: &str| {
        let known = TLS13.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, suite)| *suite).ok_or_else(|| {
            let names = TLS13.map(|(name, _)| name).join(", ");
            format!("'{name}' in tls-ciphersuites is not supported. Supported are {names}")
        })
    };
    let found: Vec<_> = list.split(':').filter(|name| !name.is_empty()).map(find).collect::<Result<_, _>>()?;
    if found.is_empty() { Err(format!("Failed to configure ciphersuites: {list}")) } else { Ok(found) }
}

/// Returns whether a word of the list (keywords joined by `+`) selects a suite. Returns `None` if a
/// keyword is unknown.
fn selects(word: &str, known: &Known) -> Option<bool> {
    let mut selected = true;
    for keyword in word.split('+') {
        let keyword = keyword.to_ascii_uppercase();
        if EVERY.contains(&keyword.as_str()) {
            continue;
        }
        let is_known = TLS12.iter().any(|(name, _, tags)| *name == keyword || tags.contains(&keyword.as_str()));
        if !is_known {
            return None;
        }
        selected &= known.0 == keyword || known.2.contains(&keyword.as_str());
    }
    Some(selected)
}

/// Parses a list in OpenSSL's format. A word without a sign adds suites. A word after `-` removes
/// suites. A word after `!` removes suites for good, so that later words can't add them. A word
/// after `+` moves suites to the end. An unknown suite can be removed or moved, without effect. But
/// adding an unknown suite is an error, because a client that needs it would fail.
fn tls12(list: &str) -> Result<Vec<SupportedCipherSuite>, String> {
    let (mut chosen, mut banned): (Vec<&Known>, Vec<&str>) = (Vec::new(), Vec::new());
    let list = if list.trim().is_empty() { "DEFAULT" } else { list };
    for word in list.split([':', ',', ' ']).filter(|word| !word.is_empty() && *word != "@STRENGTH") {
        let (sign, word) = match word.split_at(1) {
            (sign @ ("!" | "-" | "+"), rest) => (sign, rest),
            _ => ("", word),
        };
        let picked: Option<Vec<&Known>> = TLS12
            .iter()
            .map(|known| Some((selects(word, known)?, known)))
            .collect::<Option<Vec<_>>>()
            .map(|all| all.into_iter().filter(|(is_selected, _)| *is_selected).map(|(_, known)| known).collect());
        match (sign, picked) {
            ("", None) => {
                return Err(format!(
                    "'{word}' in tls-ciphers is not supported: only suites with forward secrecy and authenticated \
                     encryption are, such as {}",
                    TLS12.map(|(name, ..)| name).join(", ")
                ));
            }
            ("", Some(picked)) => {
                let is_new =
                    |known: &&Known| !chosen.iter().any(|have| have.0 == known.0) && !banned.contains(&known.0);
                let new: Vec<_> = picked.into_iter().filter(is_new).collect();
                chosen.extend(new);
            }
            (_, None) => {}
            ("+", Some(picked)) => {
                let (moved, kept): (Vec<_>, Vec<_>) =
                    chosen.into_iter().partition(|have| picked.iter().any(|known| known.0 == have.0));
                chosen = kept;
                chosen.extend(moved);
            }
            (sign, Some(picked)) => {
                chosen.retain(|have| !picked.iter().any(|known| known.0 == have.0));
                if sign == "!" {
                    banned.extend(picked.iter().map(|known| known.0));
                }
            }
        }
    }
    if chosen.is_empty() {
        return Err(format!("'{list}' in tls-ciphers selects no supported cipher suite"));
    }
    Ok(chosen.into_iter().map(|known| known.1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Result<Vec<&'static str>, String> {
        let name = |suite: SupportedCipherSuite| TLS12.iter().find(|known| known.1 == suite).expect("known").0;
        tls12(list).map(|suites| suites.into_iter().map(name).collect())
    }

    #[test]
    fn openssl_lists_select_the_named_suites() {
        assert_eq!(names("").expect("all").len(), 6);
        assert_eq!(names("HIGH:!aNULL:!MD5").expect("all").len(), 6);
        // Keywords that in OpenSSL also stand for suites that rustls doesn't support.
        assert_eq!(["ALL", "DEFAULT", "aRSA", "AES"].map(|list| names(list).expect(list).len()), [6, 6, 3, 4]);
        assert_eq!(names("ECDHE+AESGCM:!AES128").expect("two").len(), 2);
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384").expect("both"),
            ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]
        );
        assert_eq!(names("DEFAULT:-CHACHA20:+ECDSA").expect("four")[2], "ECDHE-ECDSA-AES256-GCM-SHA384");
        assert_eq!(names("!CHACHA20:DEFAULT").expect("four").len(), 4, "banned for good");
        for refused in ["AES128-SHA", "kRSA", "HIGH:AES+kRSA", "DHE-RSA-AES256-GCM-SHA384", "DEFAULT:MEDIUM", "!ALL"] {
            let wrong = names(refused).expect_err(refused);
            assert!(wrong.contains("tls-ciphers"), "{wrong}");
        }
    }

    #[test]
    fn tls13_suites_and_versions_are_named_exactly() {
        assert_eq!(tls13("TLS_AES_128_GCM_SHA256").expect("one"), [suites::TLS13_AES_128_GCM_SHA256]);
        assert_eq!(tls13("").expect("all").len(), 3);
        assert!(tls13("TLS_AES_128_CCM_SHA256").expect_err("unknown").contains("TLS_AES_256_GCM_SHA384"));
        assert!(tls13(":").expect_err("none").contains("ciphersuites"));
        assert_eq!(versions("").expect("both").len(), 2);
        assert_eq!(versions("tlsv1.3").expect("one"), [&version::TLS13]);
        assert!(versions("TLSv1.1 TLSv1.2").expect_err("old").contains("'TLSv1.1'"));
        assert!(versions("SSLv3").expect_err("unknown").contains("'SSLv3'"));
    }
}
