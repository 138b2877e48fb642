// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A UDP socket that has one peer. A datagram is a frame, but many of them pass through the kernel
//! as one.
//!
//! Frames of one length that follow each other leave with one call, and the kernel makes datagrams
//! of them at the end of its way (`UDP_SEGMENT`); what comes may come so as well (`UDP_GRO`). Each
//! datagram is still one of its own on the wire. Where the kernel or the interface can't do that,
//! frames leave one by one.
//!
//! C header: `include/uapi/linux/udp.h`

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    recvmsg, sendmsg, setsockopt, sockopt, ControlMessage, ControlMessageOwned, MsgFlags,
};
use roce::Frame;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ip_mtu_discover, set_ipv6_mtu_discover, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery,
};

use crate::link::errno;

/// Datagrams that a kernel makes of one call at most: `UDP_MAX_SEGMENTS` of those that allow the
/// fewest.
pub(crate) const RUN: usize = 64;
/// Bytes that they have at most: what an IPv4 packet holds beside the headers of IP and UDP.
const RUN_BYTES: usize = 65_535 - 20 - 8;
/// Bytes that come with one call at most.
const ARRIVAL: usize = 1 << 16;
/// Frames that leave one by one before it is tried again to send them together: the route may be
/// another by then.
const TRIAL: u32 = 1 << 14;

/// The socket.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: UdpSocket,
    /// Frames up to this length leave together: the kernel refused it for longer ones.
    together: usize,
    /// Longer frames that leave one by one until that is forgotten.
    trial: u32,
    arrival: Arrival,
}

/// Datagrams that came with one call and were not taken yet.
#[derive(Debug)]
struct Arrival {
    bytes: Box<[u8]>,
    /// Room for the control message that tells the length of a datagram.
    control: Vec<u8>,
    /// The datagrams that are left.
    start: usize,
    end: usize,
    /// Length of each but the last, which may be shorter.
    len: usize,
}

impl Udp {
    /// Binds a socket and connects it to its peer.
    pub(crate) fn open(bind: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(bind)?;
        socket.connect(peer)?;
        socket.set_nonblocking(true)?;
        // Frames that are longer than the path's MTU are fragmented. With IPv4 routers do that, so
        // an ICMP message, which anybody may forge, need not be believed. With IPv6 the sender
        // alone does.
        match peer {
            SocketAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::OMIT)?,
            SocketAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?,
        }
        // Without it each datagram comes by itself.
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        Ok(Self {
            socket,
            together: usize::MAX,
            trial: 0,
            arrival: Arrival {
                bytes: vec![0; ARRIVAL].into(),
                control: nix::cmsg_space!(i32),
                start: 0,
                end: 0,
                len: 0,
            },
        })
    }

    /// Sends as many of `frames`, which are not none, as leave with the first of them. Returns how
    /// many those were.
    pub(crate) fn send(&mut self, frames: &VecDeque<Frame>) -> Result<usize, Errno> {
        let run = self.run(frames);
        if run > 1 {
            match twice(|| self.send_together(frames, run)) {
                // Longer than the MTU, or the interface sums no checksums.
                Err(Errno::INVAL | Errno::MSGSIZE) => self.apart(frames[0].len() - 1),
                Err(Errno::IO | Errno::OPNOTSUPP | Errno::NOPROTOOPT) => self.apart(0),
                sent => return sent.map(|()| run),
            }
        } else if frames[0].len() > self.together {
            self.trial = self.trial.saturating_sub(1);
            if self.trial == 0 {
                self.together = usize::MAX;
            }
        }
        self.send_one(&frames[0]).map(|()| 1)
    }

    /// Frames that are longer leave one by one for a while.
    fn apart(&mut self, longest: usize) {
        self.together = longest;
        self.trial = TRIAL;
    }

    /// Sends a frame by itself.
    pub(crate) fn send_one(&self, frame: &[u8]) -> Result<(), Errno> {
        twice(|| self.socket.send(frame).map(drop).map_err(errno))
    }

    /// How many frames one system call sends: the first, those of the same length behind it, and
    /// then one that is shorter.
    fn run(&self, frames: &VecDeque<Frame>) -> usize {
        let len = frames[0].len();
        if len > self.together {
            return 1;
        }
        let most = RUN.min(RUN_BYTES / len.max(1));
        let same = frames.iter().take(most);
        let same = same.take_while(|frame| frame.len() == len).count();
        let shorter = |frame: &Frame| same < most && frame.len() < len;
        same + usize::from(frames.get(same).is_some_and(shorter))
    }

    fn send_together(&self, frames: &VecDeque<Frame>, run: usize) -> Result<(), Errno> {
        let mut parts = [IoSlice::new(&[]); RUN];
        for (part, frame) in parts.iter_mut().zip(frames.iter().take(run)) {
            *part = IoSlice::new(frame);
        }
        // No frame is that long.
        let len = u16::try_from(frames[0].len()).map_err(|_| Errno::INVAL)?;
        let control = [ControlMessage::UdpGsoSegments(&len)];
        let fd = self.socket.as_raw_fd();
        sendmsg::<()>(fd, &parts[..run], &control, MsgFlags::empty(), None)
            .map(drop)
            .map_err(errno)
    }

    /// Reads the next frame. Returns its length, which exceeds that of `into` if it did not fit.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        if self.arrival.is_empty() {
            self.arrival.fill(&self.socket)?;
        }
        Ok(self.arrival.take(into))
    }

    /// Whether there are frames of which the kernel does not tell any more.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrival.is_empty()
    }
}

