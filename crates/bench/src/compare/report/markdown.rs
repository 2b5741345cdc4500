//! Writes the Markdown report, `report.md`.

use super::super::results::{PresetReport, Results, WorkloadResult};
use super::{READING, Table, commands, findings, host_lines, is_bad, preset_lines, remarks, tables};

pub(super) fn report(results: &Results) -> String {
    let mut text = String::from("# pantala-bench compare\n\n");
    if let Some(incomplete) = results.incomplete() {
        text.push_str(&format!("**{incomplete}**\n\n"));
    }
    results.preset.iter().for_each(|preset| preset_section(&mut text, preset));
    for workload in &results.workloads {
        section(&mut text, workload);
    }
    text.push_str("## Reading this\n\n");
    READING.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    text.push_str("\n## Host\n\n| | |\n| --- | --- |\n");
    host_lines(results).iter().for_each(|(name, value)| text.push_str(&format!("| {name} | {} |\n", escaped(value))));
    text.push_str(
        "\n## Commands\n\nFor a cluster, this is the command of its first process; the others differ in port and folder. The folders have been removed.\n\n",
    );
    for [workload, peer, version, processes, command] in commands(results) {
        text.push_str(&format!("- {workload}, {peer} ({version}; {processes} process(es)): `{command}`\n"));
    }
    text
}

fn preset_section(text: &mut String, preset: &PresetReport) {
    text.push_str(&format!("## Preset {}\n\n", preset.name));
    for (name, line) in preset_lines(preset) {
        text.push_str(&format!("- {name}: {line}\n"));
    }
    text.push_str("\n### The host\n\n");
    table(text, &findings(preset), " --- |");
}

fn section(text: &mut String, workload: &WorkloadResult) {
    text.push_str(&format!("## {}\n\n{}.\n\n", workload.name, workload.parameters));
    if !workload.source.is_empty() {
        text.push_str(&format!("Source: {}. ", workload.source));
    }
    text.push_str(&format!("Ours: {}.\n\n", workload.ours));
    tables(workload).iter().for_each(|rows| table(text, rows, " ---: |"));
    for remark in remarks(workload) {
        text.push_str(&format!("- {}\n", emphasized(&escaped(&remark))));
    }
    text.push('\n');
}

/// Writes a table. `mark` is the alignment of all columns except the first.
fn table(text: &mut String, Table { head, rows }: &Table, mark: &str) {
    let head: Vec<String> = head.iter().map(|name| escaped(name)).collect();
    text.push_str(&format!("| {} |\n| --- |{}\n", head.join(" | "), mark.repeat(head.len() - 1)));
    for row in rows {
        text.push('|');
        row.iter().for_each(|cell| text.push_str(&format!(" {} |", emphasized(&escaped(cell)))));
        text.push('\n');
    }
    text.push('\n');
}

/// Emphasizes a cell that marks a bad row.
fn emphasized(text: &str) -> String {
    if is_bad(text) { format!("**{text}**") } else { text.to_owned() }
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
