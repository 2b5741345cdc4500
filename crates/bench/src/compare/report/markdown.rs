//! `report.md`.

use super::super::results::{Results, WorkloadResult};
use super::{COLUMNS, READING, cells, commands, host_lines, remarks};

pub(super) fn report(results: &Results) -> String {
    let mut text = String::from("# pantala-bench compare\n\n");
    if results.interrupted {
        text.push_str("**It was interrupted: what follows is what was measured until then.**\n\n");
    }
    for workload in &results.workloads {
        section(&mut text, workload);
    }
    text.push_str("## Reading this\n\n");
    READING.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    text.push_str("\n## Host\n\n| | |\n| --- | --- |\n");
    host_lines(results).iter().for_each(|(name, value)| text.push_str(&format!("| {name} | {} |\n", escaped(value))));
    text.push_str(
        "\n## Commands\n\nOf a cluster's processes the first one's; the others differ in port and folder.\n\n",
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
    text.push_str("| peer |");
    COLUMNS.iter().for_each(|column| text.push_str(&format!(" {} |", column.0)));
    text.push_str("\n| --- |");
    text.push_str(&" ---: |".repeat(COLUMNS.len()));
    text.push('\n');
    for row in workload.peers.iter().filter_map(cells) {
        text.push('|');
        row.iter().for_each(|cell| text.push_str(&format!(" {} |", escaped(cell))));
        text.push('\n');
    }
    text.push('\n');
    for remark in workload.peers.iter().flat_map(remarks) {
        text.push_str(&format!("- {}\n", escaped(&remark)));
    }
    text.push('\n');
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
