// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows: the passive side binds them, and the active side accesses memory through them.

use anyhow::{ensure, Result};
use virtio_rdma_abi::cqe::WcReason;

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Kind, Mr, Mw, MwKind, Op, SendWr, Shown};
use crate::session::{errno, refused, Remote, Session};

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;

/// Access flags of an MR for windows. It grants peers nothing.
const BINDABLE: u32 = access::LOCAL_WRITE | access::MW_BIND;
const READ_WRITE: u32 = access::REMOTE_READ | access::REMOTE_WRITE;
/// Length of the MRs in bytes.
const SIZE: usize = 3 * 4096;
/// Offset of windows in their MRs, in bytes.
const OFFSET: usize = 4000;
/// Length of windows in bytes.
const LENGTH: usize = 5000;

/// One end, an MR for windows (`mr`) and an MR for local memory of work requests (`own`).
struct Side {
    end: Endpoint,
    mr: Mr,
    own: Mr,
}

impl Side {
    fn new(session: &mut Session, options: &Options) -> Result<Self> {
        let end = Endpoint::connect(session, options)?;
        Ok(Self {
            mr: Mr::new(&end.pd, SIZE, BINDABLE)?,
            own: end.memory(SIZE)?,
            end,
        })
    }

    /// Binds a type 1 window to the middle of the MR and waits for the completion.
    fn bind(&self, mw: &mut Mw, access: u32) -> Result<()> {
        let shown = Shown::of(&self.mr, OFFSET, LENGTH, access);
        self.bind_to(mw, &shown)
    }

    fn bind_to(&self, mw: &mut Mw, shown: &Shown<'_>) -> Result<()> {
        let before = mw.rkey();
        mw.bind(&self.end.qp, 7, shown)?;
        ensure!(
            mw.rkey() == next_key(before),
            "the key became {:#x}",
            mw.rkey()
        );
        self.bound()
    }

    /// Binds a type 2 window to the middle of the MR and waits for the completion.
    fn bind_two(&self, mw: &mut Mw, access: u32) -> Result<()> {
        let rkey = next_key(mw.rkey());
        let shown = Shown::of(&self.mr, OFFSET, LENGTH, access);
        mw.post_bind(&self.end.qp, 7, rkey, &shown)?;
        self.bound()?;
        mw.set_rkey(rkey);
        Ok(())
    }

    fn bound(&self) -> Result<()> {
        let wc = self.end.sent()?.ok()?;
        ensure!((wc.id, wc.opcode) == (7, ffi::IBV_WC_BIND_MW), "{wc:?}");
        Ok(())
    }

    /// Checks that a WRITE to `remote` ends with `status`.
    fn write(&self, remote: Remote, seed: u64, length: usize, status: u32) -> Result<()> {
        self.own.write(0, &bytes(seed, length));
        let op = Op::Write(remote.addr, remote.rkey);
        self.end
            .run(op, &[self.own.sge(0, length)])?
            .expect(status)?;
        Ok(())
    }
}

/// The key with its low 8 bits incremented.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Sends address and key of a window to the active side.
fn tell(session: &mut Session, addr: u64, rkey: u32) -> Result<()> {
    session.peer.say(&[addr, rkey.into()])
}

fn hear(session: &mut Session) -> Result<Remote> {
    let [addr, rkey] = session.peer.hear()?;
    Ok(Remote {
        addr,
        rkey: rkey.try_into()?,
    })
}

const OK: u32 = ffi::IBV_WC_SUCCESS;
const REFUSED: u32 = ffi::IBV_WC_REM_ACCESS_ERR;

/// The device reports the number of memory windows, and supports type 2B but not type 2A.
// abi
pub fn capabilities(session: &mut Session) -> Result<()> {
    let limits = session.context.limits()?;
    let windows = ffi::IBV_DEVICE_MEM_WINDOW | ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    ensure!(limits.flags & windows == windows && limits.max_mw > 0);
    ensure!(limits.flags & ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2A == 0);
    Ok(())
}

