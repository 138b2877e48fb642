// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Values of enumerations and bit masks, known and unknown.

use virtio_rdma_abi::config::{AtomicCap, DeviceCaps};
use virtio_rdma_abi::cqe::WcReason;
use virtio_rdma_abi::ctrl::{Command, CreateFlags, Errno, NotifyFlags, ReregFlags, SrqAttrMask};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{
    AccessFlags, AhFlags, AsyncEvent, FlushLevel, FlushTypes, GidType, MigState, Mtu, MwType,
    PortCaps, PortPhysState, PortSpeed, PortState, PortWidth, QpAttrMask, QpState, QpType,
    SendFlags, SigType, WcFlags, WcStatus, WrOpcode, DEFAULT_PKEY, GSI_QPN, MASK_24, PORT,
};
use virtio_rdma_abi::number::{Cqn, Qpn};
use virtio_rdma_abi::queues::{QueueNumbers, Role};
use virtio_rdma_abi::ring::{ArmKind, DoorbellKind};
use virtio_rdma_abi::uverbs::ContextFlags;
use virtio_rdma_abi::wire::UnknownValue;
use virtio_rdma_abi::VIRTIO_ID_RDMA;

/// Asserts that an enumeration has exactly these values and that each converts to its number and
/// back. Also tries the numbers 0 to 255, each single bit and the maximum: of these, the numbers
/// that are not values must be refused.
macro_rules! values {
    ($name:ident: $repr:ty = $expected:expr) => {{
        let expected: Vec<$repr> = $expected.into_iter().collect();
        let actual: Vec<$repr> = $name::ALL.iter().map(|value| value.value()).collect();
        assert_eq!(actual, expected, stringify!($name));
        for &value in $name::ALL {
            assert_eq!($name::try_from(value.value()), Ok(value));
        }
        let candidates = (0..=255)
            .chain((0..<$repr>::BITS).map(|bit| 1 << bit))
            .chain([<$repr>::MAX]);
        for candidate in candidates.filter(|candidate| !expected.contains(candidate)) {
            assert_eq!(
                $name::try_from(candidate),
                Err(UnknownValue(u32::from(candidate))),
                stringify!($name)
            );
        }
    }};
}

#[test]
fn enumerations() {
    // abi: R-61
    values!(AtomicCap: u8 = 0..=2);
    // abi: R-100
    values!(Command: u8 = 1..=37);
    // abi: R-1110
    values!(Errno: u8 = [1, 5, 11, 12, 14, 16, 17, 22, 28, 95, 98, 110]);
    // abi: R-141
    values!(PortState: u8 = 0..=5);
    // abi: R-142
    values!(PortPhysState: u8 = 1..=7);
    // abi: R-143
    values!(Mtu: u8 = 1..=5);
    // abi: R-145
    values!(PortSpeed: u16 = [1, 2, 4, 8, 16, 32, 64, 128]);
    // abi: R-144
    values!(PortWidth: u8 = [1, 2, 4, 8, 16]);
    // abi: R-376
    values!(MwType: u8 = 1..=2);
    // abi: R-173
    values!(QpType: u8 = 0..=4);
    // abi: R-179
    values!(SigType: u8 = 0..=1);
    // abi: R-195
    values!(QpState: u8 = 0..=6);
    // abi: R-259
    values!(MigState: u8 = 0..=2);
    // abi: R-154
    values!(GidType: u32 = 1..=2);
    // abi: R-612
    values!(WrOpcode: u32 = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 15, 32]);
    // abi: R-751
    values!(FlushLevel: u8 = 0..=1);
    // abi: R-711
    values!(WcStatus: u8 = 0..=21);
    // abi: R-1260
    values!(WcReason: u8 = 1..=33);
    // abi: R-589
    values!(AsyncEvent: u8 = 0..=18);
    // abi: R-588
    values!(ArmKind: u8 = 0..=2);
    // abi: R-587
    values!(DoorbellKind: u8 = 1..=4);
}

/// People read the names of the specification in traces.
#[test]
fn names_are_those_of_the_specification() {
    assert_eq!(Command::CreateQp.c_name(), c"CREATE_QP");
    assert_eq!(Command::ReqNotifyCq.c_name(), c"REQ_NOTIFY_CQ");
    assert_eq!(Errno::Einval.c_name(), c"EINVAL");
    assert_eq!(AsyncEvent::SrqLimitReached.c_name(), c"SRQ_LIMIT_REACHED");
    let completion = EventKind::Completion;
    assert_eq!(completion.c_name(), c"COMPLETION");
    let failed = EventKind::Async(AsyncEvent::QpFatal);
    assert_eq!(failed.c_name(), c"QP_FATAL");
}

