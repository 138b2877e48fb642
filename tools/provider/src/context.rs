// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Contexts: open devices.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

use libc::c_int;
use libc::c_void;
use virtio_rdma_abi::uverbs::AllocContextReq;
use virtio_rdma_abi::uverbs::AllocContextResp;
use virtio_rdma_abi::uverbs::ContextFlags;

use crate::ah;
use crate::arc::Arc;
use crate::command::command;
use crate::cq;
use crate::direct::OpenRequest;
use crate::driver_data::Response;
use crate::driver_data::UverbsCommand;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::libibverbs;
use crate::libibverbs::NoContext;
use crate::lock::Threads;
use crate::memory::DoorbellPage;
use crate::mr;
use crate::mw;
use crate::negotiation::negotiate;
use crate::negotiation::SPOKEN;
use crate::pd;
use crate::qp;
use crate::qp_init;
use crate::rate_limit;
use crate::recv;
use crate::registration::Device;
use crate::send;
use crate::srq;
use crate::uverbs_queues;

/// Environment variable that is 1 if the program never uses a context in two threads at a time:
/// queues are then not locked.
const SINGLE_THREADED: &CStr = c"VIRTIO_RDMA_SINGLE_THREADED";

extern "C" {
    /// Like `getenv`, but returns null in a program with privileges that its user lacks.
    fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
}

/// State that the objects of a context share.
pub struct Shared {
    /// The context's file, which is open as long as the context is.
    pub fd: RawFd,
    /// The context's doorbell page. If queues are in the kernel, the page is plain memory, and the
    /// context rings no doorbell.
    pub doorbell: DoorbellPage,
    /// How the context's queues are locked.
    pub threads: Threads,
    /// Limits from the module's response.
    pub limits: AllocContextResp,
}

/// A context, as libibverbs sees it.
///
/// # Invariants
///
/// `shared` is initialized once `alloc_context` has returned the context.
#[repr(C)]
pub struct Context {
    /// libibverbs' `ibv_context`, the end of a `verbs_context` whose other members lie before it.
    ibv: UnsafeCell<ffi::ibv_context>,
    shared: MaybeUninit<Arc<Shared>>,
}

type GetContext = UverbsCommand<ffi::ibv_get_context, AllocContextReq>;
type GetContextResp = Response<ffi::ib_uverbs_get_context_resp, AllocContextResp>;

impl Context {
    /// State that the objects of this context share.
    ///
    /// # Safety
    ///
    /// `context` is one that `alloc_context` has made, and still open.
    pub unsafe fn shared<'a>(context: *mut ffi::ibv_context) -> &'a Arc<Shared> {
        // SAFETY: the caller's context is the first field of a Context, whose `shared` is
        // initialized by the invariants.
        unsafe { (*context.cast::<Self>()).shared.assume_init_ref() }
    }
}

/// Reports to the user why a device can't be opened.
fn complain(device: *mut ffi::ibv_device, why: fmt::Arguments<'_>) {
    // SAFETY: libibverbs' devices have a terminated name.
    let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy();
    errno::complain(format_args!("{name}: {why}"));
}

/// `alloc_context` of libibverbs' device operations.
///
/// # Safety
///
/// `device` is a device of this provider, and `fd` its open file, which is closed on failure.
/// `request` is null or points to an [`OpenRequest`].
pub unsafe extern "C" fn alloc_context(
    device: *mut ffi::ibv_device,
    fd: c_int,
    request: *mut c_void,
) -> *mut ffi::verbs_context {
    // SAFETY: libibverbs' device and its file, which is handed over.
    let context = match unsafe { libibverbs::allocate_context::<Context>(device, fd) } {
        Ok(context) => context,
        Err(NoContext::Layout) => return refuse(device),
        Err(NoContext::Error) => return ptr::null_mut(),
    };
    let ibv = context.cast::<ffi::ibv_context>();
    // SAFETY: the context was made just now, and the request is valid by this function's safety
    // requirements.
    let shared = unsafe {
        OpenRequest::read(request.cast()).and_then(|request| open(ibv, device, fd, request))
    };
    match shared {
        Ok(shared) => {
            let has_own_rings = shared.limits.flags.contains(ContextFlags::OWN_RINGS);
            let kernel = match has_own_rings {
                true => None,
                false => Some(&uverbs_queues::OPERATIONS),
            };
            let mut tables = [&OPERATIONS].into_iter().chain(kernel);
            // SAFETY: the context is ours alone until it is returned. INVARIANT: `shared` is
            // initialized here.
            unsafe {
                if !tables.all(|operations| libibverbs::set_operations(ibv, operations)) {
                    libibverbs::free_context(ibv);
                    return refuse(device);
                }
                (*context).shared.write(shared);
            }
            libibverbs::whole(ibv)
        }
        Err(number) => {
            // SAFETY: the context was allocated above.
            unsafe { libibverbs::free_context(ibv) };
            errno::null(number)
        }
    }
}

