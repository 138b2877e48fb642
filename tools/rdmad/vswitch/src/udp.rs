// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A UDP socket with one remote end. Each datagram is a frame, but the kernel handles runs of
//! datagrams as one packet.
//!
//! Consecutive frames of one length are sent by one call, and the kernel splits them into datagrams
//! late (`UDP_SEGMENT`). It may also join received datagrams (`UDP_GRO`). On the wire each frame is
//! a separate datagram. If the kernel or the interface does not support this, each frame is sent by
//! its own call.
//!
//! The packets of a RoCE message differ in length by a few header bytes. So that they leave
//! together, shorter ones are padded with zeros after the IP packet, where Ethernet has its
//! padding: receivers take the length of the packet from its IP header.
//!
//! C header: `include/uapi/linux/udp.h`

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    recvmsg, sendmsg, setsockopt, sockopt, ControlMessage, ControlMessageOwned, MsgFlags,
};
use roce::net::is_roce;
use roce::Frame;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ip_mtu_discover, set_ipv6_mtu_discover, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery,
};

use crate::link::errno;

/// Maximum number of frames in one call: the lowest `UDP_MAX_SEGMENTS` of any kernel version.
pub(crate) const RUN: usize = 64;
/// Maximum number of bytes in one call: the payload of an IPv4 packet without IP and UDP headers.
const RUN_BYTES: usize = 65_535 - 20 - 8;
/// Maximum number of bytes by which a frame is padded. The headers of the packets of one RoCE
/// message differ by at most RETH and immediate data (IBTA 9.3), 20 bytes.
const PADDING: usize = 20;
/// Maximum number of bytes that one call receives.
const ARRIVAL: usize = 1 << 16;
/// Number of frames that are sent one by one, after the kernel has refused a run, before the next
/// run is tried: the route may have changed by then.
const TRIAL: u32 = 1 << 14;

/// A UDP socket connected to one remote end.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: UdpSocket,
    /// Maximum frame length in bytes for runs: the kernel refused a run of longer frames.
    together: usize,
    /// Number of longer frames to send one by one before a run of them is tried again.
    trial: u32,
    arrival: Arrival,
}

/// Datagrams that one call received.
#[derive(Debug)]
struct Arrival {
    bytes: Box<[u8]>,
    /// Buffer for the control message with the length of the datagrams.
    control: Vec<u8>,
    /// Range in `bytes` of the datagrams that were not returned yet.
    start: usize,
    end: usize,
    /// Length of each datagram except the last, which may be shorter.
    len: usize,
}

impl Udp {
    /// Binds a socket and connects it to the remote end.
    pub(crate) fn open(bind: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let socket = sockets::while_busy(Errno::ADDRINUSE, || UdpSocket::bind(bind))?;
        socket.connect(remote)?;
        socket.set_nonblocking(true)?;
        // Datagrams that exceed the path's MTU are fragmented. With IPv4, routers can fragment
        // them, so ICMP messages about the MTU are ignored: anybody may forge such messages. With
        // IPv6, only the sender fragments.
        match remote {
            SocketAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::OMIT)?,
            SocketAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?,
        }
        // An error is ignored: each call then receives one datagram.
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

