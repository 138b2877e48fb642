// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Why the device refused a command: the reason, and the value that was wrong.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};
use std::net::Ipv6Addr;

use budget::Exhausted;
use virtio_rdma_abi::ctrl::Errno;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::wire::{spell, spelled_len};

use crate::event::{Unit, Value, COMMAND, HEX, MTU, NUMBER, STATE, TYPE};

/// The refusal of a command. `limit` is the other number that the [reason](Reason) names, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub what: What,
    pub value: u64,
    pub limit: u64,
    /// The queue whose ring has the value, if the command has several rings.
    pub queue: Option<QpQueue>,
}

/// A queue of a QP. The numbers are kept, as those of [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpQueue {
    Sq = 1,
    Rq = 2,
}

impl QpQueue {
    const fn name(self) -> &'static str {
        match self {
            Self::Sq => "SQ",
            Self::Rq => "RQ",
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::Sq, Self::Rq]
            .into_iter()
            .find(|queue| *queue as u8 == number)
    }
}

/// Position of the queue's number in the byte of the reason.
const QUEUE_SHIFT: u32 = 6;
const _: () = {
    let mut index = 0;
    while index < Reason::ALL.len() {
        assert!((Reason::ALL[index] as u8) < 1 << QUEUE_SHIFT);
        index += 1;
    }
};

macro_rules! reasons {
    ($(
        $(#[$doc:meta])*
        $reason:ident = $number:literal, $errno:ident, $text:literal;
    )*) => {
        /// The reasons of refusals. Their numbers are kept: a ring of events may be read by a later
        /// version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $reason = $number,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$reason),*];

            /// The errno of the response.
            pub const fn errno(self) -> Errno {
                match self {
                    $(Self::$reason => Errno::$errno,)*
                }
            }

            /// The name of the reason, spelled as names of the ABI are.
            pub const fn c_name(self) -> &'static CStr {
                match self {
                    $(Self::$reason => {
                        const VARIANT: &str = stringify!($reason);
                        const NAME: [u8; spelled_len(VARIANT)] = spell(VARIANT);
                        match CStr::from_bytes_with_nul(&NAME) {
                            Ok(name) => name,
                            Err(_) => c"",
                        }
                    })*
                }
            }

            /// The sentence for the reason. [`Refusal::parts`] fills its blanks.
            const fn text(self) -> &'static str {
                match self {
                    $(Self::$reason => $text,)*
                }
            }

            fn of(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$reason),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    TooLarge = 1, Einval, "{what} is {value}, at most {limit} is possible";
    TooSmall = 2, Einval, "{what} is {value}, at least {limit} is needed";
    /// The value is not the only one that is possible.
    Differs = 3, Einval, "{what} is {value}, but must be {limit}";
    Undefined = 4, Einval, "{what} is {value}, which is not defined";
    /// Bits that are reserved, or defined only with a feature: `limit` has them.
    UndefinedBits = 5, Einval, "{what} is {value}, whose bits {limit} are not defined here";
    /// Bits without which the others are not possible: `limit` has them.
    MissingBits = 6, Einval, "{what} is {value}, but needs the bits {limit}";
    NotPowerOfTwo = 7, Einval, "{what} is {value}, which is no power of two";
    Misaligned = 8, Einval, "{what} is {value}, which is no multiple of {limit}";
    /// `value` is an address and `limit` a length.
    Wraps = 9, Einval, "{what} is {value}, from which {limit} bytes exceed the address space";
    /// The field has no meaning without a bit of the flags or the mask of the command.
    NotSelected = 10, Einval, "{what} is {value}, but flags or mask lack the bit for it";
    NoSuch = 11, Einval, "there is no {what} {value}";
    /// The object, or the state of the object, does not take the command.
    Unsuitable = 12, Einval, "{what} {value} does not take this command";
    /// The object failed, or the driver revoked it.
    Failed = 13, Einval, "{what} {value} has failed or is revoked";
    /// Work requests in progress use the attributes of the QP.
    NotDrained = 14, Einval, "the SQ of {what} {value} is not drained";
    NotUnicast = 15, Einval, "{what} is {value}, which is not the address of one host";
    NotGroup = 16, Einval, "{what} is {value}, which is not the address of a multicast group";
    OtherFamily = 17, Einval, "{what} is {value}, but the source GID is of the other IP version";
    NotMember = 18, Einval, "the QP is not attached to {what} {value}";
    NoTransition = 19, Einval, "{what}: there is no transition from {from} to {to} for this QP";
    MissingAttribute = 20, Einval, "{what} is missing in attr_mask, {from} to {to} needs it";
    ExtraAttribute = 21, Einval, "{what} is in attr_mask, {from} to {to} does not permit it";
    NotSupported = 22, Eopnotsupp, "{what} {value} is not supported";
    /// `limit` is the bit number of the feature.
    NotNegotiated = 23, Eopnotsupp, "{what} {value} needs the feature {feature}";
    /// `limit` is the bit number of the feature.
    Replaced = 24, Eopnotsupp, "{what} {value} is not possible with the feature {feature}";
    UnsupportedAttribute = 25, Eopnotsupp, "{what} in attr_mask is not supported or negotiated";
    NotPermitted = 26, Eperm, "{what} {value} is not permitted";
    InUse = 27, Ebusy, "{what} {value} is in use";
    Exists = 28, Eexist, "{what} {value} is there already";
    /// The driver has as many objects as it may have.
    Full = 29, Enomem, "{what}: all {limit} are in use";
    /// `value` is the number of bytes or pages needed, and `limit` of those that are left.
    NoMemory = 30, Enomem, "{what}: {value} are needed, {limit} are left";
    Unmapped = 31, Efault, "{what} {value} is not mapped";
    ReadOnly = 32, Efault, "{what} {value} is read-only";
    OtherPort = 33, Eaddrinuse, "{what} {value} belongs to another port";
    DeviceFailed = 34, Eio, "the device has failed";
    /// A rule of a scenario refuses the command: `limit` is the errno.
    Ordered = 35, Eio, "a rule of the scenario refuses {what} {value}";
}

