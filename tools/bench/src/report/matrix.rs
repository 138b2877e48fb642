// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures of part `scale` as a table: a line for each load, a column for each quantity.

use std::array;

use super::table::{align, bytes, number};
use crate::figure::{Key, Report, Shape};
use crate::scale::Quantity;

/// Path, message size and shape of a load: common to the figures of a line.
type Load<'a> = (&'a str, Option<u64>, Shape);

/// Columns that describe the load.
const LOAD: [&str; 5] = ["path", "size", "guests", "QPs", "workers"];
const COLUMNS: usize = LOAD.len() + Quantity::ALL.len();

pub fn heads() -> [&'static str; COLUMNS] {
    let quantities = Quantity::ALL.map(Quantity::head);
    array::from_fn(|column| match column.checked_sub(LOAD.len()) {
        None => LOAD[column],
        Some(quantity) => quantities[quantity],
    })
}

/// The cells of each line.
pub fn cells(report: &Report) -> Vec<[String; COLUMNS]> {
    let mut loads = Vec::new();
    for figure in &report.figures {
        if let Some(load) = load(&figure.key).filter(|load| !loads.contains(load)) {
            loads.push(load);
        }
    }
    let value = |of, quantity: Quantity| {
        let is_it =
            |key: &Key| load(key).is_some_and(|load| load == of) && key.name == quantity.name();
        let mut figures = report.figures.iter();
        let found = figures.find(|figure| is_it(&figure.key));
        found.map_or_else(String::new, |figure| number(figure.samples.median()))
    };
    let line = |of| {
        let (path, size, shape): Load<'_> = of;
        let load = [
            path.to_owned(),
            size.map_or_else(String::new, bytes),
            shape.guests.to_string(),
            shape.qps.to_string(),
            shape.workers.to_string(),
        ];
        array::from_fn(|column| match column.checked_sub(LOAD.len()) {
            None => load[column].clone(),
            Some(quantity) => value(of, Quantity::ALL[quantity]),
        })
    };
    loads.into_iter().map(line).collect()
}

fn load(key: &Key) -> Option<Load<'_>> {
    Some((&key.configuration, key.size, key.shape?))
}

/// The table as text; empty without figures of part `scale`.
pub fn matrix(report: &Report) -> String {
    align(&heads(), cells(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_line() {
        let mut report = Report::default();
        for (qps, quantity, value) in [
            (1, Quantity::Rate, 9.5),
            (64, Quantity::Rate, 8.25),
            (1, Quantity::Memory, 4096.0),
        ] {
            let key = Key::new(quantity.name(), "direct", quantity.unit()).size(64);
            let shape = Some(Shape {
                guests: 2,
                qps,
                workers: 3,
            });
            report.add(Key { shape, ..key }, value);
        }
        report.add(Key::new("copy", "host", "MB/s").size(64), 7.0);
        let lines = cells(&report);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0][..6], ["direct", "64 B", "2", "1", "3", "9.50"]);
        assert_eq!(lines[0].last().unwrap(), "4096");
        assert_eq!(lines[1][3..6], ["64", "3", "8.25"]);
        assert_eq!(lines[1].last().unwrap(), "");
        assert_eq!(matrix(&report).lines().count(), 3);
        assert_eq!(matrix(&Report::default()), "");
    }
}
