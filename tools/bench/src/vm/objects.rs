// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Thousands of QPs, each with its own CQ: created, connected to themselves, used once and
//! destroyed.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _, Result};
use verbs_test::rdma::{access, ffi, Caps, Context, Cq, Mr, Op, Path, Pd, Qp, SendWr, Timing};

use super::devices::{gid, Device};
use crate::event::{Event, Sink};
use crate::figure::Key;

/// Number of QPs.
pub const OBJECTS: usize = 4096;
/// Number of the first and of the last QPs whose times are compared.
const COMPARED: usize = 512;
const ENTRIES: u32 = 16;
const MESSAGE: usize = 8;
const LIMIT: Duration = Duration::from_secs(30);

/// A QP and its CQ. Fields are dropped in this order: the QP before its CQ.
struct Pair {
    qp: Qp,
    cq: Rc<Cq>,
}

/// Measures the creation, use and destruction of all QPs.
pub fn measure(device: &Device, configuration: &str, sink: &mut Sink) -> Result<()> {
    let context = Context::open(&device.name)?;
    let limits = context.limits()?;
    ensure!(
        limits.max_qp as usize > OBJECTS && limits.max_cq as usize > OBJECTS,
        "the device has {} QPs and {} CQs",
        limits.max_qp,
        limits.max_cq
    );
    let pd = Pd::new(&context)?;
    let mr = Mr::new(&pd, 2 * MESSAGE, access::ALL)?;
    let gid = gid(device)?;
    let memory = |sink: &mut Sink, count: u64| {
        sink.tell(Event::Memory(Key {
            count: Some(count),
            ..Key::new("memory of the daemon, by QPs and CQs", configuration, "MB")
        }))
    };

    memory(sink, 0)?;
    let mut pairs = Vec::with_capacity(OBJECTS);
    let mut created = Vec::with_capacity(OBJECTS);
    for _ in 0..OBJECTS {
        let began = Instant::now();
        pairs.push(make(&pd, device, gid)?);
        created.push(began.elapsed());
    }
    memory(sink, pairs.len() as u64)?;

    let began = Instant::now();
    for pair in &pairs {
        let to = Op::Write(mr.addr() + MESSAGE as u64, mr.rkey());
        pair.qp.send(&SendWr::new(1, to, &[mr.sge(0, MESSAGE)]))?;
        pair.cq.wait(1, LIMIT)?[0].ok()?;
    }
    let used = began.elapsed();

    let began = Instant::now();
    // The QPs are destroyed in the order of creation.
    pairs.drain(..).for_each(drop);
    let destroyed = began.elapsed();
    memory(sink, 1)?;

    let first = median(&mut created[..COMPARED]);
    let last = median(&mut created[OBJECTS - COMPARED..]);
    let each = |all: Duration| micros(all) / OBJECTS as f64;
    for (name, value) in [
        ("QP and CQ created and connected, the first", first),
        ("QP and CQ created and connected, the last", last),
        ("QP used once", each(used)),
        ("QP and CQ destroyed", each(destroyed)),
    ] {
        let key = Key {
            count: Some(OBJECTS as u64),
            ..Key::new(name, configuration, "µs each")
        };
        sink.tell(Event::Value(key, value))?;
    }
    let flat = Key {
        count: Some(OBJECTS as u64),
        ..Key::new(
            "cost of the last QPs over that of the first",
            configuration,
            "×",
        )
    };
    sink.tell(Event::Value(flat, last / first))
}

fn make(pd: &Rc<Pd>, device: &Device, gid: [u8; 16]) -> Result<Pair> {
    let cq = Cq::new(pd.context(), ENTRIES, None)?;
    let caps = Caps {
        send_wr: ENTRIES,
        recv_wr: ENTRIES,
        send_sge: 1,
        recv_sge: 1,
        inline: 0,
        signal_all: true,
    };
    let qp = Qp::new(pd, &cq, &cq, caps)?;
    qp.init(access::ALL)?;
    qp.rtr(&Path {
        qpn: qp.qpn(),
        psn: 1,
        gid,
        gid_index: u8::try_from(device.gid_index).context("a GID index beyond 255")?,
        mtu: ffi::IBV_MTU_1024,
        reads: 1,
        rnr_timer: 14,
    })?;
    qp.rts(&Timing {
        psn: 1,
        timeout: 18,
        retries: 7,
        rnr_retries: 7,
        reads: 1,
    })?;
    Ok(Pair { qp, cq })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().map_or(0.0, micros)
}
