// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Goals for the figures: ratios of figures of one run.

use std::ops::RangeInclusive;

use super::table::bytes;
use crate::device::{ALONE, APART, CRC, FLOOR, HOST_APART, LATENCY, TCP};
use crate::figure::{Figure, Goal, Report};
use crate::host::MEMCPY;
use crate::run::{FIRST_COMPLETION, PER_PROCESSOR_SECOND, PROVIDER};
use crate::vm::instructions::KERNEL;

const KIB: u64 = 1 << 10;
const ANY: RangeInclusive<u64> = 0..=u64::MAX;
const TWO_BYTES: RangeInclusive<u64> = 2..=2;
const FROM_64_KIB: RangeInclusive<u64> = 64 * KIB..=u64::MAX;
/// The names of the figures of both directions of a stream.
const STREAMS: [&str; 2] = ["write bandwidth", "read bandwidth"];

/// The side of the limit on which a goal is reached.
#[derive(Clone, Copy)]
enum Side {
    AtLeast,
    AtMost,
}

use Side::{AtLeast, AtMost};

/// Measured ratios or values, each with the size or load at which it was measured.
type Found = Vec<(f64, String)>;

/// Evaluates a goal: the worst of the found values decides.
fn judge(what: &str, side: Side, limit: f64, of: &str, found: Found) -> Goal {
    let worse = |one: f64, other: f64| match side {
        AtLeast => one < other,
        AtMost => one > other,
    };
    let worst = found
        .into_iter()
        .reduce(|one, other| if worse(other.0, one.0) { other } else { one });
    let word = match side {
        AtLeast => "at least",
        AtMost => "at most",
    };
    Goal {
        what: what.to_owned(),
        needed: format!("{word} {limit} {of}"),
        value: worst.as_ref().map(|worst| worst.0),
        reached: worst.as_ref().map(|worst| !worse(worst.0, limit)),
        at: worst.map_or_else(String::new, |worst| worst.1),
    }
}

/// The figures with this name and configuration.
#[derive(Clone, Copy)]
struct Of<'a>(&'a str, &'a str);

impl<'a> Of<'a> {
    fn figures(self, report: &'a Report) -> impl Iterator<Item = &'a Figure> {
        report.figures.iter().filter(move |figure| {
            (&*figure.key.name, &*figure.key.configuration) == (self.0, self.1)
        })
    }
}

/// Ratios of the figures `of` to the figures `to` with the same size and count and, if both have
/// one, the same way of measuring.
fn ratios<'a>(report: &'a Report, of: Of<'a>, to: Of<'a>, sizes: &RangeInclusive<u64>) -> Found {
    of.figures(report)
        .filter(|figure| figure.key.size.is_none_or(|size| sizes.contains(&size)))
        .filter_map(|figure| {
            let other = to.figures(report).find(|other| {
                let (one, other) = (&figure.key, &other.key);
                let ways_agree = one.how == other.how || other.how.is_empty() || one.how.is_empty();
                one.size == other.size && one.count == other.count && ways_agree
            })?;
            let ratio = figure.samples.median() / other.samples.median();
            let size = figure.key.size.map_or_else(String::new, bytes);
            Some((
                ratio,
                format!("{} {size} {}", figure.key.name, figure.key.how),
            ))
        })
        .collect()
}

/// The [ratios] for both directions of a stream. The figures' names end with `ending`.
fn stream_ratios(
    report: &Report,
    ending: &str,
    configuration: &str,
    to: impl Fn(&str) -> (String, String),
    sizes: &RangeInclusive<u64>,
) -> Found {
    STREAMS
        .iter()
        .flat_map(|stream| {
            let name = format!("{stream}{ending}");
            let (other, of) = to(&name);
            ratios(report, Of(&name, configuration), Of(&other, &of), sizes)
        })
        .collect()
}

