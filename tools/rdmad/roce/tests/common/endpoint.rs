// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One end of a connection, with a vector in place of guest memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use budget::MemoryBudget;
use roce::env::{BadReceive, Incident, Output, RemoteFault, RequesterEnv, ResponderEnv};
use roce::headers::Body;
use roce::net::{flow_label, udp_source_port, Addresses, Mac};
use roce::psn::Psn;
use roce::rc::{Requester, RequesterAttr, Responder, ResponderAttr};
use roce::work::{
    status, AccessFlags, AtomicOp, FlushOp, Mtu, RecvCompletion, RecvWr, Remote, SendFlags, SendOp,
    SendWr, WcFault, WcReason, WcResult, WcStatus,
};
use roce::{Connection, Frame, FramePool, Packet, Path, QpError};
use virtio_rdma_abi::number::Qpn;

use super::setup::apply;

/// The fault of an access to local memory that fails.
pub const LOCAL_FAULT: WcFault = WcFault::new(WcStatus::LocProtErr, WcReason::NoSuchKey);
/// R_Key of all memory of an endpoint.
pub const RKEY: u32 = 0x1234;
/// Address at which the peer accesses the first byte of an endpoint's memory.
pub const BASE: u64 = 0x7f00_0000_1000;

/// Local memory of a work request: ranges of the endpoint's memory, in order.
pub type Pieces = Vec<Range<usize>>;

/// Total length of the pieces in bytes.
pub fn length(pieces: &Pieces) -> u32 {
    pieces.iter().map(|piece| piece.len() as u32).sum()
}

/// The environment of the state machines of one QP.
pub struct World {
    pub pool: FramePool,
    pub out: VecDeque<Frame>,
    pub memory: Vec<u8>,
    /// Access flags of the peer to the memory.
    pub access: AccessFlags,
    pub receives: VecDeque<RecvWr<Pieces>>,
    pub sent: Vec<(u64, WcStatus)>,
    pub received: Vec<(u64, RecvCompletion)>,
    /// Whether every access to local memory fails.
    pub local_fault: bool,
    /// Whether every access of the peer to the memory fails, although `check` succeeds.
    pub remote_fault: bool,
    /// Whether `take_receive` returns `BadReceive`.
    pub bad_receive: bool,
    /// Number of frame buffers that `frame` still returns; `None` if only the pool limits them.
    pub frames: Option<usize>,
    /// For each executed operation on local keys, the number of work requests that had ended
    /// before.
    pub local_operations: Vec<usize>,
    /// Number of executed atomic operations and atomic WRITEs.
    pub atomics: usize,
    /// Executed FLUSHes.
    pub flushes: Vec<FlushOp>,
    /// R_Keys that a SEND may invalidate.
    pub keys: Vec<u32>,
    /// Counted incidents, in order.
    pub incidents: Vec<Incident>,
    /// The same, with their PSNs and numbers.
    pub notes: Vec<(Incident, Psn, u32)>,
    /// Whether `check` accepts every range.
    pub endless: bool,
    /// Whether packets of other QPs of the peer's port arrive all the time.
    pub peer_active: bool,
    /// Number of response packets for which the port has room.
    pub responses: u32,
    /// Number of packets that may be sent after a pause.
    pub share: u64,
    /// Number of frames taken.
    pub taken: u64,
    /// Number of frames that have left the host.
    pub left: u64,
    /// Whether the turn has no time left for further frames.
    pub spent: bool,
}

impl World {
    /// An environment without faults, with `memory` bytes of memory.
    pub fn new(memory: usize) -> Self {
        Self {
            pool: FramePool::new(4096),
            out: VecDeque::new(),
            memory: vec![0; memory],
            access: AccessFlags::ALL,
            receives: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            local_fault: false,
            remote_fault: false,
            bad_receive: false,
            frames: None,
            local_operations: Vec::new(),
            atomics: 0,
            flushes: Vec::new(),
            keys: Vec::new(),
            incidents: Vec::new(),
            notes: Vec::new(),
            endless: false,
            peer_active: false,
            responses: u32::MAX,
            share: u64::MAX,
            taken: 0,
            left: u64::MAX,
            spent: false,
        }
    }

    fn copy(
        pieces: &Pieces,
        offset: u32,
        len: usize,
        mut each: impl FnMut(Range<usize>, Range<usize>),
    ) {
        let (mut skip, mut done) = (offset as usize, 0);
        for piece in pieces {
            let start = skip.min(piece.len());
            let take = (piece.len() - start).min(len - done);
            skip -= start;
            if take > 0 {
                each(
                    piece.start + start..piece.start + start + take,
                    done..done + take,
                );
                done += take;
            }
        }
        assert_eq!(done, len, "within the work request");
    }