/// A type 1 window is bound, and its key is sent without waiting for the binding. The peer writes
/// and reads through the window. After a new binding, the window has a new key. After it is
/// unbound, accesses are refused.
// abi
pub fn type_1(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    if session.active() {
        side.end.qp.recv(1, &[side.own.sge(8192, 4)])?;
        session.peer.meet()?;
        let [addr] = session.peer.hear()?;
        side.end.received()?.ok()?;
        let key = side.own.read(8192, 4);
        let rkey = u32::from_ne_bytes([key[0], key[1], key[2], key[3]]);
        let remote = Remote { addr, rkey };
        side.write(remote, 1, LENGTH, OK)?;
        let read = Op::Read(addr + 100, rkey);
        side.end.run(read, &[side.own.sge(6000, 700)])?.ok()?;
        compare(
            "read",
            &side.own.read(6000, 700),
            &bytes(1, LENGTH)[100..800],
        )?;
        session.peer.meet()?;
        let again = hear(session)?;
        side.write(again, 2, 10, OK)?;
        session.peer.meet()?;
        session.peer.meet()?;
        side.write(again, 3, 1, REFUSED)?;
        return session.peer.meet();
    }
    let mut mw = Mw::new(&side.end.pd, MwKind::One)?;
    session.peer.meet()?;
    let addr = side.mr.addr() + OFFSET as u64;
    session.peer.say(&[addr])?;
    // The binding and the SEND are posted without polling in between.
    let shown = Shown::of(&side.mr, OFFSET, LENGTH, READ_WRITE);
    mw.bind(&side.end.qp, 7, &shown)?;
    side.own.write(0, &mw.rkey().to_ne_bytes());
    side.end
        .qp
        .send(&SendWr::new(8, Op::Send, &[side.own.sge(0, 4)]))?;
    side.bound()?;
    ensure!(side.end.sent()?.ok()?.id == 8);
    session.peer.meet()?;
    compare("written", &side.mr.read(OFFSET, LENGTH), &bytes(1, LENGTH))?;
    side.bind_to(&mut mw, &Shown::of(&side.mr, 0, 10, access::REMOTE_WRITE))?;
    tell(session, side.mr.addr(), mw.rkey())?;
    session.peer.meet()?;
    compare("written again", &side.mr.read(0, 10), &bytes(2, 10))?;
    side.bind_to(&mut mw, &Shown::nothing_of(&side.mr))?;
    session.peer.meet()?;
    session.peer.meet()?;
    compare("not written", &side.mr.read(0, 10), &bytes(2, 10))
}

/// A type 2 window is repeatedly bound and invalidated by work requests. The peer accesses it in
/// between.
// abi
pub fn type_2(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    let mut mw = Mw::new(&side.end.pd, MwKind::Two)?;
    for round in 0..4 {
        if session.active() {
            let remote = hear(session)?;
            side.write(remote, round, LENGTH, OK)?;
            session.peer.meet()?;
            session.peer.meet()?;
            if round == 3 {
                side.write(remote, 9, 1, REFUSED)?;
            }
        } else {
            side.bind_two(&mut mw, access::REMOTE_WRITE)?;
            tell(session, side.mr.addr() + OFFSET as u64, mw.rkey())?;
            session.peer.meet()?;
            compare(
                "written",
                &side.mr.read(OFFSET, LENGTH),
                &bytes(round, LENGTH),
            )?;
            let wc = side.end.run(Op::LocalInvalidate(mw.rkey()), &[])?.ok()?;
            ensure!(wc.opcode == ffi::IBV_WC_LOCAL_INV, "{wc:?}");
            session.peer.meet()?;
        }
    }
    session.peer.meet()
}

