// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Multicast datagrams.

use roce::headers::{Body, Bth, Deth, Headers};
use roce::net::{gid_to_ip, multicast_mac};
use roce::Psn;
use rustix::io::Errno;
use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    QpState, QpType, WcFlags, WcStatus, WrOpcode, DEFAULT_PKEY, MULTICAST_QPN,
};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wqe::Datagram;

use super::GRH;

const EINVAL: u8 = Errno::INVAL.raw_os_error() as u8;
const ENOMEM: u8 = Errno::NOMEM.raw_os_error() as u8;
const EEXIST: u8 = Errno::EXIST.raw_os_error() as u8;
const EOPNOTSUPP: u8 = Errno::OPNOTSUPP.raw_os_error() as u8;

/// GID of the multicast address 239.1.x.y, where `number` is x and y.
fn group(number: u16) -> [u8; 16] {
    let [x, y] = number.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, x, y]
}

fn mac_of(mgid: [u8; 16]) -> [u8; 6] {
    multicast_mac(gid_to_ip(mgid))
}

fn world(vms: usize, setup: Setup) -> World {
    let world = World::new(vms, setup);
    world.negotiate(&[Feature::Multicast]);
    world
}

fn attach(qp: &Qp<'_>, mgid: [u8; 16]) -> Result<(), u8> {
    let qpn = qp.qpn;
    qp.vm.call(CmdAttachMcast { qpn, mgid }).map(|_| ())
}

fn detach(qp: &Qp<'_>, mgid: [u8; 16]) -> Result<(), u8> {
    let qpn = qp.qpn;
    qp.vm.call(CmdDetachMcast { qpn, mgid }).map(|_| ())
}

/// A UD QP in RTS, with its own CQs and MR.
struct Member<'vm> {
    qp: Qp<'vm>,
    /// CQ of sends. It is separate from that of receives, because a send may complete before or
    /// after its datagram is received.
    send_cq: Cq<'vm>,
    cq: Cq<'vm>,
    mr: Mr,
}

impl<'vm> Member<'vm> {
    fn new(vm: &'vm Vm, options: Options) -> Self {
        let [send_cq, cq] = [(); 2].map(|()| Cq::new(vm, 64));
        let qp = Qp::new(vm, &send_cq, &cq, options);
        connect(&qp, &qp);
        let mr = vm.mr(4096);
        Self {
            qp,
            send_cq,
            cq,
            mr,
        }
    }

    fn ud(vm: &'vm Vm) -> Self {
        Self::new(vm, Options::of(QpType::Ud))
    }

    fn post_recv(&self, id: u64) {
        self.qp.post_recv(id, &[sge(&self.mr, 0, 4096)]);
    }

    /// A work request that sends `len` bytes to the group `mgid`.
    fn wr(&self, id: u64, mgid: [u8; 16], len: u32) -> Wr {
        let mut wr = Wr::new(id, WrOpcode::Send)
            .local(&self.mr, 0, len)
            .to(&self.qp);
        let to = wr.to.as_mut().unwrap();
        to.remote_qpn = MULTICAST_QPN;
        (to.av.dgid, to.av.dmac) = (mgid, mac_of(mgid));
        wr
    }

    fn send(&self, mgid: [u8; 16], data: &[u8]) {
        self.qp.vm.write(self.mr.iova, data);
        self.qp.post(&self.wr(1000, mgid, data.len() as u32));
        self.send_cq.expect(1000, WcStatus::Success);
    }

    /// Waits for receive `id` and checks that it is the datagram `data` of `from` to the group
    /// `mgid`.
    fn expect(&self, id: u64, from: &Self, mgid: [u8; 16], data: &[u8]) {
        let cqe = self.cq.expect(id, WcStatus::Success);
        assert_eq!((cqe.qp_num, cqe.src_qp), (self.qp.qpn, from.qp.qpn));
        assert_eq!(cqe.wc_flags, WcFlags::GRH | WcFlags::WITH_NETWORK_HDR_TYPE);
        assert_eq!(u64::from(cqe.byte_len), GRH + data.len() as u64);
        let vm = self.qp.vm;
        let grh = vm.read(self.mr.iova, GRH as usize);
        assert_eq!(grh[32..], [&from.qp.vm.gid[12..], &mgid[12..]].concat());
        assert!(vm.read(self.mr.iova + GRH, data.len()) == data);
    }
}