    /// Sends the first of `frames`, and the following frames that the same system call can send.
    /// `frames` must not be empty. Returns the number of frames sent.
    pub(crate) fn send(&mut self, frames: &VecDeque<Frame>) -> Result<usize, Errno> {
        let run = self.run(frames);
        if run > 1 {
            match twice(|| self.send_together(frames, run)) {
                // EINVAL and EMSGSIZE mean that the frames exceed the MTU. The other errors mean
                // that the interface or the kernel does not support runs.
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

    /// Makes [`send`](Self::send) send frames longer than `longest` bytes one by one for a while.
    fn apart(&mut self, longest: usize) {
        self.together = longest;
        self.trial = TRIAL;
    }

    pub(crate) fn send_one(&self, frame: &[u8]) -> Result<(), Errno> {
        twice(|| self.socket.send(frame).map(drop).map_err(errno))
    }

    /// Number of frames that one system call sends: the first frame, the following frames of the
    /// same length or padded to this length, and then one shorter frame.
    fn run(&self, frames: &VecDeque<Frame>) -> usize {
        let len = frames[0].len();
        if len > self.together {
            return 1;
        }
        let most = RUN.min(RUN_BYTES / len.max(1));
        let same = frames.iter().take(most);
        let same = same.take_while(|frame| fills(frame, len)).count();
        let shorter = |frame: &Frame| same < most && frame.len() < len;
        same + usize::from(frames.get(same).is_some_and(shorter))
    }

    fn send_together(&self, frames: &VecDeque<Frame>, run: usize) -> Result<(), Errno> {
        let len = frames[0].len();
        let mut parts = [IoSlice::new(&[]); 2 * RUN];
        let pairs = parts.chunks_exact_mut(2).take(run);
        for (n, (parts, frame)) in pairs.zip(frames).enumerate() {
            parts[0] = IoSlice::new(frame);
            // The last frame may be shorter.
            if frame.len() < len && n + 1 < run {
                parts[1] = IoSlice::new(&[0; PADDING][..len - frame.len()]);
            }
        }
        // The length of a frame is at most `MAX_FRAME`, which fits u16.
        let len = u16::try_from(len).map_err(|_| Errno::INVAL)?;
        let control = [ControlMessage::UdpGsoSegments(&len)];
        let fd = self.socket.as_raw_fd();
        sendmsg::<()>(fd, &parts[..2 * run], &control, MsgFlags::empty(), None)
            .map(drop)
            .map_err(errno)
    }

    /// Reads the next frame. Returns its length, which exceeds that of `into` if the frame did not
    /// fit.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        if self.arrival.is_empty() {
            self.arrival.fill(&self.socket)?;
        }
        Ok(self.arrival.take(into))
    }

    /// Whether received frames are left, for which epoll reports no event any more.
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

/// Whether a frame has `len` bytes, or may be padded to this length.
fn fills(frame: &Frame, len: usize) -> bool {
    match len.checked_sub(frame.len()) {
        Some(0) => true,
        Some(1..=PADDING) => is_roce(frame),
        _ => false,
    }
}

/// Retries a failed send once: the error may be a pending ICMP error of an earlier datagram.
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
    use roce::headers::{Bth, Headers, RcRequest, SendPart};
    use roce::net::Addresses;
    use roce::packet::{build, frame_size};
    use roce::work::With;
    use roce::{FramePool, Path, Psn, Qpn};

    use super::*;

    fn udp() -> Udp {
        let any = "127.0.0.1:0".parse().unwrap();
        let remote = UdpSocket::bind(any).unwrap();
        Udp::open(any, remote.local_addr().unwrap()).unwrap()
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

    /// RoCE packets of these lengths, each of which has a payload of a multiple of 4 bytes.
    fn packets(lengths: &[usize]) -> VecDeque<Frame> {
        let send = RcRequest::from(SendPart::Only(With::Nothing));
        let headers = Headers::new(Bth::new(0xffff, Qpn::new(17), Psn::new(0)), send);
        let addresses = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let path = Path::new([2; 6], [6; 6], addresses);
        let mut frames = frames(lengths);
        for frame in &mut frames {
            let payload = frame.len() - frame_size(&path, &headers.body, 0);
            build(frame, &path, 0, &headers, payload, |_| Ok::<_, ()>(())).unwrap();
        }
        frames
    }

    #[test]
    fn packets_that_are_a_little_shorter_leave_together() {
        let udp = udp();
        let run = |lengths: &[usize]| udp.run(&packets(lengths));
        assert_eq!(run(&[1098, 1082, 1082, 1082, 1098, 1082]), 6);
        assert_eq!(run(&[1082, 1082, 1098]), 2);
        assert_eq!(run(&[1098, 1078, 1098]), 3);
        assert_eq!(run(&[1098, 1074, 1098]), 2, "more than the headers differ");
        assert_eq!(udp.run(&frames(&[1098, 1082, 1098])), 2, "no RoCE");
    }

    #[test]
    fn padding_comes_after_each_shorter_frame_but_the_last() {
        let any = "127.0.0.1:0".parse().unwrap();
        let remote = UdpSocket::bind(any).unwrap();
        let mut udp = Udp::open(any, remote.local_addr().unwrap()).unwrap();
        let frames = packets(&[1098, 1082, 1098, 1082]);
        assert_eq!(udp.send(&frames), Ok(4));
        let mut bytes = [1; 2000];
        for (frame, padding) in frames.iter().zip([0, 16, 0, 0]) {
            let len = remote.recv(&mut bytes).unwrap();
            let (start, rest) = bytes[..len].split_at(frame.len());
            assert_eq!(start, &frame[..]);
            assert_eq!(rest, vec![0; padding]);
        }
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
            // The remote end is closed. The test does not check the result of the send.
            let _ = udp.send(&frames(&[60, 60]));
        }
        assert_eq!(udp.run(&frames(&[60, 60])), 2);
    }
}
