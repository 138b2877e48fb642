// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Differences between own rings and virtqueue mode: location of queues, doorbells and arming of
//! CQs.
//!
//! In virtqueue mode, the driver has to know the number of an object before it creates the object.
//! So it enables the virtqueues of only one free number, and the device chooses that number.

use std::sync::Mutex;

use virtio_rdma_abi::config::Config;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::{QpType, GSI_QPN};
use virtio_rdma_abi::number::{Cqn, Qpn};
use virtio_rdma_abi::queues::QueueNumbers;
use virtio_rdma_abi::ring::{ArmKind, Doorbell};
use virtio_rdma_abi::wire::Wire;

use super::qp::PAGE;
use super::{Ring, Vm};

/// Held from the choice of a free number until the object with this number is created.
static CHOOSING: Mutex<()> = Mutex::new(());

/// Assignment of virtqueue numbers to the queues of objects.
pub fn numbers(vm: &Vm) -> QueueNumbers {
    QueueNumbers::new(config(vm).max_cq)
}

/// The device's configuration space, in the layout of the RFC.
pub fn config(vm: &Vm) -> Config {
    Config::get(&vm.hca.config_space()[..Config::SIZE])
}

/// Creates a QP with the queues `sq` and `rq`.
pub fn create_qp(vm: &Vm, request: CmdCreateQpRings, sq: &Ring, rq: &Ring) -> Result<Qpn, u8> {
    if !vm.is_virtqueue_mode() {
        return vm.call(request).map(|response| response.qpn);
    }
    // A poisoned lock is ignored: the test that panicked reports its own failure.
    let _choosing = CHOOSING.lock();
    let numbers = numbers(vm);
    let qpns = match request.base.qp_type == QpType::Gsi.value() {
        true => GSI_QPN.get()..=GSI_QPN.get(),
        false => GSI_QPN.get() + 1..=config(vm).max_qp,
    };
    let qpn = qpns
        .map(Qpn::new)
        .find(|&qpn| vm.sink.is_free(numbers.sq(qpn)))
        .expect("a pair of virtqueues");
    sq.describe(false);
    rq.describe(false);
    vm.sink.enable(numbers.sq(qpn), sq.split());
    vm.sink.enable(numbers.rq(qpn), rq.split());
    let created = vm.call(request.base).map(|response| response.qpn);
    match created {
        Ok(created) => assert_eq!(created, qpn, "the only number with virtqueues"),
        Err(_) => disable_qp(vm, qpn),
    }
    created
}

/// Resets the virtqueues of a destroyed QP.
pub fn disable_qp(vm: &Vm, qpn: Qpn) {
    if vm.is_virtqueue_mode() {
        disable(vm, numbers(vm).sq(qpn));
        disable(vm, numbers(vm).rq(qpn));
    }
}

/// Creates a CQ with the queue `ring`.
pub fn create_cq(vm: &Vm, request: CmdCreateCqRing, ring: &Ring) -> Result<Cqn, u8> {
    if !vm.is_virtqueue_mode() {
        return vm.call(request).map(|response| response.cqn);
    }
    let _choosing = CHOOSING.lock();
    let numbers = numbers(vm);
    let cqn = (0..config(vm).max_cq)
        .map(Cqn::new)
        .find(|&cqn| vm.sink.is_free(numbers.cq(cqn)))
        .expect("a virtqueue");
    ring.describe(true);
    vm.sink.enable(numbers.cq(cqn), ring.split());
    let created = vm.call(request.base).map(|response| response.cqn);
    match created {
        Ok(created) => assert_eq!(created, cqn, "the only number with a virtqueue"),
        Err(_) => disable_cq(vm, cqn),
    }
    created
}

/// Resets the virtqueue of a destroyed CQ.
pub fn disable_cq(vm: &Vm, cqn: Cqn) {
    if vm.is_virtqueue_mode() {
        disable(vm, numbers(vm).cq(cqn));
    }
}

fn disable(vm: &Vm, queue: Option<u16>) {
    let queue = queue.expect("a virtqueue");
    vm.sink.disable(queue);
    vm.hca.virtqueue_reset(queue);
}

/// The cookie in completion events of CQ `cqn`: `cookie`, or the virtqueue number in virtqueue
/// mode.
pub fn cookie_of_cq(vm: &Vm, cqn: Cqn, cookie: u64) -> u64 {
    match numbers(vm).cq(cqn) {
        Some(queue) if vm.is_virtqueue_mode() => queue.into(),
        _ => cookie,
    }
}

/// Rings a doorbell, or notifies the virtqueue in virtqueue mode.
pub fn ring_doorbell(vm: &Vm, doorbell: Doorbell) {
    if !vm.is_virtqueue_mode() {
        vm.hca.doorbell(PAGE, doorbell.to_u32());
        return;
    }
    let numbers = numbers(vm);
    let queue = match doorbell {
        Doorbell::Sq(qpn) => numbers.sq(qpn),
        Doorbell::Rq(qpn) => numbers.rq(qpn),
        Doorbell::Cq(cqn) => numbers.cq(cqn),
        Doorbell::Srq(_) => None,
    };
    vm.hca.notified(queue.expect("a virtqueue"));
}

/// Arms a CQ by the command REQ_NOTIFY.
pub fn req_notify(vm: &Vm, cqn: Cqn, kind: ArmKind) {
    let flags = match kind {
        ArmKind::Next => NotifyFlags::NEXT_COMPLETION,
        ArmKind::Solicited => NotifyFlags::SOLICITED,
        ArmKind::None => return,
    };
    vm.call(CmdReqNotify { cqn, flags }).unwrap();
}
