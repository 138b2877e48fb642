// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A fake kernel for one thread: commands of libibverbs that succeed, and a file whose pages are
//! the rings. The linker prefers these functions to those of libibverbs.
#![allow(dead_code)]

use std::cell::RefCell;
use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use libc::c_int;
use libc::c_void;
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::number::Srqn;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::uverbs::*;
use virtio_rdma_abi::versions::Versions;
use virtio_rdma_provider::context::alloc_context;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::libibverbs::layout;

pub const PAGE: u64 = 4096;

/// The state of the kernel.
pub struct Kernel {
    /// The pages of doorbells and rings.
    file: File,
    /// Offset of the next ring in the file.
    next: u64,
    /// Number of further ring mappings that succeed. Later ones fail.
    pub good: usize,
    /// Names of the commands in their order, each with the number of mappings at that time.
    pub calls: Vec<(&'static str, usize)>,
    /// The ring that was prepared last.
    pub prepared: Option<(RingMapping, RingLayout)>,
    /// The bytes of the prepared ring when the command to move to it was sent.
    pub moved: Vec<u8>,
    /// Versions that the module supports.
    pub spoken: Versions,
    operations: Option<ffi::verbs_context_ops>,
    /// Bytes by which libibverbs' contexts are longer than the provider knows.
    pub longer: usize,
    /// Number of unknown operations before the operations that the provider knows.
    pub shifted: usize,
    /// Number of functions that this release has in addition before the `comp_mask` of extended
    /// QPs, or `None` if `comp_mask` is not written.
    pub added: Option<usize>,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::new(Kernel::new());
}

/// Calls `then` with the kernel of this thread.
pub fn kernel<T>(then: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with(|kernel| then(&mut kernel.borrow_mut()))
}

/// Mappings of the file of this thread's kernel: protection and sharing, offset, and length.
pub fn mappings() -> Vec<(String, u64, u64)> {
    kernel(|kernel| kernel.mappings())
}

impl Kernel {
    fn new() -> Self {
        // SAFETY: the name is a string, and the descriptor is new.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"rings".as_ptr(), 0)) };
        file.set_len(1 << 24).unwrap();
        Self {
            file,
            next: PAGE,
            good: usize::MAX,
            calls: Vec::with_capacity(64),
            prepared: None,
            moved: Vec::new(),
            spoken: Versions::SPOKEN,
            operations: None,
            longer: 0,
            shifted: 0,
            added: Some(2),
        }
    }

    /// The mappings of the file, from `/proc/self/maps`.
    fn mappings(&self) -> Vec<(String, u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let inode = self.file.metadata().unwrap().ino().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_file = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            if words[4] != inode {
                return None;
            }
            let (start, end) = words[0].split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let length = number(end) - number(start);
            Some((words[1].to_owned(), number(words[2]), length))
        };
        maps.lines().filter_map(of_file).collect()
    }

    fn called(&mut self, name: &'static str) -> c_int {
        let mapped = self.mappings().len();
        self.calls.push((name, mapped));
        0
    }

    /// A mapping of `length` bytes, or one that fails if `good` is 0.
    fn offer(&mut self, length: u64) -> RingMapping {
        let length = length.next_multiple_of(PAGE);
        let Some(left) = self.good.checked_sub(1) else {
            // The offset is not page-aligned, so mmap fails with EINVAL.
            return RingMapping { offset: 1, length };
        };
        self.good = left;
        let offset = self.next;
        // With a page between them, Linux never merges two mappings.
        self.next += length + PAGE;
        RingMapping { offset, length }
    }

    /// The mapping and the layout of a requested ring.
    fn ring(&mut self, kind: RingKind, ring: &UserRing) -> (RingMapping, RingLayout) {
        assert_eq!(ring.addr, 0, "memory of the kernel");
        let layout = RingLayout::new(kind, ring.slots, ring.slot_shift).unwrap();
        (self.offer(layout.size().into()), layout)
    }

    /// The first or the second step of a move to a longer ring. Returns the mapping of the prepared
    /// ring.
    fn move_to(&mut self, kind: RingKind, ring: &UserRing) -> RingMapping {
        if *ring != UserRing::default() {
            let prepared = self.ring(kind, ring);
            self.prepared = Some(prepared);
            return prepared.0;
        }
        let (mapping, layout) = self.prepared.expect("a ring was prepared");
        self.moved = vec![0; layout.size() as usize];
        self.file
            .read_exact_at(&mut self.moved, mapping.offset)
            .unwrap();
        RingMapping::default()
    }
}

