// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The rules of one port, with their counts.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::ctrl::Command;

use crate::rule::{Chance, Event, Hook, Rule, What};
use crate::scenario::{Scenario, MAX_RULES};
use crate::word::Word;

/// The rules of a port and how often each has applied.
///
/// Without a rule for an event, each event costs one load.
#[derive(Debug, Default)]
pub struct PortRules {
    /// Name of the port.
    port: String,
    /// The [bits](Hook::bit) of the kinds of events that have rules. That of commands is also set
    /// when a rule has applied, to note the next command.
    hooks: AtomicU16,
    rules: Mutex<Vec<Counted>>,
}

#[derive(Clone, Debug)]
struct Counted {
    rule: Rule,
    /// Number of events that the rule is about.
    seen: u64,
    /// Number of events to which the rule has applied.
    applied: u64,
    /// When the first of these events was, if the rule asks for the time.
    first: Option<Instant>,
    /// When the rule applied last, and the first command since.
    last: Option<(Instant, Option<(Command, Duration)>)>,
}

/// A rule and its counts, as users see them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounts {
    pub name: String,
    /// The text of the rule.
    pub rule: String,
    /// Number of events that the rule is about.
    pub seen: u64,
    /// Number of events to which the rule has applied.
    pub applied: u64,
    /// Whether the choice depends on time, so that the same program may meet other failures.
    pub by_time: bool,
    /// The driver's reaction; `None` if the rule has not applied in this process.
    pub next: Option<Next>,
}

/// The reaction of a driver after a rule has applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Next {
    /// The first command; `None` if there was none.
    pub command: Option<String>,
    /// Milliseconds until this command, or until now.
    pub after: u64,
}

impl Display for Next {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let after = self.after;
        match &self.command {
            Some(command) => write!(f, "then {command} after {after} ms"),
            None => write!(f, "no command for {after} ms"),
        }
    }
}

/// The state of a rule, from which another process goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleState {
    rule: String,
    seen: u64,
    applied: u64,
    /// Milliseconds since the first event, if the rule asks for the time.
    age: Option<u64>,
}

/// A rule that applies to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub name: String,
    /// The position of the rule among those of the port, from 1.
    pub number: u32,
    pub what: What,
    /// Whether the rule has not applied before.
    pub is_first: bool,
}

impl PortRules {
    /// The rules of a scenario that are for the port `name`.
    pub fn new(scenario: &Scenario, name: &str) -> Self {
        let rules = Self {
            port: name.to_owned(),
            ..Self::default()
        };
        rules.replace(rules.own(scenario).collect());
        rules
    }

    fn own<'a>(&'a self, scenario: &'a Scenario) -> impl Iterator<Item = Counted> + 'a {
        let is_own = |rule: &&Rule| rule.is_for(&self.port);
        scenario.0.iter().filter(is_own).cloned().map(Counted::from)
    }

    /// Adds the rules of a scenario that are for this port behind the others.
    ///
    /// # Errors
    ///
    /// There is a rule with such a name, or about the device, or there are too many or none.
    pub fn add(&self, scenario: &Scenario) -> Result<(), String> {
        let mut rules = self.rules.lock();
        let new: Vec<_> = self.own(scenario).collect();
        if new.is_empty() {
            return Err(format!("there is no rule for port {}", self.port));
        }
        for Counted { rule, .. } in &new {
            if rule.when.hook == Hook::Device {
                let name = &rule.name;
                return Err(format!("rule {name:?} is about a device that begins"));
            }
            if rules.iter().any(|counted| counted.rule.name == rule.name) {
                return Err(format!("there is a rule {:?} already", rule.name));
            }
        }
        for (at, Counted { rule, .. }) in new.iter().enumerate() {
            let before = rules.iter().chain(&new[..at]);
            if let Some(after) = rule.missing(before.map(|counted| &counted.rule)) {
                let name = &rule.name;
                return Err(format!(
                    "rule {name:?} is after {after:?}, which is no rule before it"
                ));
            }
        }
        if rules.len() + new.len() > MAX_RULES {
            return Err(format!("there would be more than {MAX_RULES} rules"));
        }
        rules.extend(new);
        self.set_hooks(&rules);
        Ok(())
    }