/// The unit of MAC addresses: their bytes are those of a big-endian number.
const MAC: Unit = |number| {
    let [_, _, mac @ ..] = number.to_be_bytes();
    let bytes = mac.map(|byte| format!("{byte:02x}"));
    Value::Word(bytes.join(":"))
};

macro_rules! subjects {
    ($( $(#[$doc:meta])* $what:ident = $number:literal, $text:literal: $unit:ident; )*) => {
        /// The subjects of refusals, in the words of the structures of the ABI. Their numbers are
        /// kept, as those of [`Reason`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum What {
            $($(#[$doc])* $what = $number,)*
        }

        impl What {
            /// All subjects.
            pub const ALL: &'static [Self] = &[$(Self::$what),*];

            /// The name of the subject.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$what => $text,)*
                }
            }

            fn unit(self) -> Unit {
                match self {
                    $(Self::$what => $unit,)*
                }
            }

            fn of(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$what),)*
                    _ => None,
                }
            }
        }
    };
}

subjects! {
    Command = 1, "command": COMMAND;
    /// Bytes of the request.
    Request = 2, "length of the request": NUMBER;
    /// Bytes for the response.
    Room = 3, "room for the response": NUMBER;
    /// The first byte of reserved fields that is not 0.
    Reserved = 4, "reserved": HEX;
    Flags = 5, "flags": HEX;
    AttrMask = 6, "attr_mask": HEX;
    Port = 7, "port": NUMBER;
    PortState = 8, "state": NUMBER;
    Index = 9, "index": NUMBER;
    Pdn = 10, "pdn": NUMBER;
    Cqn = 11, "cqn": NUMBER;
    Qpn = 12, "qpn": NUMBER;
    Srqn = 13, "srqn": NUMBER;
    Mrn = 14, "mrn": NUMBER;
    Mwn = 15, "mwn": NUMBER;
    Csn = 16, "csn": NUMBER;
    SendCqn = 17, "send_cqn": NUMBER;
    RecvCqn = 18, "recv_cqn": NUMBER;
    Cqe = 19, "cqe": NUMBER;
    DoorbellPage = 20, "doorbell_page": NUMBER;
    EventQueue = 21, "event_queue": NUMBER;
    Count = 22, "count": NUMBER;
    Period = 23, "period": NUMBER;
    /// The ring of a queue. The value is the address of its page list.
    Ring = 24, "ring": HEX;
    Slots = 25, "slots": NUMBER;
    SlotShift = 26, "slot_shift": NUMBER;
    PageShift = 27, "page_shift": NUMBER;
    Depth = 28, "depth": NUMBER;
    Npages = 29, "npages": NUMBER;
    /// The address of a page list, or of its part.
    Pages = 30, "pages": HEX;
    /// An address in a page list.
    Page = 31, "page": HEX;
    /// An address in the directory of a page list of two levels.
    Block = 32, "block of the page list": HEX;
    /// The first address of an MR, which is `start` in some commands.
    VirtAddr = 33, "virt_addr": HEX;
    Length = 34, "length": NUMBER;
    AccessFlags = 35, "access_flags": HEX;
    MaxNumSg = 36, "max_num_sg": NUMBER;
    MwType = 37, "mw_type": NUMBER;
    QpType = 38, "qp_type": TYPE;
    SqSigType = 39, "sq_sig_type": NUMBER;
    MaxSendWr = 40, "max_send_wr": NUMBER;
    MaxRecvWr = 41, "max_recv_wr": NUMBER;
    MaxSendSge = 42, "max_send_sge": NUMBER;
    MaxRecvSge = 43, "max_recv_sge": NUMBER;
    MaxInlineData = 44, "max_inline_data": NUMBER;
    MaxWr = 45, "max_wr": NUMBER;
    MaxSge = 46, "max_sge": NUMBER;
    Limit = 47, "limit": NUMBER;
    Gid = 48, "gid": HEX;
    GidType = 49, "gid_type": NUMBER;
    Vlan = 50, "vlan": NUMBER;
    Mgid = 51, "mgid": HEX;
    /// Multicast groups with members.
    Groups = 52, "multicast groups": NUMBER;
    /// Members of a multicast group.
    Members = 53, "members of the group": NUMBER;
    /// Members of all multicast groups.
    AllMembers = 54, "members of all groups": NUMBER;
    QpState = 55, "qp_state": STATE;
    CurQpState = 56, "cur_qp_state": STATE;
    EnSqdAsyncNotify = 57, "en_sqd_async_notify": NUMBER;
    QpAccessFlags = 58, "qp_access_flags": HEX;
    PkeyIndex = 59, "pkey_index": NUMBER;
    PortNum = 60, "port_num": NUMBER;
    Qkey = 61, "qkey": HEX;
    AhAttr = 62, "ah_attr": NUMBER;
    PathMtu = 63, "path_mtu": MTU;
    Timeout = 64, "timeout": NUMBER;
    RetryCnt = 65, "retry_cnt": NUMBER;
    RnrRetry = 66, "rnr_retry": NUMBER;
    RqPsn = 67, "rq_psn": NUMBER;
    MaxRdAtomic = 68, "max_rd_atomic": NUMBER;
    AltAhAttr = 69, "alt_ah_attr": NUMBER;
    MinRnrTimer = 70, "min_rnr_timer": NUMBER;
    SqPsn = 71, "sq_psn": NUMBER;
    MaxDestRdAtomic = 72, "max_dest_rd_atomic": NUMBER;
    PathMigState = 73, "path_mig_state": NUMBER;
    Cap = 74, "cap": NUMBER;
    DestQpNum = 75, "dest_qp_num": NUMBER;
    RateLimit = 76, "rate_limit": NUMBER;
    MaxBurstSize = 77, "max_burst_size": NUMBER;
    TypicalPacketSize = 78, "typical_packet_size": NUMBER;
    AhFlags = 79, "ah_flags": HEX;
    Sl = 80, "sl": NUMBER;
    FlowLabel = 81, "flow_label": HEX;
    SgidIndex = 82, "sgid_index": NUMBER;
    Dgid = 83, "dgid": HEX;
    Dmac = 84, "dmac": MAC;
    /// Bytes of the port's memory budget.
    Memory = 85, "bytes of memory": NUMBER;
    /// A virtqueue, by its number.
    Virtqueue = 86, "virtqueue": NUMBER;
    /// Descriptors of a virtqueue.
    VirtqueueSize = 87, "size of the virtqueue": NUMBER;
    /// An address in the memory of a ring or an MR.
    Address = 88, "DMA address": HEX;
}

