// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Comparison of each figure of virtio-rdma with native figures of the same machine, for messages
//! of the same size.

use super::table::{bytes, number};
use crate::device::{ALONE, APART, CRC, FLOOR, HOST_APART, TCP};
use crate::figure::{Figure, Report};
use crate::host::{LOOPBACK, LOOPBACK_LATENCY, MEMCPY};
use crate::vm::is_own;

/// The heads of the columns.
pub const HEADS: [&str; 7] = [
    "what",
    "of",
    "size",
    "median",
    "× memcpy",
    "× memcpy and CRC",
    "× loopback TCP",
];

/// The cells of the table: a line for each figure with a comparator.
pub fn cells(report: &Report) -> Vec<[String; 7]> {
    report
        .figures
        .iter()
        .filter(|figure| is_own(&figure.key.configuration))
        .filter_map(|figure| line(report, figure))
        .collect()
}

fn line(report: &Report, figure: &Figure) -> Option<[String; 7]> {
    let Figure { key, samples } = figure;
    let size = key.size?;
    let is_apart = key.configuration.ends_with(APART);
    let host = if is_apart { HOST_APART } else { "host" };
    let others = match &*key.unit {
        "MB/s" if is_apart => [Some(FLOOR), None, None],
        // Part `device` has floors of its own. They copy between the simulated guests, in buffers
        // like those of the measured messages.
        "MB/s" if key.configuration.starts_with(ALONE) => [Some(FLOOR), Some(CRC), Some(TCP)],
        "MB/s" => [Some(MEMCPY), Some(CRC), Some(LOOPBACK)],
        "MB/CPU-s" => [Some(MEMCPY), Some(CRC), None],
        "µs" if key.name.ends_with(" 50 %") => [None, None, Some(LOOPBACK_LATENCY)],
        _ => return None,
    };
    let ratios = others.map(|name| {
        let mut figures = report.figures.iter();
        let other = figures.find(|figure| {
            let key = &figure.key;
            name == Some(&*key.name) && key.configuration == host && key.size == Some(size)
        });
        other.map(|other| samples.median() / other.samples.median())
    });
    ratios.iter().flatten().next()?;
    let [copy, crc, tcp] = ratios.map(|ratio| ratio.map_or_else(String::new, number));
    Some([
        key.what(),
        key.configuration.clone(),
        bytes(size),
        format!("{} {}", number(samples.median()), key.unit),
        copy,
        crc,
        tcp,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Key;

    #[test]
    fn comparators_have_the_same_size() {
        let mut report = Report::default();
        let mut add = |name: &str, of: &str, unit: &str, size, value| {
            report.add(Key::new(name, of, unit).size(size), value);
        };
        add("write bandwidth", "direct", "MB/s", 4096, 500.0);
        add("write bandwidth", "rxe", "MB/s", 4096, 5.0);
        add("write bandwidth", "direct", "MB/s", 2, 5.0);
        add("write latency, 50 %", "direct", "µs", 2, 12.0);
        add("write latency, 99 %", "direct", "µs", 2, 90.0);
        add("RDMA WRITE", "direct, pages apart", "MB/s", 4096, 400.0);
        add(FLOOR, "host, pages apart", "MB/s", 4096, 800.0);
        add(MEMCPY, "host", "MB/s", 4096, 1000.0);
        add(CRC, "host", "MB/s", 4096, 250.0);
        add(LOOPBACK, "host", "MB/s", 4096, 100.0);
        add(LOOPBACK_LATENCY, "host", "µs", 2, 6.0);
        let lines = cells(&report);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0][3..], ["500 MB/s", "0.50", "2.00", "5.00"]);
        assert_eq!(lines[1][3..], ["12.0 µs", "", "", "2.00"]);
        assert_eq!(lines[2][3..], ["400 MB/s", "0.50", "", ""]);
    }

    /// The floors of part `device` are those of its own figures, whether it runs alone or not.
    #[test]
    fn the_device_has_its_own_floors() {
        let mut report = Report::default();
        for key in crate::device::keys().filter(|key| key.unit == "MB/s") {
            report.add(key, 1.0);
        }
        report.add(Key::new(MEMCPY, "host", "MB/s").size(4096), 2.0);
        report.add(Key::new(LOOPBACK, "host", "MB/s").size(4096), 2.0);
        let mut lines = cells(&report);
        lines.retain(|line| line[2] == "4 KiB");
        // Three operations in four ways, and one beside idle ports.
        assert_eq!(lines.len(), 13);
        for line in lines {
            assert_eq!(line[4..], ["1.00", "1.00", "1.00"], "{line:?}");
        }
    }
}
