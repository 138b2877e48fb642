// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Configuration space, malformed commands and reset.

use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::config::{
    eui64_from_mac, mac_from_eui64, AtomicCap, Config, CounterSetConfig, CqModerationConfig,
    DeviceCaps, OwnRingsConfig, RateLimitConfig, SrqConfig, COUNTER_SET_CONFIG_OFFSET,
    CQ_MODERATION_CONFIG_OFFSET, OWN_RINGS_CONFIG_OFFSET, QUEUE_COUNT_RANGE,
    RATE_LIMIT_CONFIG_OFFSET, SRQ_CONFIG_OFFSET,
};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wire::Wire;

use super::{create_cq, create_qp, register, EINVAL, ENOMEM, EOPNOTSUPP};

fn small() -> Limits {
    Limits {
        max_qp: 5,
        max_cq: 2,
        max_mr: 2,
        max_mr_pages: 16,
        max_pd: 3,
        max_cqe: 256,
        max_qp_wr: 128,
        max_sge: 4,
        max_inline_data: 200,
        ..Limits::default()
    }
}

fn raw(vm: &Vm, request: &[u8], room: usize) -> Vec<u8> {
    let mut response = Vec::new();
    vm.hca.command(request, room, &mut response);
    response
}

#[test]
fn the_configuration_tells_the_limits() {
    let world = World::with_limits(1, PathPolicy::Direct, small());
    let vm = &world.vms[0];
    let space = vm.hca.config_space();
    let config = Config::decode(&space).unwrap();
    // abi: R-30
    assert_eq!(config.phys_port_cnt, 1);
    // abi
    assert_eq!(mac_from_eui64(config.sys_image_guid), Some(vm.mac));
    // abi
    assert_eq!(
        (config.max_mr, config.max_mr_size, config.max_pd),
        (2, 16 << 12, 3)
    );
    // abi
    assert_eq!(
        (config.max_send_sge, config.max_recv_sge, config.max_sge_rd),
        (4, 4, 4)
    );
    let own = OwnRingsConfig::decode(&space[OWN_RINGS_CONFIG_OFFSET..]).unwrap();
    // abi
    assert_eq!(
        (own.max_qp, own.max_cq, own.max_cqe, own.max_qp_wr),
        (5, 2, 256, 128)
    );
    // abi
    assert_eq!((own.max_inline_data, own.doorbell_pages), (200, 4096));
    assert_eq!((own.doorbell_shift, own.reserved), (12, [0; 3]));
    let srqs = SRQ_CONFIG_OFFSET..SRQ_CONFIG_OFFSET + SrqConfig::SIZE;
    let rates = RATE_LIMIT_CONFIG_OFFSET..RATE_LIMIT_CONFIG_OFFSET + RateLimitConfig::SIZE;
    let moderation =
        CQ_MODERATION_CONFIG_OFFSET..CQ_MODERATION_CONFIG_OFFSET + CqModerationConfig::SIZE;
    let sets = COUNTER_SET_CONFIG_OFFSET..COUNTER_SET_CONFIG_OFFSET + CounterSetConfig::SIZE;
    assert!(
        (OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE..space.len())
            .filter(|at| [&rates, &srqs, &moderation, &sets]
                .iter()
                .all(|part| !part.contains(at)))
            .all(|at| space[at] == 0)
    );
    // Checks that the limits are exact. The driver uses one PD, and one QPN is reserved for the GSI
    // QP.
    for _ in 0..2 {
        vm.call(CmdCreatePd::ZERO).unwrap();
    }
    // abi: R-84
    assert_eq!(vm.call(CmdCreatePd::ZERO).err(), Some(ENOMEM));
    let (cq, _other) = (Cq::new(vm, 64), Cq::new(vm, 256));
    // abi: R-84
    assert_eq!(vm.call(create_cq(vm)).err(), Some(ENOMEM));
    let options = Options {
        slots: 128,
        ..Options::default()
    };
    let qps: Vec<_> = (0..4).map(|_| Qp::new(vm, &cq, &cq, options)).collect();
    let mut qpns: Vec<_> = qps.iter().map(|qp| qp.qpn).collect();
    qpns.sort();
    // abi: R-83
    assert_eq!(qpns, [2, 3, 4, 5].map(Qpn::new));
    // abi: R-84
    assert_eq!(vm.call(create_qp(vm, &cq)).err(), Some(ENOMEM));
    vm.mr(4096 * 10);
    let seven = |cmd: &mut CmdRegUserMr| (cmd.npages, cmd.length) = (7, 7 * 4096 - 16);
    // abi: R-283
    assert_eq!(register(vm, seven), Err(ENOMEM), "pages");
    vm.mr(1);
    // abi: R-283
    assert_eq!(register(vm, |_| ()), Err(ENOMEM), "MRs");
}

// abi: R-819
#[test]
fn a_device_without_multicast_has_no_limits_of_it() {
    let limits = Limits::default().without_multicast();
    let world = World::with_limits(1, PathPolicy::Direct, limits);
    let hca = &world.vms[0].hca;
    let config = Config::decode(&hca.config_space()).unwrap();
    let limits = [
        config.max_mcast_grp,
        config.max_mcast_qp_attach,
        config.max_total_mcast_qp_attach,
    ];
    assert_eq!(limits, [0; 3]);
}

