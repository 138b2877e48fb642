// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory regions that change: `ibv_rereg_mr` in all its forms.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Mr, Mw, MwKind, Op, Pd, Shown};
use crate::session::{errno, refused, Remote, Session};

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const SIZE: usize = 8192;

/// Rights, PD and memory, alone and together: what the peer may do follows, and the keys stay.
pub fn changed(session: &mut Session) -> Result<()> {
    const REFUSED: u32 = ffi::IBV_WC_REM_ACCESS_ERR;
    const OK: u32 = ffi::IBV_WC_SUCCESS;
    type Change = (bool, bool, Option<u32>);
    // What the region was made with; what changes: PD, memory, rights; how a WRITE ends.
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
    for (seed, (rights, (pd, memory, new_rights), status)) in (1..).zip(forms) {
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
        let mut mr = Mr::new(&end.pd, 2 * SIZE, rights)?;
        let other = Pd::new(&session.context)?;
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        mr.change(pd.then_some(&other), memory.then_some(3 * SIZE), new_rights)?;
        ensure!((mr.lkey(), mr.rkey()) == (lkey, rkey), "the keys changed");
        session.peer.say(&[mr.addr(), mr.rkey().into()])?;
        session.peer.meet()?;
        let expected = match status {
            OK => bytes(seed, SIZE),
            _ => vec![0; SIZE],
        };
        compare("memory", &mr.read(0, SIZE), &expected)?;
        if pd {
            // Back again: the PD is free then.
            mr.change(Some(&end.pd), None, None)?;
            drop(other);
        }
    }
    Ok(())
}

/// What is refused leaves the region as it was.
pub fn refusals(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let source = end.memory(8)?;
    let has_windows = session.context.limits()?.flags & ffi::IBV_DEVICE_MEM_WINDOW != 0;
    let bindable = if has_windows { access::MW_BIND } else { 0 };
    let mut mr = Mr::new(&end.pd, SIZE, access::ALL | bindable)?;
    let expect = |what: &str, result: Result<()>, number: i32| -> Result<()> {
        let error = refused(what, result)?;
        ensure!(errno(&error) == Some(number), "{what}: {error:#}");
        Ok(())
    };
    expect("no change", mr.change(None, None, None), EINVAL)?;
    let rights = Some(access::REMOTE_WRITE);
    expect("remote rights alone", mr.change(None, None, rights), EINVAL)?;
    // A window keeps it as it is.
    if has_windows {
        let mut mw = Mw::new(&end.pd, MwKind::One)?;
        mw.bind(&end.qp, 1, &Shown::of(&mr, 0, 100, 0))?;
        end.sent()?.ok()?;
        expect(
            "bound region",
            mr.change(None, None, Some(access::ALL)),
            EBUSY,
        )?;
        expect("bound region", mr.change(None, Some(SIZE), None), EBUSY)?;
    }
    let Remote { addr, rkey } = session.swap_memory(&mr)?;
    end.run(Op::Write(addr, rkey), &[source.sge(0, 8)])?.ok()?;
    session.peer.meet()
}

/// Rights that are taken and given back while the peer reads: each READ ends well, or with a refusal.
pub fn under_traffic(session: &mut Session) -> Result<()> {
    let rounds = 20;
    for _ in 0..rounds {
        let end = Endpoint::connect(session, &Options::default())?;
        let mut mr = end.memory(SIZE)?;
        let remote = session.swap_memory(&mr)?;
        session.peer.meet()?;
        if session.active() {
            let target = end.memory(SIZE)?;
            for _ in 0..10 {
                let wc = end.run(Op::Read(remote.addr, remote.rkey), &[target.sge(0, SIZE)])?;
                if wc.status != ffi::IBV_WC_SUCCESS {
                    wc.expect(ffi::IBV_WC_REM_ACCESS_ERR)?;
                    break;
                }
            }
        } else {
            mr.change(None, None, Some(access::LOCAL_WRITE))?;
            mr.change(None, None, Some(access::ALL))?;
        }
        session.peer.meet()?;
    }
    Ok(())
}
