//! Writes `report.html`, a single file that refers to no other file.

use std::io;

use super::super::results::{PresetReport, Results, WorkloadResult};
use super::{READING, Table, commands, findings, host_lines, is_bad, plots, preset_lines, remarks, tables};

const STYLE: &str = "\
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2430; margin: 2rem auto; max-width: 1320px; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d5dae1; }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid #e4e8ee; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 1rem; margin: 1rem 0; }
.plots svg { width: 100%; height: auto; border: 1px solid #e4e8ee; }
.scroll { overflow-x: auto; } .small { color: #51606f; font-size: 13px; } .bad { color: #a61b1b; font-weight: 600; }
code { font-size: 12px; }
";

pub(super) fn report(results: &Results) -> io::Result<String> {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>pantala-bench compare</title>\n<style>\n{STYLE}</style></head>\n<body>\n<h1>pantala-bench compare</h1>\n"
    );
    if let Some(incomplete) = results.incomplete() {
        text.push_str(&format!("<p class=\"bad\">{incomplete}</p>\n"));
    }
    results.preset.iter().for_each(|preset| preset_section(&mut text, preset));
    for workload in &results.workloads {
        section(&mut text, workload)?;
    }
    text.push_str("<h2>Reading this</h2>\n<ul>\n");
    READING.iter().for_each(|line| text.push_str(&format!("<li>{}</li>\n", escaped(line))));
    text.push_str("</ul>\n<h2>Host</h2>\n<table>\n");
    for (name, value) in host_lines(results) {
        text.push_str(&format!("<tr><td>{name}</td><td class=\"text\">{}</td></tr>\n", escaped(&value)));
    }
    text.push_str("</table>\n<h2>Commands</h2>\n<p class=\"small\">For a cluster, this is the command of its first process; the others differ in port and folder. The folders have been removed.</p>\n<table>\n");
    text.push_str("<tr><th>workload</th><th>peer</th><th>version</th><th>processes</th><th>command</th></tr>\n");
    for row in commands(results) {
        text.push_str("<tr>");
        row[..4].iter().for_each(|cell| text.push_str(&format!("<td>{}</td>", escaped(cell))));
        text.push_str(&format!("<td class=\"text\"><code>{}</code></td></tr>\n", escaped(&row[4])));
    }
    text.push_str("</table>\n</body></html>\n");
    Ok(text)
}

fn preset_section(text: &mut String, preset: &PresetReport) {
    text.push_str(&format!("<h2>Preset {}</h2>\n<table>\n", escaped(preset.name)));
    for (name, line) in preset_lines(preset) {
        text.push_str(&format!("<tr><td>{name}</td><td class=\"text\">{}</td></tr>\n", escaped(&line)));
    }
    text.push_str("</table>\n<h3>The host</h3>\n<table>\n<tr>");
    let Table { head, rows } = findings(preset);
    head.iter().for_each(|name| text.push_str(&format!("<th>{name}</th>")));
    text.push_str("</tr>\n");
    for row in rows {
        text.push_str("<tr>");
        row.iter().for_each(|cell| text.push_str(&format!("<td class=\"text\">{}</td>", escaped(cell))));
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
}

fn section(text: &mut String, workload: &WorkloadResult) -> io::Result<()> {
    text.push_str(&format!(
        "<h2>{}</h2>\n<p>{}.</p>\n<p class=\"small\">",
        escaped(&workload.name),
        escaped(&workload.parameters)
    ));
    if !workload.source.is_empty() {
        text.push_str(&format!("Source: {}. ", escaped(&workload.source)));
    }
    text.push_str(&format!("Our choices: {}.</p>\n", escaped(&workload.ours)));
    for Table { head, rows } in tables(workload) {
        text.push_str("<div class=\"scroll\"><table>\n<tr>");
        head.iter().for_each(|name| text.push_str(&format!("<th>{}</th>", escaped(name))));
        text.push_str("</tr>\n");
        for row in rows {
            text.push_str("<tr>");
            for cell in row {
                let class = if is_bad(&cell) { " class=\"bad\"" } else { "" };
                text.push_str(&format!("<td{class}>{}</td>", escaped(&cell)));
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table></div>\n");
    }
    for remark in remarks(workload) {
        let class = if is_bad(&remark) { "bad" } else { "small" };
        text.push_str(&format!("<p class=\"{class}\">{}</p>\n", escaped(&remark)));
    }
    text.push_str("<div class=\"plots\">\n");
    for svg in plots::of(workload)? {
        text.push_str(&svg);
        text.push('\n');
    }
    text.push_str("</div>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
