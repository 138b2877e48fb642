// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A completion with an error names the reason: the check that failed.

use std::collections::BTreeSet;

use testkit::engine::*;
use virtio_rdma_abi::cqe::{Cqe, WcReason};
use virtio_rdma_abi::ctrl::{CmdAllocMw, CmdCreateMr, CmdCreatePd, CmdGetDmaMr, CmdRevokeMr};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, Mtu, MwType, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{BindMw, Flush, Reg, RegPages, Sge};

/// A work request that fails.
struct Case {
    reason: WcReason,
    status: WcStatus,
    features: &'static [Feature],
    ours: Options,
    theirs: Options,
    /// Posts the work request to the pair, and returns its completion.
    provoke: fn(&Pair<'_>) -> Cqe,
}

fn case(reason: WcReason, status: WcStatus, provoke: fn(&Pair<'_>) -> Cqe) -> Case {
    Case {
        reason,
        status,
        features: &[],
        ours: Options::default(),
        theirs: Options::default(),
        provoke,
    }
}

impl Case {
    fn ours(self, ours: Options) -> Self {
        Self { ours, ..self }
    }

    fn theirs(self, theirs: Options) -> Self {
        Self { theirs, ..self }
    }

    fn features(self, features: &'static [Feature]) -> Self {
        Self { features, ..self }
    }

    /// Provokes the error.
    fn check(&self, setup: impl Into<Setup>) {
        eprintln!("{:?}", self.reason);
        let world = World::new(2, setup);
        world.negotiate(self.features);
        let cqe = (self.provoke)(&Pair::with(&world, self.ours, self.theirs));
        assert_eq!(cqe.status, self.status.value(), "{cqe:?}");
        let reason = u8::try_from(cqe.vendor_err).map(WcReason::try_from);
        assert_eq!(reason, Ok(Ok(self.reason)), "{cqe:?}");
    }
}

/// Posts a WQE at A. Returns the next completion there.
fn posted(p: &Pair<'_>, wqe: &[u8]) -> Cqe {
    p.qa.post_bytes(wqe);
    p.cq_a.next()
}

/// Like [`posted`], for a SEND of 100 bytes after a change of its WQE.
fn changed(p: &Pair<'_>, change: impl FnOnce(&mut Vec<u8>)) -> Cqe {
    let mut wqe = p.send(1, 100).bytes();
    change(&mut wqe);
    posted(p, &wqe)
}

/// Like [`posted`], for a SEND with this SGE.
fn sent(p: &Pair<'_>, sge: Sge) -> Cqe {
    let mut wr = Wr::new(1, WrOpcode::Send);
    wr.sges.push(sge);
    posted(p, &wr.bytes())
}

fn work_requests() -> Vec<Case> {
    use WcStatus::{LocLenErr, LocQpOpErr, WrFlushErr};
    let ud = Options::of(QpType::Ud);
    let no_reads = Options {
        rd_atomic: 0,
        ..Options::default()
    };
    let short_packets = Options {
        mtu: Mtu::Mtu512,
        ..Options::default()
    };
    vec![
        // abi: R-1261
        case(WcReason::Flushed, WrFlushErr, |p| {
            p.qa.to(QpState::Err);
            posted(p, &p.send(1, 8).bytes())
        }),
        // abi: R-1262
        case(WcReason::UnknownOpcode, LocQpOpErr, |p| {
            changed(p, |wqe| wqe[8] = 100)
        }),
        // abi: R-1263
        case(WcReason::OpcodeNotPermitted, LocQpOpErr, |p| {
            changed(p, |wqe| wqe[8] = 0x20)
        }),
        case(WcReason::OpcodeNotPermitted, LocQpOpErr, |p| {
            posted(p, &p.wr(1, WrOpcode::RdmaRead, 8).bytes())
        })
        .ours(ud)
        .theirs(ud),
        // abi: R-1264
        case(WcReason::TooManySges, LocQpOpErr, |p| {
            changed(p, |wqe| wqe[0] = 5)
        }),
        case(WcReason::TooManySges, LocQpOpErr, |p| {
            p.qb.post_recv(3, &[sge(&p.mb, 0, 1); 5]);
            p.qa.post(&p.send(1, 1));
            p.cq_b.next()
        }),
        // abi: R-1266
        case(WcReason::BadInline, LocQpOpErr, |p| {
            let wr = Wr::new(1, WrOpcode::RdmaRead).inline(&[0; 8]);
            posted(p, &wr.remote(&p.mb, 0).bytes())
        }),
        // abi: R-1268
        case(WcReason::NoReads, LocQpOpErr, |p| {
            posted(p, &p.wr(1, WrOpcode::RdmaRead, 8).bytes())
        })
        .ours(no_reads),
        // abi: R-1269
        case(WcReason::BadAddress, LocQpOpErr, |p| {
            let mut wr = p.send(1, 8);
            wr.to.as_mut().unwrap().av.gid_index = 99;
            posted(p, &wr.bytes())
        })
        .ours(ud)
        .theirs(ud),
        // abi: R-1270
        case(WcReason::InlineTooLong, LocLenErr, |p| {
            changed(p, |wqe| {
                wqe[4] |= 8;
                wqe[83..87].copy_from_slice(&201u32.to_le_bytes());
            })
        }),
        // abi: R-1271
        case(WcReason::MessageTooLong, LocLenErr, |p| {
            posted(p, &p.send(1, 5000).bytes())
        })
        .ours(ud)
        .theirs(ud),
        // abi: R-1272
        case(WcReason::BadAtomicLength, LocLenErr, |p| {
            posted(p, &p.wr(1, WrOpcode::AtomicFetchAndAdd, 4).bytes())
        }),
        // abi: R-1273
        case(WcReason::ReceiveTooShort, LocLenErr, |p| {
            p.qb.post_recv(3, &[sge(&p.mb, 0, 8)]);
            p.qa.post(&p.send(1, 64));
            p.cq_b.next()
        }),
        // abi: R-1274
        case(WcReason::BadResponseLength, LocLenErr, |p| {
            posted(p, &p.wr(1, WrOpcode::RdmaRead, 5000).bytes())
        })
        .theirs(short_packets),
        // abi: R-1275
        case(WcReason::UnexpectedResponse, WcStatus::BadRespErr, |p| {
            posted(p, &p.wr(1, WrOpcode::RdmaRead, 700).bytes())
        })
        .theirs(short_packets),
    ]
}

fn keys() -> Vec<Case> {
    use WcStatus::{LocProtErr, MwBindErr};
    let kernel = Options {
        user: false,
        ..Options::default()
    };
    vec![
        // abi: R-1276
        case(WcReason::NoSuchKey, LocProtErr, |p| {
            let mut unknown = sge(&p.ma, 0, 8);
            unknown.lkey ^= 0x100_0000;
            sent(p, unknown)
        }),
        case(WcReason::NoSuchKey, LocProtErr, |p| {
            let mut stale = sge(&p.mb, 0, 8);
            stale.lkey ^= 1;
            p.qb.post_recv(3, &[stale]);
            p.qa.post(&p.send(1, 8));
            p.cq_b.next()
        }),
        // abi: R-1277
        case(WcReason::OtherPd, LocProtErr, |p| {
            let other = p.a.call(CmdCreatePd::ZERO).unwrap().pdn;
            let mr = p.a.register(other, p.a.alloc(64), 64, FULL);
            sent(p, sge(&mr, 0, 64))
        }),
        // abi: R-1278
        case(WcReason::KeyRevoked, LocProtErr, |p| {
            p.a.call(CmdRevokeMr { mrn: p.ma.mrn }).unwrap();
            sent(p, sge(&p.ma, 0, 8))
        })
        .features(&[Feature::Peers]),
        // abi: R-1279
        case(WcReason::OutOfBounds, LocProtErr, |p| {
            let mut before = sge(&p.ma, 0, 8);
            before.addr -= 1;
            sent(p, before)
        }),
        // abi: R-1280
        case(WcReason::AccessNotGranted, LocProtErr, |p| {
            let mr = p.a.register(p.a.pdn, p.a.alloc(64), 64, AccessFlags::NONE);
            let wr = Wr::new(1, WrOpcode::RdmaRead).local(&mr, 0, 64);
            posted(p, &wr.remote(&p.mb, 0).bytes())
        }),
        // abi: R-1282
        case(WcReason::NoMemory, LocProtErr, |p| {
            let all = CmdGetDmaMr {
                pdn: p.a.pdn,
                access_flags: FULL,
            };
            p.qb.post_recv(3, &[sge(&p.mb, 0, 64)]);
            let nowhere = Sge {
                addr: 1 << 50,
                length: 8,
                lkey: p.a.call(all).unwrap().lkey,
            };
            sent(p, nowhere)
        }),
        // abi: R-1283
        case(WcReason::UnsuitableKey, MwBindErr, |p| {
            posted(p, &local_inv(1, p.ma.key))
        }),
        // abi: R-1287
        case(WcReason::BadPages, MwBindErr, |p| {
            let mr = CmdCreateMr {
                pdn: p.a.pdn,
                access_flags: AccessFlags::NONE,
                max_num_sg: 3,
            };
            let mr = p.a.call(mr).unwrap();
            let pages = RegPages {
                base: Reg {
                    mrn: mr.mrn,
                    key: mr.rkey,
                    access: FULL,
                },
                npages: 4,
                page_shift: 12,
                ..RegPages::ZERO
            };
            posted(p, &wqe(1, WrOpcode::RegMr, 0, &pages))
        })
        .ours(kernel)
        .features(&[Feature::RegPages]),
    ]
}

/// Posts a BIND_MW at A that binds a type 2 window after `change`, and then `next` with the key of
/// the window.
fn bound(
    p: &Pair<'_>,
    change: impl FnOnce(&mut BindMw),
    next: Option<&dyn Fn(&BindMw) -> Cqe>,
) -> Cqe {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let mr = p.a.register(p.a.pdn, p.a.alloc(4096), 4096, access);
    let window = CmdAllocMw {
        pdn: p.a.pdn,
        mw_type: MwType::Two.value(),
        reserved: [0; 3],
    };
    let key = p.a.call(window).unwrap().rkey;
    let mut wanted = BindMw {
        addr: mr.addr,
        length: 64,
        mw_rkey: key,
        rkey: key ^ 1,
        lkey: mr.key,
        access: AccessFlags::REMOTE_READ,
        reserved: [0; 4],
    };
    change(&mut wanted);
    let cqe = posted(p, &wqe(1, WrOpcode::BindMw, 0, &wanted));
    match next {
        Some(next) => {
            assert_eq!(cqe.status, WcStatus::Success.value());
            next(&wanted)
        }
        None => cqe,
    }
}

/// Cases that need features of own rings.
fn windows() -> Vec<Case> {
    use WcStatus::{LocQpOpErr, MwBindErr};
    vec![
        // abi: R-1267
        case(WcReason::BadFlush, LocQpOpErr, |p| {
            posted(p, &wqe(1, WrOpcode::Flush, 0, &Flush::ZERO))
        })
        .features(&[Feature::Flush]),
        // abi: R-1281
        case(WcReason::OtherQp, MwBindErr, |p| {
            let other = Pair::between([p.a, p.b], Options::default(), Options::default());
            let invalidate = |bind: &BindMw| posted(&other, &local_inv(2, bind.rkey));
            bound(p, |_| {}, Some(&invalidate))
        })
        .features(&[Feature::MemWindows]),
        // abi: R-1284
        case(WcReason::KeyInUse, MwBindErr, |p| {
            let again = |bind: &BindMw| posted(p, &wqe(2, WrOpcode::BindMw, 0, bind));
            bound(p, |_| {}, Some(&again))
        })
        .features(&[Feature::MemWindows]),
        case(WcReason::KeyRevoked, MwBindErr, |p| {
            let twice = |bind: &BindMw| {
                posted(p, &local_inv(2, bind.rkey));
                posted(p, &local_inv(3, bind.rkey))
            };
            bound(p, |_| {}, Some(&twice))
        })
        .features(&[Feature::MemWindows]),
        // abi: R-1285
        case(WcReason::KeyMismatch, MwBindErr, |p| {
            bound(p, |bind| bind.rkey ^= 0x100, None)
        })
        .features(&[Feature::MemWindows]),
        // abi: R-1286
        case(WcReason::BadAccessFlags, MwBindErr, |p| {
            bound(p, |bind| bind.access = AccessFlags::MW_BIND, None)
        })
        .features(&[Feature::MemWindows]),
        // abi: R-1288
        case(WcReason::ReservedNotZero, MwBindErr, |p| {
            bound(p, |bind| bind.reserved[0] = 1, None)
        })
        .features(&[Feature::MemWindows]),
        case(WcReason::OutOfBounds, MwBindErr, |p| {
            bound(p, |bind| bind.length = 4097, None)
        })
        .features(&[Feature::MemWindows]),
    ]
}

fn peers() -> Vec<Case> {
    let closed = Options {
        access: AccessFlags::NONE,
        ..Options::default()
    };
    let impatient = Options {
        timeout: 8,
        retry_cnt: 0,
        ..Options::default()
    };
    let without_rnr_retries = Options {
        rnr_retry: 0,
        ..Options::default()
    };
    vec![
        // abi: R-1289
        case(WcReason::PeerInvalidRequest, WcStatus::RemInvReqErr, |p| {
            posted(p, &p.wr(1, WrOpcode::RdmaWrite, 8).bytes())
        })
        .theirs(closed),
        // abi: R-1290
        case(WcReason::PeerAccess, WcStatus::RemAccessErr, |p| {
            let mut wr = p.wr(1, WrOpcode::RdmaWrite, 8);
            wr.remote.rkey ^= 0x100_0000;
            posted(p, &wr.bytes())
        }),
        case(WcReason::PeerAccess, WcStatus::RemAccessErr, |p| {
            let wr = p.wr(1, WrOpcode::RdmaWrite, 8).remote(&p.mb, p.mb.len - 7);
            posted(p, &wr.bytes())
        }),
        // abi: R-1291
        case(WcReason::PeerOperation, WcStatus::RemOpErr, |p| {
            let mut stale = sge(&p.mb, 0, 8);
            stale.lkey ^= 1;
            p.qb.post_recv(3, &[stale]);
            posted(p, &p.send(1, 8).bytes())
        }),
        // abi: R-1292
        case(WcReason::PeerSilent, WcStatus::RetryExcErr, |p| {
            p.qb.destroy().unwrap();
            posted(p, &p.wr(1, WrOpcode::RdmaWrite, 8).bytes())
        })
        .ours(impatient),
        // abi: R-1293
        case(WcReason::PeerNotReady, WcStatus::RnrRetryExcErr, |p| {
            posted(p, &p.send(1, 8).bytes())
        })
        .ours(without_rnr_retries),
    ]
}

/// Provokes every reason. Only a WQE in a virtqueue can be cut short, see
/// `a_wqe_that_its_descriptors_cut_short`.
#[test]
fn every_reason_is_told() {
    let mut cases = work_requests();
    cases.extend(keys());
    cases.extend(peers());
    let with_own_rings = windows();
    let all = cases.iter().chain(&with_own_rings);
    let provoked: BTreeSet<_> = all.map(|case| case.reason).collect();
    let left = |reason: &&WcReason| !provoked.contains(reason);
    let left: Vec<_> = WcReason::ALL.iter().filter(left).collect();
    assert_eq!(left, [&WcReason::ShortWqe]);
    in_all_setups(|setup| cases.iter().for_each(|case| case.check(setup)));
    on_both_paths(|path| with_own_rings.iter().for_each(|case| case.check(path)));
}
