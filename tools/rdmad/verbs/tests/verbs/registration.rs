// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Fast registration: REG_MR, LOCAL_INV and invalidation by the peer.

use testkit::engine::*;
use virtio_rdma_abi::ctrl::{CmdCreateMr, CmdCreatePd, CmdDeregMr, CmdMapMrSg};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpState, QpType, WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, Pdn};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{Reg, RegPages};

/// Address of the MRs in work requests, not page-aligned.
const IOVA: u64 = 0x7000_0010;
/// Length of the MRs in bytes. The MRs span three pages.
const LEN: u64 = 0x2000;

/// Options of a QP of the kernel.
fn kernel() -> Options {
    Options {
        user: false,
        ..Options::default()
    }
}

/// An MR for fast registration, and a page list to register.
pub struct Fast<'vm> {
    vm: &'vm Vm,
    pub mr: Mr,
    list: u64,
}

impl<'vm> Fast<'vm> {
    pub fn new(vm: &'vm Vm, pdn: Pdn) -> Self {
        let rsp = vm
            .call(CmdCreateMr {
                pdn,
                access_flags: AccessFlags::NONE,
                max_num_sg: 3,
            })
            .unwrap();
        // The page list is in reverse order.
        let at = vm.alloc(3 * 4096);
        Self {
            vm,
            mr: Mr {
                mrn: rsp.mrn,
                key: rsp.rkey,
                addr: IOVA,
                iova: at,
                len: LEN,
            },
            list: vm.page_list(&[at + 0x2000, at + 0x1000, at]),
        }
    }

    /// The MR as peers and work requests address it, with the key `key`.
    fn under(&self, key: u32) -> Mr {
        Mr { key, ..self.mr }
    }

    pub fn reg_pages(&self, key: u32) -> RegPages {
        // abi: R-341
        RegPages {
            base: Reg {
                mrn: self.mr.mrn,
                key,
                access: FULL,
            },
            // abi: R-342
            pages: self.list,
            // abi: R-343
            npages: 3,
            // abi: R-344
            iova: IOVA,
            // abi: R-345
            length: LEN,
            // abi: R-346
            page_shift: 12,
            reserved: [0; 4],
        }
    }

    fn map(&self) {
        let cmd = CmdMapMrSg {
            mrn: self.mr.mrn,
            npages: 3,
            start: IOVA,
            length: LEN,
            pages: self.list,
        };
        assert_eq!(self.vm.call(cmd).unwrap().npages, 3);
    }

    /// `len` bytes of the MR's memory from `offset` on.
    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len)
            .flat_map(|n| {
                let at = n + IOVA % 4096;
                let page = self.mr.iova + 0x2000 - (at & !0xfff);
                self.vm.read(page + at % 4096, 1)
            })
            .collect()
    }
}

pub fn reg(id: u64, pages: &RegPages) -> Vec<u8> {
    wqe(id, WrOpcode::RegMr, 0, pages)
}

fn with_inv(wr: &Wr, key: u32) -> Vec<u8> {
    wr.clone().imm(key.to_le_bytes()).bytes()
}

/// Runs `test` with a pair of kernel QPs in each setup. REG_MR carries a page list.
fn each(test: impl Fn(&Pair<'_>)) {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        world.negotiate(&[Feature::RegPages]);
        test(&Pair::with(&world, kernel(), kernel()));
    });
}

/// Posts `wqe` at A and checks that it fails with `status`.
pub fn fails(p: &Pair<'_>, wqe: &[u8], status: WcStatus) {
    let id = u64::from_le_bytes(wqe[12..20].try_into().unwrap());
    p.qa.post_bytes(wqe);
    p.cq_a.expect(id, status);
    assert_eq!(p.qa.state(), QpState::Err);
}

