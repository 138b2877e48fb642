// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The rules of one port, with their counts.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::ctrl::Command;

use crate::rule::{Event, Rule, What, When};
use crate::scenario::{Scenario, MAX_RULES};

/// The rules of a port and how often each has applied.
///
/// Without a rule for an event, each event costs one load.
#[derive(Debug, Default)]
pub struct PortRules {
    /// Name of the port.
    port: String,
    /// The kinds of events that have rules: bits of [`hook`].
    hooks: AtomicU8,
    rules: Mutex<Vec<Counted>>,
}

#[derive(Clone, Debug)]
struct Counted {
    rule: Rule,
    /// Number of events that the rule is about.
    seen: u64,
    /// Number of events to which the rule has applied.
    applied: u64,
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
}

/// The state of a rule, from which another process goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleState(String, u64, u64);

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

/// The bit of a kind of events.
const fn hook(when: When) -> u8 {
    match when {
        When::Command(_) => 1 << 0,
        When::Send(..) => 1 << 1,
        When::Receive(_) => 1 << 2,
        When::Packet(_) => 1 << 3,
    }
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
        let is_own = |rule: &&Rule| rule.port.as_ref().is_none_or(|port| *port == self.port);
        scenario.0.iter().filter(is_own).cloned().map(Counted::from)
    }

    /// Adds the rules of a scenario that are for this port behind the others.
    ///
    /// # Errors
    ///
    /// There is a rule with such a name, or there are too many or none.
    pub fn add(&self, scenario: &Scenario) -> Result<(), String> {
        let mut rules = self.rules.lock();
        let new: Vec<_> = self.own(scenario).collect();
        if new.is_empty() {
            return Err(format!("there is no rule for port {}", self.port));
        }
        for Counted { rule, .. } in &new {
            if rules.iter().any(|counted| counted.rule.name == rule.name) {
                return Err(format!("there is a rule {:?} already", rule.name));
            }
        }
        let all = || rules.iter().chain(&new).map(|counted| &counted.rule);
        for Counted { rule, .. } in &new {
            if let Some(after) = rule.missing(all()) {
                let name = &rule.name;
                return Err(format!(
                    "rule {name:?} is after {after:?}, which is no rule"
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

    /// Removes a rule. Returns whether there was one with this name.
    pub fn remove(&self, name: &str) -> bool {
        let mut rules = self.rules.lock();
        let before = rules.len();
        rules.retain(|counted| counted.rule.name != name);
        self.set_hooks(&rules);
        rules.len() < before
    }

    /// All rules, in the order in which they are tried.
    pub fn list(&self) -> Vec<RuleCounts> {
        let rules = self.rules.lock();
        let counts = rules.iter().map(|counted| RuleCounts {
            name: counted.rule.name.clone(),
            rule: counted.rule.to_string(),
            seen: counted.seen,
            applied: counted.applied,
        });
        counts.collect()
    }

    /// The state of all rules.
    pub fn save(&self) -> Vec<RuleState> {
        let rules = self.rules.lock();
        let state = |Counted {
                         rule,
                         seen,
                         applied,
                     }: &Counted| RuleState(rule.to_string(), *seen, *applied);
        rules.iter().map(state).collect()
    }

    /// Replaces all rules by those of another process. `None` if one of them is none.
    pub fn restore(&self, states: &[RuleState]) -> Option<()> {
        let restored = |RuleState(text, seen, applied): &RuleState| {
            let rule = text.parse::<Scenario>().ok()?.0.pop()?;
            Some(Counted {
                rule,
                seen: *seen,
                applied: *applied,
            })
        };
        let states = &states[..states.len().min(MAX_RULES)];
        self.replace(states.iter().map(restored).collect::<Option<_>>()?);
        Some(())
    }

    /// The rule that applies to a command; `None` if the command is executed.
    #[inline]
    pub fn command(&self, command: Command) -> Option<Applied> {
        let any = const { When::Command(None) };
        self.has(any).then(|| {
            self.apply(
                |when| matches!(when, When::Command(it) if it.is_none_or(|it| it == command)),
            )
        })?
    }

    /// The rule that applies to an event of a kind of which `any` is any. `of` describes the event,
    /// if there are rules about such events; `None` if no rule is about this one.
    #[inline]
    pub fn event(&self, any: When, of: impl FnOnce() -> Option<Event>) -> Option<Applied> {
        self.has(any).then(|| {
            let event = of()?;
            self.apply(|when| {
                hook(when) == hook(any)
                    && when.qp().is_none_or(|qp| qp == event.qp)
                    && match when {
                        When::Send(Some(opcode), _) => opcode.value() == event.opcode,
                        _ => true,
                    }
            })
        })?
    }

    /// Whether there are rules about events of a kind of which `any` is any.
    #[inline]
    pub fn has(&self, any: When) -> bool {
        self.hooks.load(Ordering::Relaxed) & hook(any) != 0
    }

    /// Counts an event in all rules that are about it, and applies the first that chooses it.
    #[cold]
    fn apply(&self, is_about: impl Fn(When) -> bool) -> Option<Applied> {
        let mut rules = self.rules.lock();
        let mut chosen = None;
        for index in 0..rules.len() {
            if !is_about(rules[index].rule.when) {
                continue;
            }
            let after = rules[index].rule.after.as_deref();
            let waits = after.is_some_and(|name| {
                let has_applied = |other: &Counted| other.rule.name == name && other.applied > 0;
                !rules.iter().any(has_applied)
            });
            if waits {
                continue;
            }
            let Counted {
                rule,
                seen,
                applied,
            } = &mut rules[index];
            *seen += 1;
            let is_left = rule.times.is_none_or(|times| *applied < times);
            if chosen.is_none() && is_left && rule.count.has(*seen) {
                *applied += 1;
                chosen = Some(Applied {
                    name: rule.name.clone(),
                    // There are few rules, so the cast does not truncate.
                    number: index as u32 + 1,
                    what: rule.what,
                    is_first: *applied == 1,
                });
            }
        }
        chosen
    }

    fn replace(&self, new: Vec<Counted>) {
        let mut rules = self.rules.lock();
        *rules = new;
        self.set_hooks(&rules);
    }

    fn set_hooks(&self, rules: &[Counted]) {
        let hooks = rules
            .iter()
            .fold(0, |all, counted| all | hook(counted.rule.when));
        self.hooks.store(hooks, Ordering::Relaxed);
    }
}

impl From<Rule> for Counted {
    fn from(rule: Rule) -> Self {
        Self {
            rule,
            seen: 0,
            applied: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::ib::WrOpcode;

    use super::*;

    fn rules(text: &str) -> PortRules {
        PortRules::new(&text.parse().unwrap(), "a")
    }

    /// The names of the rules that apply to `count` sends of QP 1.
    fn sends(rules: &PortRules, count: usize) -> Vec<String> {
        let send = || {
            Some(Event {
                opcode: WrOpcode::Send.value(),
                qp: 1,
            })
        };
        let name = |_| {
            let applied = rules.event(When::Send(None, None), send);
            applied.map_or("-".to_owned(), |applied| applied.name)
        };
        (0..count).map(name).collect()
    }

    #[test]
    fn rules_choose_by_their_counts() {
        let rules = rules(
            "x: send any nth 2 then fail REM_OP_ERR\n\
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
            ("y", 6, 2),
            // The event to which y applies first is not counted.
            ("z", 6, 3),
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
        assert!(rules.remove("n") && !rules.remove("n"));
        assert_eq!(sends(&rules, 1), ["-"]);
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
        let damaged = RuleState("x: sent".to_owned(), 0, 0);
        assert!(after.restore(&[damaged]).is_none());
    }
}