    fn range(
        &self,
        at: Remote,
        len: usize,
        access: AccessFlags,
    ) -> Result<Range<usize>, RemoteFault> {
        let start = at
            .va
            .checked_sub(BASE)
            .filter(|_| at.rkey == RKEY)
            .ok_or(RemoteFault::Access)? as usize;
        let end = start
            .checked_add(len)
            .filter(|&end| end <= self.memory.len())
            .ok_or(RemoteFault::Access)?;
        self.access
            .contains(access)
            .then_some(start..end)
            .ok_or(RemoteFault::Access)
    }
}

impl Output for World {
    fn frame(&mut self, _: &Mac, len: usize) -> Option<Frame> {
        if let Some(left) = &mut self.frames {
            *left = left.checked_sub(1)?;
        }
        self.taken += 1;
        self.pool.take(len)
    }

    fn send(&mut self, frame: Frame) {
        self.out.push_back(frame);
    }

    fn ticket(&self, _: &Mac) -> u64 {
        self.taken
    }

    fn is_waiting(&self, _: &Mac, ticket: u64) -> bool {
        ticket > self.left
    }

    fn is_spent(&self) -> bool {
        self.spent
    }

    fn note(&mut self, what: Incident, psn: Psn, number: u32) {
        self.incidents.push(what);
        self.notes.push((what, psn, number));
    }
}

impl RequesterEnv for World {
    type Send = Pieces;

    fn gather(&mut self, local: &Pieces, offset: u32, into: &mut [u8]) -> WcResult {
        if self.local_fault {
            return Err(LOCAL_FAULT);
        }
        Self::copy(local, offset, into.len(), |memory, frame| {
            into[frame].copy_from_slice(&self.memory[memory])
        });
        Ok(())
    }

    fn scatter_read(&mut self, local: &Pieces, offset: u32, from: &[u8], last: bool) -> WcResult {
        assert_eq!(last, offset + from.len() as u32 == length(local));
        if self.local_fault {
            return Err(LOCAL_FAULT);
        }
        Self::copy(local, offset, from.len(), |memory, frame| {
            self.memory[memory].copy_from_slice(&from[frame])
        });
        Ok(())
    }

    fn execute_local(&mut self, _: &Pieces) -> WcResult {
        if self.local_fault {
            return Err(LOCAL_FAULT);
        }
        self.local_operations.push(self.sent.len());
        Ok(())
    }

    fn may_request(&mut self, packets: u32) -> bool {
        packets <= self.responses
    }

    fn share(&self) -> u64 {
        self.share
    }

    fn is_active(&self, _: &Mac, _: Instant) -> bool {
        self.peer_active
    }

    fn complete_send(&mut self, wr: SendWr<Pieces>, result: WcResult) {
        self.sent.push((wr.id, status(result)));
    }
}

impl ResponderEnv for World {
    type Recv = Pieces;

    fn take_receive(&mut self) -> Result<Option<RecvWr<Pieces>>, BadReceive> {
        if self.bad_receive {
            Err(BadReceive)
        } else {
            Ok(self.receives.pop_front())
        }
    }

    fn scatter_recv(&mut self, local: &Pieces, offset: u32, from: &[u8], _: bool) -> WcResult {
        if self.local_fault {
            return Err(LOCAL_FAULT);
        }
        Self::copy(local, offset, from.len(), |memory, frame| {
            self.memory[memory].copy_from_slice(&from[frame])
        });
        Ok(())
    }

    fn complete_recv(&mut self, wr: RecvWr<Pieces>, how: RecvCompletion) {
        self.received.push((wr.id, how));
    }

    fn check(&mut self, at: Remote, len: u32, access: AccessFlags) -> Result<(), RemoteFault> {
        if self.endless {
            return Ok(());
        }
        self.range(at, len as usize, access).map(drop)
    }