/// The peer invalidates a type 2 window.
// abi
pub fn remote_invalidation(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    if session.active() {
        let remote = hear(session)?;
        side.write(remote, 1, 100, OK)?;
        side.end.run(Op::SendInvalidate(remote.rkey), &[])?.ok()?;
        side.write(remote, 2, 1, REFUSED)?;
    } else {
        let mut mw = Mw::new(&side.end.pd, MwKind::Two)?;
        side.bind_two(&mut mw, access::REMOTE_WRITE)?;
        side.end.qp.recv(3, &[])?;
        tell(session, side.mr.addr() + OFFSET as u64, mw.rkey())?;
        let wc = side.end.received()?.ok()?;
        ensure!(wc.invalidated == Some(mw.rkey()), "{wc:?}");
        compare("written", &side.mr.read(OFFSET, 100), &bytes(1, 100))?;
        side.mr.write(OFFSET, &[0]);
        session.peer.meet()?;
        return compare("not written", &side.mr.read(OFFSET, 1), &[0]);
    }
    session.peer.meet()
}

/// Windows can be bound on unreliable connections.
pub fn unreliable(session: &mut Session) -> Result<()> {
    let options = Options {
        kind: Kind::Uc,
        ..Options::default()
    };
    let side = Side::new(session, &options)?;
    for kind in [MwKind::One, MwKind::Two] {
        if session.active() {
            let remote = hear(session)?;
            // The immediate data tells the peer that the WRITE has arrived.
            side.own.write(0, &bytes(1, 300));
            let op = Op::WriteImm(remote.addr, remote.rkey, 5);
            side.end.run(op, &[side.own.sge(0, 300)])?.ok()?;
        } else {
            let mut mw = Mw::new(&side.end.pd, kind)?;
            side.mr.write(OFFSET, &[0; 300]);
            match kind {
                MwKind::One => side.bind(&mut mw, access::REMOTE_WRITE)?,
                MwKind::Two => side.bind_two(&mut mw, access::REMOTE_WRITE)?,
            }
            side.end.qp.recv(3, &[])?;
            tell(session, side.mr.addr() + OFFSET as u64, mw.rkey())?;
            side.end.received()?.ok()?;
            compare("written", &side.mr.read(OFFSET, 300), &bytes(1, 300))?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Windows can't be bound on UD QPs.
// abi: R-395
pub fn datagram(session: &mut Session) -> Result<()> {
    let options = Options {
        kind: Kind::Ud,
        ..Options::default()
    };
    let side = Side::new(session, &options)?;
    let mut mw = Mw::new(&side.end.pd, MwKind::One)?;
    let before = mw.rkey();
    let shown = Shown::of(&side.mr, OFFSET, LENGTH, 0);
    // The binding is refused at once or completes with an error.
    match mw.bind(&side.end.qp, 7, &shown) {
        Err(error) => {
            ensure!(errno(&error) == Some(EINVAL), "{error:#}");
            ensure!(
                mw.rkey() == before,
                "the key of what was not posted changed"
            );
        }
        Ok(()) => {
            let wc = side.end.sent()?;
            ensure!(wc.status != OK, "{wc:?}");
        }
    }
    session.peer.meet()
}

/// A window allows only accesses that its access flags grant, in its part of the MR.
// abi
pub fn access_flags(session: &mut Session) -> Result<()> {
    // Access flags of the window; then the request of the peer: whether it is a READ, offset from
    // the start of the window, and length.
    for (access, reads, at, length) in [
        (access::REMOTE_READ, false, 0, 8),
        (access::REMOTE_WRITE, true, 0, 8),
        (0, true, 0, 8),
        (READ_WRITE, false, -1, 8),
        (READ_WRITE, false, LENGTH as i64 - 7, 8),
        (READ_WRITE, true, 0, LENGTH + 1),
    ] {
        let side = Side::new(session, &Options::default())?;
        if session.active() {
            let remote = hear(session)?;
            let addr = remote.addr.wrapping_add_signed(at);
            let op = match reads {
                true => Op::Read(addr, remote.rkey),
                false => Op::Write(addr, remote.rkey),
            };
            side.end
                .run(op, &[side.own.sge(0, length)])?
                .expect(REFUSED)?;
            session.peer.meet()?;
        } else {
            side.mr.write(0, &[0x77; SIZE]);
            let mut mw = Mw::new(&side.end.pd, MwKind::One)?;
            side.bind(&mut mw, access)?;
            tell(session, side.mr.addr() + OFFSET as u64, mw.rkey())?;
            session.peer.meet()?;
            compare(
                "memory that must stay",
                &side.mr.read(0, SIZE),
                &[0x77; SIZE],
            )?;
        }
    }
    Ok(())
}

/// A failed binding completes with its status and does not change the window. The caller restores
/// the old key, with which the window can be bound again.
pub fn failed_binding(session: &mut Session) -> Result<()> {
    let pd = crate::rdma::Pd::new(&session.context)?;
    let good = Mr::new(&pd, SIZE, BINDABLE)?;
    let unbindable = Mr::new(&pd, SIZE, access::ALL)?;
    let read_only = Mr::new(&pd, SIZE, access::MW_BIND)?;
    let mut mw = Mw::new(&pd, MwKind::One)?;
    for shown in [
        // abi: R-399
        Shown::of(&unbindable, 0, 100, access::REMOTE_READ),
        // abi: R-400
        Shown::of(&read_only, 0, 100, access::REMOTE_WRITE),
        Shown::of(&read_only, 0, 100, access::REMOTE_ATOMIC),
        // abi: R-401
        Shown::of(&good, 1, SIZE, access::REMOTE_READ),
        Shown::of(&good, 0, 100, access::MW_BIND),
    ] {
        let end = Endpoint::connect_in(session, &pd, &Options::default())?;
        let before = mw.rkey();
        mw.bind(&end.qp, 7, &shown)?;
        // abi: R-718
        end.sent()?.expect(ffi::IBV_WC_MW_BIND_ERR)?;
        ensure!(
            mw.rkey() == next_key(before),
            "the key before the completion"
        );
        mw.set_rkey(before);
        session.peer.meet()?;
    }
    let side = Side {
        end: Endpoint::connect_in(session, &pd, &Options::default())?,
        own: good,
        mr: read_only,
    };
    side.bind(&mut mw, access::REMOTE_READ)?;
    mw.deallocate()?;
    session.peer.meet()
}

/// A type 2 window is accessible only through its QP, not through another QP in the same PD. A type
/// 1 window is accessible through any QP in the PD.
// abi
pub fn of_another_qp(session: &mut Session) -> Result<()> {
    for (kind, status) in [(MwKind::One, OK), (MwKind::Two, REFUSED)] {
        let side = Side::new(session, &Options::default())?;
        let other = Endpoint::connect_in(session, &side.end.pd, &Options::default())?;
        if session.active() {
            let remote = hear(session)?;
            let op = Op::Write(remote.addr, remote.rkey);
            other.run(op, &[side.own.sge(0, 8)])?.expect(status)?;
            side.write(remote, 1, 8, OK)?;
            session.peer.meet()?;
        } else {
            let mut mw = Mw::new(&side.end.pd, kind)?;
            match kind {
                MwKind::One => side.bind(&mut mw, access::REMOTE_WRITE)?,
                MwKind::Two => side.bind_two(&mut mw, access::REMOTE_WRITE)?,
            }
            tell(session, side.mr.addr() + OFFSET as u64, mw.rkey())?;
            session.peer.meet()?;
        }
    }
    Ok(())
}

/// Addresses in a zero-based window count from its start. Some devices support this for type 2
/// only.
// abi: R-390
pub fn zero_based(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    let access = access::REMOTE_WRITE | access::ZERO_BASED;
    let mut kinds = vec![MwKind::Two];
    if session.active() {
        let [count] = session.peer.hear()?;
        kinds.resize(usize::try_from(count)?, MwKind::One);
        for (seed, _) in (1..).zip(kinds) {
            let remote = hear(session)?;
            side.write(remote, seed, LENGTH, OK)?;
            session.peer.meet()?;
        }
        return Ok(());
    }
    let mut one = Mw::new(&side.end.pd, MwKind::One)?;
    let shown = Shown::of(&side.mr, OFFSET, LENGTH, access);
    match one.bind(&side.end.qp, 7, &shown) {
        Ok(()) => {
            side.bound()?;
            kinds.push(MwKind::One);
        }
        Err(error) => ensure!(errno(&error) == Some(EINVAL), "{error:#}"),
    }
    session.peer.say(&[kinds.len() as u64])?;
    for (seed, kind) in (1..).zip(kinds) {
        let mut two = Mw::new(&side.end.pd, MwKind::Two)?;
        let rkey = match kind {
            MwKind::One => one.rkey(),
            MwKind::Two => {
                side.bind_two(&mut two, access)?;
                two.rkey()
            }
        };
        tell(session, 0, rkey)?;
        session.peer.meet()?;
        compare(
            "written",
            &side.mr.read(OFFSET, LENGTH),
            &bytes(seed, LENGTH),
        )?;
    }
    Ok(())
}

/// An MR can't be deregistered while a window is bound to it.
// abi: R-412
pub fn keeps_region(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    for kind in [MwKind::One, MwKind::Two] {
        let mut mw = Mw::new(&side.end.pd, kind)?;
        match kind {
            MwKind::One => side.bind(&mut mw, 0)?,
            MwKind::Two => side.bind_two(&mut mw, 0)?,
        }
        let error = side.mr.try_deregister();
        // rxe returns EINVAL.
        let number = error.raw_os_error();
        ensure!(matches!(number, Some(EBUSY | EINVAL)), "{error}");
        match kind {
            MwKind::One => side.bind_to(&mut mw, &Shown::nothing_of(&side.mr))?,
            MwKind::Two => {
                side.end.run(Op::LocalInvalidate(mw.rkey()), &[])?.ok()?;
            }
        }
    }
    side.mr.deregister()?;
    session.peer.meet()
}

/// Memory and access flags of an MR can't be changed while a window is bound to it.
// abi
pub fn keeps_memory(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mut mr = Mr::new(&end.pd, 8192, access::ALL | access::MW_BIND)?;
    let mut mw = Mw::new(&end.pd, MwKind::One)?;
    mw.bind(&end.qp, 1, &Shown::of(&mr, 0, 100, 0))?;
    end.sent()?.ok()?;
    for (what, memory, access) in [
        ("access flags", None, Some(access::ALL)),
        ("memory", Some(8192), None),
    ] {
        let error = refused(what, mr.change(None, memory, access))?;
        ensure!(errno(&error) == Some(EBUSY), "{what}: {error:#}");
    }
    session.peer.meet()
}

/// Deallocating a bound window unbinds it: the MR can be deregistered, and accesses with the key
/// are refused.
// abi: R-411
pub fn deallocated(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    if session.active() {
        let remote = hear(session)?;
        side.write(remote, 1, 8, OK)?;
        session.peer.meet()?;
        session.peer.meet()?;
        side.write(remote, 2, 8, REFUSED)?;
        return session.peer.meet();
    }
    let mut mw = Mw::new(&side.end.pd, MwKind::One)?;
    side.bind(&mut mw, access::REMOTE_WRITE)?;
    tell(session, side.mr.addr() + OFFSET as u64, mw.rkey())?;
    session.peer.meet()?;
    mw.deallocate()?;
    let Side { mr, end: _end, .. } = side;
    mr.deregister()?;
    session.peer.meet()?;
    session.peer.meet()
}

/// A window that is invalidated a second time: its key is revoked, which `vendor_err` tells.
// abi
pub fn revoked(session: &mut Session) -> Result<()> {
    let side = Side::new(session, &Options::default())?;
    if !session.active() {
        let mut mw = Mw::new(&side.end.pd, MwKind::Two)?;
        side.bind_two(&mut mw, access::REMOTE_WRITE)?;
        let invalidate = || side.end.run(Op::LocalInvalidate(mw.rkey()), &[]);
        invalidate()?.ok()?;
        invalidate()?.expect_for(ffi::IBV_WC_MW_BIND_ERR, WcReason::KeyRevoked)?;
    }
    session.peer.meet()
}
