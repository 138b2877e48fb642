// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Valid and invalid control commands, and their responses.

mod general;
mod limits;
mod memory;
mod modify;
mod objects;

use rustix::io::Errno;
use testkit::engine::*;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::number::Srqn;
use virtio_rdma_abi::ring::RingKind;

pub const EINVAL: u8 = Errno::INVAL.raw_os_error() as u8;
pub const EBUSY: u8 = Errno::BUSY.raw_os_error() as u8;
pub const ENOMEM: u8 = Errno::NOMEM.raw_os_error() as u8;
pub const EFAULT: u8 = Errno::FAULT.raw_os_error() as u8;
pub const EPERM: u8 = Errno::PERM.raw_os_error() as u8;
pub const EEXIST: u8 = Errno::EXIST.raw_os_error() as u8;
pub const EOPNOTSUPP: u8 = Errno::OPNOTSUPP.raw_os_error() as u8;

/// Executes a valid REG_USER_MR after `change`, which may make the command invalid.
pub fn register(vm: &Vm, change: impl FnOnce(&mut CmdRegUserMr)) -> Result<RspMr, u8> {
    let at = vm.alloc(4096);
    let mut cmd = CmdRegUserMr {
        pdn: vm.pdn,
        access_flags: FULL,
        start: 0x1000_0010,
        length: 100,
        virt_addr: 0x1000_0010,
        pages: vm.page_list(&[at]),
        npages: 1,
    };
    change(&mut cmd);
    vm.call(cmd)
}

/// A valid command that creates a CQ. The caller may change the command.
pub fn create_cq(vm: &Vm) -> CmdCreateCqRing {
    CmdCreateCqRing {
        base: CmdCreateCq { cqe: 100 },
        flags: CreateFlags::NONE,
        ring: Ring::new(vm, RingKind::Completion, 128, 6).addr,
        doorbell_page: 0,
        event_queue: 1,
        cookie: 1,
        reserved: [0; 8],
    }
}

/// A valid command that creates a QP. The caller may change the command.
pub fn create_qp(vm: &Vm, cq: &Cq<'_>) -> CmdCreateQpRings {
    CmdCreateQpRings {
        base: CmdCreateQp {
            pdn: vm.pdn,
            qp_type: QpType::Rc.value(),
            sq_sig_type: 0,
            max_send_wr: 60,
            max_send_sge: 3,
            send_cqn: cq.cqn,
            max_recv_wr: 60,
            max_recv_sge: 3,
            recv_cqn: cq.cqn,
            max_inline_data: 37,
            flags: CreateFlags::USER,
            srqn: Srqn::NONE,
            reserved: [0; 24],
        },
        sq: Ring::new(vm, RingKind::Work, 64, 7).addr,
        rq: Ring::new(vm, RingKind::Work, 64, 6).addr,
        doorbell_page: 1,
        cookie: 1,
    }
}
