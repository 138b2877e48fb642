// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Breadth-first search over all states of a model.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

/// A rule that a state breaks.
pub type Broken = &'static str;

/// A state of the whole system: memory, actors, and what the rules must remember.
pub trait Model: Clone + Eq + Hash {
    /// All steps that an actor can take, with their names.
    fn steps(&self) -> Vec<(&'static str, Self)>;

    /// Checks the rules for every state.
    fn check(&self) -> Result<(), Broken>;

    /// Checks the rules for a state in which no actor can take a step.
    fn check_end(&self) -> Result<(), Broken>;
}

/// A broken rule, and the shortest trace that leads to it.
#[derive(Debug)]
pub struct Failure {
    pub rule: Broken,
    #[allow(dead_code, reason = "printed")]
    pub trace: Vec<&'static str>,
}

/// Visits all states reachable from `first`. Returns their number.
pub fn explore<M: Model>(first: impl IntoIterator<Item = M>) -> Result<usize, Failure> {
    let mut seen = HashMap::new();
    let mut reached: Vec<(Rc<M>, Option<usize>, &'static str)> = Vec::new();
    for state in first {
        let state = Rc::new(state);
        if seen.insert(state.clone(), ()).is_none() {
            reached.push((state, None, "begin"));
        }
    }
    let mut at = 0;
    while at < reached.len() {
        let state = reached[at].0.clone();
        let steps = state.steps();
        let verdict = state.check().and_then(|()| match steps.is_empty() {
            true => state.check_end(),
            false => Ok(()),
        });
        if let Err(rule) = verdict {
            let mut trace = Vec::new();
            let mut back = Some(at);
            while let Some(index) = back {
                trace.push(reached[index].2);
                back = reached[index].1;
            }
            trace.reverse();
            return Err(Failure { rule, trace });
        }
        for (name, next) in steps {
            let next = Rc::new(next);
            if seen.insert(next.clone(), ()).is_none() {
                reached.push((next, Some(at), name));
            }
        }
        at += 1;
    }
    Ok(reached.len())
}

/// Explores the correct protocol: all rules must hold, and the number of states must not be
/// trivial.
pub fn holds<M: Model>(name: &str, first: impl IntoIterator<Item = M>) {
    match explore(first) {
        Ok(states) => {
            println!("{name}: {states} states");
            assert!(states > 10_000, "{name}: only {states} states");
        }
        Err(failure) => panic!("{name}: {failure:#?}"),
    }
}

/// Explores a broken variant: the search must find that `rule` is broken.
pub fn breaks<M: Model>(rule: Broken, first: impl IntoIterator<Item = M>) {
    match explore(first) {
        Ok(states) => panic!("{states} states, and none breaks: {rule}"),
        Err(failure) => assert_eq!(failure.rule, rule, "{failure:#?}"),
    }
}
