// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A QP and its CQs without a kernel, and the device side of their rings: for the provider's tests,
//! its fuzz target and its count of instructions.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::fence;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::cqe::OPCODE_RECV;
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::ring::CQ_SLOTS;
use virtio_rdma_abi::ring::WORK_SLOTS;
use virtio_rdma_abi::uverbs::AllocContextResp;
use virtio_rdma_abi::uverbs::ContextFlags;
use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_abi::wqe::AddressVector;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_abi::wqe::INLINE_OFFSET;
use virtio_rdma_provider::ah::Ah;
use virtio_rdma_provider::arc::Arc;
use virtio_rdma_provider::context::Shared;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::cq::Cq;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::lock::Threads;
use virtio_rdma_provider::memory::DoorbellPage;
use virtio_rdma_provider::memory::RingMap;
use virtio_rdma_provider::qp::Qp;
use virtio_rdma_provider::recv;
use virtio_rdma_provider::send;
use virtio_rdma_provider::srq;
use virtio_rdma_provider::srq::Srq;
use virtio_rdma_provider::work_ring::WorkRing;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingMemory;

/// The QP number that these tests use first.
pub const QPN: Qpn = Qpn::new(0x0012_3456);
/// The number of a second QP.
pub const OTHER_QPN: Qpn = Qpn::new(0x0012_3457);

/// The CQE of a send work request.
pub fn sent(slot: u64) -> Cqe {
    Cqe {
        wr_id: slot,
        qp_num: QPN,
        ..Cqe::default()
    }
}

/// The CQE of a receive work request.
pub fn received(slot: u64) -> Cqe {
    Cqe {
        opcode: OPCODE_RECV,
        ..sent(slot)
    }
}

/// Sizes of the QPs of these tests.
pub const CAP: ffi::ibv_qp_cap = ffi::ibv_qp_cap {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_send_sge: 3,
    max_recv_sge: 2,
    max_inline_data: 60,
};

/// Bytes of inline payload that a slot of such a QP has room for.
pub const MOST_INLINE: u32 = 256 - INLINE_OFFSET as u32;

pub fn shared() -> Arc<Shared> {
    shared_with(ContextFlags::ALL)
}

/// The shared state of a context, on a device with these flags.
pub fn shared_with(flags: ContextFlags) -> Arc<Shared> {
    Arc::try_new(Shared {
        fd: -1,
        doorbell: DoorbellPage::in_memory().unwrap(),
        threads: Threads::MANY,
        limits: AllocContextResp {
            flags,
            max_inline_data: 512,
            max_qp_slots: *WORK_SLOTS.end(),
            max_cq_slots: *CQ_SLOTS.end(),
            ..AllocContextResp::default()
        },
    })
    .unwrap()
}

pub fn cq(shared: &Arc<Shared>, cqe: u32) -> Box<Cq> {
    let layout = cq::ring_layout(cqe, shared.limits.max_cq_slots).unwrap();
    Cq::in_memory(layout, shared, &shared.threads.into()).unwrap()
}

/// An SRQ for `slots` receives.
pub fn srq(shared: &Arc<Shared>, slots: u32) -> Box<Srq> {
    let layout = RingLayout::new(RingKind::Shared, slots, 6).unwrap();
    Srq::in_memory(layout, 1, shared, &shared.threads.into()).unwrap()
}

/// A QP in RTS with an SRQ, whose send and receive queues complete to one CQ.
pub fn qp_with_srq(shared: &Arc<Shared>, cq: &Cq, srq: &Srq, qpn: Qpn) -> Box<Qp> {
    let queues = (cq, cq, Some(srq));
    let domain = shared.threads.into();
    let mut qp = Qp::in_memory(ffi::IBV_QPT_RC, &CAP, queues, shared, &domain).unwrap();
    qp.created(qpn).unwrap();
    qp.changed(ffi::IBV_QPS_RTS);
    qp
}

/// Posts to an SRQ until it is full, and returns the number of receives.
pub fn fill(srq: &Srq) -> u32 {
    let mut count = 0;
    loop {
        let mut wr = recv_wr(count.into(), &mut []);
        let mut bad = ptr::null_mut();
        // SAFETY: the SRQ is this provider's, and the list is one work request.
        match unsafe { srq::post_srq_recv(srq.as_ibv(), &mut wr, &mut bad) } {
            0 => count += 1,
            status => {
                assert_eq!(status, libc::ENOMEM);
                return count;
            }
        }
    }
}

/// A QP in RTS that completes to one CQ.
pub fn qp(shared: &Arc<Shared>, cq: &Cq, cap: &ffi::ibv_qp_cap, qpn: Qpn) -> Box<Qp> {
    qp_of(ffi::IBV_QPT_RC, shared, cq, cap, qpn)
}

