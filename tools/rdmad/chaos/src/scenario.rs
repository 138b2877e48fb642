// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The text of a scenario.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::rule::{
    Count, Rule, What, When, Word, ANY, MAX_WAIT, QP_EVENTS, RECEIVE_STATUSES, SEND_STATUSES,
};

/// Maximum number of rules: each event is compared with all of them.
pub(crate) const MAX_RULES: usize = 64;
/// The words before "then" that all rules may have.
const SELECTORS: &str = "port, nth, from, to, every, times, after";
/// Maximum length of the names of rules and ports in bytes.
const MAX_NAME: usize = 64;

/// The rules of a scenario, in the order of its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scenario(pub Vec<Rule>);

macro_rules! presets {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../presets/", $name, ".chaos")))),*]
    };
}

impl Scenario {
    /// The names and texts of scenarios that are known by their names.
    pub const PRESETS: &'static [(&'static str, &'static str)] = presets![
        "dying-peer",
        "flaky-link",
        "lossy-1pct",
        "reg-fails",
        "slow-commands",
        "slow-receiver"
    ];

    /// A name after which a rule waits, and which no rule of the scenario has.
    pub fn missing(&self) -> Option<&str> {
        self.0.iter().find_map(|rule| rule.missing(self.0.iter()))
    }

    /// The text of the scenario with this name.
    pub fn preset(name: &str) -> Option<&'static str> {
        let found = Self::PRESETS.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| *text)
    }
}

/// A mistake in the text of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {mistake}")]
pub struct ScenarioError {
    /// The line, from 1.
    pub line: usize,
    /// The column of the word in bytes, from 1.
    pub column: usize,
    pub mistake: String,
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let mut rules: Vec<Rule> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let words = Words::new(line, content);
            if words.rest.is_empty() {
                continue;
            }
            let first = words.column();
            let rule = rule(words)?;
            let told = |mistake| ScenarioError {
                line,
                column: first,
                mistake,
            };
            if rules.iter().any(|other| other.name == rule.name) {
                let name = &rule.name;
                return Err(told(format!("there is a rule {name:?} already")));
            }
            if rules.len() == MAX_RULES {
                return Err(told(format!("there are more than {MAX_RULES} rules")));
            }
            rules.push(rule);
        }
        Ok(Self(rules))
    }
}

/// The words of a line that were not read yet.
struct Words<'a> {
    line: usize,
    whole: &'a str,
    /// Begins with a word, or is empty.
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn new(line: usize, whole: &'a str) -> Self {
        let end = whole.find('#').unwrap_or(whole.len());
        let whole = whole[..end].trim_end();
        let rest = whole.trim_start();
        Self { line, whole, rest }
    }

    fn column(&self) -> usize {
        1 + self.whole.len() - self.rest.len()
    }

    /// A mistake at the next word.
    fn mistake<T>(&self, mistake: impl Into<String>) -> Result<T, ScenarioError> {
        Err(ScenarioError {
            line: self.line,
            column: self.column(),
            mistake: mistake.into(),
        })
    }

    fn peek(&self) -> &'a str {
        self.rest.split_whitespace().next().unwrap_or_default()
    }

    fn skip(&mut self) {
        self.rest = self.rest[self.peek().len()..].trim_start();
    }

    /// Reads the next word, which `of` converts.
    fn read<T>(
        &mut self,
        wanted: &str,
        of: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ScenarioError> {
        match of(self.peek()) {
            Some(value) => {
                self.skip();
                Ok(value)
            }
            None if self.rest.is_empty() => self.mistake(format!("{wanted} is missing")),
            None => self.mistake(format!("{:?} is not {wanted}", self.peek())),
        }
    }

    /// Reads a word of the ABI.
    fn word<W: Word>(&mut self, wanted: &str, all: &[W]) -> Result<W, ScenarioError> {
        let names: Vec<_> = all.iter().map(|value| value.word()).collect();
        let wanted = format!("{wanted}: {}", names.join(", "));
        self.read(&wanted, |word| {
            all.iter().copied().find(|value| value.word() == word)
        })
    }

    /// Reads a word of the ABI, or `any`.
    fn word_or_any<W: Word>(&mut self, wanted: &str) -> Result<Option<W>, ScenarioError> {
        if self.peek() == ANY {
            self.skip();
            return Ok(None);
        }
        self.word(wanted, W::ALL).map(Some)
    }

    fn number(&mut self) -> Result<u64, ScenarioError> {
        self.read("a number from 1", |word| {
            word.parse().ok().filter(|number| *number > 0)
        })
    }

    fn name(&mut self) -> Result<String, ScenarioError> {
        self.read("a name", |word| is_name(word).then(|| word.to_owned()))
    }
}

