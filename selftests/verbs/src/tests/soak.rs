// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Special tests for scripts: endless traffic, and traffic during which a script traces system
//! calls.

use std::hint::spin_loop;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, Caps, Cq, Mr, Op, Pd, Qp, SendWr, Srq, Wc};
use crate::session::Session;

/// Longest time to wait for a completion of the endless traffic. It is shorter than in the
/// other tests: scripts remove the device and wait until both sides detect this.
const PATIENCE: Duration = Duration::from_secs(20);

/// SENDs, WRITEs and READs with verified data, until the file `until` exists.
pub fn soak(session: &mut Session) -> Result<()> {
    const SIZE: usize = 20_000;
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(3 * SIZE)?;
    let remote = session.swap_memory(&mr)?;
    for round in 0.. {
        let own = u64::from(session.active() && is_enough(session, round));
        let [other] = session.peer.swap([own])?;
        if own | other != 0 {
            println!("# soak: {round} rounds");
            break;
        }
        let message = bytes(round, SIZE);
        if session.active() {
            mr.write(0, &message);
            session.peer.meet()?;
            let run = |op, sge| -> Result<()> {
                end.qp.send(&SendWr::new(round, op, &[sge]))?;
                end.send.wait(1, PATIENCE)?[0].ok()?;
                Ok(())
            };
            run(Op::Send, mr.sge(0, SIZE))?;
            let target = remote.addr + SIZE as u64;
            run(Op::Write(target, remote.rkey), mr.sge(0, SIZE))?;
            run(Op::Read(target, remote.rkey), mr.sge(2 * SIZE, SIZE))?;
            compare("READ", &mr.read(2 * SIZE, SIZE), &message)?;
        } else {
            mr.write(0, &vec![0; 2 * SIZE]);
            end.qp.recv(round, &[mr.sge(0, SIZE)])?;
            session.peer.meet()?;
            end.recv.wait(1, PATIENCE)?[0].ok()?;
            compare("SEND", &mr.read(0, SIZE), &message)?;
        }
        session.peer.meet()?;
        if !session.active() {
            compare("WRITE", &mr.read(SIZE, SIZE), &message)?;
        }
        progress(round);
    }
    Ok(())
}

