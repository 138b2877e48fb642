// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Conversion of a CQE to an `ibv_wc`.

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::cqe::OPCODE_RECV;
use virtio_rdma_abi::cqe::OPCODE_RECV_RDMA_WITH_IMM;
use virtio_rdma_abi::ib::WcFlags;
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::ib::WrOpcode;

use crate::ffi;

/// Whether the CQE belongs to a receive queue. The opcode is valid in error completions too.
#[inline]
pub fn is_receive(cqe: &Cqe) -> bool {
    cqe.opcode & OPCODE_RECV != 0
}

/// The work completion of a CQE, with the application's id of the work request.
#[inline]
pub fn work_completion(cqe: &Cqe, wr_id: u64) -> ffi::ibv_wc {
    ffi::ibv_wc {
        wr_id,
        status: status(cqe.status),
        opcode: opcode(cqe.opcode),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        // The other member of the union is the invalidated key.
        __bindgen_anon_1: ffi::ibv_wc__bindgen_ty_1 {
            imm_data: immediate_or_rkey(cqe),
        },
        qp_num: cqe.qp_num.get(),
        src_qp: cqe.src_qp.get(),
        wc_flags: flags(cqe.wc_flags),
        pkey_index: cqe.pkey_index,
        slid: 0,
        sl: cqe.sl,
        dlid_path_bits: 0,
    }
}

/// Immediate data in network byte order, or the invalidated key as a number.
#[inline]
pub fn immediate_or_rkey(cqe: &Cqe) -> u32 {
    if cqe.wc_flags.contains(WcFlags::WITH_INVALIDATE) {
        u32::from_le_bytes(cqe.ex)
    } else {
        u32::from_ne_bytes(cqe.ex)
    }
}

// The ABI has all statuses of verbs.
const _: () = assert!(WcStatus::ALL.len() == ffi::IBV_WC_GENERAL_ERR as usize + 1);

/// `enum ibv_wc_status` of a CQE's status. A status that the ABI does not define is an error.
#[inline]
pub fn status(status: u8) -> ffi::ibv_wc_status {
    TABLES.statuses[usize::from(status)].into()
}

/// Values of verbs' enums, indexed by the values in a CQE.
// A table costs fewer instructions than comparisons. Both tables are in one structure, so that one
// address serves both.
struct Tables {
    statuses: [u8; 256],
    /// An opcode that the ABI does not define comes from a broken device; the completion still
    /// frees its work request.
    opcodes: [u8; 256],
}

static TABLES: Tables = Tables {
    statuses: statuses(),
    opcodes: opcodes(),
};

const fn statuses() -> [u8; 256] {
    let mut table = [ffi::IBV_WC_GENERAL_ERR as u8; 256];
    let mut status = 0;
    while status < ffi::IBV_WC_GENERAL_ERR {
        table[status as usize] = status as u8;
        status += 1;
    }
    table
}

const fn opcodes() -> [u8; 256] {
    let mut table = [ffi::IBV_WC_SEND as u8; 256];
    table[WrOpcode::RdmaWrite as usize] = ffi::IBV_WC_RDMA_WRITE as u8;
    table[WrOpcode::RdmaWriteWithImm as usize] = ffi::IBV_WC_RDMA_WRITE as u8;
    table[WrOpcode::RdmaRead as usize] = ffi::IBV_WC_RDMA_READ as u8;
    table[WrOpcode::RdmaReadWithInv as usize] = ffi::IBV_WC_RDMA_READ as u8;
    table[WrOpcode::AtomicCmpAndSwp as usize] = ffi::IBV_WC_COMP_SWAP as u8;
    table[WrOpcode::AtomicFetchAndAdd as usize] = ffi::IBV_WC_FETCH_ADD as u8;
    table[WrOpcode::LocalInv as usize] = ffi::IBV_WC_LOCAL_INV as u8;
    table[WrOpcode::BindMw as usize] = ffi::IBV_WC_BIND_MW as u8;
    table[WrOpcode::Flush as usize] = ffi::IBV_WC_FLUSH as u8;
    table[WrOpcode::AtomicWrite as usize] = ffi::IBV_WC_ATOMIC_WRITE as u8;
    let mut receive = OPCODE_RECV as usize;
    while receive < table.len() {
        table[receive] = ffi::IBV_WC_RECV as u8;
        receive += 1;
    }
    table[OPCODE_RECV_RDMA_WITH_IMM as usize] = ffi::IBV_WC_RECV_RDMA_WITH_IMM as u8;
    table
}

