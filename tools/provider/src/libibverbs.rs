// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The loaded libibverbs: its [layout](Layout), and calls that differ by layout.
//!
//! One build of the provider serves all layouts. Functions of libibverbs are linked without symbol
//! versions. Arguments that a layout does not have are omitted, and operations are passed in the
//! layout's order.

use std::ffi::c_void;
use std::ffi::CStr;
use std::mem::offset_of;
use std::mem::size_of;
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use libc::c_int;

use crate::ffi;
use crate::layouts;
use crate::layouts::Layout;

/// The error message for a libibverbs of an unknown layout.
pub const UNKNOWN: &str =
    "the private interface of the libibverbs that is loaded is none that this \
     provider knows: update the provider (libvirtio_rdma)";

/// Any pointer in an argument.
type Any = *mut c_void;
/// Any operation.
type Operation = Option<unsafe extern "C" fn()>;

/// Number of entries in the table of operations. Entries beyond the known operations are null, in
/// case libibverbs has more operations.
const ROOM: usize = 128;
/// Number of operations in the headers that the provider was built with.
const GIVEN: usize = size_of::<ffi::verbs_context_ops>() / size_of::<Operation>();

/// The address of a function that libibverbs exports, or null.
fn exported(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string. dlsym finds libibverbs, since the provider is linked with it.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The layout of the loaded libibverbs, if it is known.
pub fn layout() -> Option<&'static Layout> {
    static LAYOUT: OnceLock<Option<&'static Layout>> = OnceLock::new();
    *LAYOUT.get_or_init(|| Layout::of(|name| !exported(name).is_null()))
}

/// Whether the loaded libibverbs has the layout of `release` or a later one.
fn is_since(release: u32) -> bool {
    layout().is_some_and(|layout| layout.since >= release)
}

/// Registers a provider. Returns whether libibverbs has a known layout.
pub fn register(operations: &'static ffi::verbs_device_ops) -> bool {
    let Some(layout) = layout() else {
        return false;
    };
    let function = exported(layout.registration(&mut [0; 32]));
    // SAFETY: the function has this type in each layout, and exists: the layout was chosen by its
    // name.
    let function: unsafe extern "C" fn(*const ffi::verbs_device_ops) =
        unsafe { transmute(function) };
    // SAFETY: the table lives as long as the process, since libibverbs never unloads a provider.
    unsafe { function(operations) };
    true
}

const _: () = assert!(
    offset_of!(ffi::verbs_context, sz) + size_of::<usize>()
        == offset_of!(ffi::verbs_context, context)
);

/// Bytes of `struct verbs_context` before the `struct ibv_context` at its end.
fn head(layout: &Layout) -> usize {
    layout.context_size - size_of::<ffi::ibv_context>()
}

/// Reasons why no context was allocated.
#[derive(Debug)]
pub enum NoContext {
    /// libibverbs has set `errno`.
    Error,
    /// The layout of libibverbs is unknown.
    Layout,
}

/// Calls libibverbs to allocate a zeroed context and to fill in the `ibv_context` at the start of
/// `T`.
///
/// # Errors
///
/// [`NoContext`].
///
/// # Safety
///
/// `device` is a device that libibverbs has found, and `fd` its open file, which is closed on
/// failure. `T` is `repr(C)`, and all members but the first may be zeroes.
pub unsafe fn allocate_context<T>(
    device: *mut ffi::ibv_device,
    fd: c_int,
) -> Result<*mut T, NoContext> {
    // Without a layout the provider is not registered, and has no devices.
    let layout = layout().ok_or(NoContext::Layout)?;
    // SAFETY: the file is handed over; libibverbs allocates zeroed memory and fills the context at
    // its start.
    let block = unsafe {
        ffi::_verbs_init_and_alloc_context(
            device,
            fd,
            // Room for an unknown layout with a longer context.
            layout.context_size + size_of::<T>() + ROOM * size_of::<Operation>(),
            ptr::null_mut(),
            ffi::RDMA_DRIVER_UNKNOWN,
        )
    };
    if block.is_null() {
        return Err(NoContext::Error);
    }
    // SAFETY: the block is longer than the context.
    let context = unsafe { block.byte_add(head(layout)) };
    // SAFETY: in each layout, the size lies directly before the `ibv_context` at the end.
    let size = unsafe { *context.cast::<usize>().sub(1) };
    if size != layout.context_size {
        // SAFETY: libibverbs has allocated the context, and it has no user yet.
        unsafe {
            ffi::verbs_uninit_context(block.cast());
            libc::free(block);
        }
        return Err(NoContext::Layout);
    }
    Ok(context.cast())
}

