// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A hostile process that corrupts its own queues. A script runs these tests at the same time as
//! tests of other processes, which must not be affected. The tests here pass if the process can
//! destroy its objects and connect again.

use std::rc::Rc;
use std::thread;

use anyhow::{ensure, Context as _, Result};

use virtio_rdma_abi::ib::{SendFlags, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, Qpn};
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{Member, Reg, RegPages, SqHeader};

use crate::endpoint::{Endpoint, Options};
use crate::mappings::{can_map, Mappings};
use crate::pattern::Random;
use crate::rdma::{access, ffi, Cq, Mr, Op, Pd, Qp, SendWr};
use crate::session::{Session, LIMIT};

const STORES: usize = 20_000;

/// Posts and polls on corrupt queues. The calls may fail, but must return.
fn work(end: &Endpoint, mr: &Mr) {
    let sges = [mr.sge(0, 1000)];
    let mut found = Vec::new();
    for id in 0..8 {
        // Any result is accepted, because the queues are corrupt.
        let _ = end.qp.recv(id, &sges);
        let _ = end.qp.send(&SendWr::new(id, Op::Send, &sges));
        let _ = end.send.poll(&mut found);
        let _ = end.recv.poll(&mut found);
    }
}

/// Overwrites rings, slots and arm words with random and plausible values between posts and polls.
// abi: R-521
pub fn rings(session: &mut Session) -> Result<()> {
    for round in 0..u64::from(session.settings.rounds) {
        let end = Endpoint::connect(session, &Options::default())?;
        let mr = end.memory(4096)?;
        for id in 0..32 {
            end.qp.recv(id, &[mr.sge(0, 1000)])?;
        }
        session.peer.meet()?;
        if session.active() {
            let mappings = Mappings::find(&end)?;
            let rings = mappings.rings();
            ensure!(!rings.is_empty(), "no rings in memory of this process");
            let mut random = Random::new(round);
            work(&end, &mr);
            for ring in rings {
                for step in 0..STORES {
                    let at = random.below(ring.len() / 4) * 4;
                    let value = match round % 4 {
                        // A random value.
                        0 => random.next() as u32,
                        // Small numbers, which are plausible indices and slot numbers.
                        1 => random.below(80) as u32 | ((random.below(80) as u32) << 16),
                        2 => u32::MAX,
                        _ => 0,
                    };
                    match round % 4 {
                        0 | 1 => ring.store(at, value),
                        _ => ring.store(step * 4 % (ring.len() & !3), value),
                    }
                    if step % 1000 == 0 {
                        work(&end, &mr);
                        mappings.ring_all(&end);
                    }
                }
            }
            work(&end, &mr);
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Replaces the mappings of rings by private memory between posts and polls, and continues.
pub fn unmapped(session: &mut Session) -> Result<()> {
    for round in 0..u64::from(session.settings.rounds) {
        let end = Endpoint::connect(session, &Options::default())?;
        let mr = end.memory(4096)?;
        for id in 0..32 {
            end.qp.recv(id, &[mr.sge(0, 1000)])?;
        }
        session.peer.meet()?;
        if session.active() {
            let mappings = Mappings::find(&end)?;
            let rings = mappings.rings();
            ensure!(!rings.is_empty(), "no rings are mapped");
            work(&end, &mr);
            let mut random = Random::new(round);
            for ring in rings {
                if round == 0 || random.below(2) == 0 {
                    ring.replace()?;
                }
                work(&end, &mr);
                mappings.ring_all(&end);
            }
            work(&end, &mr);
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Rings doorbells from all CPUs as fast as possible: those of the process's own queues, those of
/// other processes' queues, and random values.
// abi
pub fn doorbell(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(4096)?;
    session.peer.meet()?;
    if session.active() {
        let mappings = Mappings::find(&end)?;
        let pages = mappings.doorbells();
        ensure!(!pages.is_empty(), "no doorbell page");
        let qpn = Qpn::new(end.qp.qpn());
        let stores = STORES * session.settings.rounds as usize;
        let cpus = thread::available_parallelism()?.get();
        thread::scope(|scope| {
            for cpu in 0..cpus {
                scope.spawn(move || {
                    let mut random = Random::new(cpu as u64);
                    for step in 0..stores {
                        let own = [Doorbell::Sq(qpn), Doorbell::Rq(qpn)][step / 4 % 2];
                        let value = match step % 4 {
                            0 | 1 => own.to_u32(),
                            // Small numbers belong to queues of other processes.
                            2 => ((1 + random.below(4) as u32) << 24) | random.below(64) as u32,
                            _ => random.next() as u32,
                        };
                        for page in pages {
                            page.store(0, value);
                            if step % 64 == 0 {
                                page.store(random.below(1024) * 4, value);
                            }
                        }
                    }
                });
            }
        });
        work(&end, &mr);
    }
    session.peer.meet()?;
    drop(end);
    // The device still works for a new connection.
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(4096)?;
    if session.active() {
        session.peer.meet()?;
        end.run(Op::Send, &[mr.sge(0, 64)])?.ok()?;
    } else {
        end.qp.recv(1, &[mr.sge(0, 64)])?;
        session.peer.meet()?;
        end.received()?.ok()?;
    }
    Ok(())
}

/// Requests forbidden mappings: mappings of other pages, and mappings that are too long, private or
/// executable.
// abi
pub fn mappings(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    if session.active() {
        let mappings = Mappings::find(&end)?;
        let page = mappings.doorbells().first().context("no doorbell page")?;
        let own = page.offset();
        let context = &session.context;
        ensure!(
            !can_map(context, own, 8192, true, false),
            "a longer mapping"
        );
        ensure!(
            !can_map(context, own, 4096, false, false),
            "a private mapping"
        );
        ensure!(
            !can_map(context, own, 4096, true, true),
            "an executable mapping"
        );
        for page in 0..8192_u64 {
            let offset = page * 4096;
            ensure!(
                offset == own || !can_map(context, offset, 4096, true, false),
                "a mapping at {offset:#x}"
            );
        }
        for offset in [own ^ (1 << 32), 1 << 40, i64::MAX as u64 & !4095] {
            ensure!(
                offset == own || !can_map(context, offset, 4096, true, false),
                "a mapping at {offset:#x}"
            );
        }
    }
    session.peer.meet()
}

/// Overwrites a posted work request by a registration, which only the kernel may post. The device
/// refuses the registration, because the driver has marked the QP as one of a process.
// abi: R-518
pub fn registration(session: &mut Session) -> Result<()> {
    let options = Options::default();
    let pd = Pd::new(&session.context)?;
    let cq = Cq::new(&session.context, options.caps.send_wr, None)?;
    let qp = Rc::new(Qp::new(&pd, &cq, &cq, options.caps)?);
    let mr = Mr::new(&pd, 4096, access::ALL)?;
    Endpoint::link(session, &qp, &options)?;
    if session.active() {
        // In SQD, a posted work request is not executed.
        qp.to_state(ffi::IBV_QPS_SQD)?;
        qp.send(&SendWr::new(1, Op::Send, &[]))?;
        let posted = SqHeader {
            send_flags: SendFlags::SIGNALED,
            opcode: WrOpcode::Send.value(),
            ..SqHeader::ZERO
        };
        let mut registration = SqHeader {
            opcode: WrOpcode::RegMr.value(),
            ..posted
        };
        let pages = RegPages {
            base: Reg {
                mrn: MrNumber::new(mr.rkey() >> 8),
                key: mr.rkey(),
                ..Reg::ZERO
            },
            ..RegPages::ZERO
        };
        pages.store(&mut registration.wr);
        let (posted, registration) = (words(&posted), words(&registration));
        let mappings = Mappings::find(&qp)?;
        let mut found = 0;
        for ring in mappings.rings() {
            let offsets = |words: &[u32]| (0..words.len()).map(|index| index * 4);
            if offsets(&posted)
                .zip(&posted)
                .all(|(at, word)| ring.load(at) == *word)
            {
                found += 1;
                for (at, word) in offsets(&registration).zip(&registration) {
                    ring.store(at, *word);
                }
            }
        }
        ensure!(found == 1, "{found} rings have the work request");
        qp.to_state(ffi::IBV_QPS_RTS)?;
        // On a QP of the kernel, the status would be IBV_WC_MW_BIND_ERR, because the MR is not for
        // fast registration.
        cq.wait(1, LIMIT)?[0].expect(ffi::IBV_WC_LOC_QP_OP_ERR)?;
    }
    session.peer.meet()
}

/// The complete 32-bit words of a WQE's header.
fn words(header: &SqHeader) -> Vec<u32> {
    let mut bytes = [0; SqHeader::SIZE];
    header.put(&mut bytes);
    bytes.chunks_exact(4).map(u32::get).collect()
}