/// The driver's part of a command or response, `len` bytes after the core's part.
///
/// # Safety
///
/// `core` is followed by `len` valid bytes.
unsafe fn after<'a, C>(core: *mut C, len: usize) -> &'a mut [u8] {
    // SAFETY: `core` is followed by `len` valid bytes.
    unsafe { std::slice::from_raw_parts_mut(core.add(1).cast::<u8>(), len) }
}

/// The part of a context that programs see.
///
/// # Safety
///
/// `context` has the length of the loaded libibverbs' contexts.
unsafe fn end_of(context: *mut ffi::verbs_context) -> *mut ffi::ibv_context {
    let size = layout().expect("a known libibverbs").context_size;
    // SAFETY: `context` has the length of the loaded libibverbs' contexts.
    unsafe {
        context
            .byte_add(size - size_of::<ffi::ibv_context>())
            .cast()
    }
}

/// A device of this provider, as libibverbs knows it.
#[repr(C)]
struct Device {
    ibv: ffi::verbs_device,
    abi_version: u32,
}

/// An open context, closed on drop.
pub struct Opened {
    pub context: *mut ffi::ibv_context,
    /// The context points to the device.
    _device: Box<Device>,
}

impl Opened {
    /// Opens a context. The error is `errno`.
    ///
    /// `close` in [`Kernel::calls`] shows that the context's file was closed. The descriptor itself
    /// can't be checked, since another thread may reuse its number.
    pub fn new() -> Result<Self, Option<i32>> {
        // SAFETY: zeroes are valid for a C structure of integers and pointers.
        let ibv = unsafe { std::mem::zeroed() };
        let abi_version = kernel(|kernel| kernel.spoken.oldest);
        let mut device = Box::new(Device { ibv, abi_version });
        // SAFETY: this returns a new descriptor of an open file.
        let fd = unsafe { libc::dup(kernel(|kernel| kernel.file.as_raw_fd())) };
        let ibv = std::ptr::from_mut(&mut *device).cast();
        // SAFETY: the device has the layout of this provider's devices, and the file is handed
        // over.
        let context = unsafe { alloc_context(ibv, fd, std::ptr::null_mut()) };
        let error = std::io::Error::last_os_error().raw_os_error();
        if context.is_null() {
            return Err(error);
        }
        // SAFETY: the context is valid.
        let context = unsafe { end_of(context) };
        Ok(Self {
            context,
            _device: device,
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let operations = kernel(|kernel| kernel.operations);
        // SAFETY: the provider has set its operations, and nothing uses the context any more.
        unsafe { operations.unwrap().free_context.unwrap()(self.context) };
    }
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn _verbs_init_and_alloc_context(
    device: *mut ffi::ibv_device,
    fd: c_int,
    size: usize,
    offset: *mut ffi::verbs_context,
    _driver: u32,
) -> *mut c_void {
    assert!(offset.is_null(), "a context is at the start of its memory");
    let longer = kernel(|kernel| kernel.longer);
    // SAFETY: the provider requests more bytes than the longest context has. Zeroes are valid for a
    // context.
    unsafe {
        let memory = libc::calloc(1, size);
        let context = end_of(memory.byte_add(longer).cast());
        context
            .cast::<usize>()
            .sub(1)
            .write(layout().expect("a known libibverbs").context_size + longer);
        (*context).device = device;
        (*context).cmd_fd = fd;
        memory
    }
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn verbs_uninit_context(context: *mut ffi::verbs_context) {
    let longer = kernel(|kernel| {
        kernel.called("close");
        kernel.longer
    });
    // SAFETY: the file is the context's.
    unsafe { libc::close((*end_of(context.byte_add(longer))).cmd_fd) };
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn verbs_set_ops(
    context: *mut ffi::verbs_context,
    operations: *const ffi::verbs_context_ops,
) {
    let shifted = kernel(|kernel| kernel.shifted);
    // SAFETY: the provider's table is longer than that of any libibverbs.
    let operations = unsafe {
        operations
            .cast::<usize>()
            .add(shifted)
            .cast::<ffi::verbs_context_ops>()
            .read()
    };
    // SAFETY: the context is valid.
    let shown = unsafe { &mut (*end_of(context)).ops };
    macro_rules! show {
        ($($operation:ident: $place:ident),* $(,)?) => {$(
            if operations.$operation.is_some() {
                // SAFETY: both are optional functions, and the copy is not called.
                unsafe { std::ptr::write((&raw mut shown.$place).cast(), operations.$operation) };
            }
        )*};
    }
    show!(
        alloc_mw: alloc_mw,
        alloc_pd: _compat_alloc_pd,
        create_cq: _compat_create_cq,
        dealloc_mw: dealloc_mw,
        dereg_mr: _compat_dereg_mr,
        modify_qp: _compat_modify_qp,
        poll_cq: poll_cq,
        post_recv: post_recv,
        post_send: post_send,
        post_srq_recv: post_srq_recv,
        query_qp: _compat_query_qp,
        req_notify_cq: req_notify_cq,
        resize_cq: _compat_resize_cq,
    );
    kernel(|kernel| kernel.operations = Some(operations));
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_get_context(
    _context: *mut ffi::verbs_context,
    command: *mut ffi::ibv_get_context,
    _command_size: usize,
    response: *mut ffi::ib_uverbs_get_context_resp,
    _response_size: usize,
) -> c_int {
    // SAFETY: the provider's part follows the core's part.
    let request = unsafe { &*after(command, AllocContextReq::SIZE) };
    let request = AllocContextReq::from_bytes(request.try_into().unwrap());
    kernel(|kernel| {
        let Ok(version) = kernel.spoken.agree(&request.versions) else {
            kernel.called("refuse");
            return libc::ENOPROTOOPT;
        };
        let doorbell = kernel.offer(PAGE);
        let told = AllocContextResp {
            flags: ContextFlags::OWN_RINGS | ContextFlags::ATOMIC_WRITE | ContextFlags::FLUSH,
            max_inline_data: 512,
            doorbell_offset: doorbell.offset,
            doorbell_size: PAGE as u32,
            max_qp_slots: 1024,
            max_cq_slots: 1024,
            version,
            ..AllocContextResp::default()
        };
        let told = told.to_bytes();
        // SAFETY: the provider's response has room for these bytes.
        unsafe { after(response, told.len()) }.copy_from_slice(&told);
        kernel.called("open")
    })
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_alloc_pd(
    context: *mut ffi::ibv_context,
    pd: *mut ffi::ibv_pd,
    _command: *mut ffi::ibv_alloc_pd,
    _command_size: usize,
    _response: *mut ffi::ib_uverbs_alloc_pd_resp,
    _response_size: usize,
) -> c_int {
    // SAFETY: the caller passes a valid PD.
    unsafe { (*pd).context = context };
    0
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_dealloc_pd(_pd: *mut ffi::ibv_pd) -> c_int {
    0
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_create_cq_ex(
    _context: *mut ffi::ibv_context,
    _attr: *const ffi::ibv_cq_init_attr_ex,
    _cq: *mut ffi::verbs_cq,
    command: *mut ffi::ibv_create_cq_ex,
    _command_size: usize,
    response: *mut ffi::ib_uverbs_ex_create_cq_resp,
    _response_size: usize,
    _flags: u32,
) -> c_int {
    // SAFETY: the provider's part follows the core's part.
    let (request, told) = unsafe {
        (
            CreateCqReq::from_bytes((&*after(command, CreateCqReq::SIZE)).try_into().unwrap()),
            after(response, CreateCqResp::SIZE),
        )
    };
    kernel(|kernel| {
        let (ring, _) = kernel.ring(RingKind::Completion, &request.ring);
        let answer = CreateCqResp {
            cqn: Cqn::new(3),
            ring,
            ..CreateCqResp::default()
        };
        told.copy_from_slice(&answer.to_bytes());
        kernel.called("create CQ")
    })
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_resize_cq(
    _cq: *mut ffi::ibv_cq,
    _cqe: c_int,
    command: *mut ffi::ibv_resize_cq,
    _command_size: usize,
    response: *mut ffi::ib_uverbs_resize_cq_resp,
    _response_size: usize,
) -> c_int {
    // SAFETY: the provider's part follows the core's part.
    let (request, told) = unsafe {
        (
            ResizeCqReq::from_bytes((&*after(command, ResizeCqReq::SIZE)).try_into().unwrap()),
            after(response, ResizeCqResp::SIZE),
        )
    };
    kernel(|kernel| {
        let answer = ResizeCqResp {
            ring: kernel.move_to(RingKind::Completion, &request.ring),
            ..ResizeCqResp::default()
        };
        told.copy_from_slice(&answer.to_bytes());
        kernel.called("resize CQ")
    })
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_destroy_cq(_cq: *mut ffi::ibv_cq) -> c_int {
    kernel(|kernel| kernel.called("destroy CQ"))
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_create_qp_ex2(
    _context: *mut ffi::ibv_context,
    qp: *mut ffi::verbs_qp,
    _attr: *mut ffi::ibv_qp_init_attr_ex,
    command: *mut ffi::ibv_create_qp_ex,
    _command_size: usize,
    response: *mut ffi::ib_uverbs_ex_create_qp_resp,
    _response_size: usize,
) -> c_int {
    // SAFETY: the provider's part follows the core's part.
    let (request, told) = unsafe {
        (*qp.cast::<ffi::ibv_qp>()).qp_num = 17;
        // comp_mask of struct verbs_qp follows struct ibv_qp_ex, to which releases of libibverbs
        // add functions.
        let first = std::mem::offset_of!(ffi::ibv_qp_ex, wr_atomic_write);
        let added = kernel(|kernel| kernel.added);
        if let Some(added) = added {
            qp.byte_add(first)
                .cast::<u64>()
                .add(added)
                .cast::<u32>()
                .write(0);
        }
        (
            CreateQpReq::from_bytes((&*after(command, CreateQpReq::SIZE)).try_into().unwrap()),
            after(response, CreateQpResp::SIZE),
        )
    };
    kernel(|kernel| {
        let [sq, rq] = [&request.sq, &request.rq].map(|ring| kernel.ring(RingKind::Work, ring).0);
        told.copy_from_slice(&CreateQpResp { sq, rq }.to_bytes());
        kernel.called("create QP")
    })
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_destroy_qp(_qp: *mut ffi::ibv_qp) -> c_int {
    kernel(|kernel| kernel.called("destroy QP"))
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_create_srq(
    _pd: *mut ffi::ibv_pd,
    _srq: *mut ffi::ibv_srq,
    _attr: *mut ffi::ibv_srq_init_attr,
    command: *mut ffi::ibv_create_srq,
    _command_size: usize,
    response: *mut ffi::ib_uverbs_create_srq_resp,
    _response_size: usize,
) -> c_int {
    // SAFETY: the provider's part follows the core's part.
    let (request, told) = unsafe {
        (
            CreateSrqReq::from_bytes((&*after(command, CreateSrqReq::SIZE)).try_into().unwrap()),
            after(response, CreateSrqResp::SIZE),
        )
    };
    kernel(|kernel| {
        let (ring, _) = kernel.ring(RingKind::Shared, &request.ring);
        let answer = CreateSrqResp {
            srqn: Srqn::new(5),
            ring,
            ..CreateSrqResp::default()
        };
        told.copy_from_slice(&answer.to_bytes());
        kernel.called("create SRQ")
    })
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_modify_srq(
    _srq: *mut ffi::ibv_srq,
    _attr: *mut ffi::ibv_srq_attr,
    _mask: c_int,
    command: *mut ffi::ibv_modify_srq,
    command_size: usize,
) -> c_int {
    assert_eq!(
        command_size,
        size_of::<ffi::ibv_modify_srq>() + ModifySrqReq::SIZE
    );
    // SAFETY: the provider's part follows the core's part.
    let request = unsafe {
        ModifySrqReq::from_bytes((&*after(command, ModifySrqReq::SIZE)).try_into().unwrap())
    };
    kernel(|kernel| {
        let told = kernel.move_to(RingKind::Shared, &request.ring);
        if request.mapping_addr != 0 {
            let place = std::ptr::with_exposed_provenance_mut(request.mapping_addr as usize);
            // SAFETY: the provider has passed the address of a mapping.
            unsafe { std::ptr::write_unaligned(place, told.to_bytes()) };
        }
        kernel.called("modify SRQ")
    })
}

/// # Safety
///
/// The requirements of libibverbs' function of this name.
#[no_mangle]
unsafe extern "C" fn ibv_cmd_destroy_srq(_srq: *mut ffi::ibv_srq) -> c_int {
    kernel(|kernel| kernel.called("destroy SRQ"))
}
