// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Multicast groups of UD QPs.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use anyhow::{ensure, Context as _, Result};

use super::datagrams::{options, receive_from, send, send_to, to_peer, GRH};
use crate::endpoint::{Endpoint, Options};
use crate::pattern::bytes;
use crate::rdma::{Ah, Mr, Op, Payload, To, MULTICAST_QPN, QKEY};
use crate::session::{errno, refused, Session};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 9, 18, 42);
const LENGTH: usize = 100;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// A multicast group. As long as this value exists, the network interface of the RDMA device is a
/// member too: Ethernet switches, and RDMA devices that use an IP stack, need this membership.
struct Group {
    gid: [u8; 16],
    _membership: UdpSocket,
}

impl Group {
    fn join(session: &Session) -> Result<Self> {
        let own = Ipv6Addr::from(session.own_gid()?)
            .to_ipv4_mapped()
            .context("no IPv4 GID")?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v4(&GROUP, &own).context("join")?;
        Ok(Self {
            gid: GROUP.to_ipv6_mapped().octets(),
            _membership: socket,
        })
    }

    /// Sends a message of `seed` to the group.
    fn send(&self, end: &Endpoint, mr: &Mr, seed: u64) -> Result<()> {
        let ah = Ah::new(&end.pd, |attr| {
            attr.port_num = 1;
            attr.is_global = 1;
            attr.grh.dgid.raw = self.gid;
            attr.grh.sgid_index = end.path.gid_index;
            attr.grh.hop_limit = 1;
        })?;
        let to = To {
            ah: &ah,
            qpn: MULTICAST_QPN,
            qkey: QKEY,
        };
        mr.write(0, &bytes(seed, LENGTH));
        send_to(end, to, Op::Send, Payload::Sges(&[mr.sge(0, LENGTH)]))
    }
}

/// Two QPs on each side are members of a group. Each side sends once, and the QPs of the sender
/// receive the message too.
pub fn members(session: &mut Session) -> Result<()> {
    let ends = [
        Endpoint::connect(session, &options())?,
        Endpoint::connect(session, &options())?,
    ];
    let group = Group::join(session)?;
    let source = ends[0].memory(LENGTH)?;
    let memory = [ends[0].memory(GRH + LENGTH)?, ends[1].memory(GRH + LENGTH)?];
    for (round, active_sends) in [(1, true), (2, false)] {
        let sends = session.active() == active_sends;
        for (end, mr) in ends.iter().zip(&memory) {
            // abi: R-800
            end.qp.attach(&group.gid)?;
            end.qp.recv(round, &[mr.sge(0, GRH + LENGTH)])?;
        }
        session.peer.meet()?;
        let sender = match sends {
            true => ends[0].qp.qpn(),
            false => ends[0].path.qpn,
        };
        if sends {
            // abi: R-802
            group.send(&ends[0], &source, round)?;
        }
        for (end, mr) in ends.iter().zip(&memory) {
            // abi
            receive_from(end, sender, mr, round, LENGTH, None)?;
        }
        // abi: R-801
        for end in &ends {
            end.qp.detach(&group.gid)?;
        }
        let error = refused("no member", ends[0].qp.detach(&group.gid))?;
        ensure!(errno(&error) == Some(EINVAL), "{error:#}");
        // A QP that has left the group receives no messages.
        if !sends {
            ends[0].qp.recv(round, &[memory[0].sge(0, GRH + LENGTH)])?;
        }
        session.peer.meet()?;
        if sends {
            group.send(&ends[0], &source, 99)?;
            source.write(0, &bytes(100, LENGTH));
            let sges = [source.sge(0, LENGTH)];
            send(
                &ends[0],
                &to_peer(&ends[0])?,
                QKEY,
                Op::Send,
                Payload::Sges(&sges),
            )?;
        } else {
            receive_from(&ends[0], sender, &memory[0], 100, LENGTH, None)?;
        }
        session.peer.meet()?;
        for end in &ends {
            end.recv.expect_empty()?;
        }
    }
    session.peer.meet()
}

/// Former bit of `device_cap_flags`: the device can block multicast loopback.
const BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 22;

/// A QP that blocks multicast loopback does not receive its own messages. Another QP of the same
/// side receives them, and the first QP receives the messages of the other QP.
// abi
pub fn without_echo(session: &mut Session) -> Result<()> {
    // User space no longer defines this bit: the kernel reports the feature to kernel clients only.
    let flags = session.context.limits()?.flags;
    ensure!(
        flags & BLOCK_MULTICAST_LOOPBACK == 0,
        "device_cap_flags {flags:#x} have a bit that user space does not define"
    );
    let end = Endpoint::connect(session, &options())?;
    let options = Options {
        blocks_loopback: true,
        ..options()
    };
    let deaf = Endpoint::connect(session, &options)?;
    let group = Group::join(session)?;
    let sources = [end.memory(LENGTH)?, deaf.memory(LENGTH)?];
    let memory = [end.memory(GRH + LENGTH)?, deaf.memory(GRH + LENGTH)?];
    if session.active() {
        for (end, mr) in [&end, &deaf].into_iter().zip(&memory) {
            end.qp.attach(&group.gid)?;
            end.qp.recv(1, &[mr.sge(0, GRH + LENGTH)])?;
        }
        group.send(&deaf, &sources[1], 1)?;
        receive_from(&end, deaf.qp.qpn(), &memory[0], 1, LENGTH, None)?;
        end.qp.recv(2, &[memory[0].sge(0, GRH + LENGTH)])?;
        group.send(&end, &sources[0], 2)?;
        receive_from(&deaf, end.qp.qpn(), &memory[1], 2, LENGTH, None)?;
        receive_from(&end, end.qp.qpn(), &memory[0], 2, LENGTH, None)?;
        for end in [&end, &deaf] {
            end.qp.detach(&group.gid)?;
        }
    }
    session.peer.meet()
}

/// Unicast addresses and connected QPs are refused, by the kernel or by the device. A device
/// without multicast groups refuses all attachments.
// abi
pub fn refusals(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let connected = Endpoint::connect(session, &Default::default())?;
    let group = GROUP.to_ipv6_mapped().octets();
    if session.context.limits()?.max_mcast_grp == 0 {
        let error = refused("a group", end.qp.attach(&group))?;
        ensure!(errno(&error) == Some(EOPNOTSUPP), "{error:#}");
        return session.peer.meet();
    }
    let host = Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets();
    for (what, result) in [
        ("a host", end.qp.attach(&host)),
        ("an RC QP", connected.qp.attach(&group)),
    ] {
        let error = refused(what, result)?;
        ensure!(errno(&error) == Some(EINVAL), "{what}: {error:#}");
    }
    // For a process, attaching a QP twice has the same effect as attaching it once.
    end.qp.attach(&group)?;
    end.qp.attach(&group)?;
    end.qp.detach(&group)?;
    let error = refused("no member", end.qp.detach(&group))?;
    ensure!(errno(&error) == Some(EINVAL), "{error:#}");
    session.peer.meet()
}
