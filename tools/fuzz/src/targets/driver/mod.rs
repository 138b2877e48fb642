// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The driver's decoders for configuration, answers, events and CQEs from a device that writes any
//! bytes. Each decoder is compared with a model that follows the specification.

mod completions;

use arbitrary::{Result, Unstructured};
use virtio_rdma_abi::config::{Config, CONFIG_SIZE, OWN_RINGS_CONFIG_OFFSET};
use virtio_rdma_abi::ctrl::{Empty, RspQueryCounters, RspQueryPkey, RspQueryPort, RspQueryQp};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_decode::answer::Answer;
use virtio_rdma_decode::config::{accesses, ConfigError, Limits, Machine};
use virtio_rdma_decode::event::{Cookie, KnownEvent};
use virtio_rdma_decode::{port, qp};

/// Runs the target.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => answers(rest),
        1 => events(rest),
        // An error means that the input is used up.
        2 => drop(configuration(&mut Unstructured::new(rest))),
        _ => drop(completions::run(&mut Unstructured::new(rest))),
    }
}

/// Decodes answers of any length to commands whose answers have several lengths.
fn answers(data: &[u8]) {
    let Some((written, buffer)) = data.split_first() else {
        return;
    };
    let written = match *written {
        255 => usize::MAX,
        written => written.into(),
    };
    is_read::<Empty>(buffer, written);
    is_read::<RspQueryPkey>(buffer, written);
    is_read::<RspQueryCounters>(buffer, written);
    if let Some(response) = is_read::<RspQueryPort>(buffer, written) {
        if let Ok(port) = port::check(&response) {
            assert!((1..=256).contains(&port.gid_tbl_len), "{port:?}");
            assert!((1..=128).contains(&port.pkey_tbl_len), "{port:?}");
            assert!(
                port.state <= 5 && (1..=7).contains(&port.phys_state),
                "{port:?}"
            );
            assert!((1..=5).contains(&port.max_mtu), "{port:?}");
            assert!((1..=5).contains(&port.active_mtu), "{port:?}");
        }
    }
    if let Some(response) = is_read::<RspQueryQp>(buffer, written) {
        is_possible(&response.attr);
    }
}

/// Asserts that QP attributes which pass the driver's check are valid for verbs, and that valid
/// ones pass it.
fn is_possible(attr: &QpAttr) {
    let Ok(checked) = qp::check(attr) else {
        let is_known = attr.qp_state <= 6 && attr.path_mtu <= 5 && attr.path_mig_state <= 2;
        assert!(!is_known, "{attr:?}");
        return;
    };
    assert!(checked.qp_state <= 6 && checked.path_mtu <= 5, "{attr:?}");
    assert!(checked.path_mig_state <= 2 && !checked.qp_access_flags.has_unknown());
    for number in [checked.rq_psn, checked.sq_psn, checked.dest_qp_num.get()] {
        assert!(number < 1 << 24, "{attr:?}");
        let (qpn, is_gsi) = (Qpn::new(number), number == 1);
        assert_eq!(qp::check_number(qpn, is_gsi).is_ok(), qpn != Qpn::NONE);
        assert!(qp::check_number(qpn, !is_gsi).is_err());
    }
}

/// Asserts that an answer is decoded correctly: a success has the right length, an error has a
/// nonzero status, and all other answers are invalid. Returns the response of a success.
fn is_read<T: Wire>(buffer: &[u8], written: usize) -> Option<T> {
    let bytes = match written <= buffer.len() {
        true => &buffer[..written],
        false => &[],
    };
    match Answer::<T>::decode(buffer, written) {
        Answer::Success(response) => {
            assert_eq!((bytes[0], bytes.len()), (0, 1 + T::SIZE));
            let mut again = vec![0; T::SIZE];
            response.put(&mut again);
            assert_eq!(again, bytes[1..]);
            Some(response)
        }
        Answer::Refused(errno) => {
            let number = errno.value();
            assert!(
                bytes[0] != 0 && (number == bytes[0] || number == 5),
                "{errno:?}"
            );
            None
        }
        Answer::Invalid => {
            assert!(bytes.is_empty() || bytes[0] == 0 && bytes.len() != 1 + T::SIZE);
            None
        }
    }
}

/// Decodes events of any length.
fn events(data: &[u8]) {
    let Some((&written, buffer)) = data.split_first() else {
        return;
    };
    let Some(known) = KnownEvent::decode(buffer, written.into()) else {
        return;
    };
    assert!((16..=buffer.len()).contains(&written.into()));
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| buffer[at + byte]));
    let kind = match known.kind {
        EventKind::Completion => 0,
        EventKind::Async(event) => 0x100 + u32::from(event.value()),
    };
    assert_eq!(kind, word(0));
    let object = match word(12) {
        0 => Cookie::DEVICE,
        generation => Cookie {
            index: word(8),
            generation,
        },
    };
    assert_eq!(known.object, object);
}

