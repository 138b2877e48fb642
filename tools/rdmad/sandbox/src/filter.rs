// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! seccomp programs: the kernel's filter of system calls.

use std::collections::BTreeMap;
use std::env;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::lists::{self, Parts};
use crate::{Error, Kind};

/// A system call that a list allows, and the conditions on its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    number: c_long,
    /// The call is allowed if all of these conditions hold.
    when: Vec<When>,
}

/// A condition on one argument of a system call, given by the argument's position (0 to 5).
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    /// The argument has this 32-bit value.
    Is(u8, u32),
    /// The argument has all of these bits set. Only its low 32 bits can be checked.
    Has(u8, u32),
    /// The argument has none of these bits set. Only its low 32 bits can be checked.
    Lacks(u8, u32),
    /// The argument is a null pointer.
    Null(u8),
}

impl When {
    fn condition(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        use SeccompCmpArgLen::{Dword, Qword};
        use SeccompCmpOp::{Eq, MaskedEq};
        match self {
            Self::Is(argument, value) => SeccompCondition::new(argument, Dword, Eq, value.into()),
            Self::Has(argument, bits) => {
                SeccompCondition::new(argument, Dword, MaskedEq(bits.into()), bits.into())
            }
            Self::Lacks(argument, bits) => {
                SeccompCondition::new(argument, Dword, MaskedEq(bits.into()), 0)
            }
            Self::Null(argument) => SeccompCondition::new(argument, Qword, Eq, 0),
        }
    }
}

/// Allows a system call with any arguments.
pub(crate) fn any(number: c_long) -> Allowed {
    when(number, &[])
}

/// Allows a system call if all of `conditions` hold for its arguments.
pub(crate) fn when(number: c_long, conditions: &[When]) -> Allowed {
    Allowed {
        number,
        when: conditions.to_vec(),
    }
}

/// The programs of all kinds, in the order of [`Kind::ALL`].
pub(crate) struct Filters([BpfProgram; Kind::ALL.len()]);

impl Filters {
    pub(crate) fn compile(parts: Parts) -> Result<Self, Error> {
        let mut programs = [const { BpfProgram::new() }; Kind::ALL.len()];
        for (program, kind) in programs.iter_mut().zip(Kind::ALL) {
            *program = allow(lists::of(kind, parts), kind)?;
        }
        Ok(Self(programs))
    }

    /// Restricts the calling thread to the system calls in the list of `kind`.
    pub(crate) fn apply(&self, kind: Kind) -> Result<(), Error> {
        seccompiler::apply_filter(&self.0[kind as usize]).map_err(Error::Filter)
    }
}

/// Restricts the calling thread, which is the broker's, to the system calls in the broker's list.
pub(crate) fn apply_broker(replaces: bool) -> Result<(), Error> {
    let program = allow(lists::broker(replaces), Kind::Broker)?;
    seccompiler::apply_filter(&program).map_err(Error::Filter)
}

fn allow(list: Vec<Allowed>, kind: Kind) -> Result<BpfProgram, Error> {
    let program = compile(list, SeccompAction::Trap, SeccompAction::Allow);
    program.map_err(|error| Error::List(kind, error.to_string()))
}

/// Makes the kernel kill the process if a thread makes a system call that no part of the daemon
/// needs. The kernel runs no signal handler first, because an attacker could subvert a handler.
/// Threads that are started later inherit this filter.
pub(crate) fn forbid_for_ever() -> Result<(), Error> {
    let program = compile(
        lists::never(),
        SeccompAction::Allow,
        SeccompAction::KillProcess,
    );
    let program = program.map_err(|error| Error::List(Kind::Main, error.to_string()))?;
    seccompiler::apply_filter(&program).map_err(Error::Filter)
}

fn compile(
    list: Vec<Allowed>,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut unconditional = Vec::new();
    for Allowed { number, when } in list {
        let rules = rules.entry(number).or_default();
        if when.is_empty() {
            unconditional.push(number);
        } else {
            let conditions = when.into_iter().map(When::condition);
            rules.push(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?);
        }
    }
    // A system call with an empty list of rules matches with any arguments. Inserted last, because
    // the same call may also be listed with conditions.
    for number in unconditional {
        rules.insert(number, Vec::new());
    }
    let arch = env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, listed, arch)?.try_into()
}