// abi
#[test]
fn datagrams_to_a_group_reach_all_members() {
    in_all_setups(|setup| {
        let world = world(3, setup);
        let [a, b, c] = [0, 1, 2].map(|n| &world.vms[n]);
        let sender = Member::ud(a);
        let members = [a, b, b].map(Member::ud);
        let outsiders = [a, b, c].map(Member::ud);
        for member in &members {
            attach(&member.qp, group(1)).unwrap();
        }
        for outsider in &outsiders {
            attach(&outsider.qp, group(2)).unwrap();
            outsider.post_recv(7);
        }
        for round in 0..3 {
            for member in &members {
                member.post_recv(round);
            }
            let data = pattern(1000, round + 1);
            sender.send(group(1), &data);
            for member in &members {
                member.expect(round, &sender, group(1), &data);
            }
        }
        // The outsiders are in group 2, and received no datagram of group 1.
        sender.send(group(2), b"other");
        for outsider in &outsiders {
            outsider.expect(7, &sender, group(2), b"other");
        }
        // A multicast that nobody receives is not an error.
        sender.send(group(3), b"nobody");
        assert!(members.iter().all(|member| member.cq.poll().is_none()));
    });
}

// abi
#[test]
fn a_member_hears_itself_unless_it_blocks_loopback() {
    in_all_setups(|setup| {
        let world = world(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        // The second round has another group: datagrams of the first one may still be on their way
        // to its members' VMs.
        for (blocks_loopback, group) in [(false, group(1)), (true, group(2))] {
            let options = Options {
                blocks_loopback,
                ..Options::of(QpType::Ud)
            };
            let sender = Member::new(a, options);
            let others = [Member::new(a, options), Member::new(b, options)];
            for member in [&sender, &others[0], &others[1]] {
                attach(&member.qp, group).unwrap();
                member.post_recv(1);
            }
            sender.send(group, b"echo");
            for other in &others {
                other.expect(1, &sender, group, b"echo");
            }
            if !blocks_loopback {
                sender.expect(1, &sender, group, b"echo");
                sender.post_recv(1);
            }
            // The next datagrams that the sender receives are from the other members. These members
            // have no receives left, so they do not receive each other's datagrams.
            for (other, id) in others.iter().zip(1..) {
                sender.post_recv(id + 1);
                other.send(group, b"reply");
                sender.expect(id, other, group, b"reply");
            }
            for member in [&sender, &others[0], &others[1]] {
                member.qp.destroy().unwrap();
            }
        }
    });
}

// abi
#[test]
fn who_leaves_a_group_hears_it_no_more() {
    in_all_setups(|setup| {
        let world = world(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let sender = Member::ud(a);
        let [stays, detaches, ends] = [b, b, b].map(Member::ud);
        let joined = |number| world.net.has_joined(b.mac, mac_of(group(number)));
        for member in [&stays, &detaches, &ends] {
            attach(&member.qp, group(1)).unwrap();
            member.post_recv(1);
        }
        attach(&ends.qp, group(2)).unwrap();
        assert!(joined(1) && joined(2));
        detach(&detaches.qp, group(1)).unwrap();
        assert_eq!(detach(&detaches.qp, group(1)), Err(EINVAL));
        ends.qp.destroy().unwrap();
        assert!(joined(1) && !joined(2), "a group ends with its last member");
        sender.send(group(1), b"left");
        stays.expect(1, &sender, group(1), b"left");
        assert_eq!((detaches.cq.poll(), ends.cq.poll()), (None, None));
        // A QP may join the group again.
        attach(&detaches.qp, group(1)).unwrap();
        stays.post_recv(2);
        sender.send(group(1), b"back");
        detaches.expect(1, &sender, group(1), b"back");
        stays.expect(2, &sender, group(1), b"back");
        b.hca.reset();
        assert!(!joined(1));
    });
}

/// If one member of a group can't receive a datagram, the other members still receive it.
// abi
#[test]
fn members_take_datagrams_each_for_itself() {
    in_all_setups(|setup| {
        let world = world(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let sender = Member::ud(a);
        let other_key = Options {
            qkey: 99,
            ..Options::of(QpType::Ud)
        };
        let [first, deaf, short, last] = [b, b, b, b].map(Member::ud);
        let stranger = Member::new(b, other_key);
        for member in [&first, &deaf, &short, &stranger, &last] {
            attach(&member.qp, group(1)).unwrap();
        }
        first.post_recv(1);
        stranger.post_recv(1);
        short.qp.post_recv(1, &[sge(&short.mr, 0, 50)]);
        deaf.qp.to(QpState::Reset);
        last.post_recv(1);
        sender.send(group(1), &[5; 64]);
        first.expect(1, &sender, group(1), &[5; 64]);
        last.expect(1, &sender, group(1), &[5; 64]);
        assert_eq!(b.violations(), (0, 1), "one QP had another Q_Key");
        sender.send(group(1), &[6; 10]);
        short.expect(1, &sender, group(1), &[6; 10]);
        assert_eq!((stranger.cq.poll(), deaf.cq.poll()), (None, None));
    });
}

// abi
#[test]
fn groups_over_ipv6() {
    in_all_setups(|setup| {
        let world = world(2, setup);
        let mut mgid = [0; 16];
        (mgid[0], mgid[1], mgid[15]) = (0xff, 0x0e, 9);
        for (vm, n) in world.vms.iter().zip(1..) {
            let mut gid = [0; 16];
            (gid[0], gid[15]) = (0xfd, n);
            vm.call(CmdAddGid {
                gid,
                gid_type: 2,
                index: 9,
                port_num: 1,
            })
            .unwrap();
        }
        let [sender, member] = [0, 1].map(|n| Member::ud(&world.vms[n]));
        attach(&member.qp, mgid).unwrap();
        member.post_recv(1);
        let mut wr = sender.wr(2, mgid, 16);
        wr.to.as_mut().unwrap().av.gid_index = 9;
        sender.qp.post(&wr);
        sender.send_cq.expect(2, WcStatus::Success);
        member.cq.expect(1, WcStatus::Success);
        let grh = member.qp.vm.read(member.mr.iova, GRH as usize);
        assert_eq!(grh[24..], mgid);
    });
}

#[test]
fn as_many_members_as_the_limits_say() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = world(1, setup);
        let vm = &world.vms[0];
        let config = mode::config(vm);
        let limits = Limits::default();
        assert_eq!(
            (
                config.max_mcast_grp,
                config.max_mcast_qp_attach,
                config.max_total_mcast_qp_attach
            ),
            (
                limits.max_mcast_grp,
                limits.max_mcast_qp_attach,
                limits.max_total_mcast_qp_attach
            )
        );
        let cq = Cq::new(vm, 64);
        let options = Options {
            slots: 2,
            ..Options::of(QpType::Ud)
        };
        let qps: Vec<_> = (0..=config.max_mcast_qp_attach)
            .map(|_| Qp::new(vm, &cq, &cq, options))
            .collect();
        let [first, others @ ..] = &qps[..] else {
            panic!("a limit of none");
        };
        // Limit of members of one group.
        for qp in others {
            attach(qp, group(0)).unwrap();
        }
        // abi
        assert_eq!(attach(first, group(0)), Err(ENOMEM), "members of a group");
        detach(&others[0], group(0)).unwrap();
        attach(first, group(0)).unwrap();
        detach(first, group(0)).unwrap();
        for qp in &others[1..] {
            detach(qp, group(0)).unwrap();
        }
        // Limit of groups.
        let groups = config.max_mcast_grp as u16;
        for number in 0..groups {
            attach(first, group(number)).unwrap();
        }
        // abi
        assert_eq!(attach(first, group(groups)), Err(ENOMEM), "groups");
        assert_eq!(attach(&others[0], group(groups)), Err(ENOMEM), "groups");
        // Limit of members of all groups together. `first` is in each group, so there are `groups`
        // members now.
        let mut places = others
            .iter()
            .flat_map(|qp| (0..groups).map(move |number| (qp, number)));
        for _ in u32::from(groups)..config.max_total_mcast_qp_attach {
            let (qp, number) = places.next().unwrap();
            attach(qp, group(number)).unwrap();
        }
        let (qp, number) = places.next().unwrap();
        // abi
        assert_eq!(attach(qp, group(number)), Err(ENOMEM), "members in all");
        first.destroy().unwrap();
        // abi: R-810
        attach(qp, group(number)).unwrap();
    });
}

