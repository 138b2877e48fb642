// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Changes of memory regions by `ibv_rereg_mr`.

use std::time::Instant;

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Mr, Op, Pd};
use crate::session::{errno, refused, Remote, Session, LIMIT};

const EINVAL: i32 = 22;
const SIZE: usize = 8192;

/// Changes of access flags, PD and memory, alone and together, take effect for the peer and keep
/// the keys.
// abi
pub fn changed(session: &mut Session) -> Result<()> {
    const REFUSED: u32 = ffi::IBV_WC_REM_ACCESS_ERR;
    const OK: u32 = ffi::IBV_WC_SUCCESS;
    type Change = (bool, bool, Option<u32>);
    // Access flags of the region, changes (PD, memory, new access flags), and status of a WRITE
    // afterwards.
    let read = access::LOCAL_WRITE | access::REMOTE_READ;
    let forms: [(u32, Change, u32); 9] = [
        (read, (false, false, Some(access::ALL)), OK),
        (access::ALL, (false, false, Some(read)), REFUSED),
        (access::ALL, (true, false, None), REFUSED),
        (access::ALL, (false, true, None), OK),
        (access::ALL, (true, true, None), REFUSED),
        (read, (false, true, Some(access::ALL)), OK),
        (access::ALL, (false, true, Some(read)), REFUSED),
        (read, (true, false, Some(access::ALL)), REFUSED),
        (read, (true, true, Some(access::ALL)), REFUSED),
    ];
    for (seed, (access, (pd, memory, new_access), status)) in (1..).zip(forms) {
        let end = Endpoint::connect(session, &Options::default())?;
        let source = end.memory(SIZE)?;
        if session.active() {
            let [addr, rkey] = session.peer.hear()?;
            source.write(0, &bytes(seed, SIZE));
            let op = Op::Write(addr, rkey.try_into()?);
            end.run(op, &[source.sge(0, SIZE)])?.expect(status)?;
            session.peer.meet()?;
            continue;
        }
        let mut mr = Mr::new(&end.pd, 2 * SIZE, access)?;
        let other = Pd::new(&session.context)?;
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        mr.change(pd.then_some(&other), memory.then_some(3 * SIZE), new_access)?;
        ensure!((mr.lkey(), mr.rkey()) == (lkey, rkey), "the keys changed");
        session.peer.say(&[mr.addr(), mr.rkey().into()])?;
        session.peer.meet()?;
        let expected = match status {
            OK => bytes(seed, SIZE),
            _ => vec![0; SIZE],
        };
        compare("memory", &mr.read(0, SIZE), &expected)?;
        if pd {
            // The PD is free after the region has moved back to the first PD.
            mr.change(Some(&end.pd), None, None)?;
            drop(other);
        }
    }
    Ok(())
}

/// A refused change leaves the region as it was.
// abi
pub fn refusals(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let source = end.memory(8)?;
    let mut mr = end.memory(SIZE)?;
    let expect = |what: &str, result: Result<()>, number: i32| -> Result<()> {
        let error = refused(what, result)?;
        ensure!(errno(&error) == Some(number), "{what}: {error:#}");
        Ok(())
    };
    expect("no change", mr.change(None, None, None), EINVAL)?;
    let access = Some(access::REMOTE_WRITE);
    expect(
        "remote access flags alone",
        mr.change(None, None, access),
        EINVAL,
    )?;
    let Remote { addr, rkey } = session.swap_memory(&mr)?;
    end.run(Op::Write(addr, rkey), &[source.sge(0, 8)])?.ok()?;
    session.peer.meet()
}

/// Access flags are removed while the peer reads. READs return the data until one is refused. After
/// the access flags are restored, READs return the data again.
// abi
pub fn under_traffic(session: &mut Session) -> Result<()> {
    for seed in 0..20 {
        let pd = Pd::new(&session.context)?;
        let end = Endpoint::connect_in(session, &pd, &Options::default())?;
        // A second pair, because the refused READ ends the first one.
        let next = Endpoint::connect_in(session, &pd, &Options::default())?;
        let mut mr = end.memory(SIZE)?;
        let expected = bytes(seed, SIZE);
        mr.write(0, &expected);
        let Remote { addr, rkey } = session.swap_memory(&mr)?;
        if session.active() {
            let target = end.memory(SIZE)?;
            let read = |end: &Endpoint| {
                target.write(0, &[0; SIZE]);
                end.run(Op::Read(addr, rkey), &[target.sge(0, SIZE)])
            };
            read(&end)?.ok()?;
            session.peer.meet()?;
            let started = Instant::now();
            loop {
                let wc = read(&end)?;
                if wc.status != ffi::IBV_WC_SUCCESS {
                    wc.expect(ffi::IBV_WC_REM_ACCESS_ERR)?;
                    break;
                }
                compare("READ", &target.read(0, SIZE), &expected)?;
                ensure!(started.elapsed() < LIMIT, "no READ is refused");
            }
            session.peer.meet()?;
            session.peer.meet()?;
            read(&next)?.ok()?;
            compare(
                "with the access flags restored",
                &target.read(0, SIZE),
                &expected,
            )?;
        } else {
            session.peer.meet()?;
            mr.change(None, None, Some(access::LOCAL_WRITE))?;
            session.peer.meet()?;
            mr.change(None, None, Some(access::ALL))?;
            session.peer.meet()?;
        }
        session.peer.meet()?;
    }
    Ok(())
}