/// A QP of type `qp_type` in RTS that completes to one CQ.
pub fn qp_of(
    qp_type: ffi::ibv_qp_type,
    shared: &Arc<Shared>,
    cq: &Cq,
    cap: &ffi::ibv_qp_cap,
    qpn: Qpn,
) -> Box<Qp> {
    let mut qp =
        Qp::in_memory(qp_type, cap, (cq, cq, None), shared, &shared.threads.into()).unwrap();
    qp.created(qpn).unwrap();
    qp.changed(ffi::IBV_QPS_RTS);
    qp
}

pub fn sge(addr: u64, length: u32, lkey: u32) -> ffi::ibv_sge {
    ffi::ibv_sge { addr, length, lkey }
}

/// A send work request with an RDMA part.
pub fn send_wr(wr_id: u64, opcode: u32, flags: u32, sges: &mut [ffi::ibv_sge]) -> ffi::ibv_send_wr {
    // SAFETY: zeroes are valid for a C structure of integers, pointers and unions of these.
    let mut wr: ffi::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = sges.len() as i32;
    wr.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: 0x1122_3344_5566_7788,
        rkey: 0x99aa_bbcc,
    };
    wr
}

pub fn recv_wr(wr_id: u64, sges: &mut [ffi::ibv_sge]) -> ffi::ibv_recv_wr {
    ffi::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
    }
}

/// The address vector of [`ah`].
pub fn av() -> AddressVector {
    AddressVector {
        port: 1,
        pdn: Pdn::new(5),
        sl_tclass_flowlabel: 0x3680_0abc,
        dgid: [0xfe; 16],
        gid_index: 3,
        static_rate: 0,
        hop_limit: 64,
        dmac: [2, 3, 4, 5, 6, 7],
        reserved: [0; 6],
    }
}

/// An address handle.
pub fn ah() -> Box<Ah> {
    Ah::new(av()).unwrap()
}

/// The destination of a datagram.
pub fn ud(ah: &Ah) -> ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
        ah: ptr::from_ref(ah).cast_mut().cast(),
        remote_qpn: 0x0011_2233,
        remote_qkey: 0x1122_3344,
    }
}

/// A window and an MR with the fields that work requests need.
pub fn window_and_region() -> (ffi::ibv_mw, ffi::ibv_mr) {
    // SAFETY: zeroes are valid for C structures of integers and pointers.
    let (mut mw, mut mr): (ffi::ibv_mw, ffi::ibv_mr) = unsafe {
        (
            MaybeUninit::zeroed().assume_init(),
            MaybeUninit::zeroed().assume_init(),
        )
    };
    mw.rkey = 0x0102_03ff;
    mr.lkey = 0x1112_1314;
    (mw, mr)
}

/// Posts a list of sends and returns the status and the refused work request.
pub fn post_send(qp: &Qp, wr: &mut ffi::ibv_send_wr) -> (i32, *mut ffi::ibv_send_wr) {
    let mut bad = ptr::null_mut();
    // SAFETY: the QP is this provider's, and the list is the caller's.
    (unsafe { send::post_send(qp.as_ibv(), wr, &mut bad) }, bad)
}

/// Posts a list of receives and returns the status and the refused work request.
pub fn post_recv(qp: &Qp, wr: &mut ffi::ibv_recv_wr) -> (i32, *mut ffi::ibv_recv_wr) {
    let mut bad = ptr::null_mut();
    // SAFETY: the QP is this provider's, and the list is the caller's.
    (unsafe { recv::post_recv(qp.as_ibv(), wr, &mut bad) }, bad)
}

/// Polls up to `max` completions; an error is negative.
pub fn poll(cq: &Cq, max: usize) -> Result<Vec<ffi::ibv_wc>, i32> {
    let mut wcs = Vec::with_capacity(max);
    // SAFETY: the CQ is this provider's, and the vector has room.
    let count = unsafe { cq::poll_cq(cq.as_ibv(), max as i32, wcs.as_mut_ptr()) };
    if count < 0 {
        return Err(count);
    }
    // SAFETY: `count` completions were written.
    unsafe { wcs.set_len(count as usize) };
    Ok(wcs)
}

/// The device side of a send or receive queue.
pub struct Work<'a> {
    memory: &'a RingMap,
    pub queue: DeviceQueue,
}

impl<'a> Work<'a> {
    pub fn new(ring: &'a Option<WorkRing>) -> Self {
        let memory = ring.as_ref().unwrap().memory();
        Self {
            memory,
            queue: DeviceQueue::new(*memory.layout()),
        }
    }

