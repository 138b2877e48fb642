// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CQs from the view of a driver.

use std::cell::RefCell;

use virtio_rdma_abi::cqe::{Cqe, WcReason, CQ_SLOT_SHIFT};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::{WcFlags, WcStatus};
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::{ArmKind, Doorbell, RingKind};
use virtio_rdma_ring::{Armed, CompletionQueue, RingError, RingMemory};

use super::qp::PAGE;
use super::{mode, Ring, Vm};
use crate::wait;

/// Completion statuses that the device may write.
const GIVEN: [WcStatus; 12] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
];

/// Name of a field with a value that the device never writes. The flag SOLICITED is only for
/// drivers of virtqueue mode.
fn fault(cqe: &Cqe, virtqueue_mode: bool) -> Option<&'static str> {
    let mut flags = WcFlags::GRH
        | WcFlags::WITH_IMM
        | WcFlags::WITH_INVALIDATE
        | WcFlags::WITH_VLAN
        | WcFlags::WITH_NETWORK_HDR_TYPE;
    if virtqueue_mode {
        flags = flags | WcFlags::SOLICITED;
    }
    let given = |status| GIVEN.contains(&status);
    if !WcStatus::try_from(cqe.status).is_ok_and(given) {
        Some("status")
    } else if cqe.wc_flags.0 & !flags.0 != 0 {
        Some("flags")
    } else if !has_vendor_error(cqe) {
        Some("vendor error")
    } else if cqe.pkey_index != 0 {
        Some("P_Key index")
    } else if cqe.port_num > 1 {
        Some("port")
    } else {
        None
    }
}

/// Whether the vendor error is the reason for an error, or that of a success.
fn has_vendor_error(cqe: &Cqe) -> bool {
    if cqe.status == WcStatus::Success.value() {
        return cqe.vendor_err == 0 || cqe.wc_flags.contains(WcFlags::WITH_VLAN);
    }
    let reason = u8::try_from(cqe.vendor_err).ok();
    reason.is_some_and(|reason| WcReason::try_from(reason).is_ok())
}

pub struct Cq<'vm> {
    pub vm: &'vm Vm,
    pub cqn: Cqn,
    pub cookie: u64,
    pub ring: Ring,
    queue: RefCell<CompletionQueue>,
}

/// The new ring of a CQ, which the device uses already and the driver does not use yet.
pub struct Moving {
    target: Ring,
    next: CompletionQueue,
    /// Producer position at which the old ring ends.
    end: u32,
}

impl Moving {
    /// The device's position in the new ring.
    pub fn produced(&self) -> u32 {
        self.target.device()
    }
}

impl<'vm> Cq<'vm> {
    pub fn new(vm: &'vm Vm, slots: u32) -> Self {
        let ring = Ring::new(vm, RingKind::Completion, slots, CQ_SLOT_SHIFT);
        let queue = CompletionQueue::new(ring.layout);
        let cookie = vm.cookie();
        let request = CmdCreateCqRing {
            base: CmdCreateCq { cqe: slots },
            flags: CreateFlags::USER,
            ring: ring.addr,
            doorbell_page: PAGE,
            event_queue: 2,
            cookie,
            reserved: [0; 8],
        };
        let cqn = mode::create_cq(vm, request, &ring).unwrap();
        Self {
            vm,
            cqn,
            cookie: mode::cookie_of_cq(vm, cqn, cookie),
            ring,
            queue: RefCell::new(queue),
        }
    }

    pub fn poll(&self) -> Option<Cqe> {
        let mut queue = self.queue.borrow_mut();
        let position = queue.take(&self.ring).expect("a sound ring")?;
        let mut bytes = [0; Cqe::SIZE];
        self.ring.read(self.ring.layout.slot(position), &mut bytes);
        queue.publish(&self.ring);
        let cqe = Cqe::from_bytes(&bytes);
        assert_eq!(fault(&cqe, self.vm.is_virtqueue_mode()), None, "{cqe:?}");
        self.vm.note_ended(&cqe);
        Some(cqe)
    }

    /// Like [`poll`](Self::poll), for a ring with possibly invalid content. Returns whether there
    /// was a completion.
    pub fn try_poll(&self) -> Result<bool, RingError> {
        let mut queue = self.queue.borrow_mut();
        if queue.take(&self.ring)?.is_none() {
            return Ok(false);
        }
        queue.publish(&self.ring);
        Ok(true)
    }

    /// Waits for the next completion.
    pub fn next(&self) -> Cqe {
        wait("a completion", || self.poll())
    }

    /// Waits for the next completion and checks its `wr_id` and `status`.
    pub fn expect(&self, wr_id: u64, status: WcStatus) -> Cqe {
        let cqe = self.next();
        let got = (cqe.wr_id, WcStatus::try_from(cqe.status).unwrap());
        assert_eq!(got, (wr_id, status), "{cqe:?}");
        cqe
    }