/// `enum ibv_wc_opcode` of a CQE's opcode.
#[inline]
pub fn opcode(opcode: u8) -> ffi::ibv_wc_opcode {
    TABLES.opcodes[usize::from(opcode)].into()
}

/// `enum ibv_wc_flags` of a CQE.
#[inline]
pub fn flags(flags: WcFlags) -> u32 {
    if flags == WcFlags::NONE {
        return 0;
    }
    let mut wc = 0;
    for (abi, verbs) in [
        (WcFlags::GRH, ffi::IBV_WC_GRH),
        (WcFlags::WITH_IMM, ffi::IBV_WC_WITH_IMM),
        (WcFlags::WITH_INVALIDATE, ffi::IBV_WC_WITH_INV),
        (WcFlags::IP_CSUM_OK, ffi::IBV_WC_IP_CSUM_OK),
    ] {
        if flags.contains(abi) {
            wc |= verbs;
        }
    }
    wc
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::number::Qpn;

    use super::*;

    // abi: R-681
    #[test]
    fn every_field_has_its_place() {
        let cqe = Cqe {
            wr_id: 3,
            status: 5,
            opcode: OPCODE_RECV_RDMA_WITH_IMM,
            vendor_err: 0x1111_2222,
            byte_len: 4096,
            ex: [1, 2, 3, 4],
            qp_num: Qpn::new(17),
            src_qp: Qpn::new(18),
            wc_flags: WcFlags::WITH_IMM | WcFlags::GRH,
            pkey_index: 9,
            sl: 7,
            port_num: 1,
        };
        assert!(is_receive(&cqe));
        let wc = work_completion(&cqe, 0xdead_beef_0000_0001);
        assert_eq!(wc.wr_id, 0xdead_beef_0000_0001);
        assert_eq!(wc.status, ffi::IBV_WC_WR_FLUSH_ERR);
        assert_eq!(wc.opcode, ffi::IBV_WC_RECV_RDMA_WITH_IMM);
        assert_eq!((wc.vendor_err, wc.byte_len), (0x1111_2222, 4096));
        assert_eq!((wc.qp_num, wc.src_qp), (17, 18));
        assert_eq!(wc.wc_flags, ffi::IBV_WC_WITH_IMM | ffi::IBV_WC_GRH);
        assert_eq!((wc.pkey_index, wc.sl), (9, 7));
        // SAFETY: both members are 32-bit integers.
        let imm_data = unsafe { wc.__bindgen_anon_1.imm_data };
        assert_eq!(imm_data, u32::from_be(0x0102_0304));
    }

    // abi
    #[test]
    fn an_invalidated_key_is_a_number() {
        let cqe = Cqe {
            ex: [4, 3, 2, 1],
            wc_flags: WcFlags::WITH_INVALIDATE,
            ..Cqe::default()
        };
        let wc = work_completion(&cqe, 0);
        assert_eq!(wc.wc_flags, ffi::IBV_WC_WITH_INV);
        // SAFETY: both members are 32-bit integers.
        let key = unsafe { wc.__bindgen_anon_1.invalidated_rkey };
        assert_eq!(key, 0x0102_0304);
    }

    // abi
    #[test]
    fn statuses_and_opcodes_of_the_abi_are_those_of_verbs() {
        assert_eq!(status(0), ffi::IBV_WC_SUCCESS);
        assert_eq!(
            status(WcStatus::RnrRetryExcErr.value()),
            ffi::IBV_WC_RNR_RETRY_EXC_ERR
        );
        assert_eq!(
            status(WcStatus::GeneralErr.value()),
            ffi::IBV_WC_GENERAL_ERR
        );
        assert_eq!(status(200), ffi::IBV_WC_GENERAL_ERR);
        for (wire, verbs) in [
            (0, ffi::IBV_WC_RDMA_WRITE),
            (1, ffi::IBV_WC_RDMA_WRITE),
            (2, ffi::IBV_WC_SEND),
            (3, ffi::IBV_WC_SEND),
            (4, ffi::IBV_WC_RDMA_READ),
            (5, ffi::IBV_WC_COMP_SWAP),
            (6, ffi::IBV_WC_FETCH_ADD),
            (7, ffi::IBV_WC_LOCAL_INV),
            (8, ffi::IBV_WC_BIND_MW),
            (14, ffi::IBV_WC_FLUSH),
            (15, ffi::IBV_WC_ATOMIC_WRITE),
            (0x80, ffi::IBV_WC_RECV),
            (0x81, ffi::IBV_WC_RECV_RDMA_WITH_IMM),
        ] {
            assert_eq!(opcode(wire), verbs);
        }
    }
}