    /// Takes the next work request: its position and all the bytes of its slot.
    pub fn fetch(&mut self) -> Option<(u32, Vec<u8>)> {
        let position = self.queue.fetch(self.memory).unwrap()?;
        let mut bytes = vec![0; self.memory.layout().slot_size() as usize];
        self.memory
            .read(self.memory.layout().slot(position), &mut bytes);
        Some((position, bytes))
    }

    /// Takes the next work request, completes it, and returns the id in its WQE.
    pub fn consume(&mut self, header_size: usize) -> Option<u64> {
        let (_, bytes) = self.fetch()?;
        self.queue.complete();
        Some(match header_size {
            SqHeader::SIZE => SqHeader::decode(&bytes).unwrap().wr_id,
            _ => RqHeader::decode(&bytes).unwrap().wr_id,
        })
    }

    pub fn enable_doorbell(&mut self) -> bool {
        self.queue.enable_doorbell(self.memory)
    }
}

/// The ring of a CQ as the device accesses it: by its address.
struct DeviceMemory {
    base: *mut u8,
    layout: RingLayout,
}

// SAFETY: the memory belongs to the process. Words are accessed atomically, and a slot only by the
// side that owns it.
unsafe impl Send for DeviceMemory {}

impl DeviceMemory {
    fn new(ring: UserRing) -> Self {
        Self {
            base: ptr::with_exposed_provenance_mut(ring.addr as usize),
            layout: RingLayout::completions(ring.slots).unwrap(),
        }
    }

    fn at<T>(&self, offset: u32, count: usize) -> *mut T {
        let end = offset as usize + count * size_of::<T>();
        assert!(end <= self.layout.size() as usize);
        // SAFETY: the offset is in the ring, which stays mapped while the device uses it.
        unsafe { self.base.add(offset as usize) }.cast()
    }

    fn half(&self, offset: u32) -> &AtomicU16 {
        // SAFETY: the offset is that of an aligned word of the ring.
        unsafe { AtomicU16::from_ptr(self.at(offset, 1)) }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offset is that of an aligned word of the ring.
        unsafe { AtomicU32::from_ptr(self.at(offset, 1)) }
    }

    fn long(&self, offset: u32) -> &AtomicU64 {
        // SAFETY: the offset is that of an aligned word of the ring.
        unsafe { AtomicU64::from_ptr(self.at(offset, 1)) }
    }
}

impl RingMemory for DeviceMemory {
    fn load_u32(&self, offset: u32) -> u32 {
        self.word(offset).load(Ordering::Relaxed)
    }
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }
    fn store_u32(&self, offset: u32, value: u32) {
        self.word(offset).store(value, Ordering::Relaxed);
    }
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }
    fn load_u64(&self, offset: u32) -> u64 {
        self.long(offset).load(Ordering::Relaxed)
    }
    fn store_u64(&self, offset: u32, value: u64) {
        self.long(offset).store(value, Ordering::Relaxed);
    }
    fn load_u16(&self, offset: u32) -> u16 {
        self.half(offset).load(Ordering::Relaxed)
    }
    fn store_u16(&self, offset: u32, value: u16) {
        self.half(offset).store(value, Ordering::Relaxed);
    }
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        // SAFETY: the bytes lie in the ring.
        unsafe {
            self.at::<u8>(offset, bytes.len())
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len())
        };
    }
    fn write(&self, offset: u32, bytes: &[u8]) {
        // SAFETY: the bytes lie in the ring, in a slot that the device owns.
        unsafe {
            self.at::<u8>(offset, bytes.len())
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The device side of a CQ.
pub struct Completions {
    memory: DeviceMemory,
    cq: DeviceCq,
}

impl Completions {
    pub fn new(cq: &Cq) -> Self {
        let memory = DeviceMemory::new(cq.ring().user_ring());
        Self {
            cq: DeviceCq::new(memory.layout),
            memory,
        }
    }

    /// Adds a CQE and returns whether a completion event must be sent.
    pub fn push(&mut self, cqe: Cqe) -> bool {
        self.cq
            .push(&self.memory, &cqe.to_bytes(), cqe.status != 0)
            .expect("room in the CQ");
        self.cq.publish(&self.memory)
    }

    /// Whether there is room for a CQE.
    pub fn has_room(&self) -> bool {
        self.cq.unpolled(&self.memory).unwrap() < self.memory.layout.slots()
    }

    /// Handles the CQ's doorbell: returns whether a completion event must be sent.
    pub fn look(&mut self) -> bool {
        self.cq.publish(&self.memory)
    }

    /// Executes RESIZE_CQ: moves to `ring` and returns the position at which the old ring ends.
    pub fn move_to(&mut self, ring: UserRing) -> u32 {
        let end = self.cq.published();
        self.memory = DeviceMemory::new(ring);
        self.cq.moved(self.memory.layout);
        end
    }
}
