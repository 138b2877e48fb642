// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The port and its network device.

use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{ensure, Context as _, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{ffi, Op};
use crate::session::{find_gid, read_gid, Session, LIMIT};

const SIZE: usize = 4096;

/// Name of the network device of an entry of the GID table.
fn netdev(session: &Session) -> Result<String> {
    let (device, index) = (session.context.name(), session.settings.gid_index);
    let file = format!("/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/{index}");
    Ok(fs::read_to_string(&file).context(file)?.trim().to_owned())
}

/// Brings a network device up or down. The RDMA device may learn of it later.
fn set(netdev: &str, state: &str) -> Result<()> {
    let mut ip = Command::new("ip");
    let status = ip.args(["link", "set", netdev, state]).status()?;
    ensure!(status.success(), "{ip:?}: {status}");
    Ok(())
}

/// Waits until `done` is true.
fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !done()? {
        ensure!(Instant::now() < deadline, "{what} takes too long");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A port whose network device is down sends nothing: requests run out of retries. When the network
/// device is up again, the QP works after a reset.
// abi
pub fn down(session: &mut Session) -> Result<()> {
    let options = Options {
        // 4.096 µs · 2¹⁴ is 67 ms.
        timeout: 14,
        retries: 1,
        ..Options::default()
    };
    for round in 0..3 {
        let end = Endpoint::connect(session, &options)?;
        let mr = end.memory(SIZE)?;
        mr.write(0, &[0x77; SIZE]);
        let remote = session.swap_memory(&mr)?;
        let message = bytes(round, 100);
        if session.active() {
            mr.write(0, &message);
            let write = Op::Write(remote.addr, remote.rkey);
            end.run(write, &[mr.sge(0, 100)])?.ok()?;
            session.peer.meet()?;
            mr.write(0, &[0x33; SIZE]);
            let (netdev, gid) = (netdev(session)?, session.own_gid()?);
            set(&netdev, "down")?;
            let state = session.context.port()?.state;
            let wc = end.run(write, &[mr.sge(0, SIZE)])?;
            set(&netdev, "up")?;
            ensure!(state == ffi::IBV_PORT_DOWN, "state {state}");
            wc.expect(ffi::IBV_WC_RETRY_EXC_ERR)?;
            until("the port", || {
                Ok(session.context.port()?.state == ffi::IBV_PORT_ACTIVE)
            })?;
            let device = session.context.name();
            until("the GID", || {
                let found = find_gid(device).and_then(|index| read_gid(device, index));
                Ok(found.is_ok_and(|found| found == gid))
            })?;
            session.settings.gid_index = find_gid(device)?;
            session.peer.meet()?;
        } else {
            session.peer.meet()?;
            session.peer.meet()?;
            compare("the first message", &mr.read(0, 100), &message)?;
            let rest = mr.read(100, SIZE - 100);
            compare("after it", &rest, &[0x77; SIZE - 100])?;
        }
    }
    Ok(())
}