impl Refusal {
    /// A refusal whose reason names no limit.
    pub fn new(reason: Reason, what: What, value: impl Into<u64>) -> Self {
        Self {
            reason,
            what,
            value: value.into(),
            limit: 0,
            queue: None,
        }
    }

    /// The refusal, because of a ring of this queue.
    pub fn of(self, queue: QpQueue) -> Self {
        let queue = Some(queue);
        Self { queue, ..self }
    }

    /// A refusal because of a GID, which value and limit hold together.
    pub fn gid(reason: Reason, what: What, gid: [u8; 16]) -> Self {
        let bits = u128::from_be_bytes(gid);
        Self {
            limit: bits as u64,
            ..Self::new(reason, what, (bits >> 64) as u64)
        }
    }

    pub fn errno(&self) -> Errno {
        let ordered = || Errno::try_from(u8::try_from(self.limit).ok()?).ok();
        let by_reason = self.reason.errno();
        match self.reason {
            Reason::Ordered => ordered().unwrap_or(by_reason),
            _ => by_reason,
        }
    }

    /// The words and numbers that the sentence of the reason has, with the names of their blanks.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let Self {
            reason,
            what,
            value,
            limit,
            queue,
        } = *self;
        let unit = what.unit();
        // Numbers of bytes, whatever the subject's unit.
        let limit_unit = match reason {
            Reason::Wraps | Reason::Misaligned => HEX,
            _ => unit,
        };
        let told = match what {
            What::Gid | What::Mgid | What::Dgid => {
                let bits = (u128::from(value) << 64) | u128::from(limit);
                Value::Word(Ipv6Addr::from_bits(bits).to_canonical().to_string())
            }
            _ => unit(value),
        };
        let feature = u8::try_from(limit).ok();
        let feature = feature.and_then(|bit| Feature::try_from(bit).ok());
        let feature = feature.map_or("", Feature::name).to_owned();
        let parts = [
            ("what", Value::Word(what.text().to_owned())),
            ("value", told),
            ("limit", limit_unit(limit)),
            ("from", STATE(value)),
            ("to", STATE(limit)),
            ("feature", Value::Word(feature)),
        ];
        let text = reason.text();
        let queue = queue.map(|queue| ("queue", Value::Word(queue.name().to_owned())));
        let blanks =
            { parts.into_iter() }.filter(move |(name, _)| text.contains(&format!("{{{name}}}")));
        queue.into_iter().chain(blanks)
    }

    /// Reason, queue and subject in 16 bits, which are never 0.
    pub(crate) fn word(&self) -> u16 {
        let queue = self.queue.map_or(0, |queue| queue as u8);
        u16::from_le_bytes([self.reason as u8 | (queue << QUEUE_SHIFT), self.what as u8])
    }

    /// The refusal with this [word](Self::word). `None` for a word of another version.
    pub(crate) fn from_word(word: u16, value: u64, limit: u64) -> Option<Self> {
        let [reason, what] = word.to_le_bytes();
        let (number, queue) = (reason & ((1 << QUEUE_SHIFT) - 1), reason >> QUEUE_SHIFT);
        Some(Self {
            reason: Reason::of(number)?,
            what: What::of(what)?,
            value,
            limit,
            queue: match queue {
                0 => None,
                number => Some(QpQueue::of(number)?),
            },
        })
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let fill = |text: String, (name, value): (&str, Value)| {
            text.replace(&format!("{{{name}}}"), &value.to_string())
        };
        if let Some(queue) = self.queue {
            write!(f, "{}: ", queue.name())?;
        }
        let text = self.reason.text().to_owned();
        f.write_str(&self.parts().fold(text, fill))
    }
}

impl From<Exhausted> for Refusal {
    fn from(Exhausted { needed, left }: Exhausted) -> Self {
        Self {
            limit: left,
            ..Self::new(Reason::NoMemory, What::Memory, needed)
        }
    }
}