    pub fn arm(&self, kind: ArmKind) {
        if self.vm.is_virtqueue_mode() {
            mode::req_notify(self.vm, self.cqn, kind);
        } else if self.arm_silently(kind) {
            self.ring_doorbell();
        }
    }

    /// Arms the CQ without its doorbell; not in virtqueue mode. Returns whether the device needs
    /// the doorbell.
    pub fn arm_silently(&self, kind: ArmKind) -> bool {
        self.queue.borrow_mut().arm(&self.ring, kind, false) == Armed::RingDoorbell
    }

    /// Moves the CQ to a ring of `slots` slots for `cqe` entries. Returns the completions that were
    /// not polled in the old ring.
    pub fn resize(&mut self, slots: u32, cqe: u32) -> Result<Vec<Cqe>, u8> {
        let moving = self.begin_resize(slots, cqe)?;
        Ok(self.finish_resize(moving))
    }

    /// Makes the device move the CQ to a ring of `slots` slots for `cqe` entries. The driver
    /// follows with [`finish_resize`](Self::finish_resize).
    pub fn begin_resize(&self, slots: u32, cqe: u32) -> Result<Moving, u8> {
        let target = Ring::new(self.vm, RingKind::Completion, slots, CQ_SLOT_SHIFT);
        let next = CompletionQueue::new(target.layout);
        let request = CmdResizeCq {
            cqn: self.cqn,
            cqe,
            ring: target.addr,
        };
        let end = self.vm.call(request)?.end;
        Ok(Moving { target, next, end })
    }

    /// Makes the driver use the new ring too. Returns the completions that were not polled in the
    /// old ring.
    pub fn finish_resize(&mut self, moving: Moving) -> Vec<Cqe> {
        let Moving { target, next, end } = moving;
        let mut left = Vec::new();
        while !self.queue.borrow().is_at(end) {
            left.push(self.poll().expect("as many completions as the answer says"));
        }
        assert!(self.poll().is_none(), "more in the old ring");
        self.ring = target;
        if self
            .queue
            .get_mut()
            .moved(next, &self.ring, !left.is_empty())
        {
            self.ring_doorbell();
        }
        left
    }

    pub fn event_received(&self) {
        self.queue.borrow_mut().event_received(&self.ring);
    }

    pub fn ring_doorbell(&self) {
        mode::ring_doorbell(self.vm, Doorbell::Cq(self.cqn));
    }

    pub fn destroy(&self) -> Result<Empty, u8> {
        let done = self.vm.call(CmdDestroyCq { cqn: self.cqn })?;
        mode::disable_cq(self.vm, self.cqn);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::wire::Wire;

    use super::*;

    /// The check of each completion finds all of these faults.
    #[test]
    fn what_no_completion_says() {
        let good = Cqe::ZERO;
        assert_eq!(fault(&good, false), None);
        let never = [
            // abi: R-715
            WcStatus::LocEecOpErr,
            // abi: R-720
            WcStatus::LocAccessErr,
            // abi: R-726
            WcStatus::LocRddViolErr,
            // abi: R-727
            WcStatus::RemInvRdReqErr,
            // abi: R-728
            WcStatus::RemAbortErr,
            // abi: R-729
            WcStatus::InvEecnErr,
            // abi: R-730
            WcStatus::InvEecStateErr,
            // abi: R-731
            WcStatus::FatalErr,
            // abi: R-732
            WcStatus::RespTimeoutErr,
            // abi: R-733
            WcStatus::GeneralErr,
        ];
        for &status in WcStatus::ALL {
            let cqe = Cqe {
                status: status.value(),
                vendor_err: u32::from(status != WcStatus::Success),
                ..good
            };
            assert_eq!(fault(&cqe, true).is_some(), never.contains(&status));
        }
        for (flag, own_rings, virtqueues) in [
            // abi: R-698
            (WcFlags::IP_CSUM_OK, false, false),
            // abi: R-699
            (WcFlags::WITH_SMAC, false, false),
            (WcFlags::WITH_NETWORK_HDR_TYPE, true, true),
            // abi: R-702
            (WcFlags::SOLICITED, false, true),
            (WcFlags::GRH, true, true),
        ] {
            let cqe = Cqe {
                wc_flags: flag,
                ..good
            };
            assert_eq!(fault(&cqe, false).is_none(), own_rings, "{flag:?}");
            assert_eq!(fault(&cqe, true).is_none(), virtqueues, "{flag:?}");
        }
        let wrong: [fn(&mut Cqe); 4] = [
            // abi: R-685
            |cqe| cqe.vendor_err = 1,
            |cqe| cqe.status = WcStatus::WrFlushErr.value(),
            // abi: R-691
            |cqe| cqe.pkey_index = 1,
            // abi: R-693
            |cqe| cqe.port_num = 2,
        ];
        for change in wrong {
            let mut cqe = good;
            change(&mut cqe);
            assert!(fault(&cqe, true).is_some(), "{cqe:?}");
        }
    }
}