    /// Removes a rule.
    ///
    /// # Errors
    ///
    /// There is no rule with this name, another is after it, or it is about the device.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        let mut rules = self.rules.lock();
        let at = rules.iter().position(|counted| counted.rule.name == name);
        let at = at.ok_or_else(|| format!("there is no rule {name:?}"))?;
        let is_later = |counted: &&Counted| counted.rule.after.as_deref() == Some(name);
        if let Some(later) = rules.iter().find(is_later) {
            return Err(format!("rule {:?} is after {name:?}", later.rule.name));
        }
        if rules[at].rule.when.hook == Hook::Device {
            return Err(format!("the device has begun with rule {name:?}"));
        }
        rules.remove(at);
        self.set_hooks(&rules);
        Ok(())
    }

    /// All rules, in the order in which they are tried.
    pub fn list(&self) -> Vec<RuleCounts> {
        let rules = self.rules.lock();
        let counts = rules.iter().map(|counted| RuleCounts {
            name: counted.rule.name.clone(),
            rule: counted.rule.to_string(),
            seen: counted.seen,
            applied: counted.applied,
            by_time: !counted.rule.time.is_all(),
            next: counted.next(),
        });
        counts.collect()
    }

    /// The state of all rules.
    pub fn save(&self) -> Vec<RuleState> {
        let rules = self.rules.lock();
        let state = |counted: &Counted| RuleState {
            rule: counted.rule.to_string(),
            seen: counted.seen,
            applied: counted.applied,
            age: counted.first.map(|first| millis(first.elapsed())),
        };
        rules.iter().map(state).collect()
    }

    /// Replaces all rules by those of another process. `None` if one of them is none.
    pub fn restore(&self, states: &[RuleState]) -> Option<()> {
        let now = Instant::now();
        let restored = |state: &RuleState| {
            let rule = state.rule.parse::<Scenario>().ok()?.0.pop()?;
            let first = |age| now.checked_sub(Duration::from_millis(age));
            Some(Counted {
                rule,
                seen: state.seen,
                applied: state.applied,
                first: state.age.and_then(first),
                last: None,
            })
        };
        let states = &states[..states.len().min(MAX_RULES)];
        self.replace(states.iter().map(restored).collect::<Option<_>>()?);
        Some(())
    }

    /// The rule that applies to a command; `None` if the command is executed.
    #[inline]
    pub fn command(&self, command: Command) -> Option<Applied> {
        self.has(Hook::Command).then(|| {
            self.is_next(command);
            let of = command.value().into();
            self.apply(
                Hook::Command,
                &Event {
                    of,
                    ..Event::default()
                },
            )
        })?
    }

    /// The rule that applies to an event of this kind. Where events are frequent,
    /// [`has`](Self::has) tells first whether there are rules about them.
    pub fn event(&self, hook: Hook, event: &Event) -> Option<Applied> {
        self.has(hook).then(|| self.apply(hook, event))?
    }

    /// Whether there are rules about events of this kind.
    #[inline]
    pub fn has(&self, hook: Hook) -> bool {
        self.hooks.load(Ordering::Relaxed) & hook.bit() != 0
    }

    /// Notes the command for all rules that have applied since the last one.
    fn is_next(&self, command: Command) {
        for counted in &mut *self.rules.lock() {
            if let Some((applied, next @ None)) = &mut counted.last {
                *next = Some((command, applied.elapsed()));
            }
        }
    }

    /// Counts an event in all rules that are about it, and applies the first that chooses it.
    #[cold]
    fn apply(&self, hook: Hook, event: &Event) -> Option<Applied> {
        let rules = &mut *self.rules.lock();
        let waits = |counted: &Counted| {
            let after = counted.rule.after.as_deref();
            after.is_some_and(|name| {
                let has_applied = |other: &Counted| other.rule.name == name && other.applied > 0;
                !rules.iter().any(has_applied)
            })
        };
        // A rule that applies to this event lets others begin with the next one.
        let waiting: Vec<bool> = rules.iter().map(waits).collect();
        let mut chosen = None;
        for (index, (counted, waits)) in rules.iter_mut().zip(waiting).enumerate() {
            if waits || !counted.rule.is_about(hook, event) {
                continue;
            }
            counted.seen += 1;
            let is_now = counted.is_now();
            let Counted { rule, applied, .. } = counted;
            let is_left = rule.times.is_none_or(|times| *applied < times);
            let hits = |chance: Chance| chance.hits(&rule.name, counted.seen);
            let is_chosen = rule.count.has(counted.seen) && rule.chance.is_none_or(hits);
            if chosen.is_none() && is_left && is_chosen && is_now {
                *applied += 1;
                counted.last = Some((Instant::now(), None));
                chosen = Some(Applied {
                    name: rule.name.clone(),
                    // There are few rules, so the cast does not truncate.
                    number: index as u32 + 1,
                    what: rule.what,
                    is_first: *applied == 1,
                });
            }
        }
        if chosen.is_some() {
            // The next command is noted.
            self.hooks.fetch_or(Hook::Command.bit(), Ordering::Relaxed);
        }
        chosen
    }

    fn replace(&self, new: Vec<Counted>) {
        let mut rules = self.rules.lock();
        *rules = new;
        self.set_hooks(&rules);
    }

    fn set_hooks(&self, rules: &[Counted]) {
        let hooks = rules.iter().fold(0, |all, counted| all | counted.bits());
        self.hooks.store(hooks, Ordering::Relaxed);
    }
}