#[test]
fn what_cannot_be_attached() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = world(1, setup);
        let vm = &world.vms[0];
        let member = Member::ud(vm);
        // abi: R-806
        assert_eq!(attach(&member.qp, vm.gid), Err(EINVAL), "one host");
        assert_eq!(attach(&member.qp, [0; 16]), Err(EINVAL), "no GID");
        let nobody = CmdAttachMcast {
            qpn: MULTICAST_QPN,
            mgid: group(1),
        };
        // abi: R-806
        assert_eq!(vm.call(nobody).err(), Some(EINVAL));
        // abi: R-800
        assert_eq!(attach(&member.qp, group(1)), Ok(()));
        // abi: R-807
        assert_eq!(attach(&member.qp, group(1)), Err(EEXIST), "twice");
        // abi: R-809
        assert_eq!(detach(&member.qp, group(2)), Err(EINVAL), "no member");
        let cq = Cq::new(vm, 64);
        let others = [QpType::Rc, QpType::Uc, QpType::Gsi];
        for options in others.map(Options::of) {
            let qp = Qp::new(vm, &cq, &cq, options);
            // abi: R-806
            assert_eq!(attach(&qp, group(1)), Err(EINVAL), "{:?}", options.qp_type);
        }
        // Without the feature, commands and datagrams are refused.
        world.negotiate(&[]);
        // abi: R-15
        assert_eq!(attach(&member.qp, group(2)), Err(EOPNOTSUPP));
        assert_eq!(detach(&member.qp, group(1)), Err(EOPNOTSUPP));
        member.qp.post(&member.wr(1, group(1), 10));
        member.send_cq.expect(1, WcStatus::LocQpOpErr);
    });
}

