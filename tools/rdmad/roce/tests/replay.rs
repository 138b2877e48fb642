// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Replay of captured rxe packets: the responder accepts the requests of a Linux rxe requester, and
//! its responses equal those of the rxe responder.

mod common;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::discriminant;
use std::net::IpAddr;
use std::time::Instant;

use common::capture;
use common::setup::apply;
use roce::env::{BadReceive, Output, RemoteFault, ResponderEnv};
use roce::headers::{Body, RcRequest, RcResponse};
use roce::net::{Addresses, Mac};
use roce::rc::{Responder, ResponderAttr};
use roce::work::{
    AccessFlags, AtomicOp, FlushOp, Mtu, RecvCompletion, RecvWr, Remote, WcReason, WcResult,
    WcStatus,
};
use roce::{Connection, Frame, FramePool, Packet, Path, Pause};
use virtio_rdma_abi::number::Qpn;

/// Memory with any address. It allows every access and records the written bytes.
struct Sparse {
    pool: FramePool,
    out: VecDeque<Frame>,
    bytes: HashMap<u64, u8>,
    written: usize,
    received: Vec<(Vec<u8>, RecvCompletion)>,
    arriving: Vec<u8>,
}

impl Output for Sparse {
    fn frame(&mut self, _: &Mac, len: usize) -> Option<Frame> {
        self.pool.take(len)
    }
    fn send(&mut self, frame: Frame) {
        self.out.push_back(frame);
    }
}

impl ResponderEnv for Sparse {
    type Recv = ();
    fn take_receive(&mut self) -> Result<Option<RecvWr<()>>, BadReceive> {
        Ok(Some(RecvWr {
            id: 0,
            length: 1 << 20,
            local: (),
        }))
    }
    fn scatter_recv(&mut self, _: &(), offset: u32, from: &[u8], _: bool) -> WcResult {
        assert_eq!(offset as usize, self.arriving.len());
        self.arriving.extend_from_slice(from);
        Ok(())
    }
    fn complete_recv(&mut self, _: RecvWr<()>, how: RecvCompletion) {
        self.received
            .push((std::mem::take(&mut self.arriving), how));
    }
    fn check(&mut self, _: Remote, _: u32, _: AccessFlags) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn write(&mut self, at: Remote, from: &[u8], _: bool) -> Result<(), RemoteFault> {
        self.written += from.len();
        self.bytes.extend((at.va..).zip(from.iter().copied()));
        Ok(())
    }
    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault> {
        into.iter_mut()
            .zip(at.va..)
            .for_each(|(byte, va)| *byte = self.bytes[&va]);
        Ok(())
    }
    fn atomic(&mut self, at: Remote, op: AtomicOp) -> Result<u64, RemoteFault> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        let original = u64::from_le_bytes(word);
        self.write(at, &apply(op, original).to_le_bytes(), true)?;
        Ok(original)
    }
    fn write_word(&mut self, at: Remote, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.write(at, &data, true)
    }
    fn flush(&mut self, _: &FlushOp) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn invalidate(&mut self, _: u32) -> Result<(), WcReason> {
        Ok(())
    }
}

/// One direction of a connection: the requests and the responses of rxe, in the order of capture.
#[derive(Default)]
struct Flow<'a> {
    requests: Vec<Packet<'a>>,
    answers: Vec<Packet<'a>>,
}

/// The flows of RC requests. Each response is assigned to the flow of the opposite direction whose
/// requests have its PSN.
fn flows(frames: &[Vec<u8>]) -> Vec<Flow<'_>> {
    let mut flows: BTreeMap<(IpAddr, Qpn), Flow> = BTreeMap::new();
    let packets: Vec<_> = frames
        .iter()
        .map(|frame| Packet::parse(frame).unwrap())
        .collect();
    let is_request = |packet: &&Packet<'_>| matches!(packet.headers.body, Body::Request(_));
    for packet in packets.iter().filter(is_request) {
        let key = (packet.path.addresses.dst(), packet.headers.bth.dest_qpn);
        flows.entry(key).or_default().requests.push(*packet);
    }
    let is_response = |packet: &&Packet<'_>| matches!(packet.headers.body, Body::Response(_));
    for packet in packets.iter().filter(is_response) {
        let from = packet.path.addresses.src();
        let flow = flows.iter_mut().find(|((to, _), flow)| {
            let first = flow.requests[0].headers.bth.psn;
            *to == from && (0..1000).contains(&packet.headers.bth.psn.since(first))
        });
        flow.expect("a flow").1.answers.push(*packet);
    }
    flows.into_values().collect()
}