#[test]
fn registered_used_and_invalidated_in_one_go() {
    each(|p| {
        let (a, b) = (Fast::new(p.a, p.a.pdn), Fast::new(p.b, p.b.pdn));
        p.b.write(p.mb.iova, &pattern(0x2000, 1));
        for round in 0..40u32 {
            let key = (a.mr.key & !0xff) | (round % 0x100);
            // All work requests are posted without waiting for earlier completions.
            p.qa.post_bytes(&reg(1, &a.reg_pages(key)));
            // abi: R-358
            p.qa.post(
                &Wr::new(2, WrOpcode::RdmaRead)
                    .local(&a.under(key), 0, 0x2000)
                    .remote(&p.mb, 0),
            );
            // abi: R-359
            p.qa.post_bytes(&local_inv(3, key));
            // abi: R-360
            p.qa.post_bytes(&reg(4, &a.reg_pages(key ^ 1)));
            p.qa.post(
                &Wr::new(5, WrOpcode::RdmaWrite)
                    .local(&a.under(key ^ 1), 0, 0x2000)
                    .remote(&p.mb, 0x4000),
            );
            // abi: R-620
            p.qa.post_bytes(&local_inv(6, key ^ 1));
            for id in 1..=6 {
                // abi
                p.cq_a.expect(id, WcStatus::Success);
            }
        }
        // abi: R-333
        assert_eq!(a.read(0, 0x2000), pattern(0x2000, 1));
        assert_eq!(p.b.read(p.mb.iova + 0x4000, 0x2000), pattern(0x2000, 1));
        // A writes to memory that B has registered.
        p.qb.post_bytes(&reg(7, &b.reg_pages(b.mr.key)));
        p.cq_b.expect(7, WcStatus::Success);
        p.qa.post(&p.wr(8, WrOpcode::RdmaWrite, 16).remote(&b.mr, 0x1ff0));
        p.cq_a.expect(8, WcStatus::Success);
        assert_eq!(b.read(0x1ff0, 16), p.a.read(p.ma.iova, 16));
    });
}

#[test]
fn pages_that_were_mapped_before() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let p = Pair::with(&world, kernel(), kernel());
        let b = Fast::new(p.b, p.b.pdn);
        b.map();
        // abi: R-335
        let registration = Reg {
            // abi: R-336
            mrn: b.mr.mrn,
            // abi: R-337
            key: b.mr.key,
            // abi: R-338
            access: FULL,
        };
        p.qb.post_bytes(&wqe(1, WrOpcode::RegMr, 0, &registration));
        p.cq_b.expect(1, WcStatus::Success);
        p.a.write(p.ma.iova, &pattern(0x2000, 5));
        p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 0x2000).remote(&b.mr, 0));
        p.cq_a.expect(2, WcStatus::Success);
        assert_eq!(b.read(0, 0x2000), pattern(0x2000, 5));
        // A REG_MR without new pages registers the previous pages again.
        p.qb.post_bytes(&local_inv(3, b.mr.key));
        p.qb.post_bytes(&wqe(4, WrOpcode::RegMr, 0, &registration));
        p.cq_b.expect(3, WcStatus::Success);
        p.cq_b.expect(4, WcStatus::Success);
        // This MR never had pages.
        let other = Fast::new(p.a, p.a.pdn);
        let registration = Reg {
            mrn: other.mr.mrn,
            key: other.mr.key,
            access: FULL,
        };
        // abi: R-352
        fails(
            &p,
            &wqe(5, WrOpcode::RegMr, 0, &registration),
            WcStatus::MwBindErr,
        );
    });
}

// abi
#[test]
fn zero_based_and_large_pages() {
    each(|p| {
        let at = p.b.alloc(3 << 16).next_multiple_of(1 << 16);
        let b = Fast::new(p.b, p.b.pdn);
        let pages = RegPages {
            base: Reg {
                access: FULL | AccessFlags::ZERO_BASED,
                ..b.reg_pages(b.mr.key).base
            },
            pages: p.b.page_list(&[at + 0x1_0000, at]),
            npages: 2,
            page_shift: 16,
            iova: 0x1234_fff0,
            length: 0x1000,
            ..b.reg_pages(0)
        };
        p.qb.post_bytes(&reg(1, &pages));
        p.cq_b.expect(1, WcStatus::Success);
        p.a.write(p.ma.iova, &pattern(0x1000, 9));
        let zero = Mr { addr: 0, ..b.mr };
        p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 0x1000).remote(&zero, 0));
        p.cq_a.expect(2, WcStatus::Success);
        let data = pattern(0x1000, 9);
        assert_eq!(p.b.read(at + 0x1_fff0, 16), data[..16]);
        assert_eq!(p.b.read(at, 0xff0), data[16..]);
        p.qa.post(&p.wr(3, WrOpcode::RdmaWrite, 1).remote(&zero, 0x1000));
        p.cq_a.expect(3, WcStatus::RemAccessErr);
    });
}

