//! Draws plots as SVG: bars with the spread over the rounds, and latency curves.

use std::error::Error;
use std::io;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::super::results::{PeerResult, Summary, WorkloadResult};
use super::{megabytes, microseconds, sweep, thousands};

/// Width of a plot, in SVG units.
const WIDTH: u32 = 620;
/// Height of a bar with its text. The rest of a bar plot has the height [`BARS_AROUND_HEIGHT`].
const BAR_HEIGHT: u32 = 52;
const BARS_AROUND_HEIGHT: u32 = 90;
const CURVES_HEIGHT: u32 = 320;
const FONT: &str = "sans-serif";
const TITLE_SIZE: i32 = 17;
const TEXT_SIZE: i32 = 13;
/// Colours that colour-blind people can distinguish.
const COLORS: &[RGBColor] = &[
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];
/// The number of nines at the right end of a latency curve: five nines are 99.999%.
const NINES_MAX: f64 = 5.0;

/// A bar of a plot.
struct Bar {
    /// Index of the peer, which determines the colour.
    peer: usize,
    text: String,
    value: f64,
    /// Minimum and maximum over the rounds.
    whisker: Option<(f64, f64)>,
    /// Length of the lighter bar that is drawn behind this bar.
    behind: f64,
}

/// A line of a plot.
pub(super) struct Line {
    /// Index of the peer, which determines the colour.
    pub(super) peer: usize,
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// The scale of a vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear, starting at zero.
    Linear,
    /// Logarithmic, so that the highest latencies stay visible.
    Logarithmic,
}

/// Returns all plots of a workload, or none if nothing was measured.
pub(super) fn of(workload: &WorkloadResult) -> io::Result<Vec<String>> {
    if sweep::is_swept(workload) {
        return sweep::plots(workload);
    }
    let measured: Vec<(usize, &PeerResult, &Summary)> = workload
        .peers
        .iter()
        .enumerate()
        .filter_map(|(at, peer)| peer.summary.as_ref().map(|summary| (at, peer, summary)))
        .collect();
    if measured.is_empty() {
        return footprints(workload);
    }
    let throughput = measured.iter().map(|(at, peer, summary)| {
        let s = &summary.operations_per_s;
        Bar {
            peer: *at,
            text: format!("{}: {}", peer.name, thousands(s.median)),
            value: s.median,
            whisker: Some((s.min, s.max)),
            behind: 0.0,
        }
    });
    let cpu = measured.iter().map(|(at, peer, summary)| {
        let s = &summary.cpu_us_per_operation;
        Bar {
            peer: *at,
            text: format!("{}: {:.2}", peer.name, s.median),
            value: s.median,
            whisker: Some((s.min, s.max)),
            behind: 0.0,
        }
    });
    let memory = measured.iter().map(|(at, peer, _)| Bar {
        peer: *at,
        text: format!(
            "{}: {}, at its peak {}",
            peer.name,
            megabytes(peer.resident_loaded_bytes),
            megabytes(peer.resident_peak_bytes)
        ),
        value: peer.resident_loaded_bytes as f64 / 1e6,
        whisker: None,
        behind: peer.resident_peak_bytes as f64 / 1e6,
    });
    let drawn = || -> Result<Vec<String>, Box<dyn Error>> {
        Ok(vec![
            bars("Throughput, operations/s", &throughput.collect::<Vec<_>>())?,
            bars("CPU of the server, µs per operation", &cpu.collect::<Vec<_>>())?,
            curves("Latency by percentile, µs", &measured)?,
            bars("Resident memory, MB", &memory.collect::<Vec<_>>())?,
        ])
    };
    drawn().map_err(|error| undrawn(&*error))
}

/// Plots the memory per collection, if it was measured.
fn footprints(workload: &WorkloadResult) -> io::Result<Vec<String>> {
    let bar = |(at, peer): (usize, &PeerResult)| {
        let each_bytes = peer.measured_footprint()?.each_bytes;
        let text = format!("{}: {each_bytes:.1}", peer.name);
        Some(Bar { peer: at, text, value: each_bytes.max(0.0), whisker: None, behind: 0.0 })
    };
    let measured_footprint: Vec<Bar> = workload.peers.iter().enumerate().filter_map(bar).collect();
    if measured_footprint.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![bars("Resident bytes each", &measured_footprint).map_err(|error| undrawn(&*error))?])
}

fn undrawn(error: &dyn Error) -> io::Error {
    io::Error::other(format!("a plot can't be drawn: {error}"))
}

fn color(peer: usize) -> RGBColor {
    COLORS[peer % COLORS.len()]
}