/// The manual page lists the reasons for errors by number and name.
#[test]
fn reasons_are_in_the_manual() {
    let page = include_str!("../../../../../Documentation/man/virtio_rdma.7");
    for reason in WcReason::ALL {
        let name = reason.c_name().to_str().unwrap();
        let item = format!("\n.B {} {name}\n", reason.value());
        assert!(page.contains(&item), "{item}");
    }
}

/// Enumerations in which neighbours have similar values: the test above would not notice a swap.
#[test]
fn names_have_their_values() {
    // abi: R-100
    assert_eq!(Command::MapMrSg.value(), 8);
    assert_eq!(Command::RegUserMr.value(), 9);
    assert_eq!(Command::ReqNotifyCq.value(), 18);
    assert_eq!(
        (Command::CreateSrq.value(), Command::ResizeCq.value()),
        (21, 25)
    );
    assert_eq!(Command::AllocMw.value(), 19);
    assert_eq!(Command::DeallocMw.value(), 20);
    assert_eq!(Command::ReregMr.value(), 30);
    assert_eq!(PortWidth::X4.value(), 2);
    assert_eq!(PortWidth::X8.value(), 4);
    assert_eq!(PortWidth::X2.value(), 16);
    assert_eq!(PortSpeed::Edr.value(), 32);
    assert_eq!(PortState::Active.value(), 4);
    assert_eq!(PortPhysState::LinkUp.value(), 5);
    assert_eq!(QpType::Rc.value(), 2);
    assert_eq!(QpType::Ud.value(), 4);
    assert_eq!(QpState::Err.value(), 6);
    // abi: R-612
    assert_eq!(WrOpcode::BindMw.value(), 8);
    assert_eq!(WrOpcode::SendWithInv.value(), 9);
    assert_eq!(WrOpcode::RdmaReadWithInv.value(), 11);
    assert_eq!(WrOpcode::Flush.value(), 14);
    assert_eq!(WrOpcode::AtomicWrite.value(), 15);
    // abi: R-711
    assert_eq!(WcStatus::LocProtErr.value(), 4);
    assert_eq!(WcStatus::WrFlushErr.value(), 5);
    assert_eq!(WcStatus::RemInvReqErr.value(), 9);
    assert_eq!(WcStatus::RemAccessErr.value(), 10);
    assert_eq!(WcStatus::RetryExcErr.value(), 12);
    assert_eq!(WcStatus::RnrRetryExcErr.value(), 13);
    // abi: R-589
    assert_eq!(AsyncEvent::QpFatal.value(), 1);
    assert_eq!(AsyncEvent::PortActive.value(), 9);
    assert_eq!(AsyncEvent::QpLastWqeReached.value(), 16);
    let mtus: Vec<u32> = Mtu::ALL.iter().map(|mtu| mtu.bytes()).collect();
    // abi: R-143
    assert_eq!(mtus, [256, 512, 1024, 2048, 4096]);
    // abi
    assert_eq!(
        (VIRTIO_ID_RDMA, GSI_QPN.get(), PORT, DEFAULT_PKEY, MASK_24),
        (42, 1, 1, 0xffff, 0xff_ffff)
    );
}

/// Asserts the named bits of a mask, in order, and its set operations on named and unnamed bits.
macro_rules! bits {
    ($name:ident: $repr:ty { $($bit:ident = $number:literal),* }) => {{
        let mut all: $repr = 0;
        $(
            assert_eq!($name::$bit.0, 1 << $number, stringify!($name::$bit));
            all |= 1 << $number;
        )*
        assert_eq!($name::ALL.0, all, stringify!($name));
        assert_eq!($name::default(), $name::NONE);
        assert!(!$name::ALL.has_unknown());
        for bit in 0..<$repr>::BITS {
            let mask = $name(1 << bit);
            let named = all & mask.0 != 0;
            assert_eq!(mask.has_unknown(), !named);
            assert_eq!($name::ALL.contains(mask), named);
            assert_eq!($name::ALL.intersects(mask), named);
            assert_eq!(($name::ALL | mask).without(mask).0, all & !mask.0);
        }
    }};
}

