// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures as plots, each an SVG picture.

use anyhow::{anyhow, Result};
use plotters::prelude::*;

use super::table::{bytes, number};
use crate::figure::{Figure, Report};
use crate::host::MEMCPY;
use crate::run::PER_PROCESSOR_SECOND;

const PICTURE: (u32, u32) = (860, 440);
/// Room for the axes' labels, in pixels.
const LABELS: u32 = 64;
const FONT: &str = "sans-serif";

/// The stroke of a line.
#[derive(Clone, Copy)]
enum Stroke {
    Solid,
    Dashed,
    Dotted,
}

/// A line of a plot.
struct Line {
    label: String,
    color: RGBColor,
    stroke: Stroke,
    /// The points: position on the axis, and least, median and greatest sample.
    points: Vec<(f64, [f64; 3])>,
}

/// The quantity along the horizontal axis.
#[derive(Clone, Copy)]
enum Across {
    Size,
    Count,
}

struct Plot {
    title: &'static str,
    /// An explanation for the reader.
    text: &'static str,
    across: Across,
    unit: &'static str,
    lines: Vec<Line>,
}

/// A picture of a plot, with its texts.
pub struct Picture {
    pub title: &'static str,
    /// An explanation for the reader.
    pub text: &'static str,
    /// The colour and the name of each line.
    pub legend: Vec<(String, String)>,
    /// The picture, as SVG.
    pub svg: String,
}

/// All plots for which there are figures.
pub fn pictures(report: &Report) -> Result<Vec<Picture>> {
    plots(report)
        .into_iter()
        .filter(|plot| plot.lines.iter().any(|line| !line.points.is_empty()))
        .map(|plot| {
            Ok(Picture {
                title: plot.title,
                text: plot.text,
                legend: plot.legend(),
                svg: plot.draw()?,
            })
        })
        .collect()
}

const BLUE: RGBColor = RGBColor(0x1f, 0x5f, 0xb4);
const LIGHT_BLUE: RGBColor = RGBColor(0x6a, 0xae, 0xe6);
const ORANGE: RGBColor = RGBColor(0xe6, 0x7e, 0x00);
const LIGHT_ORANGE: RGBColor = RGBColor(0xf5, 0xb8, 0x5c);
const CRIMSON: RGBColor = RGBColor(0xc2, 0x1f, 0x3a);
const ROSE: RGBColor = RGBColor(0xe8, 0x8a, 0x9a);
const OLIVE: RGBColor = RGBColor(0x2e, 0x8b, 0x3d);
const GREY: RGBColor = RGBColor(0x77, 0x77, 0x77);

/// A figure's name and configuration, and the label, the colour and the stroke of its line.
type Wanted<'a> = (&'a str, &'a str, &'a str, RGBColor, Stroke);

