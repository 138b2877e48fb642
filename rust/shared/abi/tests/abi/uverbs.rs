// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Structures of the driver-provider interface: their bytes, and the same layout in C.

use std::mem::{align_of, offset_of, size_of};

use virtio_rdma_abi::number::{Cqn, Pdn, Srqn};
use virtio_rdma_abi::uverbs::{
    AllocContextReq, AllocContextResp, ContextAttributes, ContextFlags, CreateAhResp, CreateCqReq,
    CreateCqResp, CreateQpReq, CreateQpResp, CreateSrqReq, CreateSrqResp, ModifyQpReq,
    ModifySrqReq, ResizeCqReq, ResizeCqResp, RingMapping, UserRing,
};

use virtio_rdma_abi::config::{QpTypes, RateLimitConfig};
use virtio_rdma_abi::versions::Versions;
use virtio_rdma_abi::wqe::AddressVector;

use super::check;

const RING: UserRing = UserRing {
    addr: 0x7f01_0203_4000,
    slots: 0x8000,
    slot_shift: 7,
    reserved: [0; 3],
};
const RING_HEX: &str = "00400302017f0000 00800000 07 000000";
const MAPPING: RingMapping = RingMapping {
    offset: 0x1122_3344_5000,
    length: 0x0010_2000,
};
const MAPPING_HEX: &str = "0050443322110000 0020100000000000";

#[test]
fn exact_bytes() {
    let mut peer_name = [0; 64];
    peer_name[..3].copy_from_slice(b"gpu");
    // abi: R-939
    check(
        AllocContextReq {
            // abi: R-940
            attributes: ContextAttributes::PEER,
            peer_id: 0x0102_0304,
            peer_name,
            versions: Versions {
                oldest: 6,
                newest: 7,
            },
        },
        &format!(
            "01000000 04030201 677075 {} 06000000 07000000",
            "00".repeat(61)
        ),
    );
    // abi: R-941
    check(
        AllocContextResp {
            flags: ContextFlags::OWN_RINGS,
            max_inline_data: 0x0102,
            doorbell_offset: 0x1122_3344_5566_7000,
            max_qp_slots: 0x8000,
            max_cq_slots: 0x4000,
            rate_limits: RateLimitConfig {
                min_rate: 1,
                max_rate: 2,
                max_burst_size: 3,
                qp_types: QpTypes::UC,
            },
            doorbell_size: 0x1_0000,
            version: 7,
        },
        "01000000 02010000 0070665544332211 00800000 00400000
         01000000 02000000 03000000 08000000 00000100 07000000",
    );
    // abi: R-948
    check(RING, RING_HEX);
    // abi: R-970
    check(MAPPING, MAPPING_HEX);
    // abi: R-949
    check(CreateCqReq { ring: RING }, RING_HEX);
    // abi: R-950
    check(
        CreateCqResp {
            cqn: Cqn::new(5),
            reserved: 0,
            ring: MAPPING,
        },
        &format!("05000000 00000000 {MAPPING_HEX}"),
    );
    // abi: R-953
    check(
        CreateQpReq {
            sq: RING,
            rq: UserRing { slots: 4, ..RING },
        },
        &format!("{RING_HEX} 00400302017f0000 04000000 07 000000"),
    );
    // abi: R-971
    check(
        CreateQpResp {
            sq: MAPPING,
            rq: RingMapping {
                length: 0x1000,
                ..MAPPING
            },
        },
        &format!("{MAPPING_HEX} 0050443322110000 0010000000000000"),
    );
    // abi: R-951
    check(ResizeCqReq { ring: RING }, RING_HEX);
    // abi: R-952
    check(
        ResizeCqResp {
            end: 0x0102_0304,
            reserved: [0; 4],
            ring: MAPPING,
        },
        &format!("04030201 00000000 {MAPPING_HEX}"),
    );
    // abi: R-955
    check(CreateSrqReq { ring: RING }, RING_HEX);
    // abi: R-956
    check(
        CreateSrqResp {
            srqn: Srqn::new(6),
            reserved: 0,
            ring: MAPPING,
        },
        &format!("06000000 00000000 {MAPPING_HEX}"),
    );
    // abi: R-957
    check(
        ModifySrqReq {
            ring: RING,
            mapping_addr: 0x7f01_0203_4058,
        },
        &format!("{RING_HEX} 58400302017f0000"),
    );
    // abi: R-954
    check(
        ModifyQpReq {
            max_burst_size: 0x2000,
            typical_packet_size: 0x0400,
            reserved: [0; 2],
        },
        "00200000 0004 0000",
    );
    // abi: R-958
    check(
        CreateAhResp {
            av: AddressVector {
                port: 1,
                pdn: Pdn::new(0x0102),
                sl_tclass_flowlabel: 0x3680_00ab,
                dgid: [0xfe; 16],
                gid_index: 4,
                static_rate: 5,
                hop_limit: 64,
                dmac: [0x52, 0x54, 0, 1, 2, 3],
                reserved: [0; 6],
            },
            reserved: [0; 5],
        },
        &format!(
            "01000000 02010000 ab008036 {} 04 05 40 525400010203 {} {}",
            "fe".repeat(16),
            "00".repeat(6),
            "00".repeat(5)
        ),
    );
}