/// Decodes a configuration of a device that sets a few fields to arbitrary values, or that is
/// truncated.
fn configuration(input: &mut Unstructured<'_>) -> Result<()> {
    let (features, cpus): (u64, u32) = input.arbitrary()?;
    // Valid initial values, so that the decoder reaches later fields: counts of 1, page sizes and
    // lengths of 4 KiB, and the distance of doorbell pages.
    let mut bytes = [0; CONFIG_SIZE];
    for field in bytes[..192].chunks_exact_mut(4) {
        field[0] = 1;
    }
    bytes[24..40].copy_from_slice(&[0, 16, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
    bytes[OWN_RINGS_CONFIG_OFFSET + 28] = 16;
    let page_size = 1 << (12 + input.arbitrary::<u8>()? % 5);
    while !input.is_empty() {
        let (at, value): (u8, u32) = input.arbitrary()?;
        if let Some(field) = bytes[..200].chunks_exact_mut(4).nth((at % 50).into()) {
            field.copy_from_slice(&value.to_le_bytes());
        }
    }
    let features = Features(features);
    let has = |feature| features.has(feature);
    // The decoder must not access the bytes of a feature that was not negotiated.
    let may_access = |at: usize| match at {
        ..Config::SIZE => true,
        at if Feature::RingAddr.config().contains(&at) => has(Feature::RingAddr),
        at if Feature::Srq.config().contains(&at) => has(Feature::RingAddr) && has(Feature::Srq),
        at if Feature::CqModeration.config().contains(&at) => {
            has(Feature::RingAddr) && has(Feature::CqModeration)
        }
        at if Feature::RateLimit.config().contains(&at) => has(Feature::RateLimit),
        _ => false,
    };
    for access in accesses(features) {
        assert!(
            access.start % access.len() == 0 && access.len() <= 4,
            "{access:?}"
        );
        assert!(access.clone().all(may_access), "{access:?}");
    }
    match Limits::decode(&bytes, features, Machine { cpus, page_size }) {
        Ok(limits) => {
            are_sane(&limits, cpus);
            let own = limits.own_rings;
            assert!(own.is_none_or(|own| 1 << own.doorbell_shift >= page_size));
        }
        Err(ConfigError::TooManyCqs(count)) => assert!(count > 1021 && !has(Feature::RingAddr)),
        Err(ConfigError::Invalid(field)) => assert!(!field.is_empty()),
        Err(ConfigError::NarrowDoorbells(stride)) => {
            assert!((1 << 12..page_size).contains(&stride));
        }
    }
    Ok(())
}

fn are_sane(limits: &Limits, cpus: u32) {
    let (queues, counts, slots) = (limits.queues, 1..=16384, 1..=32768);
    assert!(limits.config.phys_port_cnt == 1 && limits.config.page_size_cap & 4096 != 0);
    assert!(limits.config.max_pd != 0 && limits.config.max_mr != 0);
    assert!(limits.config.max_send_sge != 0 && limits.config.max_recv_sge != 0);
    assert!((1..=limits.config.max_send_sge).contains(&limits.config.max_sge_rd));
    assert!(limits.config.max_qp_rd_atom != 0 && limits.config.max_qp_init_rd_atom != 0);
    assert!(
        counts.contains(&queues.max_qp) && counts.contains(&queues.max_cq),
        "{queues:?}"
    );
    assert!(
        slots.contains(&queues.max_qp_wr) && (1..=4_194_304).contains(&queues.max_cqe),
        "{queues:?}"
    );
    match limits.own_rings {
        Some(own) => {
            assert!((1..=cpus.max(1)).contains(&own.num_event_queues));
            assert!(own.doorbell_pages != 0 && own.doorbell_shift <= 30);
        }
        None => {
            assert!(1 + queues.max_cq + 2 * queues.max_qp <= 1024, "{queues:?}");
            assert!(limits.srq.is_none() && !limits.has(Feature::ResizeCq));
            assert!(limits.cq_moderation.is_none());
        }
    }
    if let Some(srq) = limits.srq {
        assert!(counts.contains(&srq.max_srq) && slots.contains(&srq.max_srq_wr));
        assert!(srq.max_srq_sge != 0);
    }
    if let Some(rates) = limits.rate_limits {
        assert!((1..=rates.max_rate).contains(&rates.min_rate));
    }
    if let Some(moderation) = limits.cq_moderation {
        assert!(moderation.max_count != 0 && moderation.max_period != 0);
    }
    assert!(limits.capabilities().0 & !limits.config.device_cap_flags.0 == 0);
    assert!(limits.max_mr_size(1 << 21) >= 4096 && limits.mr_page_sizes() & 4096 != 0);
    assert!(limits.max_fast_reg_pages(512) <= 512);
    assert_eq!(
        limits.max_fast_reg_pages(512) != 0,
        limits.has_fast_registration()
    );
    let _ = (limits.atomic_cap(), limits.blocks_loopback());
}