/// The `struct verbs_context` that ends with `context`.
pub fn whole(context: *mut ffi::ibv_context) -> *mut ffi::verbs_context {
    let head = layout().map_or(0, head);
    context.wrapping_byte_sub(head).cast()
}

/// Frees a context.
///
/// # Safety
///
/// `context` was made by [`allocate_context`], and it has no user any more.
pub unsafe fn free_context(context: *mut ffi::ibv_context) {
    let whole = whole(context);
    // SAFETY: the caller's promise; libibverbs allocates with malloc.
    unsafe {
        ffi::verbs_uninit_context(whole);
        libc::free(whole.cast());
    }
}

/// The operations in the order of a layout.
fn in_order(layout: &Layout, operations: &ffi::verbs_context_ops) -> [Operation; ROOM] {
    // SAFETY: the structure consists of optional function pointers.
    let given: &[Operation; GIVEN] = unsafe { transmute(operations) };
    let mut given = given.iter();
    let mut ordered = [None; ROOM];
    let mut places = ordered.iter_mut();
    for (_, since) in layouts::operations() {
        let operation = match since <= ffi::HEADERS {
            true => given.next().copied().flatten(),
            false => None,
        };
        if since <= layout.since {
            if let Some(place) = places.next() {
                *place = operation;
            }
        }
    }
    ordered
}

/// Sets the operations of a context. Returns whether libibverbs has assigned each operation
/// correctly, according to the context's public table. Returns false if libibverbs has another
/// order than the layout.
///
/// # Safety
///
/// `context` was made by [`allocate_context`].
pub unsafe fn set_operations(
    context: *mut ffi::ibv_context,
    operations: &ffi::verbs_context_ops,
) -> bool {
    let Some(layout) = layout() else {
        return false;
    };
    let ordered = in_order(layout, operations);
    // SAFETY: the table is at least as long as that of any libibverbs. libibverbs copies the table.
    unsafe { ffi::verbs_set_ops(whole(context), ordered.as_ptr().cast()) };
    // SAFETY: the context is valid.
    let taken = unsafe { &(*context).ops };
    macro_rules! has_taken {
        ($($operation:ident: $place:ident),*) => {
            $(operations.$operation.is_none_or(|given| {
                taken.$place.is_some_and(|taken| ptr::eq(taken as *const (), given as *const ()))
            }))&&*
        };
    }
    has_taken!(
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
        resize_cq: _compat_resize_cq
    )
}

/// `ibv_cmd_get_context`, without file descriptors of the caller.
///
/// # Safety
///
/// The arguments are valid for the C function.
pub unsafe fn get_context(
    context: *mut ffi::ibv_context,
    command: *mut ffi::ibv_get_context,
    command_size: usize,
    response: *mut ffi::ib_uverbs_get_context_resp,
    response_size: usize,
) -> c_int {
    let function = ffi::ibv_cmd_get_context as *const ();
    let (context, command, response) = (whole(context).cast(), command.cast(), response.cast());
    // SAFETY: the function has these arguments in the layout, and the caller passes valid
    // arguments.
    unsafe {
        if is_since(57) {
            let function: unsafe extern "C" fn(Any, Any, usize, Any, Any, usize) -> c_int =
                transmute(function);
            function(
                context,
                command,
                command_size,
                ptr::null_mut(),
                response,
                response_size,
            )
        } else {
            let function: unsafe extern "C" fn(Any, Any, usize, Any, usize) -> c_int =
                transmute(function);
            function(context, command, command_size, response, response_size)
        }
    }
}