fn plots(report: &Report) -> Vec<Plot> {
    use Stroke::{Dashed, Dotted, Solid};
    let sizes = |wanted: &[Wanted<'_>], how: &str| -> Vec<Line> {
        wanted
            .iter()
            .map(|wanted| line(report, wanted, how, Across::Size))
            .collect()
    };
    let per_second = |stream: &str| format!("{stream}{PER_PROCESSOR_SECOND}");
    let (write, read) = ("write bandwidth", "read bandwidth");
    let mut plots = vec![
        Plot {
            title: "Bandwidth of one machine pair, wall clock",
            text: "One QP or connection in one direction. The bars are the least and the greatest of the samples. \
                   Higher is better.",
            across: Across::Size,
            unit: "MB/s",
            lines: sizes(
                &[
                    (write, "direct", "WRITE, direct", BLUE, Solid),
                    (read, "direct", "READ, direct", LIGHT_BLUE, Solid),
                    (write, "wire", "WRITE, packets, two daemons", ORANGE, Solid),
                    (read, "wire", "READ, packets, two daemons", LIGHT_ORANGE, Solid),
                    ("bandwidth", "TCP", "TCP", OLIVE, Solid),
                    (write, "rxe", "WRITE, rxe", CRIMSON, Solid),
                    (read, "rxe", "READ, rxe", ROSE, Solid),
                    (MEMCPY, "host", "memcpy by one thread of the host", GREY, Dashed),
                ],
                "",
            ),
        },
        Plot {
            title: "Bytes for each second of processor time that the daemon takes",
            text: "The cost of the device itself, whatever the emulated machines take beside it. The \
                   direct path can't be cheaper than the copy that it makes, the dashed line. Of \
                   rxe and TCP the daemon only forwards the packets: most of their cost is in the \
                   machines.",
            across: Across::Size,
            unit: "MB per CPU-second",
            lines: sizes(
                &[
                    (&per_second(write), "direct", "WRITE, direct", BLUE, Solid),
                    (&per_second(read), "direct", "READ, direct", LIGHT_BLUE, Solid),
                    (
                        &per_second(write),
                        "direct, large folios",
                        "WRITE, direct, large folios",
                        BLUE,
                        Dotted,
                    ),
                    (&per_second(write), "wire", "WRITE, packets, two daemons", ORANGE, Solid),
                    (&per_second(read), "wire", "READ, packets, two daemons", LIGHT_ORANGE, Solid),
                    (&per_second("bandwidth"), "TCP", "TCP, forwarded", OLIVE, Solid),
                    (&per_second(write), "rxe", "WRITE, rxe, forwarded", CRIMSON, Solid),
                    (MEMCPY, "host", "memcpy by one thread of the host", GREY, Dashed),
                ],
                "",
            ),
        },
    ];
    for (title, verb, how) in [
        (
            "Latency of WRITE, both sides poll",
            "write",
            "both sides poll",
        ),
        (
            "Latency of SEND, both sides poll",
            "send",
            "both sides poll",
        ),
        (
            "Latency of SEND, both sides sleep until an event comes",
            "send",
            "events",
        ),
    ] {
        let parts = ["50 %", "99 %", "99.9 %"].map(|part| format!("{verb} latency, {part}"));
        let [median, most, tail] = &parts;
        plots.push(Plot {
            title,
            text: "Half a round trip. Solid: the median; dashed: 99 % are faster; dotted: 99.9 % are. Lower is better.",
            across: Across::Size,
            unit: "µs",
            lines: sizes(
                &[
                    (median, "direct", "direct", BLUE, Solid),
                    (most, "direct", "", BLUE, Dashed),
                    (tail, "direct", "", BLUE, Dotted),
                    (median, "wire", "packets, two daemons", ORANGE, Solid),
                    (most, "wire", "", ORANGE, Dashed),
                    (tail, "wire", "", ORANGE, Dotted),
                    (median, "rxe", "rxe", CRIMSON, Solid),
                    (most, "rxe", "", CRIMSON, Dashed),
                    (tail, "rxe", "", CRIMSON, Dotted),
                ],
                how,
            ),
        });
    }
    let rate = "message rate by QPs";
    plots.push(Plot {
        title: "64-byte WRITEs a second, by the number of QPs that share them",
        text: "One process posts to all of them. Higher is better.",
        across: Across::Count,
        unit: "messages/s",
        lines: [
            (rate, "direct", "direct", BLUE, Solid),
            (rate, "wire", "packets, two daemons", ORANGE, Solid),
            (rate, "rxe", "rxe", CRIMSON, Solid),
        ]
        .iter()
        .map(|wanted| line(report, wanted, "", Across::Count))
        .collect(),
    });
    plots
}