    fn write(&mut self, at: Remote, from: &[u8], _: bool) -> Result<(), RemoteFault> {
        let range = self.range(at, from.len(), AccessFlags::REMOTE_WRITE)?;
        if self.remote_fault {
            return Err(RemoteFault::Operational);
        }
        self.memory[range].copy_from_slice(from);
        Ok(())
    }

    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault> {
        let range = self.range(at, into.len(), AccessFlags::REMOTE_READ)?;
        if self.remote_fault {
            return Err(RemoteFault::Operational);
        }
        into.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn atomic(&mut self, at: Remote, op: AtomicOp) -> Result<u64, RemoteFault> {
        let range = self.range(at, 8, AccessFlags::REMOTE_ATOMIC)?;
        if self.remote_fault {
            return Err(RemoteFault::Operational);
        }
        self.atomics += 1;
        let word: &mut [u8; 8] = self.memory[range].first_chunk_mut().expect("8 bytes");
        let original = u64::from_le_bytes(*word);
        *word = apply(op, original).to_le_bytes();
        Ok(original)
    }

    fn write_word(&mut self, at: Remote, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.atomics += 1;
        self.write(at, &data, true)
    }

    fn flush(&mut self, flush: &FlushOp) -> Result<(), RemoteFault> {
        // A FLUSH of the whole MR has no range to check.
        let at = Remote {
            va: flush.length.map_or(BASE, |_| flush.remote.va),
            ..flush.remote
        };
        self.check(at, flush.length.unwrap_or(0), flush.access())?;
        self.flushes.push(*flush);
        Ok(())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), WcReason> {
        let at = self.keys.iter().position(|key| *key == rkey);
        self.keys.swap_remove(at.ok_or(WcReason::NoSuchKey)?);
        Ok(())
    }
}

/// A QP: both state machines and their environment.
pub struct Endpoint {
    pub qpn: Qpn,
    pub requester: Requester<Pieces>,
    pub responder: Responder<Pieces>,
    pub world: World,
    /// Errors that ended the connection, in order.
    pub errors: Vec<QpError>,
}

/// Attributes of both directions of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub mtu: Mtu,
    pub psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
    pub access: AccessFlags,
    pub depth: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mtu: Mtu::Mtu1024,
            psn: 0xff_fff0,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 16,
            access: AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            depth: 64,
        }
    }
}

impl Endpoint {
    /// An endpoint with the QPN `qpn`, whose peer has the QPN `peer`.
    pub fn new(qpn: u32, peer: u32, memory: usize, settings: Settings) -> Self {
        let mac = |qpn: u32| [2, 0, 0, 0, 0, qpn as u8];
        let ip = |qpn: u32| std::net::Ipv4Addr::new(10, 9, 0, qpn as u8);
        let mut path = Path::new(mac(qpn), mac(peer), Addresses::V4(ip(qpn), ip(peer)));
        path.src_port = udp_source_port(flow_label(Qpn::new(qpn), Qpn::new(peer)));
        let connection = Connection::new(path, Qpn::new(peer), settings.mtu);
        let requester_attr = RequesterAttr {
            sq_psn: settings.psn.wrapping_add(qpn),
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
            max_rd_atomic: settings.rd_atomic,
        };
        let responder_attr = ResponderAttr {
            rq_psn: settings.psn.wrapping_add(peer),
            min_rnr_timer: settings.min_rnr_timer,
            max_dest_rd_atomic: settings.rd_atomic,
            access: settings.access,
        };
        let mut requester = Requester::new(connection.clone(), requester_attr);
        requester
            .make_room(&MemoryBudget::new(u64::MAX), settings.depth)
            .unwrap();
        Self {
            qpn: Qpn::new(qpn),
            requester,
            responder: Responder::new(connection, responder_attr),
            world: World::new(memory),
            errors: Vec::new(),
        }
    }

    /// Posts a send work request.
    pub fn post(&mut self, id: u64, op: SendOp, local: Pieces) {
        let wr = SendWr {
            id,
            op,
            length: length(&local),
            flags: SendFlags::SIGNALED,
            local,
        };
        self.requester.post(wr).expect("there is room");
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, id: u64, local: Pieces) {
        self.world.receives.push_back(RecvWr {
            id,
            length: length(&local),
            local,
        });
    }

    /// Delivers a frame to the endpoint, which drops invalid frames.
    pub fn deliver(&mut self, frame: &[u8], now: Instant) {
        let Ok(packet) = Packet::parse(frame) else {
            return;
        };
        if packet.headers.bth.dest_qpn != self.qpn {
            return;
        }
        let result = if let Body::Response(_) = packet.headers.body {
            self.requester.on_packet(&packet, now, &mut self.world)
        } else {
            self.responder.on_packet(&packet, now, &mut self.world)
        };
        self.note(result);
    }

    /// Lets responder and requester send up to `budget` bytes each.
    pub fn transmit(&mut self, budget: usize, now: Instant) {
        let result = self.responder.transmit(budget, &mut self.world).map(drop);
        self.note(result);
        let result = self
            .requester
            .transmit(budget, now, &mut self.world)
            .map(drop);
        self.note(result);
    }

    /// Handles the timers that expired before `now`.
    pub fn tick(&mut self, now: Instant) {
        let result = self.requester.on_timer(now, &mut self.world);
        self.note(result);
    }

    fn note(&mut self, result: Result<(), QpError>) {
        if let Err(error) = result {
            self.errors.push(error);
            // A real engine also moves the QP to ERR and flushes the work requests.
            for wr in self.requester.drain() {
                self.world.sent.push((wr.id, WcStatus::WrFlushErr));
            }
            let _ = self.responder.drain();
        }
    }
}
