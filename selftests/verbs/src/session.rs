// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The session of a test: role, device and connection to the other side.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure, Context as _, Error, Result};

use crate::peer::{End, Peer};
use crate::rdma::{Context, Mr, Qp};

/// Longest time to wait for a completion. It is generous because the machines may be emulated and
/// busy: no performance is tested.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Role of this side in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client. In tests with only one requester, the client is the requester.
    Active,
    /// The server.
    Passive,
}

/// Settings of the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Role of this side.
    pub role: Role,
    /// Index of the GID to use.
    pub gid_index: u8,
    /// File that stops the endless tests when it exists.
    pub until: Option<PathBuf>,
    /// Number of rounds of tests that repeat their work.
    pub rounds: u32,
    /// Whether the network loses packets. Always false on the server.
    pub lossy: bool,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// One test in progress.
pub struct Session {
    /// The device.
    pub context: Rc<Context>,
    /// The other side.
    pub peer: Peer,
    /// Settings of the command line.
    pub settings: Settings,
    /// QPs that were connected. The session keeps them after the test has dropped them: a peer
    /// whose acknowledgement got lost repeats its request, which a destroyed QP would not answer.
    connected: Vec<Rc<Qp>>,
}

impl Session {
    /// A test with `peer`.
    pub fn new(context: &Rc<Context>, peer: Peer, settings: Settings) -> Self {
        Self {
            context: Rc::clone(context),
            peer,
            settings,
            connected: Vec::new(),
        }
    }

    /// Keeps a QP until the peer has ended its test or makes the next connection.
    pub fn keep(&mut self, qp: &Rc<Qp>) {
        self.release();
        self.connected.push(Rc::clone(qp));
    }

    /// Destroys the QPs that only the session still holds.
    pub fn release(&mut self) {
        self.connected.retain(|qp| Rc::strong_count(qp) > 1);
    }

    /// Whether this is the client.
    pub fn active(&self) -> bool {
        self.settings.role == Role::Active
    }

    /// Exchanges address and remote key of an MR with the peer.
    pub fn swap_memory(&mut self, mr: &Mr) -> Result<Remote> {
        self.swap_address(mr.addr(), mr.rkey())
    }

    /// Exchanges an address and a remote key with the peer.
    pub fn swap_address(&mut self, addr: u64, rkey: u32) -> Result<Remote> {
        let [addr, rkey] = self.peer.swap([addr, rkey.into()])?;
        Ok(Remote {
            addr,
            rkey: rkey.try_into()?,
        })
    }

    /// The GID of this side.
    pub fn own_gid(&self) -> Result<[u8; 16]> {
        read_gid(self.context.name(), self.settings.gid_index)
    }

    /// Exchanges GIDs with the peer. Returns that of the peer.
    pub fn swap_gid(&mut self) -> Result<[u8; 16]> {
        let own = u128::from_be_bytes(self.own_gid()?);
        let [high, low] = self.peer.swap([(own >> 64) as u64, own as u64])?;
        Ok(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
    }

    /// Exchanges results with the peer and combines both. The QPs are destroyed when the peer has
    /// ended.
    pub fn finish(mut self, result: Result<()>) -> Result<()> {
        let end = match &result {
            Ok(()) => End::Passed,
            Err(error) => End::Failed(format!("{error:#}")),
        };
        match (result, self.peer.end(&end)) {
            (Ok(()), Ok(End::Passed)) => Ok(()),
            (Ok(()), Ok(End::Failed(reason))) => Err(anyhow!("the peer: {reason}")),
            (Ok(()), Err(error)) => Err(error),
            (Err(error), Ok(End::Failed(reason))) => {
                Err(error.context(format!("the peer: {reason}")))
            }
            (Err(error), _) => Err(error),
        }
    }
}

/// Index of the first RoCE v2 GID of an IPv4 address, else of the first RoCE v2 GID.
pub fn find_gid(device: &str) -> Result<u8> {
    let port = Path::new("/sys/class/infiniband")
        .join(device)
        .join("ports/1");
    let mut fallback = None;
    for index in 0..=u8::MAX {
        let kind =
            fs::read_to_string(port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
        let Ok(gid) = read_gid(device, index) else {
            continue;
        };
        if kind.trim() != "RoCE v2" || gid == [0; 16] {
            continue;
        }
        if gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]) {
            return Ok(index);
        }
        fallback = fallback.or(Some(index));
    }
    fallback.with_context(|| format!("{device} has no RoCE v2 GID"))
}

/// An entry of the GID table.
pub fn read_gid(device: &str, index: u8) -> Result<[u8; 16]> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/gids/{index}");
    let text = fs::read_to_string(&file).with_context(|| file.clone())?;
    let groups: Result<Vec<u16>, _> = text
        .trim()
        .split(':')
        .map(|group| u16::from_str_radix(group, 16))
        .collect();
    let groups = groups.with_context(|| file.clone())?;
    ensure!(groups.len() == 8, "{file}: not a GID");
    let mut gid = [0; 16];
    for (pair, group) in gid.chunks_mut(2).zip(groups) {
        pair.copy_from_slice(&group.to_be_bytes());
    }
    Ok(gid)
}

/// Returns the error of a call that must fail. Fails if the call succeeded.
pub fn refused<T>(what: &str, result: Result<T>) -> Result<Error> {
    match result {
        Ok(_) => bail!("{what} was not refused"),
        Err(error) => Ok(error),
    }
}

/// The errno of the I/O error that caused `error`.
pub fn errno(error: &Error) -> Option<i32> {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>())
        .and_then(std::io::Error::raw_os_error)
}