/// Refuses to open a device: the layout of the loaded libibverbs is unknown.
fn refuse<T>(device: *mut ffi::ibv_device) -> *mut T {
    complain(device, format_args!("{}", libibverbs::UNKNOWN));
    errno::null(libc::EPROTONOSUPPORT)
}

/// Whether devices see atomic accesses and fences in the same order as CPUs do. On x86-64 they do:
/// the processor keeps the order of loads and of stores, and a fence holds for devices too.
const ORDERS_DEVICES: bool = cfg!(target_arch = "x86_64");

/// Requests a context from the module and maps its doorbell page, if it has one.
///
/// # Safety
///
/// `context` was set up by libibverbs for `device` and `fd`.
unsafe fn open(
    context: *mut ffi::ibv_context,
    device: *mut ffi::ibv_device,
    fd: c_int,
    request: AllocContextReq,
) -> Result<Arc<Shared>, i32> {
    // SAFETY: the caller's device was made by this provider.
    let module = unsafe { (*device.cast::<Device>()).abi_version };
    let ask = |request: &AllocContextReq| {
        let mut command = GetContext::new(request);
        let mut response = GetContextResp::empty();
        // SAFETY: the context is valid, and command and response are as long as stated.
        let status = unsafe {
            libibverbs::get_context(
                context,
                &mut command.core,
                GetContext::SIZE,
                &mut response.core,
                GetContextResp::SIZE,
            )
        };
        match status {
            0 => Ok(response.get()),
            number => Err(number),
        }
    };
    let limits = negotiate(SPOKEN, module, request, ask).map_err(|refusal| {
        if refusal.needs_words() {
            complain(device, format_args!("{refusal}"));
        }
        refusal.number()
    })?;
    if limits.flags.contains(ContextFlags::ORDER_PLATFORM) && !ORDERS_DEVICES {
        complain(
            device,
            format_args!("the device needs barriers of the platform"),
        );
        return Err(libc::EOPNOTSUPP);
    }
    let doorbell = if limits.flags.contains(ContextFlags::OWN_RINGS) {
        DoorbellPage::map(fd, limits.doorbell_offset, limits.doorbell_size)
    } else {
        DoorbellPage::in_memory()
    };
    let doorbell = doorbell.map_err(|error| {
        complain(device, format_args!("no doorbell page: {error}"));
        errno::number(&error)
    })?;
    let threads = if is_single_threaded() {
        // SAFETY: the environment variable promises that no two threads use the context at a time.
        unsafe { Threads::one() }
    } else {
        Threads::MANY
    };
    Arc::try_new(Shared {
        fd,
        doorbell,
        threads,
        limits,
    })
    .map_err(|error| errno::number(&error))
}

/// Whether the environment promises that the program uses each context in one thread at a time. The
/// variable is ignored in a program with raised privileges, since its caller is not trusted.
fn is_single_threaded() -> bool {
    // SAFETY: the name is a NUL-terminated string. A program must not change its environment while
    // another thread may read it.
    let value = unsafe { secure_getenv(SINGLE_THREADED.as_ptr()) };
    // SAFETY: a value of the environment is a string.
    !value.is_null() && unsafe { CStr::from_ptr(value) } == c"1"
}

/// `free_context`. The caller has destroyed every object of the context.
unsafe extern "C" fn free_context(context: *mut ffi::ibv_context) {
    // SAFETY: libibverbs passes a context of this provider, which has no other user any more.
    unsafe {
        (*context.cast::<Context>()).shared.assume_init_drop();
        libibverbs::free_context(context);
    }
}