impl Arrival {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn fill(&mut self, socket: &UdpSocket) -> Result<(), Errno> {
        let mut parts = [IoSliceMut::new(&mut self.bytes)];
        let control = Some(&mut self.control[..]);
        let fd = socket.as_raw_fd();
        let came = recvmsg::<()>(fd, &mut parts, control, MsgFlags::empty()).map_err(errno)?;
        let told = came
            .cmsgs()
            .map_err(errno)?
            .find_map(|message| match message {
                ControlMessageOwned::UdpGroSegments(len) => usize::try_from(len).ok(),
                _ => None,
            });
        self.end = came.bytes;
        self.start = 0;
        self.len = told.filter(|len| *len > 0).unwrap_or(came.bytes);
        Ok(())
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = self.len.min(self.end - self.start);
        let fits = len.min(into.len());
        into[..fits].copy_from_slice(&self.bytes[self.start..][..fits]);
        self.start += len;
        len
    }
}

/// Tries again what failed: the error may be that of an earlier datagram, of which an ICMP message
/// told.
fn twice(mut send: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    match send() {
        Ok(()) => Ok(()),
        Err(error @ (Errno::AGAIN | Errno::NOBUFS)) => Err(error),
        Err(_) => send(),
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use roce::FramePool;

    use super::*;

    fn udp() -> Udp {
        let any = "127.0.0.1:0".parse().unwrap();
        let peer = UdpSocket::bind(any).unwrap();
        Udp::open(any, peer.local_addr().unwrap()).unwrap()
    }

    fn frames(lengths: &[usize]) -> VecDeque<Frame> {
        let pool = FramePool::new(lengths.len());
        let frame = |len: &usize| pool.take(*len).unwrap();
        lengths.iter().map(frame).collect()
    }

    #[test]
    fn frames_of_one_length_and_a_shorter_one_leave_together() {
        let udp = udp();
        let run = |lengths: &[usize]| udp.run(&frames(lengths));
        assert_eq!(run(&[100]), 1);
        assert_eq!(run(&[100, 100, 100]), 3);
        assert_eq!(run(&[100, 100, 60, 60]), 3);
        assert_eq!(run(&[100, 101, 100]), 1);
        assert_eq!(run(&[60; 100]), RUN);
        assert_eq!(run(&[9000; 10]), RUN_BYTES / 9000);
        assert_eq!(
            run(&[9000, 9000, 9000, 9000, 9000, 9000, 9000, 60]),
            7,
            "no room"
        );
    }

    #[test]
    fn what_the_kernel_refused_leaves_one_by_one() {
        let mut udp = udp();
        udp.apart(1000);
        assert_eq!(udp.run(&frames(&[1001, 1001])), 1);
        assert_eq!(udp.run(&frames(&[1000, 1000])), 2);
    }

    #[test]
    fn what_the_kernel_refused_is_tried_again_after_a_while() {
        let mut udp = udp();
        udp.apart(0);
        for _ in 0..TRIAL {
            assert_eq!(udp.run(&frames(&[60, 60])), 1);
            // The peer has gone, which is not what is looked at here.
            let _ = udp.send(&frames(&[60, 60]));
        }
        assert_eq!(udp.run(&frames(&[60, 60])), 2);
    }
}
