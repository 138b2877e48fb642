// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How a program uses RDMA, from the list of devices to the last completion.
//!
//! ```text
//! first_steps DEVICE GID_INDEX            on one machine
//! first_steps DEVICE GID_INDEX SERVER     on the other
//! ```
//!
//! 1. Look for the device and open it.
//! 2. Ask what it can do.
//! 3. Make a protection domain: what is made in it may be used together.
//! 4. Make a completion queue: there the device says which work has ended.
//! 5. Register memory: the device may use that, and no other.
//! 6. Make a queue pair: one queue for work that sends, one for buffers that receive.
//! 7. Tell the peer, over an ordinary socket, where queue pair and memory are found, and learn the
//!    same of it.
//! 8. Take the queue pair through its states: INIT, RTR (it receives), RTS (it sends as well).
//! 9. Post work.
//! 10. Poll for its completions. From here on the kernel has no part in it.
//!
//! The client sends a message and the server answers it; then the client writes to the server's
//! memory and reads it back without the server's doing. `verbs_test::rdma` is libibverbs in safe
//! Rust: each function calls the one of a similar name.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path as FilePath;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{bail, ensure, Context as _, Result};

use verbs_test::rdma::{access, ffi, Caps, Context, Cq, Mr, Op, Path, Pd, Qp, SendWr, Timing};

/// TCP port of the socket.
const PORT: u16 = 18900;
/// Bytes of memory that each side registers: the first half is for what it sends, the second for
/// what it gets.
const MEMORY: usize = 8192;
const HALF: usize = MEMORY / 2;
/// How long a completion may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Knowledge that each side needs of the other.
struct Place {
    qpn: u32,
    /// Number of the first packet.
    psn: u32,
    gid: [u8; 16],
    /// The registered memory.
    addr: u64,
    rkey: u32,
}

impl Place {
    fn to_bytes(&self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..32].copy_from_slice(&self.addr.to_be_bytes());
        bytes[32..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; 36]) -> Result<Self> {
        let word =
            |at: usize| -> Result<u32> { Ok(u32::from_be_bytes(bytes[at..at + 4].try_into()?)) };
        Ok(Self {
            qpn: word(0)?,
            psn: word(4)?,
            gid: bytes[8..24].try_into()?,
            addr: u64::from_be_bytes(bytes[24..32].try_into()?),
            rkey: word(32)?,
        })
    }
}

/// An entry of the device's GID table: its address on the network.
fn gid(device: &str, index: u8) -> Result<[u8; 16]> {
    let table = FilePath::new("/sys/class/infiniband").join(device);
    let text = std::fs::read_to_string(table.join(format!("ports/1/gids/{index}")))?;
    let mut gid = [0; 16];
    for (pair, group) in gid.chunks_mut(2).zip(text.trim().split(':')) {
        pair.copy_from_slice(&u16::from_str_radix(group, 16)?.to_be_bytes());
    }
    Ok(gid)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (device, gid_index, server) = match &arguments[..] {
        [device, index] => (device, index.parse()?, None),
        [device, index, server] => (device, index.parse()?, Some(server)),
        _ => bail!("usage: first_steps DEVICE GID_INDEX [SERVER]"),
    };

    // 1, 2.
    let context = Context::open(device)?;
    let limits = context.limits()?;
    println!(
        "{device}: up to {} work requests in a queue",
        limits.max_qp_wr
    );

    // 3 to 6.
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16, None)?;
    let mr = Mr::new(&pd, MEMORY, access::ALL)?;
    let caps = Caps {
        send_wr: 4,
        recv_wr: 4,
        send_sge: 1,
        recv_sge: 1,
        inline: 0,
        signal_all: false,
    };
    let qp = Qp::new(&pd, &cq, &cq, caps)?;

    // 7.
    let mut socket = match server {
        Some(server) => TcpStream::connect((server.as_str(), PORT))?,
        None => TcpListener::bind(("::", PORT))?.accept()?.0,
    };
    let own = Place {
        qpn: qp.qpn(),
        psn: 0x0012_3456,
        gid: gid(device, gid_index)?,
        addr: mr.addr(),
        rkey: mr.rkey(),
    };
    socket.write_all(&own.to_bytes())?;
    let mut bytes = [0; 36];
    socket.read_exact(&mut bytes)?;
    let peer = Place::from_bytes(bytes)?;

    // 8. A buffer for the first message is posted before the peer can send it.
    qp.init(access::ALL)?;
    qp.recv(1, &[mr.sge(HALF, HALF)])?;
    qp.rtr(&Path {
        qpn: peer.qpn,
        psn: peer.psn,
        gid: peer.gid,
        gid_index,
        mtu: ffi::IBV_MTU_1024,
        reads: 1,
        rnr_timer: 14,
    })?;
    qp.rts(&Timing {
        psn: own.psn,
        timeout: 18,
        retries: 7,
        rnr_retries: 7,
        reads: 1,
    })?;
    meet(&mut socket)?;

    // 9, 10.
    match server {
        Some(_) => client(&qp, &cq, &mr, &peer)?,
        None => answer(&qp, &cq, &mr)?,
    }
    // The server's memory stays until the client has done with it.
    meet(&mut socket)
}

/// Waits until the peer has come as far.
fn meet(socket: &mut TcpStream) -> Result<()> {
    socket.write_all(&[1])?;
    socket.read_exact(&mut [0])?;
    Ok(())
}

/// Posts one work request from the first half of the memory and waits until it has ended.
fn run(qp: &Qp, cq: &Rc<Cq>, mr: &Mr, op: Op, length: usize) -> Result<()> {
    qp.send(&SendWr::new(2, op, &[mr.sge(0, length)]))?;
    let wc = cq.wait(1, LIMIT)?[0].ok()?;
    ensure!(wc.id == 2, "the completion of another work request: {wc:?}");
    Ok(())
}

/// Waits for a message, which is in the second half of the memory then.
fn receive(cq: &Rc<Cq>, mr: &Mr) -> Result<String> {
    let wc = cq.wait(1, LIMIT)?[0].ok()?;
    ensure!(wc.id == 1, "the completion of another work request: {wc:?}");
    let message = String::from_utf8(mr.read(HALF, wc.bytes as usize))?;
    println!("received: {message}");
    Ok(message)
}

fn client(qp: &Qp, cq: &Rc<Cq>, mr: &Mr, peer: &Place) -> Result<()> {
    let question = b"is anybody there?";
    mr.write(0, question);
    run(qp, cq, mr, Op::Send, question.len())?;
    let answer = receive(cq, mr)?;
    ensure!(answer == "only memory", "an unexpected answer");

    let note = b"left in your memory";
    mr.write(0, note);
    run(qp, cq, mr, Op::Write(peer.addr, peer.rkey), note.len())?;
    mr.write(0, &[0; 64]);
    run(qp, cq, mr, Op::Read(peer.addr, peer.rkey), note.len())?;
    let found = mr.read(0, note.len());
    println!("read back: {}", String::from_utf8_lossy(&found));
    ensure!(found == note, "not what was written");
    Ok(())
}

fn answer(qp: &Qp, cq: &Rc<Cq>, mr: &Mr) -> Result<()> {
    let question = receive(cq, mr).context("the client's message")?;
    ensure!(question == "is anybody there?", "an unexpected message");
    let answer = b"only memory";
    mr.write(0, answer);
    run(qp, cq, mr, Op::Send, answer.len())
}
