// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A rule: when something fails, and how.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use virtio_rdma_abi::ctrl::{Command, Errno};
use virtio_rdma_abi::ib::{AsyncEvent, WcStatus, WrOpcode};

/// The longest pause that a rule may order. The driver waits for a minute, and commands of one
/// driver wait for each other. A daemon with a paused command can't be upgraded.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(5);

/// The statuses other than success with which a send work request of this device can end by itself.
pub(crate) const SEND_STATUSES: [WcStatus; 10] = [
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
];

/// The events with which a QP of this device goes to ERR.
pub(crate) const QP_EVENTS: [AsyncEvent; 3] = [
    AsyncEvent::QpFatal,
    AsyncEvent::QpReqErr,
    AsyncEvent::QpAccessErr,
];

/// The statuses with which a receive of this device can end by itself, before its message arrives.
pub(crate) const RECEIVE_STATUSES: [WcStatus; 3] = [
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
];

/// A rule of a scenario. Its text, in which a scenario has it, is that of [`Display`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    /// The port that the rule is for; `None` for each port.
    pub port: Option<String>,
    pub when: When,
    /// The events that fail, counted from 1.
    pub(crate) count: Count,
    /// How many events fail at most.
    pub(crate) times: Option<u64>,
    /// The rule that must have applied before.
    pub(crate) after: Option<String>,
    pub what: What,
}

/// The events that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A command of the driver; `None` for any.
    Command(Option<Command>),
    /// A send work request of a QP begins; `None` for any operation.
    Send(Option<WrOpcode>, OfQp),
    /// A message looks for a receive of the QP; again if it has found none.
    Receive(OfQp),
    /// The QP sends a packet of a request for the first time.
    Packet(OfQp),
}

/// The QPs that a rule is about: one, by its [order](Event::qp), or any.
pub type OfQp = Option<u32>;

/// An event of a port.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The order of its QP among all QPs that the driver has created, from 1; 0 for none.
    pub qp: u32,
    /// Value of the [`WrOpcode`] of a send work request; otherwise 0.
    pub opcode: u32,
}

/// A choice among the events that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Nth(u64),
    /// Each `every`th of the events `from..=to`.
    Range {
        from: u64,
        to: Option<u64>,
        every: u64,
    },
}

/// The effect of a rule on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The command is refused.
    Refuse(Errno),
    /// The command begins later.
    Wait(Duration),
    /// The work request ends with this status when those before it have ended.
    Fail(WcStatus),
    /// The QP goes to ERR and raises this event.
    Raise(AsyncEvent),
    /// The message finds no receive now.
    Withhold,
    /// The packet is lost.
    Drop,
    /// The device fails, as by a defect, and asks its driver for a reset.
    Crash,
}

impl What {
    /// The number of the effect in the flight recorder.
    pub const fn number(self) -> u64 {
        match self {
            Self::Refuse(_) => 0,
            Self::Wait(_) => 1,
            Self::Fail(_) => 2,
            Self::Withhold => 3,
            Self::Drop => 4,
            Self::Raise(_) => 5,
            Self::Crash => 6,
        }
    }
}

impl Rule {
    /// The name of the rule that must have applied before, if none of `rules` has it.
    pub(crate) fn missing<'a>(&self, mut rules: impl Iterator<Item = &'a Self>) -> Option<&str> {
        let after = self.after.as_deref()?;
        (!rules.any(|rule| rule.name == after)).then_some(after)
    }
}

impl When {
    /// The QP that the rule is about, if it is about one.
    pub(crate) fn qp(self) -> OfQp {
        match self {
            Self::Command(_) => None,
            Self::Send(_, qp) | Self::Receive(qp) | Self::Packet(qp) => qp,
        }
    }

    pub(crate) fn set_qp(&mut self, of: OfQp) {
        if let Self::Send(_, qp) | Self::Receive(qp) | Self::Packet(qp) = self {
            *qp = of;
        }
    }
}

impl Count {
    /// Whether the event with this number is one of them.
    pub(crate) fn has(self, number: u64) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::Range { from, to, every } => {
                number >= from && to.is_none_or(|to| number <= to) && (number - from) % every == 0
            }
        }
    }
}

/// Words of the ABI, as its specification spells them.
macro_rules! words {
    ($($type:ty)*) => {$(
        impl Word for $type {
            const ALL: &'static [Self] = <$type>::ALL;

            fn word(self) -> &'static str {
                // The names of the ABI are ASCII.
                self.c_name().to_str().unwrap_or_default()
            }
        }
    )*};
}

/// A value that the text of a rule names.
pub(crate) trait Word: Copy + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;
}

words! { Command WrOpcode Errno WcStatus AsyncEvent }

fn word_or_any<W: Word>(value: Option<W>) -> &'static str {
    value.map_or(ANY, W::word)
}

/// The word for all commands or operations.
pub(crate) const ANY: &str = "any";

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match self.when {
            When::Command(command) => write!(f, "command {}", word_or_any(command))?,
            When::Send(opcode, _) => write!(f, "send {}", word_or_any(opcode))?,
            When::Receive(_) => f.write_str("receive")?,
            When::Packet(_) => f.write_str("packet")?,
        }
        if let Some(qp) = self.when.qp() {
            write!(f, " qp {qp}")?;
        }
        if let Some(port) = &self.port {
            write!(f, " port {port}")?;
        }
        match self.count {
            Count::Nth(nth) => write!(f, " nth {nth}")?,
            Count::Range { from, to, every } => {
                if from > 1 {
                    write!(f, " from {from}")?;
                }
                if let Some(to) = to {
                    write!(f, " to {to}")?;
                }
                if every > 1 {
                    write!(f, " every {every}")?;
                }
            }
        }
        if let Some(times) = self.times {
            write!(f, " times {times}")?;
        }
        if let Some(after) = &self.after {
            write!(f, " after {after}")?;
        }
        match self.what {
            What::Refuse(errno) => write!(f, " then refuse {}", errno.word()),
            What::Wait(time) => write!(f, " then wait {}ms", time.as_millis()),
            What::Fail(status) => write!(f, " then fail {}", status.word()),
            What::Withhold => f.write_str(" then withhold"),
            What::Drop => f.write_str(" then drop"),
            What::Raise(event) => write!(f, " then raise {}", event.word()),
            What::Crash => f.write_str(" then crash"),
        }
    }
}
