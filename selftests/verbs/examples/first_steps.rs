// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A first RDMA program, from opening the device to the last completion.
//!
//! ```text
//! first_steps DEVICE GID_INDEX            on one machine
//! first_steps DEVICE GID_INDEX SERVER     on the other
//! ```
//!
//! 1. Find the device and open it.
//! 2. Query its limits.
//! 3. Allocate a protection domain. Objects in the same domain may be used together.
//! 4. Create a completion queue, through which the device reports completed work requests.
//! 5. Register memory. The device may access only registered memory.
//! 6. Create a queue pair: a queue for send work requests and a queue for receive buffers.
//! 7. Exchange the numbers of the queue pairs and the addresses of the memory with the peer, over a
//!    TCP socket.
//! 8. Move the queue pair through its states: INIT, RTR (ready to receive), RTS (ready to send).
//! 9. Post work requests.
//! 10. Poll for their completions. Posting and polling do not involve the kernel.
//!
//! The client sends a message and the server answers it. Then the client writes to the server's
//! memory and reads the data back, while the server does nothing. `verbs_test::rdma` is a safe
//! interface to libibverbs: each function calls the libibverbs function with a similar name.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path as FilePath;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{bail, ensure, Context as _, Result};

use verbs_test::rdma::{access, ffi, Caps, Context, Cq, Mr, Op, Path, Pd, Qp, SendWr, Timing};

/// TCP port of the socket.
const PORT: u16 = 18900;
/// Bytes of memory that each side registers.
const MEMORY: usize = 8192;
/// Bytes of each half of the memory: the first half is for sent data, the second for received data.
const HALF: usize = MEMORY / 2;
/// Longest time to wait for a completion.
const LIMIT: Duration = Duration::from_secs(60);

/// Data that each side needs to know about the other side.
struct Place {
    qpn: u32,
    /// Sequence number of the first packet.
    psn: u32,
    gid: [u8; 16],
    /// Address of the registered memory.
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

/// An entry of the device's GID table. A GID is an address of the device on the network.
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

    // Steps 1 and 2.
    let context = Context::open(device)?;
    let limits = context.limits()?;
    println!(
        "{device}: up to {} work requests in a queue",
        limits.max_qp_wr
    );

    // Steps 3 to 6.
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

    // Step 7.
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

    // Step 8. The buffer for the first message is posted before the peer can send the message.
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

    // Steps 9 and 10.
    match server {
        Some(_) => client(&qp, &cq, &mr, &peer)?,
        None => answer(&qp, &cq, &mr)?,
    }
    // The server's memory must exist until the client is done.
    meet(&mut socket)
}

/// Waits until the peer calls this function too.
fn meet(socket: &mut TcpStream) -> Result<()> {
    socket.write_all(&[1])?;
    socket.read_exact(&mut [0])?;
    Ok(())
}

/// Posts a work request with `length` bytes of the first half of the memory, and waits for its
/// completion.
fn run(qp: &Qp, cq: &Rc<Cq>, mr: &Mr, op: Op, length: usize) -> Result<()> {
    qp.send(&SendWr::new(2, op, &[mr.sge(0, length)]))?;
    let wc = cq.wait(1, LIMIT)?[0].ok()?;
    ensure!(wc.id == 2, "the completion of another work request: {wc:?}");
    Ok(())
}

/// Waits for a message and returns it. The device stores messages in the second half of the memory.
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
