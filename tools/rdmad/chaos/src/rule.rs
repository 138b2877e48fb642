// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A rule: when something fails, and how.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::time::Duration;

use virtio_rdma_abi::ctrl::{Command, Errno};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpType, WcStatus, WrOpcode};

use crate::cm::CmMessage;
use crate::limit::Limit;
use crate::word::Word;

/// A rule of a scenario. Its text, in which a scenario has it, is that of [`Display`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    /// The port that the rule is for; `None` for each port.
    pub port: Option<String>,
    pub when: When,
    /// The events that fail, counted from 1.
    pub(crate) count: Count,
    /// How many of these events fail.
    pub(crate) chance: Option<Chance>,
    /// How many events fail at most.
    pub(crate) times: Option<u64>,
    /// The time in which events fail, from the first event on.
    pub(crate) time: Time,
    /// The rule that must have applied before.
    pub(crate) after: Option<String>,
    pub what: What,
}

/// The events that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    pub hook: Hook,
    /// The number of the [named](Hook::names) events; `None` for any.
    pub(crate) of: Option<u32>,
    /// The QP, by its [order](Event::qp); `None` for any.
    pub(crate) qp: Option<u32>,
    /// The QP, by its number; `None` for any.
    pub(crate) qpn: Option<u32>,
    /// The service of the QP; `None` for any.
    pub(crate) service: Option<QpType>,
    /// The address of the peer of the QP; `None` for any.
    pub(crate) peer: Option<IpAddr>,
    /// The CQ, by its [order](Event::cq); `None` for any.
    pub(crate) cq: Option<u32>,
    /// The MR, by its [order](Event::mr); `None` for any.
    pub(crate) mr: Option<u32>,
}

/// A kind of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A command of the driver.
    Command,
    /// A send work request of a QP begins.
    Send,
    /// A request of the peer of a QP to access memory begins.
    Access,
    /// A message finds a receive of the QP; again if the receive was withheld.
    Receive,
    /// The QP sends a packet of a request for the first time.
    Packet,
    /// A work request completes to a CQ.
    Completion,
    /// The completion event of a CQ is sent.
    Event,
    /// The connection manager sends a message.
    Cm,
    /// The device begins. The rule applies once, without an event.
    Device,
}

/// An event of a port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// The order of its QP among all QPs that the driver has created, from 1; 0 for none.
    pub qp: u32,
    /// The number of its QP; 0 for none.
    pub qpn: u32,
    /// The service of its QP; `None` without a QP.
    pub service: Option<QpType>,
    /// The address of the QP's peer; `None` without a connection.
    pub peer: Option<IpAddr>,
    /// The order of its CQ among all CQs that the driver has created, from 1; 0 for none.
    pub cq: u32,
    /// The order of its MR among all that the driver has registered, from 1; 0 for none.
    pub mr: u32,
    /// Its number among the [named](Hook::names) events.
    pub of: u32,
    /// Whether its QP has an SRQ.
    pub has_srq: bool,
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

/// A part of the time since the first event that a rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub since: Option<Duration>,
    pub until: Option<Duration>,
}

/// The part of events that fail, in millionths. The choice depends on their numbers and the
/// name of the rule alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chance(u32);

/// The effect of a rule on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The command is refused.
    Refuse(Errno),
    /// The command begins later.
    Wait(Duration),
    /// The work request ends with this status when those before it have ended; or the access is
    /// refused, so that its work request ends with this status.
    Fail(WcStatus),
    /// The message does not get the receive now.
    Withhold,
    /// The packet, completion, completion event or message is lost.
    Drop,
    /// The event is raised. If it tells of a failure, its object fails.
    Raise(AsyncEvent),
    /// The device fails, as by a defect, and asks its driver for a reset.
    Crash,
    /// The completion and those after it, or the completion event, come later.
    Hold(Duration),
    /// The packet or completion event is sent twice.
    Repeat,
    /// A bit of the packet changes on the way.
    Corrupt,
    /// The packet is sent after so many others of its QP.
    Delay(u8),
    /// The packet and all later ones of its QP are lost.
    Silence,
    /// The link goes down for this time.
    Flap(Duration),
    /// The device does not have the feature.
    Lack(Feature),
    /// The limit of the device is at most this value.
    Limit(Limit, u32),
    /// The process that serves the device ends, as by a defect.
    Kill,
}