unsafe extern "C" fn query_device_ex(
    context: *mut ffi::ibv_context,
    input: *const ffi::ibv_query_device_ex_input,
    attr: *mut ffi::ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let mut response = ffi::ib_uverbs_ex_query_device_resp::zeroed();
    let mut size = size_of_val(&response);
    // SAFETY: libibverbs' arguments are passed on, with a response as long as stated.
    let status = unsafe {
        ffi::ibv_cmd_query_device_any(context, input, attr, attr_size, &mut response, &mut size)
    };
    if status != 0 {
        return status;
    }
    let version = response.base.fw_ver;
    let part = |shift| libc::c_uint::from((version >> shift) as u16);
    // SAFETY: the command has succeeded, so the attributes are valid; the text is cut off at the
    // end of the field.
    unsafe {
        let fw_ver = &mut (*attr).orig_attr.fw_ver;
        libc::snprintf(
            fw_ver.as_mut_ptr(),
            fw_ver.len(),
            c"%u.%u.%u".as_ptr(),
            part(32),
            part(16),
            part(0),
        );
    }
    // SAFETY: the context is this provider's, and the attributes are as long as stated.
    unsafe {
        rate_limit::report(
            &Context::shared(context).limits.rate_limits,
            attr,
            attr_size,
        )
    };
    0
}

unsafe extern "C" fn query_port(
    context: *mut ffi::ibv_context,
    port: u8,
    attr: *mut ffi::ibv_port_attr,
) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe { command!(ibv_cmd_query_port(context, port, attr), ibv_query_port) }
}

/// The verbs of this provider; libibverbs answers all other verbs with `EOPNOTSUPP`.
static OPERATIONS: ffi::verbs_context_ops = ffi::verbs_context_ops {
    alloc_mw: Some(mw::alloc_mw),
    alloc_parent_domain: Some(pd::alloc_parent_domain),
    alloc_pd: Some(pd::alloc_pd),
    alloc_td: Some(pd::alloc_td),
    attach_mcast: Some(qp::attach_mcast),
    bind_mw: Some(mw::bind_mw),
    cq_event: Some(cq::cq_event),
    create_ah: Some(ah::create_ah),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq::create_cq_ex),
    create_qp: Some(qp_init::create_qp),
    create_qp_ex: Some(qp_init::create_qp_ex),
    create_srq: Some(srq::create_srq),
    dealloc_mw: Some(mw::dealloc_mw),
    dealloc_pd: Some(pd::dealloc_pd),
    dealloc_td: Some(pd::dealloc_td),
    dereg_mr: Some(mr::dereg_mr),
    destroy_ah: Some(ah::destroy_ah),
    destroy_cq: Some(cq::destroy_cq),
    destroy_qp: Some(qp::destroy_qp),
    detach_mcast: Some(qp::detach_mcast),
    destroy_srq: Some(srq::destroy_srq),
    free_context: Some(free_context),
    get_srq_num: Some(srq::get_srq_num),
    modify_cq: Some(cq::modify_cq),
    modify_qp: Some(qp::modify_qp),
    modify_qp_rate_limit: Some(rate_limit::modify_qp_rate_limit),
    modify_srq: Some(srq::modify_srq),
    poll_cq: Some(cq::poll_cq),
    post_recv: Some(recv::post_recv),
    post_send: Some(send::post_send),
    post_srq_recv: Some(srq::post_srq_recv),
    query_device_ex: Some(query_device_ex),
    query_port: Some(query_port),
    query_qp: Some(qp::query_qp),
    query_srq: Some(srq::query_srq),
    reg_dmabuf_mr: Some(mr::reg_dmabuf_mr),
    reg_mr: Some(mr::reg_mr),
    req_notify_cq: Some(cq::req_notify_cq),
    rereg_mr: Some(mr::rereg_mr),
    resize_cq: Some(cq::resize_cq),
    // SAFETY: all members are optional function pointers, and a zero pointer is None.
    ..unsafe { MaybeUninit::zeroed().assume_init() }
};