/// Evaluates all goals.
pub fn goals(report: &Report) -> Vec<Goal> {
    let copies = |configuration, sizes| {
        let memcpy = |_: &str| (MEMCPY.to_owned(), "host".to_owned());
        stream_ratios(report, PER_PROCESSOR_SECOND, configuration, memcpy, sizes)
    };
    let rxe = |configuration, suffix: &str, sizes| {
        let same = |name: &str| (name.to_owned(), format!("rxe{suffix}"));
        stream_ratios(report, "", configuration, same, sizes)
    };
    let tcp = |configuration, suffix: &str, sizes| {
        let tcp = |_: &str| ("bandwidth".to_owned(), format!("TCP{suffix}"));
        stream_ratios(report, "", configuration, tcp, sizes)
    };
    let two = ", two daemons";
    let mut all = vec![
        judge(
            "WRITE, READ direct, bytes per CPU-second of the daemon, from 256 KiB",
            AtLeast,
            0.8,
            "× memcpy",
            copies("direct", &(256 * KIB..=u64::MAX)),
        ),
        judge(
            "the same where programs get large folios",
            AtLeast,
            0.8,
            "× memcpy",
            copies("direct, large folios", &(256 * KIB..=u64::MAX)),
        ),
        judge(
            "the same in pages, at 64 KiB",
            AtLeast,
            0.5,
            "× memcpy",
            copies("direct", &(64 * KIB..=64 * KIB)),
        ),
        judge(
            "WRITE, READ direct, wall clock, from 64 KiB",
            AtLeast,
            100.0,
            "× rxe",
            rxe("direct", "", &FROM_64_KIB),
        ),
        judge(
            "the same at every size",
            AtLeast,
            1.0,
            "× TCP",
            tcp("direct", "", &ANY),
        ),
        judge(
            "WRITE, READ as packets between two daemons, from 64 KiB",
            AtLeast,
            10.0,
            "× rxe",
            rxe("wire", two, &FROM_64_KIB),
        ),
        judge(
            "the same",
            AtLeast,
            1.0,
            "× TCP",
            tcp("wire", two, &FROM_64_KIB),
        ),
    ];
    for verb in ["write", "send"] {
        let [median, tail] = ["50 %", "99.9 %"].map(|part| format!("{verb} latency, {part}"));
        let what = format!("latency of a {verb} of 2 bytes, direct");
        let direct = Of(&median, "direct");
        all.push(judge(
            &what,
            AtMost,
            0.1,
            "× rxe",
            ratios(report, direct, Of(&median, "rxe"), &TWO_BYTES),
        ));
        all.push(judge(
            "its 99.9 %",
            AtMost,
            5.0,
            "× its median",
            ratios(report, Of(&tail, "direct"), direct, &TWO_BYTES),
        ));
    }
    let rate = "message rate by QPs";
    let mut rates = ratios(report, Of(rate, "direct"), Of(rate, "rxe"), &ANY);
    // Keep only the first rate, which is the rate with one QP.
    rates.truncate(1);
    all.push(judge(
        "rate of 64-byte WRITEs, direct, one QP",
        AtLeast,
        50.0,
        "× rxe",
        rates,
    ));
    all.extend(device_alone(report));
    all.push(judge(
        "registration of 1 GiB",
        AtMost,
        1.2,
        "× pinning",
        values(report, Of("registration over pinning", "direct")),
    ));
    all.push(judge(
        "insmod to port ACTIVE, own rings",
        AtMost,
        1.0,
        "s",
        values(report, Of("insmod to port ACTIVE", "direct")),
    ));
    all.push(judge(
        "start of two machines to the first completion",
        AtMost,
        3000.0,
        "ms",
        values(report, Of(FIRST_COMPLETION, "start")),
    ));
    all.push(judge(
        "creation of 4,096 QPs and CQs: the last over the first",
        AtMost,
        1.2,
        "×",
        values(
            report,
            Of("cost of the last QPs over that of the first", "direct"),
        ),
    ));
    all.push(judge(
        "system calls a message, polling",
        AtMost,
        0.0,
        "",
        values(report, Of("system calls a message", "direct")),
    ));
    for (what, limit) in [(PROVIDER, 230.0), (KERNEL, 820.0)] {
        let found = values(report, Of(what, "direct"));
        all.push(judge(what, AtMost, limit, "instructions", found));
    }
    all
}