impl What {
    /// The words of all effects. The flight recorder keeps an effect by its [number](Self::number),
    /// the place of its word.
    pub const WORDS: [&'static str; 16] = [
        "refuse", "wait", "fail", "withhold", "drop", "raise", "crash", "hold", "repeat",
        "corrupt", "delay", "silence", "flap", "lack", "limit", "kill",
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Refuse(_) => "refuse",
            Self::Wait(_) => "wait",
            Self::Fail(_) => "fail",
            Self::Withhold => "withhold",
            Self::Drop => "drop",
            Self::Raise(_) => "raise",
            Self::Crash => "crash",
            Self::Hold(_) => "hold",
            Self::Repeat => "repeat",
            Self::Corrupt => "corrupt",
            Self::Delay(_) => "delay",
            Self::Silence => "silence",
            Self::Flap(_) => "flap",
            Self::Lack(_) => "lack",
            Self::Limit(..) => "limit",
            Self::Kill => "kill",
        }
    }

    /// The number of the effect in the flight recorder.
    pub fn number(self) -> u64 {
        let place = Self::WORDS.iter().position(|word| *word == self.word());
        place.unwrap_or(Self::WORDS.len()) as u64
    }
}

impl Hook {
    pub(crate) const ALL: [Self; 9] = [
        Self::Command,
        Self::Send,
        Self::Access,
        Self::Receive,
        Self::Packet,
        Self::Completion,
        Self::Event,
        Self::Cm,
        Self::Device,
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Send => "send",
            Self::Access => "access",
            Self::Receive => "receive",
            Self::Packet => "packet",
            Self::Completion => "completion",
            Self::Event => "event",
            Self::Cm => "cm",
            Self::Device => "device",
        }
    }

    /// The words and numbers of events that have names.
    pub(crate) fn names(self) -> Vec<(&'static str, u32)> {
        match self {
            Self::Command => numbered(|it: Command| it.value().into()),
            Self::Send => numbered(WrOpcode::value),
            Self::Cm => numbered(CmMessage::number),
            Self::Access => {
                let bits = AccessFlags::BITS.iter();
                bits.filter(|(_, bit)| REMOTE.contains(*bit))
                    .map(|(name, bit)| (*name, bit.0))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The thing that has these names.
    pub(crate) const fn named(self) -> &'static str {
        match self {
            Self::Command => "a command",
            Self::Send => "an operation",
            Self::Access => "an access",
            _ => "a message of the connection manager",
        }
    }

    /// Whether rules may name a QP.
    pub(crate) const fn has_qp(self) -> bool {
        matches!(
            self,
            Self::Send | Self::Access | Self::Receive | Self::Packet | Self::Completion
        )
    }

    /// Whether rules may name a CQ.
    pub(crate) const fn has_cq(self) -> bool {
        matches!(self, Self::Completion | Self::Event)
    }

    /// Whether rules may name an MR.
    pub(crate) const fn has_mr(self) -> bool {
        matches!(self, Self::Access)
    }

    /// The effects that rules may have.
    pub(crate) const fn effects(self) -> &'static [&'static str] {
        match self {
            Self::Command => &["refuse", "wait", "flap", "crash", "kill"],
            Self::Send => &["fail", "raise", "flap", "crash", "kill"],
            Self::Access => &["fail", "kill"],
            Self::Receive => &["fail", "raise", "withhold", "flap", "crash", "kill"],
            Self::Packet => &["drop", "corrupt", "repeat", "delay", "silence", "kill"],
            Self::Completion => &["hold", "drop", "raise", "kill"],
            Self::Event => &["hold", "drop", "repeat", "kill"],
            Self::Cm => &["drop", "kill"],
            Self::Device => &["lack", "limit"],
        }
    }

    /// The statuses with which a work request of this device can end by itself.
    pub(crate) const fn statuses(self) -> &'static [WcStatus] {
        use WcStatus::*;
        match self {
            Self::Send => &[
                LocLenErr,
                LocQpOpErr,
                LocProtErr,
                MwBindErr,
                BadRespErr,
                RemInvReqErr,
                RemAccessErr,
                RemOpErr,
                RetryExcErr,
                RnrRetryExcErr,
            ],
            Self::Access => &[RemInvReqErr, RemAccessErr, RemOpErr],
            // Before the message arrives.
            Self::Receive => &[LocLenErr, LocQpOpErr, LocProtErr],
            _ => &[],
        }
    }

    /// The events that rules may raise.
    pub(crate) const fn raised(self) -> &'static [AsyncEvent] {
        use AsyncEvent::*;
        match self {
            Self::Send => &[
                QpFatal,
                QpReqErr,
                QpAccessErr,
                CommEst,
                SqDrained,
                PkeyChange,
            ],
            Self::Receive => &[QpFatal, QpReqErr, QpAccessErr, SrqErr, SrqLimitReached],
            Self::Completion => &[CqErr],
            _ => &[],
        }
    }

    /// The bit of this kind in a set.
    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// The access flags for which a peer can ask.
const REMOTE: AccessFlags = AccessFlags(
    AccessFlags::REMOTE_WRITE.0
        | AccessFlags::REMOTE_READ.0
        | AccessFlags::REMOTE_ATOMIC.0
        | AccessFlags::FLUSH_GLOBAL.0
        | AccessFlags::FLUSH_PERSISTENT.0,
);