#[test]
fn registrations_that_are_refused() {
    type Change = fn(&mut RegPages);
    let changes: [(&str, Change); 15] = [
        // abi: R-352
        ("MR", |reg| {
            reg.base.mrn = MrNumber::new(reg.base.mrn.get() + 1)
        }),
        ("no MR", |reg| reg.base.mrn = MrNumber::new(0)),
        // abi: R-353
        ("number in the key", |reg| reg.base.key ^= 0x100),
        // abi: R-354
        ("access flags", |reg| {
            reg.base.access = AccessFlags::REMOTE_WRITE
        }),
        ("access flags", |reg| reg.base.access = AccessFlags(1 << 30)),
        ("access flags", |reg| reg.base.access = AccessFlags::MW_BIND),
        ("too many pages", |reg| {
            (reg.npages, reg.length) = (4, 0x3000)
        }),
        ("too few pages", |reg| reg.npages = 2),
        ("empty", |reg| reg.length = 0),
        ("wrapping", |reg| reg.length = u64::MAX),
        ("wrapping", |reg| reg.iova = u64::MAX - 0xf),
        // abi: R-354
        ("page size", |reg| reg.page_shift = 11),
        ("page size", |reg| reg.page_shift = 63),
        ("list", |reg| reg.pages = 1 << 40),
        // abi: R-347
        ("reserved", |reg| reg.reserved[3] = 1),
    ];
    for (name, change) in changes {
        eprintln!("{name}");
        each(|p| {
            let a = Fast::new(p.a, p.a.pdn);
            let mut pages = a.reg_pages(a.mr.key);
            change(&mut pages);
            // abi
            fails(p, &reg(1, &pages), WcStatus::MwBindErr);
            p.responder_lives();
        });
    }
    each(|p| {
        let fixed = RegPages {
            base: Reg {
                mrn: p.ma.mrn,
                key: p.ma.key,
                access: FULL,
            },
            ..Fast::new(p.a, p.a.pdn).reg_pages(0)
        };
        fails(p, &reg(1, &fixed), WcStatus::MwBindErr);
    });
    each(|p| {
        let pdn = p.a.call(CmdCreatePd::ZERO).unwrap().pdn;
        let other = Fast::new(p.a, pdn);
        fails(
            p,
            &reg(1, &other.reg_pages(other.mr.key)),
            WcStatus::MwBindErr,
        );
    });
    each(|p| {
        let a = Fast::new(p.a, p.a.pdn);
        p.qa.post_bytes(&reg(1, &a.reg_pages(a.mr.key)));
        p.cq_a.expect(1, WcStatus::Success);
        // abi: R-352
        let again = reg(2, &a.reg_pages(a.mr.key ^ 1));
        fails(p, &again, WcStatus::MwBindErr);
    });
}

// abi
#[test]
fn invalidations_that_are_refused() {
    type Key = fn(&Pair<'_>, &Fast<'_>) -> u32;
    let keys: [(&str, Key); 5] = [
        ("stale key", |_, a| a.mr.key ^ 1),
        ("no MR", |_, _| !0),
        ("key zero", |_, _| 0),
        ("fixed MR", |p, _| p.ma.key),
        ("other PD", |p, _| {
            let pdn = p.a.call(CmdCreatePd::ZERO).unwrap().pdn;
            Fast::new(p.a, pdn).mr.key
        }),
    ];
    for (name, key) in keys {
        eprintln!("{name}");
        each(|p| {
            let a = Fast::new(p.a, p.a.pdn);
            p.qa.post_bytes(&reg(1, &a.reg_pages(a.mr.key)));
            p.cq_a.expect(1, WcStatus::Success);
            fails(p, &local_inv(2, key(p, &a)), WcStatus::MwBindErr);
        });
    }
    each(|p| {
        let a = Fast::new(p.a, p.a.pdn);
        fails(p, &local_inv(1, a.mr.key), WcStatus::MwBindErr);
    });
}

// abi
#[test]
fn an_old_key_opens_nothing() {
    each(|p| {
        let b = Fast::new(p.b, p.b.pdn);
        p.qb.post_bytes(&reg(1, &b.reg_pages(b.mr.key)));
        p.qb.post_bytes(&local_inv(2, b.mr.key));
        p.qb.post_bytes(&reg(3, &b.reg_pages(b.mr.key ^ 1)));
        for id in 1..=3 {
            p.cq_b.expect(id, WcStatus::Success);
        }
        p.qa.post(&p.wr(4, WrOpcode::RdmaWrite, 8).remote(&b.mr, 0));
        p.cq_a.expect(4, WcStatus::RemAccessErr);
        p.responder_failed(Some(AsyncEvent::QpAccessErr));
    });
}

// abi
#[test]
fn the_peer_invalidates() {
    each(|p| {
        let b = Fast::new(p.b, p.b.pdn);
        for round in 0..10 {
            p.qb.post_bytes(&reg(1, &b.reg_pages(b.mr.key)));
            p.cq_b.expect(1, WcStatus::Success);
            p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
            p.qa.post(&p.wr(3, WrOpcode::RdmaWrite, 32).remote(&b.mr, 0));
            let send = Wr::new(4, WrOpcode::SendWithInv).local(&p.ma, 0, 10 + round);
            p.qa.post_bytes(&with_inv(&send, b.mr.key));
            p.cq_a.expect(3, WcStatus::Success);
            p.cq_a.expect(4, WcStatus::Success);
            let cqe = p.cq_b.expect(2, WcStatus::Success);
            assert_eq!(cqe.wc_flags, WcFlags::WITH_INVALIDATE);
            assert_eq!(u32::from_le_bytes(cqe.ex), b.mr.key);
            assert_eq!(cqe.byte_len, 10 + round);
        }
        p.qa.post(&p.wr(5, WrOpcode::RdmaWrite, 32).remote(&b.mr, 0));
        p.cq_a.expect(5, WcStatus::RemAccessErr);
    });
}