#[test]
fn every_field_of_the_configuration() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    // These are the limits of virtqueue mode. Own rings have other limits.
    let expected = Config {
        // abi
        phys_port_cnt: 1,
        // abi: R-31
        sys_image_guid: eui64_from_mac(vm.mac),
        // abi: R-32
        vendor_id: 0x1af4,
        // abi: R-33
        vendor_part_id: 1,
        // abi: R-34
        hw_ver: 1,
        max_mr_size: 64 << 30,
        // Page sizes from 4 KiB to 1 GiB.
        // abi
        page_size_cap: 0x7fff_f000,
        // abi: R-37
        max_qp: 64,
        // abi: R-38
        max_qp_wr: 1024,
        // abi
        device_cap_flags: DeviceCaps::BAD_PKEY_CNTR
            | DeviceCaps::BAD_QKEY_CNTR
            | DeviceCaps::UD_AV_PORT_ENFORCE
            | DeviceCaps::SYS_IMAGE_GUID
            | DeviceCaps::RC_RNR_NAK_GEN
            | DeviceCaps::MEM_WINDOW
            | DeviceCaps::MEM_MGT_EXTENSIONS
            | DeviceCaps::BLOCK_MULTICAST_LOOPBACK
            | DeviceCaps::MEM_WINDOW_TYPE_2B
            | DeviceCaps::FLUSH_GLOBAL
            | DeviceCaps::ATOMIC_WRITE,
        max_send_sge: 32,
        max_recv_sge: 32,
        max_sge_rd: 32,
        // abi: R-43
        max_cq: 64,
        // abi: R-44
        max_cqe: 2048,
        max_mr: 65_536,
        max_pd: 16_384,
        // abi: R-47
        max_qp_rd_atom: 128,
        // abi: R-48
        max_res_rd_atom: 128 * 16_384,
        // abi: R-49
        max_qp_init_rd_atom: 128,
        // abi: R-50
        atomic_cap: AtomicCap::Global.value(),
        // abi: R-51
        max_mw: 65_536,
        // abi: R-52
        max_mcast_grp: 1024,
        // abi: R-53
        max_mcast_qp_attach: 48,
        // abi: R-54
        max_total_mcast_qp_attach: 8192,
        // abi: R-55
        max_ah: i32::MAX as u32,
        // abi
        max_fast_reg_page_list_len: 512,
        // abi: R-57
        max_pi_fast_reg_page_list_len: 0,
        // abi: R-58
        max_pkeys: 1,
        // The code that stands for 134 ms.
        // abi: R-59
        local_ca_ack_delay: 15,
    };
    let config = Config::decode(&vm.hca.config_space()).unwrap();
    assert_eq!(config, expected);
    for count in [config.max_cq, config.max_qp] {
        // abi: R-82
        assert!(QUEUE_COUNT_RANGE.contains(&count));
    }
}

#[test]
fn garbage_is_answered() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    // abi
    assert_eq!(raw(vm, &[], 100), [EINVAL]);
    for unknown in [0, 19, 0xff] {
        // abi: R-106
        assert_eq!(raw(vm, &[unknown, 0, 0, 0], 100), [EOPNOTSUPP]);
    }
    let notify = [Command::ReqNotifyCq.value(); 100];
    assert_eq!(raw(vm, &notify, 100), [EOPNOTSUPP]);
    for &command in Command::ALL {
        if command != Command::CreatePd {
            // abi
            assert!(
                matches!(raw(vm, &[command.value()], 1000)[..], [EINVAL | EOPNOTSUPP]),
                "{command:?}"
            );
        }
    }
    // A command without room for its response is not executed.
    let create_pd = [Command::CreatePd.value()];
    // abi: R-107
    assert_eq!(raw(vm, &create_pd, 4), [EINVAL]);
    // abi: R-108
    assert_eq!(vm.hca.status().pds, 1, "that of the driver");
    // Bytes after the request are ignored.
    // abi: R-109
    assert_eq!(raw(vm, &[&create_pd[..], &[7; 50]].concat(), 5).len(), 5);
}

// abi
#[test]
fn without_own_rings_queues_are_virtqueues() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    vm.hca.set_features(Features::NONE);
    assert_eq!(
        vm.call(create_cq(vm)).err(),
        Some(ENOMEM),
        "no virtqueue is enabled"
    );
}

// abi
#[test]
fn reset_forgets_everything() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    let mr = vm.mr(64);
    vm.hca.reset();
    assert_eq!(qp.destroy().err(), Some(EINVAL));
    assert_eq!(cq.destroy().err(), Some(EINVAL));
    assert_eq!(vm.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EINVAL));
    assert_eq!(vm.call(CmdDestroyPd { pdn: vm.pdn }).err(), Some(EINVAL));
    assert_eq!(
        vm.call(create_cq(vm)).err(),
        Some(ENOMEM),
        "features are to be negotiated again"
    );
}