impl Counted {
    /// The kinds of events about which the rule asks.
    fn bits(&self) -> u16 {
        let waits = self.last.is_some();
        self.rule.when.hook.bit() | if waits { Hook::Command.bit() } else { 0 }
    }

    /// Whether events fail now. An event that the rule is about happens.
    fn is_now(&mut self) -> bool {
        let Rule { time, .. } = self.rule;
        time.is_all() || {
            let first = self.first.get_or_insert_with(Instant::now);
            time.has(first.elapsed())
        }
    }

    fn next(&self) -> Option<Next> {
        let (applied, next) = self.last?;
        let (command, after) = match next {
            Some((command, after)) => (Some(command.word().to_owned()), after),
            None => (None, applied.elapsed()),
        };
        Some(Next {
            command,
            after: millis(after),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<Rule> for Counted {
    fn from(rule: Rule) -> Self {
        // A device begins once, with its rules.
        let begun = u64::from(rule.when.hook == Hook::Device);
        Self {
            rule,
            seen: begun,
            applied: begun,
            first: None,
            last: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::ib::{QpType, WrOpcode};

    use super::*;

    fn rules(text: &str) -> PortRules {
        PortRules::new(&text.parse().unwrap(), "a")
    }

    /// The names of the rules that apply to `count` sends of QP 1.
    fn sends(rules: &PortRules, count: usize) -> Vec<String> {
        let send = Event {
            of: WrOpcode::Send.value(),
            qp: 1,
            qpn: 17,
            service: Some(QpType::Rc),
            ..Event::default()
        };
        let name = |_| {
            let applied = rules.event(Hook::Send, &send);
            applied.map_or("-".to_owned(), |applied| applied.name)
        };
        (0..count).map(name).collect()
    }

    #[test]
    fn rules_choose_by_their_counts() {
        let rules = rules(
            "x: send any nth 2 then fail REM_OP_ERR\n\
             ud: send any service UD then fail REM_OP_ERR\n\
             else: send any qpn 18 then fail REM_OP_ERR\n\
             this: send any qpn 17 service RC from 100 then fail REM_OP_ERR\n\
             y: send SEND every 2 times 2 then fail REM_OP_ERR\n\
             z: send any after y then fail REM_OP_ERR\n\
             other: send RDMA_READ then fail REM_OP_ERR\n\
             there: send any port b then fail REM_OP_ERR\n\
             second: send any qp 2 then fail REM_OP_ERR\n\
             receives: receive then withhold\n",
        );
        assert_eq!(sends(&rules, 6), ["y", "x", "y", "z", "z", "z"]);
        let counts: Vec<_> = rules
            .list()
            .into_iter()
            .map(|rule| (rule.name, rule.seen, rule.applied))
            .collect();
        let expected = [
            ("x", 6, 1),
            ("ud", 0, 0),
            ("else", 0, 0),
            ("this", 6, 0),
            ("y", 6, 2),
            // The event to which y applies first is not counted.
            ("z", 5, 3),
            ("other", 0, 0),
            ("second", 0, 0),
            ("receives", 0, 0),
        ];
        let counted = counts
            .iter()
            .map(|(name, seen, applied)| (&**name, *seen, *applied));
        assert_eq!(counted.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rules_come_and_go() {
        let rules = rules("");
        assert_eq!(sends(&rules, 1), ["-"]);
        assert!(rules.command(Command::CreateQp).is_none());
        let new = "n: send any then fail REM_OP_ERR".parse().unwrap();
        rules.add(&new).unwrap();
        assert_eq!(
            rules.add(&new).unwrap_err(),
            "there is a rule \"n\" already"
        );
        let other = "o: send any port b then fail REM_OP_ERR".parse().unwrap();
        assert_eq!(
            rules.add(&other).unwrap_err(),
            "there is no rule for port a"
        );
        let late = "l: send any after m then fail REM_OP_ERR".parse().unwrap();
        assert!(rules
            .add(&late)
            .unwrap_err()
            .contains("\"m\", which is no rule"));
        assert_eq!(sends(&rules, 1), ["n"]);
        let later = "m: send any after n then fail REM_OP_ERR".parse().unwrap();
        rules.add(&later).unwrap();
        assert_eq!(rules.remove("n").unwrap_err(), "rule \"m\" is after \"n\"");
        rules.remove("m").unwrap();
        rules.remove("n").unwrap();
        assert_eq!(rules.remove("n").unwrap_err(), "there is no rule \"n\"");
        assert_eq!(sends(&rules, 1), ["-"]);
    }

    #[test]
    fn a_chance_chooses_by_the_number_of_the_event() {
        let text = "x: send any chance 10% then fail REM_OP_ERR";
        let chosen = || sends(&rules(text), 1000);
        let first = chosen();
        let count = first.iter().filter(|name| *name == "x").count();
        assert!((50..200).contains(&count), "{count}");
        assert_eq!(chosen(), first);
        // The counts of another process go on with the same choice.
        let after = rules("");
        let before = rules(text);
        let half = sends(&before, 500);
        after.restore(&before.save()).unwrap();
        assert_eq!([half, sends(&after, 500)].concat(), first);
    }

    #[test]
    fn rules_about_the_device_are_there_from_its_beginning() {
        let rules = rules("weak: device then limit max_sge 2\n");
        let [weak] = &rules.list()[..] else {
            panic!("one rule");
        };
        assert_eq!((weak.seen, weak.applied), (1, 1));
        let refused = rules.remove("weak").unwrap_err();
        assert!(refused.contains("has begun"), "{refused}");
        let late = "late: device then lack srq".parse().unwrap();
        let refused = rules.add(&late).unwrap_err();
        assert!(refused.contains("a device that begins"), "{refused}");
    }

    #[test]
    fn the_next_command_is_noted() {
        let rules = rules("x: send any nth 2 then fail REM_OP_ERR");
        let next = |command| {
            assert!(rules.command(command).is_none());
            rules.list()[0].next.clone()
        };
        assert_eq!(sends(&rules, 1), ["-"]);
        assert_eq!(next(Command::CreatePd), None);
        assert_eq!(sends(&rules, 1), ["x"]);
        let none = rules.list()[0].next.clone().unwrap();
        assert_eq!(none.command, None);
        for command in [Command::DestroyQp, Command::CreateQp] {
            let next = next(command).unwrap();
            assert_eq!(next.command.as_deref(), Some("DESTROY_QP"));
        }
    }

    #[test]
    fn another_process_goes_on_with_the_counts() {
        let text = "x: send any nth 3 then fail REM_OP_ERR";
        let before = rules(text);
        assert_eq!(sends(&before, 2), ["-", "-"]);
        let after = rules("other: command any then refuse EIO");
        after.restore(&before.save()).unwrap();
        assert_eq!(sends(&after, 2), ["x", "-"]);
        assert!(after.command(Command::CreateQp).is_none());
        let mut damaged = before.save();
        damaged[0].rule = "x: sent".to_owned();
        assert!(after.restore(&damaged).is_none());
    }

    #[test]
    fn a_time_begins_with_the_first_event() {
        let before = rules(
            "late: send any since 90s until 900s then fail REM_OP_ERR\n\
             early: send any until 90s then fail REM_OP_ERR\n",
        );
        assert_eq!(sends(&before, 2), ["early", "early"]);
        assert!(before.list().iter().all(|rule| rule.by_time));
        // Another process goes on with the time.
        let after = rules("");
        let after_seconds = |seconds: u64| {
            let mut states = before.save();
            for RuleState { age, .. } in &mut states {
                *age = age.map(|age| age + 1000 * seconds);
            }
            after.restore(&states).unwrap();
            sends(&after, 1)
        };
        assert_eq!(after_seconds(0), ["early"]);
        assert_eq!(after_seconds(90), ["late"]);
        assert_eq!(after_seconds(900), ["-"]);
    }
}