/// SENDs to an SRQ, WRITEs to words that the peer polls, counts and clears, and atomic additions,
/// until the file `until` exists. Each must have its effect exactly once: none may get lost or be
/// done again. The sides meet over the QPs alone, since TCP may stand still.
pub fn counted(session: &mut Session) -> Result<()> {
    const COUNT: usize = 32;
    /// So many rounds later a word is written again, and must be 0 until then.
    const ROUNDS: usize = 8;
    const WORD: usize = size_of::<u64>();
    // Places of words in the memory: those that are written, received messages, the sum, the values
    // that additions have found, and those that are sent.
    const WRITTEN: usize = 0;
    const RECEIVED: usize = WRITTEN + ROUNDS * COUNT;
    const SUM: usize = RECEIVED + COUNT;
    const FOUND: usize = SUM + 1;
    const SENT: usize = FOUND + COUNT;
    const ACCESS: u32 = access::ALL | access::REMOTE_ATOMIC;
    /// Number of the word that ends the traffic.
    const END: u64 = u64::MAX;
    let options = Options {
        access: ACCESS,
        reads: 4,
        caps: Caps {
            send_wr: 3 * COUNT as u32,
            ..Options::default().caps
        },
        ..Options::default()
    };
    let pd = Pd::new(&session.context)?;
    let srq = Srq::new(&pd, COUNT as u32)?;
    let send = Cq::new(&session.context, options.caps.send_wr, None)?;
    let recv = Cq::new(&session.context, COUNT as u32, None)?;
    let qp = Qp::with_srq(options.kind, &pd, [&send, &recv], &srq, options.caps)?;
    let qp = Rc::new(qp);
    Endpoint::link(session, &qp, &options)?;
    let mr = Mr::new(&pd, (SENT + COUNT) * WORD, ACCESS)?;
    let word = |at: usize| mr.word(at * WORD);
    let sge = |at: usize| [mr.sge(at * WORD, WORD)];
    let remote = session.swap_memory(&mr)?;
    let place = |at: usize| remote.addr + (at * WORD) as u64;
    let are_done = |count: usize| -> Result<()> {
        let mut done = 0;
        while done < count {
            for wc in send.wait(1, PATIENCE)? {
                wc.ok()?;
                done += 1;
            }
        }
        Ok(())
    };
    if session.active() {
        srq.recv(0, &sge(RECEIVED))?;
    }
    session.peer.meet()?;
    for round in 0.. {
        let first = round * COUNT as u64;
        let all = || (first + 1..).zip(0..COUNT);
        let written = WRITTEN + (round % ROUNDS as u64) as usize * COUNT;
        if session.active() {
            // The peer is ready.
            recv.wait(1, PATIENCE)?[0].ok()?;
            srq.recv(0, &sge(RECEIVED))?;
            if is_enough(session, round) {
                word(SENT).store(END, Ordering::SeqCst);
                let end = Op::Write(place(written), remote.rkey);
                qp.send(&SendWr::new(END, end, &sge(SENT)))?;
                are_done(1)?;
                println!("# soak: {round} rounds");
                break;
            }
            for (number, at) in all() {
                word(SENT + at).store(number, Ordering::SeqCst);
                let write = Op::Write(place(written + at), remote.rkey);
                let add = Op::FetchAdd(place(SUM), remote.rkey, 1);
                for (op, from) in [(write, SENT), (Op::Send, SENT), (add, FOUND)] {
                    qp.send(&SendWr::new(number, op, &sge(from + at)))?;
                }
            }
            are_done(3 * COUNT)?;
            for (number, at) in all() {
                let found = word(FOUND + at).load(Ordering::SeqCst);
                ensure!(found == number - 1, "addition {number} found {found}");
            }
            progress(round);
        } else {
            let sum = word(SUM).load(Ordering::SeqCst);
            ensure!(sum == first, "the sum is {sum} before round {round}");
            let again = (WRITTEN..RECEIVED).find(|at| word(*at).load(Ordering::SeqCst) != 0);
            ensure!(again.is_none(), "word {again:?} is written again");
            recv.expect_empty()?;
            for (number, at) in all() {
                srq.recv(number, &sge(RECEIVED + at))?;
            }
            qp.send(&SendWr::new(round, Op::Send, &sge(SENT)))?;
            are_done(1)?;
            for (number, at) in all() {
                let began = Instant::now();
                let mut found = 0;
                while found == 0 {
                    ensure!(began.elapsed() < PATIENCE, "word {number} is not written");
                    found = word(written + at).swap(0, Ordering::SeqCst);
                    spin_loop();
                }
                if found == END {
                    return Ok(());
                }
                ensure!(found == number, "word {number} is {found}");
            }
            let mut next = first + 1;
            while next <= first + COUNT as u64 {
                for wc in recv.wait(1, PATIENCE)? {
                    let at = RECEIVED + (wc.ok()?.id - first - 1) as usize;
                    let found = word(at).load(Ordering::SeqCst);
                    ensure!(found == next, "message {next} is {found}");
                    next += 1;
                }
            }
            let began = Instant::now();
            while word(SUM).load(Ordering::SeqCst) < first + COUNT as u64 {
                ensure!(began.elapsed() < PATIENCE, "an addition is lost");
                spin_loop();
            }
        }
    }
    Ok(())
}

/// Whether the active side ends endless traffic after so many rounds.
fn is_enough(session: &Session, rounds: u64) -> bool {
    match &session.settings.until {
        Some(file) => rounds != 0 && file.exists(),
        None => rounds == u64::from(session.settings.rounds),
    }
}

/// Tells of every 50th round.
fn progress(round: u64) {
    if round % 50 == 0 {
        println!("# soak: round {round}");
    }
}

/// Makes a system call that is recognizable in a trace.
fn mark(name: &str) {
    // The file need not exist: only the system call matters.
    let _ = Path::new("/verbs-test-mark").join(name).metadata();
}

/// Polls without system calls: it neither reads the clock nor yields.
fn spin(cq: &Cq, found: &mut Vec<Wc>) -> Result<()> {
    found.clear();
    for _ in 0..4_000_000_000_u64 {
        if cq.poll(found)? != 0 {
            return found.iter().try_for_each(|wc| wc.ok().map(|_| ()));
        }
        spin_loop();
    }
    bail!("no completion")
}

/// Ping-pong of SENDs with polling between two marks. Between the marks, only the provider could
/// make system calls.
pub fn quiet(session: &mut Session) -> Result<()> {
    const ROUNDS: u64 = 500;
    const DEPTH: u64 = 16;
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(4096)?;
    let sges = [mr.sge(0, 64)];
    let mut found = Vec::with_capacity(64);
    for id in 0..DEPTH {
        end.qp.recv(id, &sges)?;
    }
    session.peer.meet()?;
    let mut ping = |rounds: u64| -> Result<()> {
        for round in 0..2 * rounds {
            if session.active() == (round % 2 == 0) {
                end.qp.send(&SendWr::new(round, Op::Send, &sges))?;
                spin(&end.send, &mut found)?;
            } else {
                spin(&end.recv, &mut found)?;
                for wc in &found {
                    end.qp.recv(wc.id, &sges)?;
                }
            }
        }
        Ok(())
    };
    // The first rounds allocate the memory that is allocated at first use.
    ping(2)?;
    mark("begin");
    ping(ROUNDS)?;
    mark("end");
    session.peer.meet()
}