/// The response in a packet.
fn response(packet: &Packet<'_>) -> RcResponse {
    match packet.headers.body {
        Body::Response(response) => response,
        body => panic!("no response: {body:?}"),
    }
}

/// The path from the receiver of a packet to its sender.
fn reply_path(path: &Path) -> Path {
    let addresses = Addresses::new(path.addresses.dst(), path.addresses.src()).unwrap();
    Path {
        src_mac: path.dst_mac,
        dst_mac: path.src_mac,
        addresses,
        ..*path
    }
}

#[test]
fn rxe_requesters_get_the_answers_that_rxe_gives() {
    let frames = capture::frames();
    let flows = flows(&frames);
    assert_eq!(flows.len(), 13);
    let (mut acks, mut responses, mut originals, mut received, mut written) = (0, 0, 0, 0, 0);
    for flow in &flows {
        let first = &flow.requests[0];
        let peer = flow.answers[0].headers.bth.dest_qpn;
        let connection = Connection::new(reply_path(&first.path), peer, Mtu::Mtu1024);
        let attr = ResponderAttr {
            rq_psn: first.headers.bth.psn.value(),
            min_rnr_timer: 12,
            max_dest_rd_atomic: 16,
            access: AccessFlags::ALL,
        };
        let mut responder: Responder<()> = Responder::new(connection, attr);
        let mut env = Sparse {
            pool: FramePool::new(64),
            out: VecDeque::new(),
            bytes: HashMap::new(),
            written: 0,
            received: Vec::new(),
            arriving: Vec::new(),
        };
        let mut sent: Vec<Frame> = Vec::new();
        for request in &flow.requests {
            let psn = request.headers.bth.psn;
            if let Body::Request(RcRequest::Read(reth)) = request.headers.body {
                // The content of the responder's memory is known only from rxe's READ responses.
                for answer in &flow.answers {
                    let index = answer.headers.bth.psn.since(psn);
                    if (0..reth.length.div_ceil(1024) as i32).contains(&index) {
                        let va = reth.va + 1024 * index as u64;
                        env.bytes.extend((va..).zip(answer.payload.iter().copied()));
                    }
                }
            }
            if let Body::Request(RcRequest::Atomic(remote, _)) = request.headers.body {
                let answer = flow
                    .answers
                    .iter()
                    .find(|answer| answer.headers.bth.psn == psn);
                let body = answer.expect("an answer").headers.body;
                let Body::Response(RcResponse::Atomic(_, original)) = body else {
                    panic!("{body:?}");
                };
                let bytes = original.to_le_bytes();
                for (va, byte) in (remote.va..).zip(bytes) {
                    env.bytes.entry(va).or_insert(byte);
                }
            }
            assert_eq!(
                responder.on_packet(request, Instant::now(), &mut env),
                Ok(())
            );
            assert_eq!(
                responder.transmit(usize::MAX, &mut env).unwrap().pause,
                Pause::Idle
            );
            sent.extend(env.out.drain(..));
        }
        let ours: Vec<_> = sent
            .iter()
            .map(|frame| Packet::parse(frame).unwrap())
            .collect();
        for theirs in &flow.answers {
            let same: Vec<_> = ours
                .iter()
                .filter(|ours| ours.headers.bth.psn == theirs.headers.bth.psn)
                .filter(|ours| discriminant(&response(ours)) == discriminant(&response(theirs)))
                .collect();
            assert!(!same.is_empty(), "no answer like {theirs:?}");
            for ours in same {
                // rxe does not set the path migration bit.
                let mut headers = ours.headers;
                headers.bth.migrate = theirs.headers.bth.migrate;
                assert_eq!(headers, theirs.headers);
                assert_eq!(ours.payload, theirs.payload);
                assert_eq!(ours.path.addresses, theirs.path.addresses);
                match theirs.headers.body {
                    Body::Response(RcResponse::Ack(_)) => acks += 1,
                    Body::Response(RcResponse::Atomic(..)) => originals += 1,
                    _ => responses += 1,
                }
            }
        }
        assert!(env
            .received
            .iter()
            .all(|(_, how)| how.status() == WcStatus::Success));
        received += env.received.len();
        written += env.written;
    }
    assert_eq!(
        (acks, responses, originals, received, written),
        (46, 29, 10, 32, 33_045),
        "nothing was left out"
    );
}