// abi: R-815
#[test]
fn forged_addresses_of_groups() {
    type Change = fn(&mut Datagram);
    let refused: [(&str, Change); 6] = [
        ("one host", |to| to.av.dgid[12] = 10),
        ("another Ethernet address", |to| to.av.dmac[5] ^= 1),
        ("one host's Ethernet address", |to| to.av.dmac[0] = 2),
        ("a QPN", |to| to.remote_qpn = Qpn::new(2)),
        ("another family", |to| to.av.dgid[0] = 0xff),
        ("GID that is not in the table", |to| to.av.gid_index = 2),
    ];
    in_all_setups(|setup| {
        let world = world(1, setup);
        for (name, change) in refused {
            eprintln!("{name}");
            let sender = Member::ud(&world.vms[0]);
            let mut wr = sender.wr(1, group(1), 10);
            change(wr.to.as_mut().unwrap());
            sender.qp.post(&wr);
            sender.send_cq.expect(1, WcStatus::LocQpOpErr);
            assert_eq!(sender.qp.state(), QpState::Sqe);
            sender.qp.destroy().unwrap();
        }
    });
}

/// `frame` with an 802.1Q tag for VLAN `vlan`.
fn tagged(mut frame: Vec<u8>, vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

// abi: R-797
#[test]
fn packets_of_a_vlan_without_an_address_are_lost() {
    in_both_modes(PathPolicy::Wire, |setup| {
        const VLAN: u16 = 5;
        let world = World::new(2, setup);
        world.negotiate(&[Feature::Multicast, Feature::GidVlan]);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let request = CmdAddGidVlan {
            base: CmdAddGid {
                gid: b.gid,
                gid_type: 2,
                index: 3,
                port_num: 1,
            },
            vlan: VLAN,
        };
        b.call(request).unwrap();
        let (sender, member) = (Member::ud(a), Member::ud(b));
        attach(&member.qp, group(1)).unwrap();
        member.post_recv(1);
        let deth = Deth {
            qkey: member.qp.options.qkey,
            src_qpn: sender.qp.qpn,
        };
        let bth = Bth::new(DEFAULT_PKEY, MULTICAST_QPN, Psn::new(1));
        let headers = Headers::new(bth, Body::Ud { deth, imm: None });
        for (vlan, text) in [(VLAN + 1, b"no VLAN of ours"), (VLAN, b"one of our VLAN")] {
            let bytes = frame_between((a.mac, a.gid), (b.mac, group(1)), &headers, text);
            world.net.inject(b.mac, &tagged(bytes, vlan));
        }
        let cqe = member.cq.expect(1, WcStatus::Success);
        assert!(cqe.wc_flags.contains(WcFlags::WITH_VLAN));
        assert_eq!(cqe.vendor_err, u32::from(VLAN));
        assert_eq!(b.read(member.mr.iova + GRH, 15), b"one of our VLAN");
    });
}

/// A multicast packet needs both the multicast QPN and the address of the group.
// abi
#[test]
fn packets_that_are_half_multicast() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = world(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (sender, member) = (Member::ud(a), Member::ud(b));
        attach(&member.qp, group(1)).unwrap();
        member.post_recv(1);
        let inject = |qpn, gid, text: &[u8]| {
            let deth = Deth {
                qkey: member.qp.options.qkey,
                src_qpn: sender.qp.qpn,
            };
            let bth = Bth::new(DEFAULT_PKEY, qpn, Psn::new(1));
            let headers = Headers::new(bth, Body::Ud { deth, imm: None });
            let bytes = frame_between((a.mac, a.gid), (b.mac, gid), &headers, text);
            world.net.inject(b.mac, &bytes);
        };
        inject(MULTICAST_QPN, b.gid, b"host");
        inject(member.qp.qpn, group(1), b"QP");
        inject(MULTICAST_QPN, group(2), b"other");
        inject(MULTICAST_QPN, group(1), b"good");
        member.expect(1, &sender, group(1), b"good");
        assert_eq!(b.violations(), (0, 0));
    });
}