fn line(report: &Report, wanted: &Wanted<'_>, how: &str, across: Across) -> Line {
    let (name, configuration, label, color, stroke) = *wanted;
    let place = |figure: &Figure| match across {
        Across::Size => figure.key.size,
        Across::Count => figure.key.count,
    };
    let mut points: Vec<_> = report
        .figures
        .iter()
        .filter(|figure| figure.key.name == name && figure.key.configuration == configuration)
        .filter(|figure| figure.key.how.contains(how))
        .filter_map(|figure| {
            let samples = &figure.samples;
            let values = [samples.min(), samples.median(), samples.max()];
            // The axis is logarithmic: powers of two are equidistant.
            Some(((place(figure)? as f64).log2(), values))
        })
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Line {
        label: label.to_owned(),
        color,
        stroke,
        points,
    }
}

impl Plot {
    /// The legend, which is placed beside the picture so that it hides no line.
    fn legend(&self) -> Vec<(String, String)> {
        self.lines
            .iter()
            .filter(|line| !line.points.is_empty() && !line.label.is_empty())
            .map(|line| {
                let RGBColor(red, green, blue) = line.color;
                let color = format!("#{red:02x}{green:02x}{blue:02x}");
                (color, line.label.clone())
            })
            .collect()
    }

    fn draw(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw_to(SVGBackend::with_string(&mut svg, PICTURE).into_drawing_area())
            .map_err(|error| anyhow!("can't draw {:?}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw_to<'a>(
        &self,
        area: DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
        let values = || self.lines.iter().flat_map(|line| &line.points);
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (left, right) = range(&mut values().map(|point| point.0));
        let (low, high) = range(&mut values().flat_map(|point| point.1));
        // Half a unit of room on both sides, so that a single point has a width too.
        let (left, right) = (left - 0.5, right + 0.5);
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .set_label_area_size(LabelAreaPosition::Left, LABELS + 10)
            .set_label_area_size(LabelAreaPosition::Bottom, LABELS / 2 + 8)
            .build_cartesian_2d(left..right, (low / 1.5..high * 1.5).log_scale())?;
        let along = |place: &f64| match place.fract().abs() < 1e-9 && *place >= 0.0 {
            true => label(self.across, *place),
            false => String::new(),
        };
        chart
            .configure_mesh()
            .x_labels(24)
            .x_label_formatter(&along)
            .y_label_formatter(&|value| digits(*value))
            .x_desc(match self.across {
                Across::Size => "bytes of a message (K: 1,024, M: 1,048,576)",
                Across::Count => "QPs",
            })
            .y_desc(self.unit)
            .label_style((FONT, 13))
            .axis_desc_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let (color, stroke) = (line.color, line.stroke);
            let style = color.stroke_width(2);
            let medians = line
                .points
                .iter()
                .map(|(place, values)| (*place, values[1]));
            match stroke {
                Stroke::Solid => chart.draw_series(LineSeries::new(medians, style))?,
                Stroke::Dashed => chart.draw_series(DashedLineSeries::new(medians, 7, 4, style))?,
                Stroke::Dotted => chart.draw_series(DashedLineSeries::new(medians, 2, 4, style))?,
            };
            if matches!(stroke, Stroke::Solid) {
                chart.draw_series(line.points.iter().map(|(place, [least, _, greatest])| {
                    let bar = [(*place, *least), (*place, *greatest)];
                    PathElement::new(bar, color.mix(0.45).stroke_width(3))
                }))?;
                let medians = line
                    .points
                    .iter()
                    .map(|(place, values)| (*place, values[1]));
                chart.draw_series(medians.map(|at| Circle::new(at, 3, color.filled())))?;
            }
        }
        area.present()
    }
}

fn label(across: Across, place: f64) -> String {
    let value = place.exp2().round() as u64;
    match across {
        // A short label, since every power of two has one.
        Across::Size => bytes(value).trim_end_matches(['i', 'B']).replace(' ', ""),
        Across::Count => value.to_string(),
    }
}

/// A value of the vertical axis, shortened with "k" or "M".
fn digits(value: f64) -> String {
    match value {
        millions if millions >= 1e6 => format!("{} M", millions / 1e6),
        thousands if thousands >= 1e4 => format!("{} k", thousands / 1e3),
        small if small >= 1.0 => format!("{small}"),
        least => number(least),
    }
}