impl Rule {
    /// The name of the rule that must have applied before, if none of `rules` has it.
    pub(crate) fn missing<'a>(&self, mut rules: impl Iterator<Item = &'a Self>) -> Option<&str> {
        let after = self.after.as_deref()?;
        (!rules.any(|rule| rule.name == after)).then_some(after)
    }

    /// Whether the rule is for the port with this name.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        self.port.as_ref().is_none_or(|port| port == name)
    }

    /// Whether the rule is about this event.
    pub(crate) fn is_about(&self, hook: Hook, event: &Event) -> bool {
        let When {
            hook: own,
            of,
            qp,
            qpn,
            service,
            peer,
            cq,
            mr,
        } = self.when;
        let is_of = |of: u32| match hook {
            Hook::Access => event.of & of != 0,
            _ => event.of == of,
        };
        let needs_srq = matches!(
            self.what,
            What::Raise(AsyncEvent::SrqErr | AsyncEvent::SrqLimitReached)
        );
        own == hook
            && of.is_none_or(is_of)
            && qp.is_none_or(|qp| qp == event.qp)
            && qpn.is_none_or(|qpn| qpn == event.qpn)
            && service.is_none_or(|service| Some(service) == event.service)
            && peer.is_none_or(|peer| Some(peer) == event.peer)
            && cq.is_none_or(|cq| cq == event.cq)
            && mr.is_none_or(|mr| mr == event.mr)
            && (event.has_srq || !needs_srq)
    }
}

impl Chance {
    /// The number of millionths in a hundredth.
    const PERCENT: f64 = 10_000.0;

    /// A chance such as 0.5%.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let percent: f64 = word.strip_suffix('%')?.parse().ok()?;
        // The range is checked before the cast.
        let is_possible = (0.0001..=100.0).contains(&percent);
        is_possible.then(|| Self((percent * Self::PERCENT).round() as u32))
    }

    /// Whether the event with this number fails by the rule with this name.
    pub(crate) fn hits(self, rule: &str, number: u64) -> bool {
        let seed = rule.bytes().fold(number, |seed, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        fastrand::Rng::with_seed(seed).u32(0..1_000_000) < self.0
    }
}

impl Display for Chance {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / Self::PERCENT)
    }
}

impl Time {
    pub(crate) fn is_all(self) -> bool {
        self == Self::default()
    }

    /// Whether events fail at this time after the first one.
    pub(crate) fn has(self, age: Duration) -> bool {
        self.since.is_none_or(|since| age >= since) && self.until.is_none_or(|until| age < until)
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

fn numbered<W: Word>(number: impl Fn(W) -> u32) -> Vec<(&'static str, u32)> {
    let all = W::ALL.iter();
    all.map(|value| (value.word(), number(*value))).collect()
}

/// The word for all events that have names.
pub(crate) const ANY: &str = "any";

impl Display for When {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.hook.word())?;
        let names = self.hook.names();
        if !names.is_empty() {
            let name = names.iter().find(|(_, number)| Some(*number) == self.of);
            write!(f, " {}", name.map_or(ANY, |(name, _)| name))?;
        }
        for (word, number) in [
            ("qp", self.qp),
            ("qpn", self.qpn),
            ("cq", self.cq),
            ("mr", self.mr),
        ] {
            if let Some(number) = number {
                write!(f, " {word} {number}")?;
            }
        }
        if let Some(service) = self.service {
            write!(f, " service {}", service.word())?;
        }
        self.peer.map_or(Ok(()), |peer| write!(f, " peer {peer}"))
    }
}

impl Display for What {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Self::Refuse(errno) => write!(f, " {}", errno.word()),
            Self::Fail(status) => write!(f, " {}", status.word()),
            Self::Raise(event) => write!(f, " {}", event.word()),
            Self::Wait(time) | Self::Hold(time) | Self::Flap(time) => {
                write!(f, " {}ms", time.as_millis())
            }
            Self::Delay(packets) => write!(f, " {packets}"),
            Self::Lack(feature) => write!(f, " {}", feature.word()),
            Self::Limit(limit, value) => write!(f, " {} {value}", limit.word()),
            Self::Withhold
            | Self::Drop
            | Self::Crash
            | Self::Repeat
            | Self::Corrupt
            | Self::Silence
            | Self::Kill => Ok(()),
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.when)?;
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
        if let Some(chance) = self.chance {
            write!(f, " chance {chance}")?;
        }
        if let Some(times) = self.times {
            write!(f, " times {times}")?;
        }
        for (word, time) in [("since", self.time.since), ("until", self.time.until)] {
            if let Some(time) = time {
                write!(f, " {word} {}ms", time.as_millis())?;
            }
        }
        if let Some(after) = &self.after {
            write!(f, " after {after}")?;
        }
        write!(f, " then {}", self.what)
    }
}
