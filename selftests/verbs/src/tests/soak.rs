// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Special tests for scripts: endless traffic, and traffic during which a script traces system
//! calls.

use std::hint::spin_loop;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{Cq, Op, SendWr, Wc};
use crate::session::Session;

/// Longest time to wait for a completion of the endless traffic. It is shorter than in the
/// other tests: scripts remove the device and wait until both sides detect this.
const PATIENCE: Duration = Duration::from_secs(20);

/// SENDs, WRITEs and READs with verified data, until the file `until` exists. Prints the number of
/// rounds after every 50 rounds.
pub fn soak(session: &mut Session) -> Result<()> {
    const SIZE: usize = 20_000;
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(3 * SIZE)?;
    let remote = session.swap_memory(&mr)?;
    let until = session.settings.until.clone();
    for round in 0_u64.. {
        let enough = match &until {
            Some(file) => round != 0 && file.exists(),
            None => round == u64::from(session.settings.rounds),
        };
        let own = u64::from(session.active() && enough);
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
        if round % 50 == 0 {
            println!("# soak: round {round}");
        }
    }
    Ok(())
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