/// `ibv_cmd_create_cq_ex`, without attributes of the provider and without flags.
///
/// # Safety
///
/// The arguments are valid for the C function.
pub unsafe fn create_cq_ex(
    context: *mut ffi::ibv_context,
    attr: *const ffi::ibv_cq_init_attr_ex,
    cq: *mut ffi::verbs_cq,
    command: *mut ffi::ibv_create_cq_ex,
    command_size: usize,
    response: *mut ffi::ib_uverbs_ex_create_cq_resp,
    response_size: usize,
) -> c_int {
    let function = ffi::ibv_cmd_create_cq_ex as *const ();
    let (context, attr, cq): (Any, Any, Any) = (context.cast(), attr.cast_mut().cast(), cq.cast());
    let (command, response) = (command.cast(), response.cast());
    // SAFETY: the function has these arguments in the layout, and the caller passes valid
    // arguments.
    unsafe {
        if is_since(59) {
            let function: unsafe extern "C" fn(
                Any,
                Any,
                Any,
                Any,
                Any,
                usize,
                Any,
                usize,
                u32,
            ) -> c_int = transmute(function);
            let none = ptr::null_mut();
            function(
                context,
                attr,
                none,
                cq,
                command,
                command_size,
                response,
                response_size,
                0,
            )
        } else {
            let function: unsafe extern "C" fn(
                Any,
                Any,
                Any,
                Any,
                usize,
                Any,
                usize,
                u32,
            ) -> c_int = transmute(function);
            function(
                context,
                attr,
                cq,
                command,
                command_size,
                response,
                response_size,
                0,
            )
        }
    }
}

/// `ibv_cmd_create_qp_ex2`, without attributes of the provider. They are the last argument, which
/// an older libibverbs does not have and does not read.
///
/// # Safety
///
/// The arguments are valid for the C function.
pub unsafe fn create_qp_ex2(
    context: *mut ffi::ibv_context,
    qp: *mut ffi::verbs_qp,
    attr: *mut ffi::ibv_qp_init_attr_ex,
    command: *mut ffi::ibv_create_qp_ex,
    command_size: usize,
    response: *mut ffi::ib_uverbs_ex_create_qp_resp,
    response_size: usize,
) -> c_int {
    // SAFETY: these are the arguments of the newest layout. In C's calling convention the caller
    // removes arguments, so an additional last argument does no harm.
    let function: unsafe extern "C" fn(Any, Any, Any, Any, usize, Any, usize, Any) -> c_int =
        unsafe { transmute(ffi::ibv_cmd_create_qp_ex2 as *const ()) };
    let (command, response) = (command.cast(), response.cast());
    // SAFETY: the caller passes arguments that are valid for the C function.
    unsafe {
        function(
            context.cast(),
            qp.cast(),
            attr.cast(),
            command,
            command_size,
            response,
            response_size,
            ptr::null_mut(),
        )
    }
}

/// `ibv_cmd_reg_dmabuf_mr`, without attributes of the provider: its last argument, as in
/// [`create_qp_ex2`].
///
/// # Safety
///
/// The arguments are valid for the C function.
pub unsafe fn reg_dmabuf_mr(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mr: *mut ffi::verbs_mr,
) -> c_int {
    // SAFETY: as in `create_qp_ex2`.
    let function: unsafe extern "C" fn(Any, u64, usize, u64, c_int, c_int, Any, Any) -> c_int =
        unsafe { transmute(ffi::ibv_cmd_reg_dmabuf_mr as *const ()) };
    // SAFETY: the caller passes arguments that are valid for the C function.
    unsafe {
        function(
            pd.cast(),
            offset,
            length,
            iova,
            fd,
            access,
            mr.cast(),
            ptr::null_mut(),
        )
    }
}
