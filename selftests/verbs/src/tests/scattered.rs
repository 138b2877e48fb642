// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rings in fragmented memory.

use std::rc::Rc;

use anyhow::{ensure, Context as _, Result};

use crate::endpoint::{Endpoint, Options};
use crate::fragments::Fragments;
use crate::mappings::Mappings;
use crate::pattern::{bytes, compare};
use crate::rdma::{Cq, Op, SendWr};
use crate::session::{Session, LIMIT};

/// Bytes of free memory to leave for the machine.
const RESERVE: usize = 32 << 20;
/// Entries of a large CQ, whose ring of 8 MiB uses up longer runs of free pages.
const LARGE: u32 = 131_072;
/// Number of large CQs that is more than enough to use up all longer runs.
const MOST_LARGE: usize = 16;
/// Bytes of a message.
const SIZE: usize = 8;
/// The test checks only rings of at least this many pages.
const FEW_PAGES: usize = 64;

/// Number of pages of a ring, and number of physically contiguous runs of its pages.
#[derive(Debug)]
struct Layout {
    start: usize,
    pages: usize,
    runs: usize,
}

impl Layout {
    /// The layouts of all rings of this process, which include those of `queues`.
    fn all<T>(queues: &T) -> Result<Vec<Self>> {
        let mappings = Mappings::find(queues)?;
        let layouts = mappings.rings().iter().map(|ring| {
            let frames = ring.frames()?;
            let joints = frames.windows(2).filter(|pair| pair[0] + 1 == pair[1]);
            Ok(Self {
                start: ring.start(),
                pages: frames.len(),
                runs: frames.len() - joints.count(),
            })
        });
        layouts.collect()
    }

    /// Whether the ring has at least nine runs for ten pages: some pages are contiguous by chance.
    fn is_scattered(&self) -> bool {
        self.runs * 10 >= self.pages * 9
    }
}

/// Creates a large CQ, adds it to `cqs` and returns its layout.
fn large_cq(session: &Session, cqs: &mut Vec<Rc<Cq>>) -> Result<Layout> {
    let known: Vec<_> = match cqs.last() {
        Some(cq) => Layout::all(cq)?.iter().map(|layout| layout.start).collect(),
        None => Vec::new(),
    };
    let cq = Cq::new(&session.context, LARGE, None)?;
    let layout = Layout::all(&cq)?
        .into_iter()
        .find(|layout| !known.contains(&layout.start))
        .context("the new CQ has no ring in memory of this process")?;
    println!("# CQ: {} pages in {} runs", layout.pages, layout.runs);
    cqs.push(cq);
    Ok(layout)
}

/// If all free memory is single pages, so are the rings of a QP and its CQs. Each ring wraps while
/// messages are sent in both directions.
///
/// Without an IOMMU, the device gets the physical addresses of the pages.
pub fn rings(session: &mut Session) -> Result<()> {
    let mut cqs = Vec::new();
    let whole = large_cq(session, &mut cqs)?;
    ensure!(!whole.is_scattered(), "memory is fragmented already");
    let _fragments = Fragments::new(RESERVE)?;
    while !large_cq(session, &mut cqs)?.is_scattered() {
        ensure!(cqs.len() < MOST_LARGE, "memory still has long runs");
    }
    let known: Vec<_> = Layout::all(&cqs)?
        .iter()
        .map(|layout| layout.start)
        .collect();
    session.peer.meet()?;

    let depth = session.context.limits()?.max_qp_wr;
    let mut options = Options {
        cq_entries: Some(depth),
        ..Options::default()
    };
    options.caps.send_wr = depth;
    options.caps.recv_wr = depth;
    let end = Endpoint::connect(session, &options)?;
    let mut layouts = Layout::all(&end)?;
    layouts.retain(|layout| !known.contains(&layout.start) && layout.pages >= FEW_PAGES);
    println!("# rings: {layouts:x?}");
    ensure!(
        layouts.len() >= 3 && layouts.iter().all(Layout::is_scattered),
        "not of single pages"
    );
    let rounds = 1 + end.send.entries().max(end.recv.entries()).div_ceil(depth);
    exchange(session, &end, depth as usize, rounds)
}

/// Sends `count` messages, which fill the queues, in each direction, and repeats this `rounds`
/// times.
fn exchange(session: &mut Session, end: &Endpoint, count: usize, rounds: u32) -> Result<()> {
    let mr = end.memory(count * SIZE)?;
    let ids = || 0..count as u64;
    let sge = |id: u64| [mr.sge(id as usize * SIZE, SIZE)];
    for round in 0..2 * u64::from(rounds) {
        let message = bytes(round, count * SIZE);
        if (round % 2 == 0) == session.active() {
            mr.write(0, &message);
            session.peer.meet()?;
            for id in ids() {
                end.qp.send(&SendWr::new(id, Op::Send, &sge(id)))?;
            }
            for (id, wc) in ids().zip(end.send.wait(count, LIMIT)?) {
                ensure!(wc.ok()?.id == id, "send {} instead of {id}", wc.id);
            }
        } else {
            mr.write(0, &vec![0; count * SIZE]);
            for id in ids() {
                end.qp.recv(id, &sge(id))?;
            }
            session.peer.meet()?;
            for (id, wc) in ids().zip(end.recv.wait(count, LIMIT)?) {
                ensure!(wc.ok()?.id == id, "message {} instead of {id}", wc.id);
            }
            let what = format!("messages of round {round}");
            compare(&what, &mr.read(0, count * SIZE), &message)?;
        }
        session.peer.meet()?;
    }
    Ok(())
}
