// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! All operations with messages of many sizes. All bytes are compared.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{ffi, Kind, Mr, Op, Payload, SendWr, Wc};
use crate::session::{errno, refused, Remote, Session, LIMIT};

const LARGEST: usize = 16 << 20;
/// Message sizes in bytes near the sizes to which hardware and software round: words, cache lines,
/// path MTUs, pages, powers of two.
const SIZES: [usize; 34] = [
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    31,
    63,
    64,
    65,
    255,
    256,
    257,
    1023,
    1024,
    1025,
    1500,
    2047,
    2048,
    2049,
    4095,
    4096,
    4097,
    8193,
    65_535,
    65_536,
    65_537,
    262_147,
    (1 << 20) - 1,
    (1 << 20) + 1,
    (5 << 20) + 3,
    LARGEST,
];
/// Number of bytes before and after a message that must not change.
const GUARD: usize = 64;
/// Value of the guard bytes.
const GUARD_BYTE: u8 = 0xc7;
const IMM: u32 = 0x8899_aabb;

/// Offset of a message of `size` bytes in memory. The offsets have all alignments, so that messages
/// start and end anywhere in a page.
fn offset(size: usize) -> usize {
    GUARD + (size.wrapping_mul(37) + 11) % 4096
}

/// Memory for the largest message at any offset.
fn arena(endpoint: &Endpoint) -> Result<Mr> {
    endpoint.memory(LARGEST + 2 * GUARD + 4096)
}

/// The content of a message of `size` bytes.
fn message(size: usize) -> Vec<u8> {
    bytes(size as u64 ^ 0x5eed, size)
}

/// Fills the memory of a message and its guards with [`GUARD_BYTE`].
fn prepare(mr: &Mr, size: usize) {
    mr.write(offset(size) - GUARD, &vec![GUARD_BYTE; size + 2 * GUARD]);
}

/// Checks the message in memory, and that its guards are unchanged.
fn verify(mr: &Mr, size: usize) -> Result<()> {
    let found = mr.read(offset(size) - GUARD, size + 2 * GUARD);
    compare(
        &format!("message of {size}"),
        &found[GUARD..GUARD + size],
        &message(size),
    )?;
    compare(
        &format!("in front of {size}"),
        &found[..GUARD],
        &[GUARD_BYTE; GUARD],
    )?;
    compare(
        &format!("after {size}"),
        &found[GUARD + size..],
        &[GUARD_BYTE; GUARD],
    )
}

/// Checks the completion of a receive.
fn check_received(wc: Wc, size: usize, opcode: u32, imm: Option<u32>) -> Result<()> {
    let wc = wc.ok()?;
    ensure!(wc.opcode == opcode, "opcode {} of size {size}", wc.opcode);
    ensure!(
        wc.bytes as usize == size,
        "{} bytes instead of {size}",
        wc.bytes
    );
    ensure!(wc.imm == imm, "immediate data {:x?} of size {size}", wc.imm);
    Ok(())
}

fn two_sided(
    session: &mut Session,
    options: &Options,
    sizes: &[usize],
    imm: Option<u32>,
) -> Result<()> {
    let end = Endpoint::connect(session, options)?;
    let mr = arena(&end)?;
    for &size in sizes {
        let sges = [mr.sge(offset(size), size)];
        if session.active() {
            mr.write(offset(size), &message(size));
            session.peer.meet()?;
            let wc = end.run(imm.map_or(Op::Send, Op::SendImm), &sges)?.ok()?;
            ensure!(wc.opcode == ffi::IBV_WC_SEND, "opcode {}", wc.opcode);
        } else {
            prepare(&mr, size);
            end.qp.recv(size as u64, &sges)?;
            session.peer.meet()?;
            let wc = end.received()?;
            ensure!(wc.id == size as u64 && wc.qpn == end.qp.qpn(), "{wc:?}");
            check_received(wc, size, ffi::IBV_WC_RECV, imm)?;
            verify(&mr, size)?;
        }
        session.peer.meet()?;
    }
    end.send.expect_empty()?;
    end.recv.expect_empty()
}

pub fn send(session: &mut Session) -> Result<()> {
    two_sided(session, &Options::default(), &SIZES, None)
}

/// SEND with immediate data.
pub fn send_imm(session: &mut Session) -> Result<()> {
    two_sided(session, &Options::default(), &SIZES, Some(IMM))
}

/// SEND with path MTUs of 256, 512 and 1024 bytes.
pub fn path_mtu(session: &mut Session) -> Result<()> {
    for mtu in [ffi::IBV_MTU_256, ffi::IBV_MTU_512, ffi::IBV_MTU_1024] {
        let options = Options {
            mtu,
            ..Options::default()
        };
        two_sided(
            session,
            &options,
            &[0, 255, 256, 257, 1023, 1025, 70_001],
            None,
        )?;
    }
    Ok(())
}

/// Message sizes in bytes for UC: so small that no queue on the path overflows, because UC does not
/// retransmit.
const UNRELIABLE_SIZES: [usize; 8] = [0, 1, 255, 1023, 1024, 1025, 4097, 8193];

fn unreliable() -> Options {
    Options {
        kind: Kind::Uc,
        ..Options::default()
    }
}

/// SEND over UC.
pub fn unreliable_send(session: &mut Session) -> Result<()> {
    two_sided(session, &unreliable(), &UNRELIABLE_SIZES, None)?;
    two_sided(session, &unreliable(), &UNRELIABLE_SIZES, Some(IMM))
}

