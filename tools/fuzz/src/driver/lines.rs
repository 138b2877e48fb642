// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Line coverage, parsed from the lcov output of `llvm-cov export`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines with code in each file, and whether each was reached.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lines(BTreeMap<PathBuf, BTreeMap<u32, bool>>);

impl Lines {
    /// Parses the line records. `None` if a record is invalid.
    pub fn parse(lcov: &str) -> Option<Self> {
        let mut lines = Self::default();
        let mut file = None;
        for record in lcov.lines() {
            if let Some(path) = record.strip_prefix("SF:") {
                file = Some(lines.0.entry(path.into()).or_default());
            } else if let Some(data) = record.strip_prefix("DA:") {
                let mut fields = data.split(',');
                let line = fields.next()?.parse().ok()?;
                let count: u64 = fields.next()?.parse().ok()?;
                *file.as_mut()?.entry(line).or_default() |= count > 0;
            }
        }
        Some(lines)
    }

    /// Number of reached lines, and of all lines.
    pub fn count(&self) -> (usize, usize) {
        let all = || self.0.values().flat_map(BTreeMap::values);
        (all().filter(|reached| **reached).count(), all().count())
    }

    /// The lines of each file that were not reached.
    pub fn missed(&self) -> impl Iterator<Item = (&Path, Vec<u32>)> {
        self.0.iter().filter_map(|(path, lines)| {
            let missed = lines.iter().filter(|(_, reached)| !**reached);
            let missed: Vec<u32> = missed.map(|(line, _)| *line).collect();
            (!missed.is_empty()).then_some((path.as_path(), missed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_once_whatever_reaches_them() {
        let lcov = "SF:/a.rs\nDA:1,0\nDA:2,7\nDA:1,3\nDA:4,0\nend_of_record\nSF:/b.rs\nDA:1,0\n";
        let lines = Lines::parse(lcov).unwrap();
        assert_eq!(lines.count(), (2, 4));
        let missed: Vec<_> = lines.missed().collect();
        let expected = [("/a.rs", vec![4]), ("/b.rs", vec![1])];
        assert_eq!(
            missed,
            expected.map(|(path, lines)| (Path::new(path), lines))
        );
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for lcov in ["DA:1,2\n", "SF:/a.rs\nDA:1\n", "SF:/a.rs\nDA:x,1\n"] {
            assert_eq!(Lines::parse(lcov), None, "{lcov}");
        }
    }
}