// abi: R-356
#[test]
fn the_peer_invalidates_what_it_may_not() {
    each(|p| {
        p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
        let send = Wr::new(1, WrOpcode::SendWithInv).local(&p.ma, 0, 10);
        // A permanently registered MR can't be invalidated.
        p.qa.post_bytes(&with_inv(&send, p.mb.key));
        assert_ne!(p.cq_a.next().status, WcStatus::Success.value());
        assert_ne!(p.cq_b.next().status, WcStatus::Success.value());
        p.qb.wait_for(QpState::Err);
        p.b.call(CmdDeregMr { mrn: p.mb.mrn }).unwrap();
    });
}

// abi
#[test]
fn a_read_that_invalidates_its_sink() {
    each(|p| {
        let a = Fast::new(p.a, p.a.pdn);
        p.b.write(p.mb.iova, &pattern(0x2000, 3));
        let read = |id, key| {
            let wr = Wr::new(id, WrOpcode::RdmaReadWithInv)
                .local(&a.mr, 0, 0x2000)
                .remote(&p.mb, 0);
            with_inv(&wr, key)
        };
        for _ in 0..5 {
            p.qa.post_bytes(&reg(1, &a.reg_pages(a.mr.key)));
            p.qa.post_bytes(&read(2, a.mr.key));
            p.cq_a.expect(1, WcStatus::Success);
            p.cq_a.expect(2, WcStatus::Success);
        }
        assert_eq!(a.read(0, 0x2000), pattern(0x2000, 3));
        p.qa.post_bytes(&reg(3, &a.reg_pages(a.mr.key)));
        p.cq_a.expect(3, WcStatus::Success);
        fails(p, &read(4, a.mr.key ^ 1), WcStatus::MwBindErr);
    });
}

// abi
#[test]
fn unreliable_connections_register_too() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        world.negotiate(&[Feature::RegPages]);
        let options = Options {
            user: false,
            ..Options::of(QpType::Uc)
        };
        let p = Pair::with(&world, options, options);
        let a = Fast::new(p.a, p.a.pdn);
        for _ in 0..5 {
            p.qa.post_bytes(&reg(1, &a.reg_pages(a.mr.key)));
            p.qa.post(
                &Wr::new(2, WrOpcode::RdmaWrite)
                    .local(&a.mr, 0, 64)
                    .remote(&p.mb, 0),
            );
            p.qa.post_bytes(&local_inv(3, a.mr.key));
            for id in 1..=3 {
                p.cq_a.expect(id, WcStatus::Success);
            }
        }
    });
}

// abi: R-361
#[test]
fn nothing_lands_in_memory_that_was_invalidated() {
    each(|p| {
        let b = Fast::new(p.b, p.b.pdn);
        // A second connection in the same PD posts many WRITEs.
        let (cq_c, cq_d) = (Cq::new(p.a, 256), Cq::new(p.b, 256));
        for _ in 0..20 {
            let options = Options {
                retry_cnt: 7,
                ..kernel()
            };
            let qc = Qp::new(p.a, &cq_c, &cq_c, options);
            let qd = Qp::new(p.b, &cq_d, &cq_d, options);
            connect(&qc, &qd);
            p.qb.post_bytes(&reg(1, &b.reg_pages(b.mr.key)));
            p.cq_b.expect(1, WcStatus::Success);
            p.a.write(p.ma.iova, &[0xff; 0x2000]);
            for id in 0..30 {
                qc.post(&p.wr(id, WrOpcode::RdmaWrite, 0x2000).remote(&b.mr, 0));
            }
            p.qb.post_bytes(&local_inv(2, b.mr.key));
            p.cq_b.expect(2, WcStatus::Success);
            // After the invalidation, the device no longer writes to the memory.
            for page in 0..3 {
                p.b.write(b.mr.iova + page * 4096, &[0x55; 4096]);
            }
            // The WRITEs succeed or fail, but none changes the memory now.
            wait("the last write", || {
                let cqe = cq_c.poll()?;
                let failed = cqe.status != WcStatus::Success.value();
                (failed || cqe.wr_id == 29).then_some(())
            });
            assert!(b.read(0, LEN).iter().all(|byte| *byte == 0x55));
            qc.destroy().unwrap();
            qd.destroy().unwrap();
            while cq_c.poll().is_some() {}
            while cq_d.poll().is_some() {}
        }
    });
}