/// RDMA WRITE over UC. A later message shows that a WRITE without immediate data has arrived.
pub fn unreliable_write(session: &mut Session) -> Result<()> {
    one_sided(
        session,
        &unreliable(),
        &UNRELIABLE_SIZES,
        true,
        true,
        |end, mr, remote, size| {
            let at = remote.addr + offset(size) as u64;
            let (sges, key) = ([mr.sge(offset(size), size)], remote.rkey);
            end.run(Op::Write(at, key), &sges)?.ok()?;
            end.run(Op::WriteImm(at, key, IMM), &sges)?.ok()?;
            Ok(())
        },
    )
}

/// Runs `one` for each of `sizes`, with new contents in the memory of both sides: the active side
/// has the message if `writes`, else the passive side.
fn one_sided(
    session: &mut Session,
    options: &Options,
    sizes: &[usize],
    recv: bool,
    writes: bool,
    one: impl Fn(&Endpoint, &Mr, Remote, usize) -> Result<()>,
) -> Result<()> {
    let end = Endpoint::connect(session, options)?;
    let mr = arena(&end)?;
    let remote = session.swap_memory(&mr)?;
    for &size in sizes {
        // The side that sends the data has the message in its memory.
        if session.active() == writes {
            mr.write(offset(size), &message(size));
        } else {
            prepare(&mr, size);
        }
        if recv && !session.active() {
            end.qp.recv(size as u64, &[])?;
        }
        session.peer.meet()?;
        if session.active() {
            one(&end, &mr, remote, size)?;
        } else if recv {
            let received = end.received()?;
            check_received(received, size, ffi::IBV_WC_RECV_RDMA_WITH_IMM, Some(IMM))?;
        }
        session.peer.meet()?;
        if session.active() != writes {
            verify(&mr, size)?;
        }
    }
    end.send.expect_empty()?;
    end.recv.expect_empty()
}

/// RDMA WRITE.
pub fn write(session: &mut Session) -> Result<()> {
    one_sided(
        session,
        &Options::default(),
        &SIZES,
        false,
        true,
        |end, mr, remote, size| {
            let at = remote.addr + offset(size) as u64;
            let wc = end
                .run(Op::Write(at, remote.rkey), &[mr.sge(offset(size), size)])?
                .ok()?;
            ensure!(wc.opcode == ffi::IBV_WC_RDMA_WRITE, "opcode {}", wc.opcode);
            Ok(())
        },
    )
}

/// RDMA WRITE with immediate data.
pub fn write_imm(session: &mut Session) -> Result<()> {
    one_sided(
        session,
        &Options::default(),
        &SIZES,
        true,
        true,
        |end, mr, remote, size| {
            let at = remote.addr + offset(size) as u64;
            end.run(
                Op::WriteImm(at, remote.rkey, IMM),
                &[mr.sge(offset(size), size)],
            )?
            .ok()?;
            Ok(())
        },
    )
}

/// RDMA READ.
pub fn read(session: &mut Session) -> Result<()> {
    one_sided(
        session,
        &Options::default(),
        &SIZES,
        false,
        false,
        |end, mr, remote, size| {
            let at = remote.addr + offset(size) as u64;
            let wc = end
                .run(Op::Read(at, remote.rkey), &[mr.sge(offset(size), size)])?
                .ok()?;
            ensure!(wc.opcode == ffi::IBV_WC_RDMA_READ, "opcode {}", wc.opcode);
            Ok(())
        },
    )
}

/// Inline payload of all sizes up to the limit. The buffer is overwritten as soon as the work
/// request is posted.
pub fn inline(session: &mut Session) -> Result<()> {
    let mut options = Options::default();
    options.caps.inline = 64;
    let end = Endpoint::connect(session, &options)?;
    let limit = end.qp.caps().inline as usize;
    ensure!(limit >= 64, "{limit} bytes of inline data instead of 64");
    // Both sides use the smaller limit.
    let [other] = session.peer.swap([limit as u64])?;
    let limit = limit.min(other as usize);
    let mr = end.memory(2 * GUARD + 4096 + limit)?;
    for size in 0..=limit {
        if session.active() {
            session.peer.meet()?;
            let mut buffer = message(size);
            end.qp.send(&SendWr {
                payload: Payload::Inline(&buffer),
                ..SendWr::new(1, Op::Send, &[])
            })?;
            buffer.fill(0);
            end.sent()?.ok()?;
        } else {
            prepare(&mr, size);
            end.qp.recv(1, &[mr.sge(offset(size), size)])?;
            session.peer.meet()?;
            check_received(end.received()?, size, ffi::IBV_WC_RECV, None)?;
            verify(&mr, size)?;
        }
        session.peer.meet()?;
    }
    if session.active() {
        let long = vec![0; end.qp.caps().inline as usize + 1];
        let wr = SendWr {
            payload: Payload::Inline(&long),
            ..SendWr::new(2, Op::Send, &[])
        };
        let error = refused(
            "too much inline data",
            end.qp.send(&wr).map_err(|error| error.error.into()),
        )?;
        ensure!(errno(&error).is_some(), "{error:#}");
        end.send.expect_empty()?;
    }
    session.peer.meet()?;
    // An inline WRITE arrives too.
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        end.qp.send(&SendWr {
            payload: Payload::Inline(&message(33)),
            ..SendWr::new(
                3,
                Op::Write(remote.addr + offset(33) as u64, remote.rkey),
                &[],
            )
        })?;
        end.send.wait(1, LIMIT)?[0].ok()?;
        session.peer.meet()
    } else {
        session.peer.meet()?;
        compare("inline WRITE", &mr.read(offset(33), 33), &message(33))
    }
}
