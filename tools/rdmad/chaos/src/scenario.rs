// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The text of a scenario.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use virtio_rdma_abi::ib::QpType;

use crate::everything;
use crate::limit::Limit;
use crate::rule::{Chance, Count, Hook, Rule, Time, What, When, ANY};
use crate::word::Word;

/// Maximum number of rules: each event is compared with all of them.
pub(crate) const MAX_RULES: usize = 64;
/// The words before "then" that all rules about events may have.
const SELECTORS: &str = "port, nth, from, to, every, chance, times, since, until, after";
/// The longest pause that a rule may order. The driver waits for a minute, and commands of one
/// driver wait for each other. A daemon with a paused command can't be upgraded.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The longest time for which a rule may hold completions or take the link down.
const MAX_HOLD: Duration = Duration::from_secs(600);
/// The latest time after the first event of which a rule may speak.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// The largest number of packets that may overtake one by a rule.
const MAX_DELAY: u8 = 100;
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
        "port-flap",
        "reg-fails",
        "slow-commands",
        "slow-receiver",
        "weak-nic"
    ];

    /// A name after which a rule waits, and which no rule before it has.
    pub fn missing(&self) -> Option<&str> {
        let mut rules = self.0.iter().enumerate();
        rules.find_map(|(at, rule)| rule.missing(self.0[..at].iter()))
    }

    /// The lacks of the device of a port, from its beginning.
    pub fn of_device<'a>(&'a self, port: &'a str) -> impl Iterator<Item = What> + 'a {
        let is_about = move |rule: &&Rule| rule.when.hook == Hook::Device && rule.is_for(port);
        self.0.iter().filter(is_about).map(|rule| rule.what)
    }

    /// The names of all scenarios that are known by names.
    pub fn names() -> String {
        let names: Vec<_> = Self::PRESETS.iter().map(|(name, _)| *name).collect();
        format!("{}, {}", names.join(", "), everything::NAME)
    }

    /// The text of the scenario with this name. `everything` may be followed by a seed.
    pub fn preset(name: &str) -> Option<String> {
        let found = Self::PRESETS.iter().find(|(known, _)| *known == name);
        let found = found.map(|(_, text)| (*text).to_owned());
        found.or_else(|| everything::named(name))
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

    /// Reads the name of an event, or `any`.
    fn named(&mut self, hook: Hook) -> Result<Option<u32>, ScenarioError> {
        let names = hook.names();
        if names.is_empty() {
            return Ok(None);
        }
        let words: Vec<_> = names.iter().map(|(name, _)| *name).collect();
        let wanted = format!("{}: {ANY}, {}", hook.named(), words.join(", "));
        self.read(&wanted, |word| {
            let found = names.iter().find(|(name, _)| *name == word);
            let known = found.map(|(_, number)| Some(*number));
            known.or_else(|| (word == ANY).then_some(None))
        })
    }

    /// Reads a time of at most `most`.
    fn time(&mut self, most: Duration) -> Result<Duration, ScenarioError> {
        let wanted = format!("a time of at most {most:?}, such as 20ms or 3s");
        self.read(&wanted, |word| time(word).filter(|time| *time <= most))
    }

    fn number(&mut self) -> Result<u64, ScenarioError> {
        self.read("a number from 1", |word| {
            word.parse().ok().filter(|number| *number > 0)
        })
    }

    /// Reads the number of an object.
    fn order(&mut self) -> Result<u32, ScenarioError> {
        let number = self.number()?;
        u32::try_from(number).or_else(|_| self.mistake("this number is too large"))
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
    number.parse().ok().map(of)
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

/// Words in a list for people.
fn list(words: &[&str]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
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
    let wanted = list(&Hook::ALL.map(Hook::word));
    let wanted = format!("{wanted}, with which a rule begins");
    let hook = words.read(&wanted, |word| {
        Hook::ALL.into_iter().find(|hook| hook.word() == word)
    })?;
    let of = words.named(hook)?;
    let (mut port, mut after, mut chance) = (None, None, None);
    let (mut qp, mut qpn, mut service, mut peer) = (None, None, None, None);
    let (mut cq, mut mr, mut time) = (None, None, Time::default());
    let (mut nth, mut from, mut to, mut every, mut times) = (None, None, None, None, None);
    let counts = hook != Hook::Device;
    loop {
        match words.peek() {
            "port" => once(&mut words, &mut port, Words::name)?,
            "after" if counts => once(&mut words, &mut after, Words::name)?,
            "nth" if counts => once(&mut words, &mut nth, Words::number)?,
            "from" if counts => once(&mut words, &mut from, Words::number)?,
            "to" if counts => once(&mut words, &mut to, Words::number)?,
            "every" if counts => once(&mut words, &mut every, Words::number)?,
            "times" if counts => once(&mut words, &mut times, Words::number)?,
            "chance" if counts => once(&mut words, &mut chance, |words| {
                words.read("a part of events, such as 0.5%", Chance::parse)
            })?,
            "since" if counts => once(&mut words, &mut time.since, |words| words.time(MAX_AGE))?,
            "until" if counts => once(&mut words, &mut time.until, |words| words.time(MAX_AGE))?,
            "qp" if hook.has_qp() => once(&mut words, &mut qp, Words::order)?,
            "qpn" if hook.has_qp() => once(&mut words, &mut qpn, Words::order)?,
            "service" if hook.has_qp() => once(&mut words, &mut service, |words| {
                words.word("a service", &[QpType::Rc, QpType::Uc, QpType::Ud])
            })?,
            "peer" if hook.has_qp() => once(&mut words, &mut peer, |words| {
                words.read("an IP address", |word| word.parse().ok())
            })?,
            "cq" if hook.has_cq() => once(&mut words, &mut cq, Words::order)?,
            "mr" if hook.has_mr() => once(&mut words, &mut mr, Words::order)?,
            "then" => break,
            _ => {
                let objects = [
                    ("qp, qpn, service, peer, ", hook.has_qp()),
                    ("cq, ", hook.has_cq()),
                    ("mr, ", hook.has_mr()),
                ];
                let objects = objects.into_iter().filter(|(_, has)| *has);
                let objects: String = objects.map(|(word, _)| word).collect();
                let selectors = if counts { SELECTORS } else { "port" };
                words.read(&format!("{objects}{selectors} or then"), |_| None)?;
            }
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
    if time.until <= time.since && time.until.is_some() {
        return words.mistake("the last time is not after the first one");
    }
    words.skip();
    let what = effect(&mut words, hook)?;
    if !words.rest.is_empty() {
        return words.mistake("the rule ends before this word");
    }
    Ok(Rule {
        name,
        port,
        when: When {
            hook,
            of,
            qp,
            qpn,
            service,
            peer,
            cq,
            mr,
        },
        count,
        chance,
        times,
        time,
        after,
        what,
    })
}

fn effect(words: &mut Words<'_>, hook: Hook) -> Result<What, ScenarioError> {
    let effects = hook.effects();
    let word = words.read(&list(effects), |word| {
        effects.iter().copied().find(|effect| *effect == word)
    })?;
    Ok(match word {
        "refuse" => What::Refuse(words.word("an error number", Word::ALL)?),
        "wait" => What::Wait(words.time(MAX_WAIT)?),
        "hold" => What::Hold(words.time(MAX_HOLD)?),
        "flap" => What::Flap(words.time(MAX_HOLD)?),
        "fail" => What::Fail(words.word("a status of these", hook.statuses())?),
        "raise" => What::Raise(words.word("an event of these", hook.raised())?),
        "delay" => What::Delay({
            let wanted = format!("a number of packets, from 1 to {MAX_DELAY}");
            words.read(&wanted, |word| {
                word.parse()
                    .ok()
                    .filter(|count| (1..=MAX_DELAY).contains(count))
            })?
        }),
        "lack" => What::Lack(words.word("a feature", Word::ALL)?),
        "limit" => {
            let limit: Limit = words.word("a limit", Word::ALL)?;
            let wanted = format!("a number from {}", limit.number());
            let value = words.read(&wanted, |word| {
                word.parse().ok().filter(|value| *value >= limit.number())
            })?;
            What::Limit(limit, value)
        }
        "withhold" => What::Withhold,
        "drop" => What::Drop,
        "repeat" => What::Repeat,
        "corrupt" => What::Corrupt,
        "silence" => What::Silence,
        "kill" => What::Kill,
        _ => What::Crash,
    })
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::ctrl::{Command, Errno};
    use virtio_rdma_abi::feature::Feature;
    use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus, WrOpcode};

    use super::*;
    use crate::cm::CmMessage;

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
            command DESTROY_QP then crash\n\
            completion cq 2 nth 3 then hold 2s\n\
            event cq 1 then repeat\n\
            access REMOTE_READ qp 1 then fail REM_ACCESS_ERR\n\
            packet nth 4 then delay 3\n\
            cm DREQ nth 1 then drop\n\
            device port b then limit max_sge 2\n\
            device then lack srq\n\
            send any every 9 then flap 300ms\n\
            completion every 20 then kill\n\
            access any mr 2 since 2s until 1500s then fail REM_OP_ERR\n\
            send any peer fe80::7 until 20ms then fail REM_OP_ERR\n\
            receive qpn 77 service UD peer 10.0.0.2 chance 0.5% then withhold\n"
            .parse()
            .unwrap();
        let [reg, send, slow, none, short, lost, event, crash, rest @ ..] = &scenario.0[..] else {
            panic!("{scenario:?}");
        };
        let when = |hook, of: Option<u32>, qp, cq| When {
            hook,
            of,
            qp,
            qpn: None,
            service: None,
            peer: None,
            cq,
            mr: None,
        };
        let of = Some(Command::RegUserMr.value().into());
        assert_eq!(reg.when, when(Hook::Command, of, None, None));
        assert_eq!(reg.what, What::Refuse(Errno::Enomem));
        assert_eq!((reg.port.as_deref(), reg.count), (None, Count::Nth(3)));
        assert_eq!(send.name, "line-4");
        let of = Some(WrOpcode::RdmaWrite.value());
        assert_eq!(send.when, when(Hook::Send, of, Some(2), None));
        assert_eq!(send.what, What::Fail(WcStatus::RetryExcErr));
        assert_eq!(send.port.as_deref(), Some("b"));
        assert_eq!((send.times, send.after.as_deref()), (Some(2), Some("reg")));
        let chosen = (1..40).filter(|number| send.count.has(*number));
        assert_eq!(chosen.collect::<Vec<_>>(), [10, 15, 20, 25, 30]);
        assert_eq!(slow.when, when(Hook::Command, None, None, None));
        let all = Count::Range {
            from: 1,
            to: None,
            every: 1,
        };
        assert_eq!(slow.count, all);
        assert_eq!(none.when, when(Hook::Receive, None, Some(1), None));
        assert_eq!(none.what, What::Withhold);
        assert_eq!(short.what, What::Fail(WcStatus::LocLenErr));
        assert_eq!(lost.when, when(Hook::Packet, None, Some(3), None));
        assert_eq!(lost.what, What::Drop);
        assert_eq!(event.what, What::Raise(AsyncEvent::QpAccessErr));
        assert_eq!(crash.what, What::Crash);
        assert_eq!(slow.what, What::Wait(Duration::from_millis(20)));
        let expected = [
            (
                when(Hook::Completion, None, None, Some(2)),
                What::Hold(Duration::from_secs(2)),
            ),
            (when(Hook::Event, None, None, Some(1)), What::Repeat),
            (
                when(
                    Hook::Access,
                    Some(AccessFlags::REMOTE_READ.0),
                    Some(1),
                    None,
                ),
                What::Fail(WcStatus::RemAccessErr),
            ),
            (when(Hook::Packet, None, None, None), What::Delay(3)),
            (
                when(Hook::Cm, Some(CmMessage::Dreq.number()), None, None),
                What::Drop,
            ),
            (
                when(Hook::Device, None, None, None),
                What::Limit(Limit::MaxSge, 2),
            ),
            (
                when(Hook::Device, None, None, None),
                What::Lack(Feature::Srq),
            ),
            (
                when(Hook::Send, None, None, None),
                What::Flap(Duration::from_millis(300)),
            ),
        ];
        let [rest @ .., kill, of_mr, of_peer, some] = rest else {
            panic!("{rest:?}");
        };
        let rest: Vec<_> = rest.iter().map(|rule| (rule.when, rule.what)).collect();
        assert_eq!(rest, expected);
        assert_eq!(kill.what, What::Kill);
        let When {
            qpn, service, peer, ..
        } = some.when;
        assert_eq!((qpn, service), (Some(77), Some(QpType::Ud)));
        assert_eq!(peer, "10.0.0.2".parse().ok());
        assert_eq!((of_mr.when.mr, of_mr.when.qp), (Some(2), None));
        assert_eq!(of_peer.when.peer, "fe80::7".parse().ok());
        for (rule, ages) in [(of_mr, [2000, 1_499_999]), (of_peer, [0, 19])] {
            let has = |age| rule.time.has(Duration::from_millis(age));
            assert!(ages.into_iter().all(has), "{rule}");
            assert!(
                !has(ages[1] + 1) && !ages[0].checked_sub(1).is_some_and(has),
                "{rule}"
            );
        }
        assert_eq!(some.chance, Chance::parse("0.5%"));
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
            assert_eq!(Scenario::preset(name).as_deref(), Some(*text));
        }
        assert_eq!(Scenario::preset("none"), None);
        let own: Scenario = "x: send any after x then fail REM_OP_ERR".parse().unwrap();
        assert_eq!(own.missing(), Some("x"));
        let incomplete: Scenario = "send any after x then fail REM_OP_ERR".parse().unwrap();
        assert_eq!(incomplete.missing(), Some("x"));
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (text, place, mistake) in [
            (
                "\n  drop",
                (2, 3),
                "\"drop\" is not command, send, access, receive",
            ),
            ("command", (1, 8), "a command: any, QUERY_PORT"),
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
            ("completion then hold 601s", (1, 22), "at most 600s"),
            (
                "receive then hold 1s",
                (1, 14),
                "\"hold\" is not fail, raise",
            ),
            ("event qp 1", (1, 7), "\"qp\" is not cq, port"),
            (
                "send any mr 1",
                (1, 10),
                "\"mr\" is not qp, qpn, service, peer, port",
            ),
            ("send any peer vm2", (1, 15), "\"vm2\" is not an IP address"),
            (
                "send any since 2s until 2s then",
                (1, 28),
                "not after the first",
            ),
            ("send any until 86401s", (1, 16), "a time of at most 86400s"),
            ("send any chance 101%", (1, 17), "such as 0.5%"),
            ("send any service GSI", (1, 18), "a service: RC, UC, UD"),
            ("device nth 1", (1, 8), "\"nth\" is not port or then"),
            ("device then limit max_sge 1", (1, 27), "a number from 2"),
            ("packet then delay 101", (1, 19), "from 1 to 100"),
            (
                "cm HELLO",
                (1, 4),
                "a message of the connection manager: any, REQ",
            ),
            ("access LOCAL_WRITE", (1, 8), "an access: any, REMOTE_WRITE"),
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
