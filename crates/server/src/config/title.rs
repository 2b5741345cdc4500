//! `proc-title-template`: the title of the process, as a text with variables in braces.

use super::settings::Settings;
use std::os::unix::ffi::OsStrExt;

/// Returns whether a template is valid: with these settings and an empty program name, its title
/// must not be empty. Redis makes the same check.
pub fn is_title_template(template: &[u8], settings: &Settings) -> bool {
    expand(template, |name| variable(settings, b"", b"", name)).is_some_and(|title| !title.is_empty())
}

/// Returns the title of a process that was started as `program` with the configuration file `file`.
/// Returns `None` if the settings disable titles.
pub fn process_title(settings: &Settings, program: &[u8], file: &[u8]) -> Option<Vec<u8>> {
    expand(settings.process.title_template.as_deref()?, |name| variable(settings, program, file, name))
}

/// Expands a template, and trims spaces from both ends. `variable` returns the value of a variable.
/// `{{` stands for `{`. Returns `None` if a name is unknown or a brace is not closed.
fn expand(template: &[u8], variable: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.iter().position(|byte| *byte == b'{') {
        text.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix(b"{") {
            text.push(b'{');
            rest = behind;
            continue;
        }
        let end = rest.iter().position(|byte| *byte == b'}')?;
        text.extend(variable(&rest[..end])?);
        rest = &rest[end + 1..];
    }
    text.extend_from_slice(rest);
    let start = text.iter().position(|byte| *byte != b' ').unwrap_or(text.len());
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(start, |last| last + 1);
    Some(text[start..end].to_vec())
}

/// Returns the value of a variable, or `None` if there is no such variable.
fn variable(settings: &Settings, program: &[u8], file: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let (port, tls_port) = (settings.port, settings.tls.port);
    let unixsocket = settings.unixsocket.as_ref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    Some(match name {
        b"title" => program.to_vec(),
        b"listen-addr" if port == 0 && tls_port == 0 => [b"unixsocket:", unixsocket].concat(),
        b"listen-addr" => {
            let address = settings.bind.first().map_or("*", String::as_str);
            format!("{address}:{}", if port == 0 { tls_port } else { port }).into_bytes()
        }
        b"server-mode" if settings.cluster_enabled => b"[cluster]".to_vec(),
        b"server-mode" => Vec::new(),
        b"port" => port.to_string().into_bytes(),
        b"tls-port" => tls_port.to_string().into_bytes(),
        b"unixsocket" => unixsocket.to_vec(),
        b"config-file" if file.is_empty() => b"-".to_vec(),
        b"config-file" => file.to_vec(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::values::Values;
    use super::*;

    /// The expected texts are those that redis-server 7.0.15 shows.
    #[test]
    fn templates_are_expanded_as_in_redis() {
        let mut settings = Settings::from_values(&Values::new());
        let shown = |settings: &mut Settings, template: &str| {
            settings.process.title_template = Some(template.into());
            process_title(settings, b"./server", b"").map(|title| String::from_utf8(title).expect("text"))
        };
        let all = "a {title} {listen-addr} {server-mode} {port} {tls-port} {unixsocket} {config-file} z";
        assert_eq!(shown(&mut settings, all).as_deref(), Some("a ./server *:6379  6379 0  - z"));
        for (template, title) in [
            ("title}", Some("title}")),
            ("x{{y}} {{{title}", Some("x{y}} {./server")),
            ("  x  ", Some("x")),
            ("{title} ", Some("./server")),
            ("{server-mode}", Some("")),
            ("{nope}", None),
            ("{}", None),
            ("{title", None),
            ("{", None),
            ("{{", Some("{")),
        ] {
            assert_eq!(shown(&mut settings, template).as_deref(), title, "{template}");
        }
        for (template, is_one) in [("", false), ("  ", false), ("{title}", false), ("{port}", true), ("{x", false)] {
            assert_eq!(is_title_template(template.as_bytes(), &settings), is_one, "{template}");
        }
        settings.port = 0;
        settings.unixsocket = Some("/run/s".into());
        assert_eq!(shown(&mut settings, "{listen-addr}").as_deref(), Some("unixsocket:/run/s"));
        (settings.tls.port, settings.bind, settings.cluster_enabled) = (7, vec!["::1".into()], true);
        assert_eq!(shown(&mut settings, "{listen-addr} {server-mode}").as_deref(), Some("::1:7 [cluster]"));
    }
}