/// Evaluates the goals of the device without virtual machines.
fn device_alone(report: &Report) -> Vec<Goal> {
    let direct = format!("{ALONE}direct");
    let messages = "messages over so many QPs";
    let mut rate = values(report, Of(messages, &direct));
    // Keep only the first rate, which is the rate with one QP.
    rate.truncate(1);
    let spread = |what: &str| {
        let rates = values(report, Of(what, &direct));
        let least = rates.iter().map(|rate| rate.0).fold(f64::MAX, f64::min);
        let most = rates.iter().map(|rate| rate.0).fold(0.0, f64::max);
        match rates.len() {
            0 | 1 => Found::new(),
            _ => vec![(least / most, "least over greatest".to_owned())],
        }
    };
    let pages = ["RDMA WRITE", "RDMA READ"].iter().flat_map(|name| {
        let apart = format!("{direct}, {APART}");
        ratios(
            report,
            Of(name, &apart),
            Of(FLOOR, HOST_APART),
            &FROM_64_KIB,
        )
    });
    let packets = ["RDMA WRITE", "RDMA READ"].iter().flat_map(|name| {
        let wire = format!("{ALONE}wire");
        let floor = Of(CRC, "host");
        let both = ratios(report, Of(name, &wire), floor, &(4 * KIB..=u64::MAX));
        // Double the ratio: in one daemon, the same thread copies the bytes and computes their CRC
        // for both ends.
        both.into_iter().map(|(ratio, at)| (2.0 * ratio, at))
    });
    let daemons = ["RDMA WRITE", "RDMA READ", "SEND"].iter().flat_map(|name| {
        let unix = format!("{ALONE}two daemons, Unix sockets");
        ratios(
            report,
            Of(name, &unix),
            Of(TCP, "host"),
            &(4 * KIB..=u64::MAX),
        )
    });
    vec![
        judge(
            "device alone, 64-byte WRITEs, direct, one QP",
            AtLeast,
            5.0,
            "M/s a core",
            rate,
        ),
        judge(
            "the same from 1 to 1,000 QPs",
            AtLeast,
            0.9,
            "flat",
            spread(messages),
        ),
        judge(
            "the same from 1 to 10,000 MRs",
            AtLeast,
            0.9,
            "flat",
            spread("messages over so many MRs"),
        ),
        judge(
            "device alone, direct, pages apart, from 64 KiB",
            AtLeast,
            0.8,
            "× memcpy page by page",
            pages.collect(),
        ),
        judge(
            "device alone, packets, each end, from 4 KiB",
            AtLeast,
            0.5,
            "× memcpy and CRC32",
            packets.collect(),
        ),
        judge(
            "device alone, packets between two daemons, Unix sockets, from 4 KiB",
            AtLeast,
            0.5,
            "× TCP over the loopback",
            daemons.collect(),
        ),
        judge(
            "half a round trip of 8 bytes, direct, worker with a CPU of its own",
            AtMost,
            1.0,
            "µs",
            values(report, Of(LATENCY, &direct)),
        ),
    ]
}

/// The medians of figures, instead of ratios.
fn values<'a>(report: &'a Report, of: Of<'a>) -> Found {
    of.figures(report)
        .map(|figure| {
            let at = figure
                .key
                .count
                .map_or_else(String::new, |count| count.to_string());
            (figure.samples.median(), at)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::figure::Key;

    fn goal<'a>(goals: &'a [Goal], what: &str) -> &'a Goal {
        goals
            .iter()
            .find(|goal| goal.what.starts_with(what))
            .unwrap()
    }

    #[test]
    fn the_worst_size_decides() {
        let mut report = Report::default();
        for (size, own, rxe) in [
            (4 * KIB, 1.0, 9.0),
            (64 * KIB, 2000.0, 10.0),
            (256 * KIB, 900.0, 10.0),
        ] {
            report.add(
                Key::new("write bandwidth", "direct", "MB/s").size(size),
                own,
            );
            report.add(Key::new("write bandwidth", "rxe", "MB/s").size(size), rxe);
        }
        let goals = goals(&report);
        let found = goal(&goals, "WRITE, READ direct, wall clock");
        assert_eq!((found.value, found.reached), (Some(90.0), Some(false)));
        assert!(found.at.contains("256 KiB"), "{}", found.at);
    }

    #[test]
    fn polling_is_not_held_against_events() {
        let mut report = Report::default();
        let mut add = |configuration, how: &str, value| {
            let key = Key::new("send latency, 50 %", configuration, "µs").size(2);
            report.add(
                Key {
                    how: how.to_owned(),
                    ..key
                },
                value,
            );
        };
        add("direct", "events", 40.0);
        add("rxe", "polling", 10.0);
        add("rxe", "events", 800.0);
        let goals = goals(&report);
        let found = goal(&goals, "latency of a send");
        assert_eq!((found.value, found.reached), (Some(0.05), Some(true)));
    }

    #[test]
    fn a_run_of_the_device_decides_its_goals() {
        let mut report = Report::default();
        for key in device::keys() {
            report.add(key, 1.0);
        }
        for goal in device_alone(&report) {
            // Latency is measured only if a processor can be given to a worker.
            assert!(
                goal.value.is_some() || goal.what.starts_with("half a round trip"),
                "{}",
                goal.what
            );
        }
    }

    #[test]
    fn what_was_not_measured_is_not_reached() {
        for goal in goals(&Report::default()) {
            assert_eq!((goal.value, goal.reached), (None, None), "{}", goal.what);
        }
    }
}
