// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Random bytes: accepted values meet the guarantees of the function that accepted them.

use proptest::prelude::*;
use virtio_rdma_abi::config::QUEUE_COUNT_RANGE;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::ring::DoorbellKind;
use virtio_rdma_decode::completion::*;
use virtio_rdma_decode::config::{Limits, Machine};
use virtio_rdma_decode::event::{Cookie, UnusedCookie};

use super::config::good;

/// Random CQEs that often pass the first checks: uniformly random CQEs hardly ever have a valid
/// opcode.
fn cqe() -> impl Strategy<Value = Cqe> {
    let opcode = prop_oneof![Just(0x80u8), Just(0x81), 0u8..0x24, any::<u8>()];
    let status = prop_oneof![4 => Just(0u8), 1 => any::<u8>()];
    let byte_len = prop_oneof![0u32..200, any::<u32>()];
    let flags = prop_oneof![0u32..0x200, any::<u32>()];
    let sl = prop_oneof![0u8..20, any::<u8>()];
    let pkey_index = prop_oneof![0u16..4, any::<u16>()];
    let vendor_err = prop_oneof![4000u32..4200, any::<u32>()];
    let values = (opcode, status, byte_len, flags, sl, pkey_index, vendor_err);
    (values, any::<[u8; 38]>()).prop_map(|(values, bytes)| {
        let (opcode, status, byte_len, flags, sl, pkey_index, vendor_err) = values;
        let mut cqe = Cqe::from_bytes(&bytes);
        cqe.wc_flags.0 = flags;
        Cqe {
            opcode,
            status,
            byte_len,
            sl,
            pkey_index,
            vendor_err,
            ..cqe
        }
    })
}

fn wr() -> impl Strategy<Value = PostedWr> {
    let service = prop_oneof![
        Just(Service::Reliable),
        Just(Service::Unreliable),
        Just(Service::Datagram)
    ];
    (service, any::<bool>(), 0u32..200, 0u16..4).prop_map(|(service, is_process, length, pkeys)| {
        PostedWr {
            kind: DoorbellKind::Rq,
            service,
            is_process,
            length,
            pkeys,
        }
    })
}

proptest! {
    /// Accepted limits are within the ranges of the ABI, for any configuration.
    #[test]
    fn limits_are_within_their_ranges(
        patches in prop::collection::vec((0usize..192, any::<u8>()), 0..8),
        features: u64,
        cpus: u32,
    ) {
        let mut bytes = good().bytes();
        for (at, byte) in patches {
            bytes[at] = byte;
        }
        let machine = Machine { cpus, page_size: 4096 };
        let Ok(limits) = Limits::decode(&bytes, Features(features), machine) else {
            return Ok(());
        };
        let slots = 1..=32768;
        prop_assert_eq!(limits.config.phys_port_cnt, 1);
        prop_assert!(limits.config.page_size_cap & 4096 != 0);
        prop_assert!(QUEUE_COUNT_RANGE.contains(&limits.queues.max_qp));
        prop_assert!(QUEUE_COUNT_RANGE.contains(&limits.queues.max_cq));
        prop_assert!(slots.contains(&limits.queues.max_qp_wr));
        prop_assert!((1..=4_194_304).contains(&limits.queues.max_cqe));
        match limits.own_rings {
            Some(own) => {
                prop_assert!((1..=cpus.max(1)).contains(&own.num_event_queues));
                prop_assert!(own.doorbell_pages != 0);
                prop_assert!((12..=30).contains(&own.doorbell_shift));
            }
            None => {
                let virtqueues = 1 + limits.queues.max_cq + 2 * limits.queues.max_qp;
                prop_assert!(virtqueues <= 1024);
                prop_assert!(limits.srq.is_none());
            }
        }
        if let Some(srq) = limits.srq {
            prop_assert!(QUEUE_COUNT_RANGE.contains(&srq.max_srq));
            prop_assert!(slots.contains(&srq.max_srq_wr) && srq.max_srq_sge != 0);
        }
        if let Some(rates) = limits.rate_limits {
            prop_assert!(rates.min_rate != 0 && rates.min_rate <= rates.max_rate);
        }
    }

    /// The cookie of an object decodes to that object. No other cookie does.
    // abi: R-550
    #[test]
    fn cookies_name_one_entry(index: u32, generation in 1..=u32::MAX, other: u64) {
        let cookie = Cookie { index, generation };
        prop_assert_eq!(Cookie::decode(cookie.value()), cookie);
        let next = UnusedCookie::after(cookie).take();
        prop_assert_eq!(next.index, index);
        prop_assert_ne!(next.generation, 0);
        prop_assert_ne!(next.generation, generation);
        let decoded = Cookie::decode(other);
        prop_assert!(decoded == Cookie::DEVICE || decoded.value() == other);
        prop_assert_eq!(decoded == Cookie::DEVICE, other >> 32 == 0);
    }

    /// An accepted completion never leads a client beyond its memory or a table.
    #[test]
    fn completions_stay_within_what_was_posted(cqe in cqe(), wr in wr(), sent: bool) {
        let kind = if sent { DoorbellKind::Sq } else { DoorbellKind::Rq };
        let wr = PostedWr { kind, ..wr };
        let Ok(checked) = wr.check(&cqe) else {
            return Ok(());
        };
        prop_assert_eq!(cqe.is_receive(), !sent);
        let is_write = checked.operation() == Operation::RecvRdmaWithImm;
        if !(is_write && wr.is_process) {
            prop_assert!(checked.byte_len() <= wr.length);
        }
        let extra = (checked.immediate(), checked.invalidated());
        if checked.status() != WcStatus::Success.value() {
            prop_assert_eq!((checked.byte_len(), extra), (0, (None, None)));
            prop_assert!(checked.datagram().is_none());
            return Ok(());
        }
        prop_assert!(extra.0.is_none() || extra.1.is_none());
        if sent {
            prop_assert_eq!(extra, (None, None));
        }
        let is_datagram = !sent && wr.service == Service::Datagram;
        prop_assert_eq!(checked.datagram().is_some(), is_datagram);
        if let Some(source) = checked.datagram() {
            prop_assert!(checked.byte_len() >= 40);
            prop_assert!(source.pkey_index < wr.pkeys);
            prop_assert!(source.priority() <= 15);
            prop_assert!(source.vlan().is_none_or(|vlan| vlan < 4095));
        }
    }
}