/// The structures as a C header declares them, with the names of the ABI.
mod c {
    #[repr(C)]
    pub struct AllocContextReq {
        pub attributes: u32,
        pub peer_id: u32,
        pub peer_name: [u8; 64],
        pub versions: [u32; 2],
    }

    #[repr(C)]
    pub struct AllocContextResp {
        pub flags: u32,
        pub max_inline_data: u32,
        pub doorbell_offset: u64,
        pub max_qp_slots: u32,
        pub max_cq_slots: u32,
        pub rate_limits: [u32; 4],
        pub doorbell_size: u32,
        pub version: u32,
    }

    #[repr(C)]
    pub struct UserRing {
        pub addr: u64,
        pub slots: u32,
        pub slot_shift: u8,
        pub reserved: [u8; 3],
    }

    #[repr(C)]
    pub struct RingMapping {
        pub offset: u64,
        pub length: u64,
    }

    #[repr(C)]
    pub struct CreateQpResp {
        pub sq: RingMapping,
        pub rq: RingMapping,
    }

    #[repr(C)]
    pub struct CreateCqReq {
        pub ring: UserRing,
    }

    #[repr(C)]
    pub struct CreateCqResp {
        pub cqn: u32,
        pub reserved: u32,
        pub ring: RingMapping,
    }

    #[repr(C)]
    pub struct CreateQpReq {
        pub sq: UserRing,
        pub rq: UserRing,
    }

    #[repr(C)]
    pub struct ResizeCqReq {
        pub ring: UserRing,
    }

    #[repr(C)]
    pub struct ResizeCqResp {
        pub end: u32,
        pub reserved: [u8; 4],
        pub ring: RingMapping,
    }

    #[repr(C)]
    pub struct CreateSrqReq {
        pub ring: UserRing,
    }

    #[repr(C)]
    pub struct CreateSrqResp {
        pub srqn: u32,
        pub reserved: u32,
        pub ring: RingMapping,
    }

    #[repr(C)]
    pub struct ModifySrqReq {
        pub ring: UserRing,
        pub mapping_addr: u64,
    }

    #[repr(C)]
    pub struct ModifyQpReq {
        pub max_burst_size: u32,
        pub typical_packet_size: u16,
        pub reserved: [u8; 2],
    }

    /// The address vector is an array of bytes, as in a WQE.
    #[repr(C)]
    pub struct CreateAhResp {
        pub av: [u8; 43],
        pub reserved: [u8; 5],
    }
}

/// uverbs passes driver data in multiples of 8 bytes, naturally aligned.
// abi: R-930
#[test]
fn a_c_compiler_agrees() {
    macro_rules! agree {
        ($name:ident { $($field:ident at $offset:literal),* }) => {
            assert_eq!(size_of::<c::$name>(), $name::SIZE, stringify!($name));
            assert_eq!($name::SIZE % 8, 0, stringify!($name));
            assert!(align_of::<c::$name>() <= 8);
            $( assert_eq!(offset_of!(c::$name, $field), $offset, stringify!($name.$field)); )*
        };
    }
    agree!(AllocContextReq { attributes at 0, peer_id at 4, peer_name at 8, versions at 72 });
    agree!(AllocContextResp {
        flags at 0, max_inline_data at 4, doorbell_offset at 8, max_qp_slots at 16,
        max_cq_slots at 20, rate_limits at 24, doorbell_size at 40, version at 44
    });
    agree!(UserRing { addr at 0, slots at 8, slot_shift at 12, reserved at 13 });
    agree!(CreateCqReq { ring at 0 });
    agree!(RingMapping { offset at 0, length at 8 });
    agree!(CreateCqResp { cqn at 0, reserved at 4, ring at 8 });
    agree!(CreateQpReq { sq at 0, rq at 16 });
    agree!(CreateQpResp { sq at 0, rq at 16 });
    agree!(ResizeCqReq { ring at 0 });
    agree!(ResizeCqResp { end at 0, reserved at 4, ring at 8 });
    agree!(CreateSrqReq { ring at 0 });
    agree!(CreateSrqResp { srqn at 0, reserved at 4, ring at 8 });
    agree!(ModifySrqReq { ring at 0, mapping_addr at 16 });
    agree!(ModifyQpReq { max_burst_size at 0, typical_packet_size at 4, reserved at 6 });
    agree!(CreateAhResp { av at 0, reserved at 43 });
}
