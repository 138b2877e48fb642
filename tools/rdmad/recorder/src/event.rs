// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events and their words.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};

use virtio_rdma_abi::cqe::WcReason;
use virtio_rdma_abi::ctrl::Command;
use virtio_rdma_abi::ib::{AsyncEvent, Mtu, QpState, QpType, WcStatus};

use crate::refusal::Refusal;
use crate::ring::Entry;

/// An event of a port or of a QP of it, with up to three numbers. [`Kind`] says what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: Kind,
    /// The QP; 0 for an event of the port.
    pub qpn: u32,
    pub a: u32,
    pub b: u64,
    pub c: u64,
}

/// A number of an event, decoded for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    /// The word for a number of an enumeration.
    Word(String),
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

impl From<&CStr> for Value {
    fn from(name: &CStr) -> Self {
        Self::Word(name.to_string_lossy().into_owned())
    }
}

/// The meaning of a number of an event or of a refusal.
pub(crate) type Unit = fn(u64) -> Value;

pub(crate) const NUMBER: Unit = Value::Number;
pub(crate) const HEX: Unit = |number| Value::Word(format!("{number:#x}"));

/// The unit of numbers of an enumeration of the ABI.
macro_rules! unit {
    ($type:ty, $repr:ty) => {
        |number| {
            let variant = <$repr>::try_from(number).ok();
            let variant = variant.and_then(|number| <$type>::try_from(number).ok());
            variant.map_or(Value::Number(number), |variant| variant.c_name().into())
        }
    };
}

pub(crate) const COMMAND: Unit = unit!(Command, u8);
pub(crate) const STATE: Unit = unit!(QpState, u8);
pub(crate) const TYPE: Unit = unit!(QpType, u8);
const STATUS: Unit = unit!(WcStatus, u8);
const REASON: Unit = unit!(WcReason, u8);
const EVENT: Unit = unit!(AsyncEvent, u8);
pub(crate) const MTU: Unit = unit!(Mtu, u8);
/// NAK codes (IBTA 9.7.5.2.8).
const NAK: Unit = |number| {
    let word = match number {
        0 => "PSN sequence error",
        1 => "invalid request",
        2 => "remote access error",
        3 => "remote operational error",
        _ => return Value::Number(number),
    };
    Value::Word(word.to_owned())
};

const RNR_RETRIES: Unit = |number| match number {
    FOR_EVER => Value::Word("without limit".to_owned()),
    number => Value::Number(number),
};

/// The causes of the next turn of a QP's side, in words: bits of an event, and of the engine.
pub const CAUSES: [&str; 9] = [
    "its next turn",
    "room for its frames at the port",
    "a deadline",
    "a response of its peer",
    "a change of its peer",
    "a doorbell",
    "a work request, for which a worker polls",
    "a command",
    "a request of its peer",
];

const WAITS: Unit = |bits| {
    let causes = CAUSES.iter().enumerate();
    let set = causes.filter(|(bit, _)| bits & (1 << bit) != 0);
    let words: Vec<_> = set.map(|(_, cause)| *cause).collect();
    Value::Word(words.join(" or "))
};

/// The effects of rules of a scenario, by their numbers.
const EFFECT: Unit = |number| {
    let effect = usize::try_from(number).ok();
    let effect = effect.and_then(|at| chaos::What::WORDS.get(at));
    effect.map_or(Value::Number(number), |effect| {
        Value::Word((*effect).to_owned())
    })
};

macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $kind:ident = $value:literal, $text:literal $(, $name:literal: $unit:ident)*;
    )*) => {
        /// The kinds of events. Their numbers are kept: a ring may be read by a later version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind = $value,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// The event in words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$kind => $text,)*
                }
            }

            /// Names and units of `a`, `b` and `c`; none for a number that the kind does not use.
            fn units(self) -> &'static [(&'static str, Unit)] {
                match self {
                    $(Self::$kind => &[$(($name, $unit)),*],)*
                }
            }

            fn of(value: u64) -> Option<Self> {
                match value {
                    $($value => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The device executed or refused a command: [`Event::command`] packs the numbers.
    Command = 1, "command";
    /// A QP was created.
    Created = 2, "created", "type": TYPE;
    /// A QP was destroyed.
    Destroyed = 3, "destroyed";
    /// A command changed the state of a QP.
    Modified = 4, "modified", "to": STATE, "from": STATE;
    /// A QP went to ERR or SQE by itself.
    Failed = 5, "failed", "to": STATE;
    /// An asynchronous event was raised; the number is the cookie of its object, or the port.
    Raised = 6, "event", "event": EVENT, "cookie": HEX;
    /// A send work request ended in error, other than by a flush.
    SendError = 7, "send work request failed",
        "status": STATUS, "wr_id": HEX, "reason": REASON;
    /// A receive ended in error, other than by a flush.
    RecvError = 8, "receive failed", "status": STATUS, "wr_id": HEX, "reason": REASON;
    /// The requester had work that stood still for long. The first number has a bit for each of
    /// [`CAUSES`] that could have ended it.
    Waited = 9, "waited", "for": WAITS, "ms": NUMBER;
    /// The local ACK timeout passed; the second number is the number of retries left.
    Timeout = 10, "ACK timeout", "psn": NUMBER, "retries_left": NUMBER;
    /// A probe for lost packets begins: no response arrived for longer than usual.
    Probe = 11, "probe", "psn": NUMBER;
    /// A response arrived, and one before it did not: the requester sends again.
    ResponseLost = 12, "response lost", "psn": NUMBER, "retries_left": NUMBER;
    /// A NAK other than an RNR NAK arrived.
    NakReceived = 13, "NAK received", "psn": NUMBER, "code": NAK;
    /// An RNR NAK arrived: the peer has no receive posted.
    RnrNakReceived = 14, "RNR NAK received", "psn": NUMBER, "retries_left": RNR_RETRIES;
    /// A NAK other than an RNR NAK was sent.
    NakSent = 15, "NAK sent", "psn": NUMBER, "code": NAK;
    /// An RNR NAK was sent: no receive is posted.
    RnrNakSent = 16, "RNR NAK sent", "psn": NUMBER, "timer": NUMBER;
    /// A request of the peer named memory that it may not access, or a key that it can't
    /// invalidate.
    RkeyRefused = 17, "R_Key refused", "rkey": HEX, "address": HEX, "reason": REASON;
    /// A frame was dropped because it is not a valid packet.
    BadFrame = 19, "invalid frame dropped", "bytes": NUMBER;
    /// A packet was dropped because no QP has this number.
    NoQp = 20, "packet to no QP dropped", "psn": NUMBER;
    /// A packet was dropped because the QP has another transport service or partition.
    Mismatched = 21, "packet of another service or partition dropped", "psn": NUMBER, "pkey": HEX;
    /// A packet was dropped because the QP does not receive in its state.
    NotReceiving = 22, "packet dropped in this state", "psn": NUMBER, "state": STATE;
    /// A packet was dropped because its sender is not the QP's peer.
    NotPeer = 23, "packet of another sender dropped", "psn": NUMBER;
    /// The driver reset the device.
    Reset = 24, "reset";
    /// The port failed: its device serves nothing until a reset.
    PortFailed = 25, "port failed";
    /// The link went up (1) or down (0).
    Link = 26, "link", "up": NUMBER;
    /// On the direct path, the peer has no receive posted.
    PeerNotReady = 27, "peer has no receive posted", "peer": NUMBER, "retries_left": RNR_RETRIES;
    /// On the direct path, the peer did not answer in time.
    PeerSilent = 28, "peer does not answer", "peer": NUMBER, "retries_left": NUMBER;

    /// A rule of a scenario applied: its position among the rules of the port.
    Ordered = 29, "rule of the scenario applied", "rule": NUMBER, "effect": EFFECT;

    /// A packet was sent again. Not kept.
    Retransmission = 128, "packet sent again", "psn": NUMBER;
    /// A request arrived with a later PSN than the expected one. Not kept.
    OutOfSequence = 129, "packet out of sequence", "psn": NUMBER, "expected": NUMBER;
    /// A request arrived again. Not kept.
    Duplicate = 130, "duplicate packet", "psn": NUMBER, "expected": NUMBER;
    /// A packet with a congestion mark arrived. Not kept.
    Marked = 131, "congestion mark received";
    /// A congestion notification was sent. Not kept.
    NotificationSent = 132, "congestion notification sent";
    /// A congestion notification arrived. Not kept.
    NotificationReceived = 133, "congestion notification received";
}

impl Kind {
    /// Whether the recorder keeps the event. Others occur for each packet.
    pub const fn is_kept(self) -> bool {
        (self as u8) < Self::Retransmission as u8
    }
}

/// A number of RNR retries left: the requester tries for ever (IBTA 9.7.5.2.8).
const FOR_EVER: u64 = 7;

impl Event {
    /// An event of the port.
    pub const fn port(kind: Kind, a: u32, b: u64) -> Self {
        let (qpn, c) = (0, 0);
        Self { kind, qpn, a, b, c }
    }

    /// A command and its refusal. The command names QP `qpn` unless `qpn` is 0.
    pub fn command(qpn: u32, command: u8, refusal: Option<Refusal>) -> Self {
        let word = refusal.map_or(0, |refusal| refusal.word());
        let (b, c) = refusal.map_or((0, 0), |refusal| (refusal.value, refusal.limit));
        Self {
            kind: Kind::Command,
            qpn,
            a: u32::from(command) | (u32::from(word) << 8),
            b,
            c,
        }
    }

    /// The refusal, if the event is a command that was refused.
    pub fn refusal(&self) -> Option<Refusal> {
        (self.kind == Kind::Command).then(|| Refusal::from_word(self.word(), self.b, self.c))?
    }

    /// The command, in a number of a command.
    fn command_byte(&self) -> u8 {
        self.a.to_le_bytes()[0]
    }

    /// The word of the refusal, in a number of a command; 0 if it was executed.
    fn word(&self) -> u16 {
        // Bits 8 to 23, so the cast drops only bits that are 0.
        (self.a >> 8) as u16
    }

    /// The words and numbers that the event has, with their names.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        if self.kind == Kind::Command {
            let mut values = vec![("command", COMMAND(self.command_byte().into()))];
            if let Some(refusal) = self.refusal() {
                values.push(("errno", refusal.errno().c_name().into()));
                values.push(("reason", refusal.reason.c_name().into()));
                values.extend(refusal.parts());
            }
            return values;
        }
        let numbers = [u64::from(self.a), self.b, self.c];
        let units = self.kind.units().iter();
        units
            .zip(numbers)
            .map(|(&(name, unit), number)| (name, unit(number)))
            .collect()
    }

    /// Whether the recorder keeps the event. A query that succeeds is not kept, since drivers send
    /// queries again and again.
    #[inline]
    pub fn is_kept(&self) -> bool {
        match self.kind {
            Kind::Command => self.word() != 0 || !self.is_query(),
            kind => kind.is_kept(),
        }
    }

    fn is_query(&self) -> bool {
        let command = Command::try_from(self.command_byte());
        matches!(
            command,
            Ok(Command::QueryPort
                | Command::QueryQp
                | Command::QueryPkey
                | Command::QuerySrq
                | Command::QueryCounters
                | Command::QueryCounterSet)
        )
    }

    /// Whether the wire or a peer can cause the event at any rate: then only some are kept.
    pub(crate) const fn repeats(&self) -> bool {
        match self.kind {
            Kind::RkeyRefused
            | Kind::BadFrame
            | Kind::NoQp
            | Kind::Mismatched
            | Kind::NotReceiving
            | Kind::NotPeer
            | Kind::RnrNakSent => true,
            Kind::RnrNakReceived | Kind::PeerNotReady => self.b == FOR_EVER,
            _ => false,
        }
    }

    pub(crate) fn entry(&self, nanos: u64) -> Entry {
        let what = (u64::from(self.kind as u8) << 56) | (u64::from(self.qpn & 0xff_ffff) << 32);
        Entry([nanos, what | u64::from(self.a), self.b, self.c])
    }

    /// The event in an entry and its time in ns. `None` for an entry of another version.
    pub(crate) fn from_entry(Entry([nanos, what, b, c]): Entry) -> Option<(u64, Self)> {
        let event = Self {
            kind: Kind::of(what >> 56)?,
            qpn: (what >> 32) as u32 & 0xff_ffff,
            a: what as u32,
            b,
            c,
        };
        let is_known = event.kind != Kind::Command || event.word() == 0;
        (is_known || event.refusal().is_some()).then_some((nanos, event))
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.qpn != 0 {
            write!(f, "QP {}: ", self.qpn)?;
        }
        if self.kind == Kind::Command {
            write!(f, "command {}", COMMAND(self.command_byte().into()))?;
            return match self.refusal() {
                Some(refusal) => {
                    let errno = Value::from(refusal.errno().c_name());
                    write!(f, " refused ({errno}): {refusal}")
                }
                None => Ok(()),
            };
        }
        f.write_str(self.kind.text())?;
        for (name, value) in self.values() {
            write!(f, ", {} {value}", name.replace('_', " "))?;
        }
        Ok(())
    }
}