#[test]
fn masks() {
    // abi: R-60
    bits!(DeviceCaps: u64 {
        BAD_PKEY_CNTR = 1, BAD_QKEY_CNTR = 2, CHANGE_PHY_PORT = 5, UD_AV_PORT_ENFORCE = 6,
        SYS_IMAGE_GUID = 11, RC_RNR_NAK_GEN = 12, MEM_WINDOW = 17, MEM_MGT_EXTENSIONS = 21,
        BLOCK_MULTICAST_LOOPBACK = 22, MEM_WINDOW_TYPE_2A = 23, MEM_WINDOW_TYPE_2B = 24,
        SG_GAPS_REG = 32, FLUSH_GLOBAL = 38, FLUSH_PERSISTENT = 39, ATOMIC_WRITE = 40
    });
    // abi: R-146
    bits!(PortCaps: u32 { CM_SUP = 16 });
    // abi: R-287
    bits!(AccessFlags: u32 {
        LOCAL_WRITE = 0, REMOTE_WRITE = 1, REMOTE_READ = 2, REMOTE_ATOMIC = 3, MW_BIND = 4,
        ZERO_BASED = 5, ON_DEMAND = 6, HUGETLB = 7, FLUSH_GLOBAL = 8, FLUSH_PERSISTENT = 9,
        RELAXED_ORDERING = 20
    });
    // abi: R-258
    bits!(AhFlags: u8 { GRH = 0 });
    // abi: R-260
    bits!(QpAttrMask: u32 {
        STATE = 0, CUR_STATE = 1, EN_SQD_ASYNC_NOTIFY = 2, ACCESS_FLAGS = 3, PKEY_INDEX = 4,
        PORT = 5, QKEY = 6, AV = 7, PATH_MTU = 8, TIMEOUT = 9, RETRY_CNT = 10, RNR_RETRY = 11,
        RQ_PSN = 12, MAX_QP_RD_ATOMIC = 13, ALT_PATH = 14, MIN_RNR_TIMER = 15, SQ_PSN = 16,
        MAX_DEST_RD_ATOMIC = 17, PATH_MIG_STATE = 18, CAP = 19, DEST_QPN = 20, RESERVED1 = 21,
        RESERVED2 = 22, RESERVED3 = 23, RESERVED4 = 24, RATE_LIMIT = 25
    });
    // abi: R-627
    bits!(SendFlags: u32 { FENCE = 0, SIGNALED = 1, SOLICITED = 2, INLINE = 3, IP_CSUM = 4 });
    // abi: R-694
    bits!(WcFlags: u32 {
        GRH = 0, WITH_IMM = 1, WITH_INVALIDATE = 2, IP_CSUM_OK = 3, WITH_SMAC = 4, WITH_VLAN = 5,
        WITH_NETWORK_HDR_TYPE = 6, SOLICITED = 31
    });
    // abi: R-322
    bits!(ReregFlags: u32 { TRANSLATION = 0, PD = 1, ACCESS = 2 });
    // abi: R-906
    bits!(NotifyFlags: u32 { SOLICITED = 0, NEXT_COMPLETION = 1 });
    // abi: R-182
    bits!(CreateFlags: u32 { USER = 0, BLOCK_MULTICAST_LOOPBACK = 1, SRQ = 2 });
    // abi: R-590
    bits!(SrqAttrMask: u32 { MAX_WR = 0, LIMIT = 1 });
    // abi: R-942
    bits!(ContextFlags: u32 {
        OWN_RINGS = 0, MEM_WINDOWS = 1, ATOMIC_WRITE = 2, FLUSH = 3, ORDER_PLATFORM = 4
    });
    // abi: R-748
    bits!(FlushTypes: u8 { GLOBAL = 0, PERSISTENT = 1 });
}

// abi
#[test]
fn numbers_of_virtqueue_mode() {
    let numbers = QueueNumbers::new(3);
    assert_eq!(numbers.role(0), Role::Control);
    assert_eq!(
        [0, 2, 3].map(|cqn| numbers.cq(Cqn::new(cqn))),
        [Some(1), Some(3), None]
    );
    assert_eq!(
        [0, 1, 2].map(|qpn| numbers.sq(Qpn::new(qpn))),
        [None, Some(4), Some(6)]
    );
    assert_eq!(
        [0, 1, 2].map(|qpn| numbers.rq(Qpn::new(qpn))),
        [None, Some(5), Some(7)]
    );
    assert_eq!((numbers.count(0), numbers.count(2)), (4, 8));
    for cqn in (0..3).map(Cqn::new) {
        assert_eq!(numbers.role(numbers.cq(cqn).unwrap()), Role::Cq(cqn));
    }
    for qpn in (1..100).map(Qpn::new) {
        assert_eq!(numbers.role(numbers.sq(qpn).unwrap()), Role::Sq(qpn));
        assert_eq!(numbers.role(numbers.rq(qpn).unwrap()), Role::Rq(qpn));
    }
    // Virtqueue numbers have 16 bits.
    assert_eq!(numbers.sq(Qpn::new(32767)), None);
    assert_eq!(numbers.rq(Qpn::new(32766)), Some(u16::MAX));
    assert_eq!(numbers.sq(Qpn::new(u32::MAX)), None);
    assert_eq!(QueueNumbers::new(u32::MAX).cq(Cqn::new(70_000)), None);
    assert_eq!(QueueNumbers::new(u32::MAX).count(u32::MAX), u32::MAX);
}
