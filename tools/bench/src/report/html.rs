// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures as one self-contained HTML page.

use std::fmt::Write as _;

use anyhow::Result;

use super::plot::pictures;
use super::table::{compared, number, APPENDIX, BESIDE, HEADS, WORDS};
use super::{beside, matrix, table};
use crate::figure::{Goal, Report};

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
    h1{font-size:1.7em}h2{font-size:1.25em;margin-top:2em}svg{max-width:100%;height:auto}\
    table{border-collapse:collapse;font-size:.85em}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left;\
    vertical-align:top}td.n{text-align:right;white-space:nowrap}.yes{color:#17702a;font-weight:bold}\
    .no{color:#b3152c;font-weight:bold}.none{color:#777}.error{color:#b3152c}.legend span{margin-right:1.2em;white-space:nowrap}";

const INTRODUCTION: &str =
    "virtio-rdma gives RDMA to virtual machines without RDMA hardware: a program in a machine \
    posts work to queues in its memory, and a daemon on the host, <i>virtio-rdmad</i>, does it. \
    Here two machines exchange data in several ways, one after the other and again and again in \
    one run, so that they can be compared:";

const WAYS: [(&str, &str); 6] = [
    ("direct", "virtio-rdma; one daemon serves both machines and copies from the memory of one to that of the other"),
    ("large folios", "the machines' kernels give programs memory in large pieces (multi-size THP); else page by page"),
    ("packets, two daemons", "virtio-rdma; each machine has a daemon of its own, and they exchange RoCEv2 packets"),
    ("rxe", "the RDMA device that Linux has in software, in the same machines, over their network"),
    ("TCP", "iperf3 over the same network"),
    ("memcpy", "one thread of the host that copies memory with libc and does nothing else"),
];

/// The HTML page of a report.
pub fn html(report: &Report) -> Result<String> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>virtio-rdma: figures</title><style>{STYLE}</style></head><body>\n\
         <h1>virtio-rdma: how fast it is</h1>\n<p>{INTRODUCTION}</p>\n<ul>\n"
    );
    for (name, text) in WAYS {
        let _ = writeln!(page, "<li><b>{name}</b>: {text}</li>");
    }
    page += "</ul>\n";
    for note in &report.notes {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    if !report.goals.is_empty() {
        page += "<h2>Goals</h2>\n<table><tr><th></th><th>what</th><th>is to reach</th><th>measured</th><th>where</th></tr>\n";
        for goal in &report.goals {
            page += &row(goal);
        }
        page += "</table>\n<p>Of several values the worst decides.</p>\n";
    }
    for picture in pictures(report)? {
        let _ = writeln!(page, "<h2>{}</h2>\n<p>{}</p>", picture.title, picture.text);
        page += "<p class=\"legend\">";
        for (color, name) in &picture.legend {
            let _ = write!(
                page,
                "<span><b style=\"color:{color}\">&#9644;</b> {}</span> ",
                escape(name)
            );
        }
        let _ = writeln!(page, "</p>\n{}", picture.svg);
    }
    if !report.failures.is_empty() {
        page += "<h2>What could not be measured</h2>\n<ul>\n";
        for failure in &report.failures {
            let log = failure.log.as_deref().map_or_else(String::new, |log| {
                format!(" (<code>{}</code>)", escape(log))
            });
            let _ = writeln!(
                page,
                "<li class=\"error\">{}: {}{log}</li>",
                escape(&failure.what),
                escape(&failure.error)
            );
        }
        page += "</ul>\n";
    }
    if let Some(comparison) = &report.comparison {
        page += "<h2>Beside the last release</h2>\n<ul>\n";
        for line in compared(comparison).lines() {
            let _ = writeln!(page, "<li>{}</li>", escape(line));
        }
        page += "</ul>\n";
    }
    page += &cells(
        "By guests, QPs and workers",
        &matrix::heads(),
        matrix::cells(report),
    );
    page += &cells(BESIDE, &beside::HEADS, beside::cells(report));
    let [own, baselines] = table::cells(report);
    page += &cells("All figures", &HEADS, own);
    page += &cells(APPENDIX, &HEADS, baselines);
    page += "</body></html>\n";
    Ok(page)
}

/// An HTML table; an empty text if there are no lines.
fn cells<const N: usize>(title: &str, heads: &[&str; N], lines: Vec<[String; N]>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = format!("<h2>{}</h2>\n<table><tr>", escape(title));
    for head in heads {
        let _ = write!(text, "<th>{}</th>", escape(head));
    }
    text += "</tr>\n";
    for line in lines {
        text += "<tr>";
        for (column, cell) in line.iter().enumerate() {
            let class = if column < WORDS { "" } else { " class=\"n\"" };
            let _ = write!(text, "<td{class}>{}</td>", escape(cell));
        }
        text += "</tr>\n";
    }
    text + "</table>\n"
}

fn row(goal: &Goal) -> String {
    let (class, mark) = match goal.reached {
        Some(true) => ("yes", "reached"),
        Some(false) => ("no", "falls short"),
        None => ("none", "not measured"),
    };
    format!(
        "<tr><td class=\"{class}\">{mark}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td>\
         <td>{}</td></tr>\n",
        escape(&goal.what),
        escape(&goal.needed),
        goal.value.map_or_else(String::new, number),
        escape(&goal.at)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Failure, Key};

    #[test]
    fn the_page_has_plots_figures_and_failures() {
        let mut report = Report::default();
        for size in [2, 65536, 8 << 20] {
            let key = Key::new("write bandwidth", "direct", "MB/s").size(size);
            report.add(key.clone(), size as f64 / 3.0);
            report.add(key, size as f64 / 2.0);
        }
        report.failures.push(Failure {
            what: "a < b".into(),
            error: "no & no".into(),
            log: Some("1.log".into()),
        });
        let page = html(&report).unwrap();
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(page.contains("8 MiB") && page.contains("WRITE, direct"));
        assert!(page.contains("a &lt; b: no &amp; no (<code>1.log</code>)"));
    }

    #[test]
    fn without_figures_there_are_no_plots() {
        assert!(!html(&Report::default()).unwrap().contains("<svg"));
    }
}
