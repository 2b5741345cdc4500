//! The Markdown report, `report.md`.

use super::super::results::{Results, WorkloadResult};
use super::{READING, Table, commands, host_lines, is_bad, remarks, tables};

pub(super) fn report(results: &Results) -> String {
    let mut text = String::from("# pantala-bench compare\n\n");
    if let Some(incomplete) = results.incomplete() {
        text.push_str(&format!("**{incomplete}**\n\n"));
    }
    for workload in &results.workloads {
        section(&mut text, workload);
    }
    text.push_str("## Reading this\n\n");
    READING.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    text.push_str("\n## Host\n\n| | |\n| --- | --- |\n");
    host_lines(results).iter().for_each(|(name, value)| text.push_str(&format!("| {name} | {} |\n", escaped(value))));
    text.push_str(
        "\n## Commands\n\nOf a cluster's processes the first one's; the others differ in port and folder. The folders are gone.\n\n",
    );
    for [workload, peer, version, processes, command] in commands(results) {
        text.push_str(&format!("- {workload}, {peer} ({version}; {processes} process(es)): `{command}`\n"));
    }
    text
}

fn section(text: &mut String, workload: &WorkloadResult) {
    text.push_str(&format!("## {}\n\n{}.\n\n", workload.name, workload.parameters));
    if !workload.source.is_empty() {
        text.push_str(&format!("Source: {}. ", workload.source));
    }
    text.push_str(&format!("Ours: {}.\n\n", workload.ours));
    for Table { head, rows } in tables(workload) {
        text.push_str(&format!("| {} |\n| --- |{}\n", head.join(" | "), " ---: |".repeat(head.len() - 1)));
        for row in rows {
            text.push('|');
            row.iter().for_each(|cell| text.push_str(&format!(" {} |", emphasized(&escaped(cell)))));
            text.push('\n');
        }
        text.push('\n');
    }
    for remark in remarks(workload) {
        text.push_str(&format!("- {}\n", emphasized(&escaped(&remark))));
    }
    text.push('\n');
}

/// Emphasizes cells that must not be overlooked.
fn emphasized(text: &str) -> String {
    if is_bad(text) { format!("**{text}**") } else { text.to_owned() }
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
