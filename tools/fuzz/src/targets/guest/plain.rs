// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Commands without a ring or a page list, mostly with valid fields.

use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AccessFlags, QpAttrMask, PORT};

use super::Guest;
use crate::input::Input;
use crate::wqe;

/// Sets of features to withhold. Without these features, commands have another layout or are
/// refused.
const FORMS: [Features; 5] = [
    Features::NONE,
    Features::of(&[Feature::RegPages]),
    Features::of(&[Feature::MrPages]),
    Features::of(&[Feature::GidVlan]),
    Features::of(&[Feature::MemWindows]),
];

impl Guest<'_> {
    /// Executes a command and records the number of the object that it creates.
    pub(super) fn plain_command(&mut self, input: &mut Input<'_>) {
        let features = Features::ALL.without(input.of(&FORMS));
        self.vm.hca.set_features(features);
        let vm = self.vm;
        let made = match input.below(25) {
            0 => vm.call(CmdQueryPort { port: port(input) }).map(|_| 0),
            1 => {
                let index = input.edge32(0) as u16;
                let port = port(input).into();
                vm.call(CmdQueryPkey { port, index }).map(|_| 0)
            }
            2 => vm.call(CmdQueryCounters { port: port(input) }).map(|_| 0),
            3 | 4 => {
                let base = self.gid(input);
                match features.has(Feature::GidVlan) {
                    false => vm.call(base).map(|_| 0),
                    true => {
                        let vlan = input.of(&[0, 1, 0xffff, 4094, 4095]);
                        vm.call(CmdAddGidVlan { base, vlan }).map(|_| 0)
                    }
                }
            }
            5 => {
                let index = input.any::<u16>() % 10;
                let port = port(input).into();
                vm.call(CmdDelGid { index, port }).map(|_| 0)
            }
            6 => vm.call(CmdCreatePd {}).map(|made| made.pdn.get()),
            7 => {
                let pdn = self.number(input);
                vm.call(CmdDestroyPd { pdn }).map(|_| 0)
            }
            8 => {
                let pdn = input.number(vm.pdn);
                let access_flags = wqe::access(input);
                let request = CmdGetDmaMr { pdn, access_flags };
                vm.call(request).map(|made| made.mrn.get())
            }
            9 => {
                let request = CmdCreateMr {
                    pdn: input.number(vm.pdn),
                    access_flags: AccessFlags(input.of(&[0, 0, 1])),
                    max_num_sg: input.edge32(16),
                };
                vm.call(request).map(|made| made.mrn.get())
            }
            10 => {
                let npages = input.edge32(16);
                let request = CmdMapMrSg {
                    mrn: self.number(input),
                    npages,
                    start: input.edge(0x10_0000),
                    length: input.edge(u64::from(npages).wrapping_mul(4096)),
                    pages: input.of(&self.page_lists),
                };
                vm.call(request).map(|_| 0)
            }
            11 => {
                let request = CmdAllocMw {
                    pdn: input.number(vm.pdn),
                    mw_type: input.of(&[1, 2, 0, 3]),
                    reserved: [0; 3],
                };
                vm.call(request).map(|made| made.mwn.get())
            }
            12 => {
                let mwn = self.number(input);
                vm.call(CmdDeallocMw { mwn }).map(|_| 0)
            }
            13 => {
                let (qpn, mgid) = (self.number(input), group(input));
                vm.call(CmdAttachMcast { qpn, mgid }).map(|_| 0)
            }
            14 => {
                let (qpn, mgid) = (self.number(input), group(input));
                vm.call(CmdDetachMcast { qpn, mgid }).map(|_| 0)
            }
            15 => {
                let request = CmdSetRateLimit {
                    qpn: self.number(input),
                    rate_limit: input.edge32(1_000_000),
                    max_burst_size: input.edge32(4096),
                    typical_packet_size: input.edge32(1024) as u16,
                    reserved: [0; 2],
                };
                vm.call(request).map(|_| 0)
            }
            16 => {
                let qpn = self.number(input);
                let attr_mask = QpAttrMask::NONE;
                vm.call(CmdQueryQp { qpn, attr_mask }).map(|_| 0)
            }
            17 => {
                let srqn = self.number(input);
                vm.call(CmdQuerySrq { srqn }).map(|_| 0)
            }
            18 => {
                let srqn = self.number(input);
                vm.call(CmdDestroySrq { srqn }).map(|_| 0)
            }
            19 => {
                let port = port(input);
                vm.call(CmdCreateCounterSet { port })
                    .map(|made| made.csn.get())
            }
            20 => {
                let csn = self.number(input);
                vm.call(CmdDestroyCounterSet { csn }).map(|_| 0)
            }
            21 => {
                let (qpn, csn) = (self.number(input), self.number(input));
                vm.call(CmdBindCounterSet { qpn, csn }).map(|_| 0)
            }
            22 => {
                let csn = self.number(input);
                vm.call(CmdQueryCounterSet { csn }).map(|_| 0)
            }
            23 => {
                let cqn = self.number(input);
                let (count, period) = (input.any::<u8>().into(), input.any::<u16>().into());
                vm.call(CmdModifyCq { cqn, count, period }).map(|_| 0)
            }
            _ => {
                let mrn = self.number(input);
                vm.call(CmdRevokeMr { mrn }).map(|_| 0)
            }
        };
        self.learn(made.unwrap_or_default());
        vm.hca.set_features(Features::ALL);
    }

    /// A request to add a GID: the guest's, the peer's, or one that no VM has.
    fn gid(&self, input: &mut Input<'_>) -> CmdAddGid {
        let mut gid = input.of(&[self.vm.gid, self.peer.vm.gid, [0; 16]]);
        gid[15] ^= input.of(&[0, 0, 9]);
        CmdAddGid {
            gid,
            gid_type: input.of(&[2, 2, 2, 1, 3]),
            index: input.any::<u16>() % 10,
            port_num: port(input).into(),
        }
    }
}

/// The port number, mostly the valid one.
fn port(input: &mut Input<'_>) -> u8 {
    input.of(&[PORT, PORT, PORT, 0, 2])
}

/// A multicast GID, or sometimes a unicast GID.
fn group(input: &mut Input<'_>) -> [u8; 16] {
    let mut mgid = [0; 16];
    mgid[..2].copy_from_slice(&[input.of(&[0xff, 0xff, 0xfe]), 0x0e]);
    mgid[15] = input.any::<u8>() % 6;
    mgid
}