/// Draws bars with their texts above them.
fn bars(title: &str, bars: &[Bar]) -> Result<String, Box<dyn Error>> {
    let greatest = |bar: &Bar| bar.value.max(bar.behind).max(bar.whisker.map_or(0.0, |whisker| whisker.1));
    let end = bars.iter().map(greatest).fold(f64::MIN_POSITIVE, f64::max) * 1.04;
    let height = BARS_AROUND_HEIGHT + BAR_HEIGHT * bars.len() as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, (FONT, TITLE_SIZE))
            .margin(12)
            .margin_right(36)
            .x_label_area_size(26)
            .build_cartesian_2d(0.0..end, bars.len() as f64..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(6)
            .x_label_formatter(&|value| label(*value))
            .label_style((FONT, TEXT_SIZE))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (row, bar) in bars.iter().enumerate() {
            let row = row as f64;
            let (top, bottom) = (row + 0.44, row + 0.86);
            let full = color(bar.peer);
            if bar.behind > bar.value {
                chart.draw_series([Rectangle::new([(0.0, top), (bar.behind, bottom)], full.mix(0.35).filled())])?;
            }
            chart.draw_series([Rectangle::new([(0.0, top), (bar.value, bottom)], full.filled())])?;
            if let Some((min, max)) = bar.whisker.filter(|(min, max)| min < max) {
                let middle = f64::midpoint(top, bottom);
                for line in [
                    [(min, middle), (max, middle)],
                    [(min, top + 0.1), (min, bottom - 0.1)],
                    [(max, top + 0.1), (max, bottom - 0.1)],
                ] {
                    chart.draw_series([PathElement::new(line.to_vec(), BLACK.stroke_width(1))])?;
                }
            }
            chart.draw_series([Text::new(bar.text.clone(), (0.0, row + 0.12), (FONT, TEXT_SIZE + 1))])?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Plots latency over percentiles. Both axes are logarithmic, so that the tail is visible.
fn curves(title: &str, peers: &[(usize, &PeerResult, &Summary)]) -> Result<String, Box<dyn Error>> {
    let line = |(at, peer, _): &(usize, &PeerResult, &Summary)| {
        let nines = |quantile: f64| -(1.0 - quantile).max(1e-12).log10();
        let inside = peer.percentiles.iter().map(|(quantile, us)| (nines(*quantile), *us));
        Line { peer: *at, name: peer.name.clone(), points: inside.filter(|(nines, _)| *nines <= NINES_MAX).collect() }
    };
    let lines: Vec<Line> = peers.iter().map(line).collect();
    draw(title, Scale::Logarithmic, NINES_MAX, percentile, &lines)
}

/// Draws lines over the rate, in operations per second.
pub(super) fn over_rate(title: &str, scale: Scale, lines: &[Line]) -> io::Result<String> {
    let all = lines.iter().flat_map(|line| &line.points);
    let end = all.map(|(rate, _)| *rate).fold(1.0, f64::max) * 1.04;
    draw(title, scale, end, label, lines).map_err(|error| undrawn(&*error))
}

/// Draws lines over an axis from 0 to `end`, with a legend. The unit of the vertical axis is
/// microseconds.
fn draw(
    title: &str,
    scale: Scale,
    end: f64,
    format_x: fn(f64) -> String,
    lines: &[Line],
) -> Result<String, Box<dyn Error>> {
    let all: Vec<f64> = lines.iter().flat_map(|line| &line.points).map(|(_, us)| us.max(0.1)).collect();
    let low = all.iter().copied().fold(f64::MAX, f64::min).min(1e9) * 0.8;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, CURVES_HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut builder = ChartBuilder::on(&root);
        builder
            .caption(title, (FONT, TITLE_SIZE))
            .margin(12)
            .margin_right(36)
            .x_label_area_size(26)
            .y_label_area_size(66);
        match scale {
            Scale::Linear => {
                let high = all.iter().copied().fold(f64::MIN_POSITIVE, f64::max) * 1.1;
                let legend = SeriesLabelPosition::LowerLeft;
                draw_into(builder.build_cartesian_2d(0.0..end, 0.0..high)?, legend, format_x, lines)?;
            }
            Scale::Logarithmic => {
                let high = all.iter().copied().fold(low * 10.0, f64::max) * 1.25;
                let legend = SeriesLabelPosition::UpperLeft;
                draw_into(builder.build_cartesian_2d(0.0..end, (low..high).log_scale())?, legend, format_x, lines)?;
            }
        }
        root.present()?;
    }
    Ok(svg)
}

/// A chart whose vertical axis has the scale `Y`.
type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

fn draw_into<'a, 'b: 'a, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    mut chart: Chart<'a, 'b, Y>,
    legend: SeriesLabelPosition,
    format_x: fn(f64) -> String,
    lines: &[Line],
) -> Result<(), Box<dyn Error>> {
    chart
        .configure_mesh()
        .x_labels(6)
        .x_label_formatter(&|x| format_x(*x))
        .y_label_formatter(&|us| microseconds(*us))
        .label_style((FONT, TEXT_SIZE))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for line in lines {
        let style = color(line.peer).stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().map(|(x, us)| (*x, us.max(0.1))), style))?
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, TEXT_SIZE))
        .draw()?;
    Ok(())
}

/// Formats a label of an axis.
fn label(value: f64) -> String {
    if value >= 10.0 {
        return thousands(value);
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a number of nines as a percentile: 1 as 90%, 2 as 99%.
fn percentile(nines: f64) -> String {
    let digits = (nines.round() as usize).saturating_sub(2);
    if nines < 0.5 { "0%".to_owned() } else { format!("{:.digits$}%", 100.0 * (1.0 - 10f64.powf(-nines))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        assert_eq!([0.0, 1.0, 2.0, 3.0, 4.0].map(percentile), ["0%", "90%", "99%", "99.9%", "99.99%"]);
        assert_eq!([0.0, 0.25, 5.0, 20_000.0].map(label), ["0", "0.25", "5", "20,000"]);
    }
}
