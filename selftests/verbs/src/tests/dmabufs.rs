// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory regions over DMA buffers of other drivers.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::mappings::PAGE;
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, DmabufMr, Exporter, Op, Pd, Udmabuf};
use crate::session::{errno, refused, Session};

const LENGTH: usize = 64 * PAGE;
/// Offset of the region in the buffer, in bytes.
const OFFSET: u64 = PAGE as u64 + 100;
/// Address of the region in work requests.
const IOVA: u64 = 0x1234_5000 + 100;
const EBADF: i32 = 9;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

/// Memory of a buffer of the udmabuf driver is written and read by the peer, sent and received.
pub fn udmabuf(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let buffer = Udmabuf::new((LENGTH + 2 * PAGE) as u64)?;
    let mr = DmabufMr::new(&end.pd, buffer.as_fd(), OFFSET, LENGTH, IOVA, access::ALL)?;
    let remote = session.swap_address(mr.addr(), mr.rkey())?;
    let seed = |active| if active { 1 } else { 2 };
    buffer.write(OFFSET, &bytes(seed(session.active()), LENGTH))?;
    session.peer.meet()?;
    if session.active() {
        let op = Op::Read(remote.addr, remote.rkey);
        end.run(op, &[mr.sge(0, LENGTH / 2)])?.ok()?;
        compare(
            "what was read",
            &buffer.read(OFFSET, LENGTH)?,
            &[
                &bytes(seed(false), LENGTH)[..LENGTH / 2],
                &bytes(seed(true), LENGTH)[LENGTH / 2..],
            ]
            .concat(),
        )?;
        buffer.write(OFFSET, &bytes(3, LENGTH))?;
        let op = Op::Write(remote.addr, remote.rkey);
        end.run(op, &[mr.sge(0, LENGTH)])?.ok()?;
        session.peer.meet()?;
    } else {
        session.peer.meet()?;
        compare(
            "what was written",
            &buffer.read(OFFSET, LENGTH)?,
            &bytes(3, LENGTH),
        )?;
    }
    compare("the page before", &buffer.read(0, 100)?, &[0; 100])?;
    // Descriptors that are no DMA buffer, and ranges beyond the end of the buffer.
    let register =
        |fd, offset, length| DmabufMr::new(&end.pd, fd, offset, length, IOVA, access::ALL);
    let file = File::open("/dev/null")?;
    for (what, result, expected) in [
        ("a file", register(file.as_fd(), OFFSET, LENGTH), EINVAL),
        (
            "ordinary memory",
            register(buffer.memory(), OFFSET, LENGTH),
            EINVAL,
        ),
        (
            "a long range",
            register(buffer.as_fd(), OFFSET, LENGTH + PAGE),
            EINVAL,
        ),
        (
            "another place in the page",
            register(buffer.as_fd(), OFFSET + 1, PAGE),
            EINVAL,
        ),
        ("nothing", register(buffer.as_fd(), OFFSET, 0), EINVAL),
    ] {
        let number = errno(&refused(what, result)?);
        ensure!(
            number == Some(expected) || number == Some(EBADF),
            "{what}: {number:?}"
        );
    }
    session.peer.meet()
}

/// The exporter moves or revokes its memory while the peer writes to it. The device no longer
/// writes to the old memory, the keys become invalid, and a moved buffer can be registered again.
/// The server's machine needs the module of the exporter.
// abi
pub fn moves(session: &mut Session) -> Result<()> {
    match session.active() {
        true => writer(session),
        false => owner(session),
    }
}

/// Command to the exporter in each round of [`moves`].
const ROUNDS: [&str; 3] = ["move", "move", "die"];

fn owner(session: &mut Session) -> Result<()> {
    let mut exporter = Exporter::new(LENGTH)?;
    for round in ROUNDS {
        let end = Endpoint::connect(session, &Options::default())?;
        let mr = DmabufMr::new(
            &end.pd,
            exporter.as_fd(),
            0,
            LENGTH,
            IOVA & !4095,
            access::ALL,
        )?;
        session.swap_address(mr.addr(), mr.rkey())?;
        // From here on, the peer writes.
        session.peer.meet()?;
        exporter.command(round)?;
        let touched = exporter.touched()?;
        ensure!(touched == 0, "{touched} bytes were written after {round}");
        session.peer.meet()?;
        let touched = exporter.touched()?;
        ensure!(touched == 0, "{touched} bytes were written since {round}");
        // The local key is invalid too. Another pair tests it, because the error ends its QP.
        let own = Endpoint::connect_in(session, &end.pd, &Options::default())?;
        own.run(Op::Send, &[mr.sge(0, 100)])?
            .expect(ffi::IBV_WC_LOC_PROT_ERR)?;
        session.peer.meet()?;
    }
    let pd = Pd::new(&session.context)?;
    let gone = DmabufMr::new(&pd, exporter.as_fd(), 0, LENGTH, 0, access::ALL);
    let error = refused("memory that is gone", gone)?;
    ensure!(errno(&error) == Some(ENODEV), "{error:#}");
    session.peer.meet()
}

fn writer(session: &mut Session) -> Result<()> {
    for (round, seed) in ROUNDS.iter().zip(1..) {
        let end = Endpoint::connect(session, &Options::default())?;
        let remote = session.swap_address(0, 0)?;
        let source = end.memory(LENGTH)?;
        let target = end.memory(LENGTH)?;
        let (write, read) = (
            Op::Write(remote.addr, remote.rkey),
            Op::Read(remote.addr, remote.rkey),
        );
        if seed > 1 {
            // The contents have moved with the buffer.
            end.run(read, &[target.sge(0, LENGTH)])?.ok()?;
            compare(round, &target.read(0, LENGTH), &bytes(seed - 1, LENGTH))?;
        }
        source.write(0, &bytes(seed, LENGTH));
        end.run(write, &[source.sge(0, LENGTH)])?.ok()?;
        session.peer.meet()?;
        let status = loop {
            let wc = end.run(write, &[source.sge(0, LENGTH)])?;
            if wc.status != ffi::IBV_WC_SUCCESS {
                break wc.status;
            }
        };
        ensure!(status == ffi::IBV_WC_REM_ACCESS_ERR, "status {status}");
        session.peer.meet()?;
        let _other = Endpoint::connect(session, &Options::default())?;
        session.peer.meet()?;
    }
    session.peer.meet()
}
