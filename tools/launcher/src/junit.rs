// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A command's result in JUnit's XML format for CI systems.

use crate::ktap::{Case, Outcome, Report};

/// Maximum length of a failed command's output in the report, in bytes.
const OUTPUT: usize = 64 << 10;

/// Collects a command's output.
#[derive(Default)]
pub struct Recorder {
    report: Report,
    output: Vec<u8>,
}

impl Recorder {
    /// Adds bytes of standard output or error.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.report.feed(bytes);
        self.output.extend(bytes);
        if self.output.len() > 2 * OUTPUT {
            self.output.drain(..self.output.len() - OUTPUT);
        }
    }

    /// The report of a command, with its status if it has ended, and its duration. For output in
    /// KTAP, the report has a test case for each test; otherwise the command is the test case. Each
    /// of the `rules` of scenarios is a test case, which is skipped if the rule has not applied.
    pub fn finish(
        mut self,
        name: &str,
        status: Option<u8>,
        wrong: &[String],
        rules: &[String],
        seconds: f64,
    ) -> String {
        let mut cases = if self.report.cases.is_empty() {
            let outcome = match status {
                Some(0) => Outcome::Passed,
                other => Outcome::Failed(self.said(other)),
            };
            vec![Case {
                name: name.to_owned(),
                outcome,
            }]
        } else {
            self.report.finish(name, status)
        };
        cases.extend(wrong.iter().map(|line| Case {
            name: "kernel log".into(),
            outcome: Outcome::Failed(vec![line.clone()]),
        }));
        cases.extend(rules.iter().map(|line| case_of_rule(line)));
        xml(name, &cases, rules, seconds)
    }

    fn said(&mut self, status: Option<u8>) -> Vec<String> {
        let status = status.map_or("it did not end".into(), |status| format!("status {status}"));
        let start = self.output.len().saturating_sub(OUTPUT);
        let output = String::from_utf8_lossy(&self.output[start..]);
        [status]
            .into_iter()
            .chain(output.lines().map(str::to_owned))
            .collect()
    }
}

/// The test case of a rule, of which `ctl chaos` has told `RULE: ...: applied to N of M`.
fn case_of_rule(line: &str) -> Case {
    let mut parts = line.splitn(3, ": ");
    let [port, rule] = [(); 2].map(|()| parts.next().unwrap_or_default());
    let counts = line.rsplit(": ").next().unwrap_or_default();
    Case {
        name: format!("{port}: rule {rule}"),
        outcome: match counts.starts_with("applied to 0 of ") {
            true => Outcome::Skipped(counts.to_owned()),
            false => Outcome::Passed,
        },
    }
}

/// The report, with what is said about the rules of scenarios.
fn xml(name: &str, cases: &[Case], rules: &[String], seconds: f64) -> String {
    let count = |is: fn(&Outcome) -> bool| cases.iter().filter(|case| is(&case.outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    let name = escape(name);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{name}\" \
         tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">\n",
        cases.len()
    );
    for case in cases {
        let head = format!(
            "<testcase classname=\"{name}\" name=\"{}\"",
            escape(&case.name)
        );
        match &case.outcome {
            Outcome::Passed => text += &format!("{head}/>\n"),
            Outcome::Skipped(why) => {
                let why = escape(why);
                text += &format!("{head}><skipped message=\"{why}\"/></testcase>\n");
            }
            Outcome::Failed(remarks) => {
                let first = escape(remarks.first().map_or("", |line| line));
                let all = escape(&remarks.join("\n"));
                text +=
                    &format!("{head}><failure message=\"{first}\">{all}</failure></testcase>\n");
            }
        }
    }
    if !rules.is_empty() {
        let said = escape(&rules.join("\n"));
        text += &format!("<system-out>{said}</system-out>\n");
    }
    text + "</testsuite>\n</testsuites>\n"
}

/// Escapes text for XML 1.0, which can't represent most control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_case() {
        let mut recorder = Recorder::default();
        recorder.feed(b"a < b\x1b[0m\n");
        let text = recorder.finish("sh -c \"x\"", Some(3), &[], &[], 1.5);
        assert!(text.contains("tests=\"1\" failures=\"1\" skipped=\"0\" time=\"1.500\""));
        assert!(text.contains("name=\"sh -c &quot;x&quot;\""));
        assert!(text.contains("message=\"status 3\">status 3\na &lt; b\u{fffd}[0m</failure>"));
    }

    #[test]
    fn tests_of_ktap_are_cases_and_kernels_too() {
        let mut recorder = Recorder::default();
        recorder.feed(b"KTAP version 1\n1..2\nok 1 one\nok 2 two # SKIP no\n");
        let wrong = ["VM 1: BUG: x".to_owned()];
        let text = recorder.finish("t", Some(0), &wrong, &[], 0.0);
        assert!(text.contains("tests=\"3\" failures=\"1\" skipped=\"1\""));
        assert!(text.contains("<testcase classname=\"t\" name=\"one\"/>"));
        assert!(text.contains("<skipped message=\"no\"/>"));
        assert!(text.contains("BUG: x"));
    }

    #[test]
    fn rules_are_cases_too() {
        let rules = [
            "port vm1: x: send any nth 2 then fail REM_OP_ERR: applied to 1 of 7, then DESTROY_QP \
             after 3 ms",
            "port vm2: x: send any nth 2 then fail REM_OP_ERR: applied to 0 of 1",
        ];
        let rules = rules.map(str::to_owned);
        let text = Recorder::default().finish("t", Some(0), &[], &rules, 0.0);
        assert!(text.contains("tests=\"3\" failures=\"0\" skipped=\"1\""));
        assert!(text.contains("<testcase classname=\"t\" name=\"port vm1: rule x\"/>"));
        let skipped = "port vm2: rule x\"><skipped message=\"applied to 0 of 1\"/>";
        assert!(text.contains(skipped));
        assert!(text.contains("then DESTROY_QP after 3 ms\nport vm2: x"));
    }

    #[test]
    fn output_is_bounded() {
        let mut recorder = Recorder::default();
        for _ in 0..100 {
            recorder.feed(&[b'x'; 8 << 10]);
        }
        assert!(recorder.output.len() <= 2 * OUTPUT);
        assert!(recorder.finish("t", None, &[], &[], 0.0).len() < 2 * OUTPUT);
    }
}
