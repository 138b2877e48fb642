// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Parses a test program's report in the Kernel Test Anything Protocol.

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test passed.
    Passed,
    /// The test failed, with these remarks.
    Failed(Vec<String>),
    /// The test was skipped, for this reason.
    Skipped(String),
}

/// One test and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The name of the test.
    pub name: String,
    /// The result of the test.
    pub outcome: Outcome,
}

/// The results at one level of indentation since the last result line of the outer level.
#[derive(Default)]
struct Level {
    planned: Option<usize>,
    seen: usize,
    failed: bool,
}

/// A parser of a report.
#[derive(Default)]
pub struct Report {
    levels: Vec<Level>,
    remarks: Vec<String>,
    rest: Vec<u8>,
    /// The tests so far. A test with subtests is listed itself only if it failed and none of its
    /// subtests did.
    pub cases: Vec<Case>,
}

impl Report {
    /// Parses the next bytes of the report.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.line(String::from_utf8_lossy(&line).trim_end());
        }
    }

    /// Ends the report, with the status of the program that wrote it.
    pub fn finish(mut self, name: &str, status: Option<u8>) -> Vec<Case> {
        self.feed(b"\n");
        while let Some(level) = self.levels.pop() {
            self.check_plan(&level, name);
        }
        let failed = self
            .cases
            .iter()
            .any(|case| matches!(case.outcome, Outcome::Failed(_)));
        let what = match status {
            None => Some("it did not end".to_owned()),
            Some(0) if self.cases.is_empty() => Some("it reported no test".to_owned()),
            Some(0) => None,
            Some(_) if failed => None,
            Some(status) => Some(format!("it ended with status {status}")),
        };
        if let Some(what) = what {
            let remarks = std::mem::take(&mut self.remarks);
            self.fail(name, remarks.into_iter().chain([what]));
        }
        self.cases
    }

    fn fail(&mut self, name: &str, why: impl IntoIterator<Item = String>) {
        self.cases.push(Case {
            name: name.to_owned(),
            outcome: Outcome::Failed(why.into_iter().collect()),
        });
    }

    fn check_plan(&mut self, level: &Level, name: &str) {
        if let Some(planned) = level.planned.filter(|planned| *planned > level.seen) {
            self.fail(
                name,
                [format!("{planned} tests planned, {} run", level.seen)],
            );
        }
    }

    fn line(&mut self, line: &str) {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if let Some(result) = text.strip_prefix("ok ") {
            self.result(depth, result, true);
        } else if let Some(result) = text.strip_prefix("not ok ") {
            self.result(depth, result, false);
        } else if let Some(planned) = text.strip_prefix("1..") {
            self.level(depth).planned = planned.split(' ').next().and_then(|n| n.parse().ok());
        } else if text.starts_with("KTAP version") || text.starts_with("# Subtest:") {
            self.remarks.clear();
        } else if !text.is_empty() {
            self.remarks.push(text.to_owned());
        }
    }

    fn level(&mut self, depth: usize) -> &mut Level {
        if self.levels.len() <= depth {
            self.levels.resize_with(depth + 1, Level::default);
        }
        &mut self.levels[depth]
    }

    fn result(&mut self, depth: usize, text: &str, passed: bool) {
        let (text, directive) = text.split_once(" # ").unwrap_or((text, ""));
        let name = text
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .trim_start_matches([' ', '-']);
        let subtests = self.levels.split_off(self.levels.len().min(depth + 1));
        let level = self.level(depth);
        level.seen += 1;
        level.failed |= !passed;
        for sub in &subtests {
            self.check_plan(sub, name);
        }
        let remarks = std::mem::take(&mut self.remarks);
        let has_subtests = subtests.iter().any(|sub| sub.seen > 0);
        if has_subtests && (passed || subtests.iter().any(|sub| sub.failed)) {
            return;
        }
        let outcome = match directive.strip_prefix("SKIP") {
            Some(reason) => Outcome::Skipped(reason.trim().to_owned()),
            None if passed => Outcome::Passed,
            None => Outcome::Failed(remarks),
        };
        self.cases.push(Case {
            name: name.to_owned(),
            outcome,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(report: &str, status: Option<u8>) -> Vec<Case> {
        let mut reader = Report::default();
        // The output of a guest arrives in pieces too.
        for piece in report.as_bytes().chunks(7) {
            reader.feed(piece);
        }
        reader.finish("program", status)
    }

    fn failures(cases: &[Case]) -> Vec<&str> {
        cases
            .iter()
            .filter(|case| matches!(case.outcome, Outcome::Failed(_)))
            .map(|case| case.name.as_str())
            .collect()
    }

    #[test]
    fn results_skips_and_remarks() {
        let cases = read(
            "KTAP version 1\n1..3\nok 1 send\n# expected 1\n# got 2\nnot ok 2 write\n\
             ok 3 - read # SKIP not here\n",
            Some(1),
        );
        let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["send", "write", "read"]);
        assert_eq!(cases[0].outcome, Outcome::Passed);
        let remarks = vec!["# expected 1".to_owned(), "# got 2".to_owned()];
        assert_eq!(cases[1].outcome, Outcome::Failed(remarks));
        assert_eq!(cases[2].outcome, Outcome::Skipped("not here".into()));
    }

    #[test]
    fn a_test_with_subtests_counts_by_them() {
        let cases = read(
            "KTAP version 1\n1..2\n  KTAP version 1\n  1..2\n  ok 1 a\n  not ok 2 b\nnot ok 1 ab\n\
             \x20 KTAP version 1\n  1..1\n  ok 1 c\nnot ok 2 cleanup\n",
            Some(1),
        );
        assert_eq!(cases.len(), 4);
        assert_eq!(failures(&cases), ["b", "cleanup"]);
    }

    #[test]
    fn what_is_missing_is_a_failure() {
        assert_eq!(failures(&read("1..2\nok 1 a\n", Some(0))), ["program"]);
        assert_eq!(failures(&read("1..1\nok 1 a\n", None)), ["program"]);
        assert_eq!(failures(&read("1..1\nok 1 a\n", Some(3))), ["program"]);
        assert_eq!(failures(&read("", Some(0))), ["program"]);
        assert!(failures(&read("1..1\nok 1 a\n", Some(0))).is_empty());
        assert!(failures(&read("1..1\nok 1 a", Some(0))).is_empty());
    }
}