fn is_name(word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !word.is_empty() && word.len() <= MAX_NAME && word.bytes().all(is_part)
}

/// A time, such as 20ms or 3s.
fn time(word: &str) -> Option<Duration> {
    let (number, of) = match word.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis as fn(u64) -> Duration),
        None => (word.strip_suffix('s')?, Duration::from_secs as _),
    };
    number.parse().ok().map(of).filter(|time| *time <= MAX_WAIT)
}

/// A value that a rule has once.
fn once<'a, T>(
    words: &mut Words<'a>,
    place: &mut Option<T>,
    read: impl FnOnce(&mut Words<'a>) -> Result<T, ScenarioError>,
) -> Result<(), ScenarioError> {
    if place.is_some() {
        return words.mistake(format!("{:?} is there twice", words.peek()));
    }
    words.skip();
    *place = Some(read(words)?);
    Ok(())
}

fn rule(mut words: Words<'_>) -> Result<Rule, ScenarioError> {
    let mut name = format!("line-{}", words.line);
    if let Some(given) = words.peek().strip_suffix(':') {
        if !is_name(given) {
            return words.mistake(format!(
                "a name has up to {MAX_NAME} letters, digits, '-', '_' and '.'"
            ));
        }
        name = given.to_owned();
        words.skip();
    }
    let mut when = match words.peek() {
        "command" => {
            words.skip();
            When::Command(words.word_or_any("a command")?)
        }
        "send" => {
            words.skip();
            When::Send(words.word_or_any("an operation")?, None)
        }
        "receive" => {
            words.skip();
            When::Receive(None)
        }
        "packet" => {
            words.skip();
            When::Packet(None)
        }
        _ => {
            return words.read(
                "command, send, receive or packet, with which a rule begins",
                |_| None,
            );
        }
    };
    let (mut port, mut of_qp, mut after) = (None, None, None);
    let (mut nth, mut from, mut to, mut every, mut times) = (None, None, None, None, None);
    loop {
        match (words.peek(), when) {
            ("port", _) => once(&mut words, &mut port, Words::name)?,
            ("after", _) => once(&mut words, &mut after, Words::name)?,
            ("nth", _) => once(&mut words, &mut nth, Words::number)?,
            ("from", _) => once(&mut words, &mut from, Words::number)?,
            ("to", _) => once(&mut words, &mut to, Words::number)?,
            ("every", _) => once(&mut words, &mut every, Words::number)?,
            ("times", _) => once(&mut words, &mut times, Words::number)?,
            ("qp", When::Send(..) | When::Receive(_) | When::Packet(_)) => {
                once(&mut words, &mut of_qp, |words| {
                    let number = words.number()?;
                    let too_large = "the number of the QP is too large";
                    u32::try_from(number).or_else(|_| words.mistake(too_large))
                })?;
            }
            ("then", _) => break,
            (_, When::Command(_)) => {
                words.read(&format!("{SELECTORS} or then"), |_| None)?;
            }
            _ => words.read(&format!("qp, {SELECTORS} or then"), |_| None)?,
        }
    }
    let has_range = from.is_some() || to.is_some() || every.is_some();
    let count = match nth {
        Some(_) if has_range => return words.mistake("nth excludes from, to and every"),
        Some(nth) => Count::Nth(nth),
        None if to.is_some_and(|to| to < from.unwrap_or(1)) => {
            return words.mistake("the last event is before the first one");
        }
        None => Count::Range {
            from: from.unwrap_or(1),
            to,
            every: every.unwrap_or(1),
        },
    };
    words.skip();
    when.set_qp(of_qp);
    let what = match (words.peek(), when) {
        ("refuse", When::Command(_)) => {
            words.skip();
            What::Refuse(words.word("an error number", Word::ALL)?)
        }
        ("wait", When::Command(_)) => {
            words.skip();
            let wanted = format!("a time of at most {MAX_WAIT:?}, such as 20ms or 3s");
            What::Wait(words.read(&wanted, time)?)
        }
        ("fail", When::Send(..)) => {
            words.skip();
            What::Fail(words.word("a status of send work requests", &SEND_STATUSES)?)
        }
        ("fail", When::Receive(_)) => {
            words.skip();
            What::Fail(words.word("a status of receives", &RECEIVE_STATUSES)?)
        }
        ("raise", When::Send(..) | When::Receive(_)) => {
            words.skip();
            What::Raise(words.word("an event with which a QP fails", &QP_EVENTS)?)
        }
        ("crash", When::Command(_) | When::Send(..) | When::Receive(_)) => {
            words.skip();
            What::Crash
        }
        ("withhold", When::Receive(_)) => {
            words.skip();
            What::Withhold
        }
        ("drop", When::Packet(_)) => {
            words.skip();
            What::Drop
        }
        (_, When::Command(_)) => words.read("refuse, wait or crash", |_| None)?,
        (_, When::Send(..)) => words.read("fail, raise or crash", |_| None)?,
        (_, When::Receive(_)) => words.read("fail, raise, withhold or crash", |_| None)?,
        (_, When::Packet(_)) => words.read("drop", |_| None)?,
    };
    if !words.rest.is_empty() {
        return words.mistake("the rule ends before this word");
    }
    Ok(Rule {
        name,
        port,
        when,
        count,
        times,
        after,
        what,
    })
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::ctrl::{Command, Errno};
    use virtio_rdma_abi::ib::{AsyncEvent, WcStatus, WrOpcode};

    use super::*;

    #[test]
    fn a_scenario_has_rules_and_comments() {
        let scenario: Scenario = "\
            # The third MR can't be registered.\n\
            \n\
            reg: command REG_USER_MR nth 3 then refuse ENOMEM\n\
            send RDMA_WRITE qp 2 port b from 10 to 30 every 5 times 2 after reg \
            then fail RETRY_EXC_ERR # as if the peer were gone\n\
            command any then wait 20ms\n\
            receive qp 1 nth 2 then withhold\n\
            receive then fail LOC_LEN_ERR\n\
            packet qp 3 every 100 then drop\n\
            receive then raise QP_ACCESS_ERR\n\
            command DESTROY_QP then crash\n"
            .parse()
            .unwrap();
        let [reg, send, slow, none, short, lost, event, crash] = &scenario.0[..] else {
            panic!("{scenario:?}");
        };
        assert_eq!(reg.when, When::Command(Some(Command::RegUserMr)));
        assert_eq!(reg.what, What::Refuse(Errno::Enomem));
        assert_eq!((reg.port.as_deref(), reg.count), (None, Count::Nth(3)));
        assert_eq!(send.name, "line-4");
        let opcode = Some(WrOpcode::RdmaWrite);
        assert_eq!(send.when, When::Send(opcode, Some(2)));
        assert_eq!(send.what, What::Fail(WcStatus::RetryExcErr));
        assert_eq!(send.port.as_deref(), Some("b"));
        assert_eq!((send.times, send.after.as_deref()), (Some(2), Some("reg")));
        let chosen = (1..40).filter(|number| send.count.has(*number));
        assert_eq!(chosen.collect::<Vec<_>>(), [10, 15, 20, 25, 30]);
        assert_eq!(slow.when, When::Command(None));
        let all = Count::Range {
            from: 1,
            to: None,
            every: 1,
        };
        assert_eq!(slow.count, all);
        assert_eq!(
            (none.when, none.what),
            (When::Receive(Some(1)), What::Withhold)
        );
        assert_eq!(short.what, What::Fail(WcStatus::LocLenErr));
        assert_eq!((lost.when, lost.what), (When::Packet(Some(3)), What::Drop));
        assert_eq!(event.what, What::Raise(AsyncEvent::QpAccessErr));
        assert_eq!(crash.what, What::Crash);
        assert_eq!(slow.what, What::Wait(Duration::from_millis(20)));
        for rule in &scenario.0 {
            let again: Scenario = rule.to_string().parse().unwrap();
            assert_eq!(again.0.first(), Some(rule), "{rule}");
        }
    }

    #[test]
    fn presets_are_scenarios() {
        for (name, text) in Scenario::PRESETS {
            let scenario: Scenario = text.parse().unwrap();
            assert!(!scenario.0.is_empty(), "{name}");
            assert_eq!(scenario.missing(), None);
            assert_eq!(Scenario::preset(name), Some(*text));
        }
        assert_eq!(Scenario::preset("none"), None);
        let incomplete: Scenario = "send any after x then fail REM_OP_ERR".parse().unwrap();
        assert_eq!(incomplete.missing(), Some("x"));
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (text, place, mistake) in [
            (
                "\n  drop",
                (2, 3),
                "\"drop\" is not command, send, receive or packet",
            ),
            ("command", (1, 8), "a command: QUERY_PORT"),
            ("command MAKE_QP", (1, 9), "\"MAKE_QP\" is not a command"),
            ("command any qp 1", (1, 13), "\"qp\" is not port, nth"),
            ("send any nth x", (1, 14), "\"x\" is not a number from 1"),
            ("send any nth 0", (1, 14), "\"0\" is not a number from 1"),
            ("send any qp 5000000000", (1, 23), "too large"),
            ("send any nth 1 nth 2", (1, 16), "\"nth\" is there twice"),
            (
                "send any nth 1 from 2 then fail REM_OP_ERR",
                (1, 23),
                "nth excludes",
            ),
            ("send any", (1, 9), "or then is missing"),
            (
                "send any then refuse EIO",
                (1, 15),
                "\"refuse\" is not fail, raise",
            ),
            (
                "send any then fail SUCCESS",
                (1, 20),
                "\"SUCCESS\" is not a status",
            ),
            (
                "command any then refuse ENOEM",
                (1, 25),
                "error number: EPERM, EIO",
            ),
            ("command any then wait 3", (1, 23), "\"3\" is not a time"),
            ("command any then wait 6s", (1, 23), "at most 5s"),
            ("command any then wait 1s 2", (1, 26), "the rule ends"),
            (
                "send any from 3 to 2 then fail REM_OP_ERR",
                (1, 22),
                "before the first",
            ),
            ("a/b: send any", (1, 1), "a name has up to"),
            (
                "a: send any then fail REM_OP_ERR\na: send any then fail REM_OP_ERR",
                (2, 1),
                "already",
            ),
        ] {
            let error = text.parse::<Scenario>().unwrap_err();
            assert_eq!((error.line, error.column), place, "{text}: {error}");
            assert!(error.mistake.contains(mistake), "{text}: {error}");
        }
        let rule = |number| format!("r{number}: send any then fail REM_OP_ERR\n");
        let most: String = (0..MAX_RULES).map(rule).collect();
        assert_eq!(most.parse::<Scenario>().unwrap().0.len(), MAX_RULES);
        let error = (most + &rule(MAX_RULES)).parse::<Scenario>().unwrap_err();
        assert_eq!((error.line, error.column), (MAX_RULES + 1, 1));
    }
}
