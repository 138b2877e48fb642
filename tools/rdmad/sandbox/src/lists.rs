// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lists of the system calls that each kind of thread may make.
//!
//! The lists limit how a thread obtains new descriptors, not how it uses its present ones. So the
//! lists have `write` without conditions, and no `open`.

use std::os::fd::RawFd;

use libc::*;

use crate::filter::When::{Has, Is, Lacks, Null};
use crate::filter::{any, when, Allowed};
use crate::Kind;

/// `PR_SET_VMA` (C header: linux/prctl.h), by which the C library names its memory mappings.
const PR_SET_VMA: u32 = 0x5356_4d41;

/// Requests of a userfaultfd (C header: linux/userfaultfd.h).
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_COPY: u32 = 0xc028_aa03;
const UFFDIO_ZEROPAGE: u32 = 0xc020_aa04;

/// Parts of the daemon that need system calls of their own, and that not each daemon has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Whether there are uplinks over Unix sockets.
    pub unix: bool,
    /// Whether there are uplinks over UDP.
    pub udp: bool,
    /// Whether there are uplinks by tap interfaces.
    pub tap: bool,
    /// The socket of a service manager that keeps descriptors.
    pub store: Option<RawFd>,
}

/// System calls of threads of `kind`, in a daemon with these parts.
pub(crate) fn of(kind: Kind, parts: Parts) -> Vec<Allowed> {
    let own = match kind {
        Kind::Main => main(parts),
        Kind::Log => Vec::new(),
        Kind::Worker => worker(),
        Kind::Socket => socket(),
        Kind::Service => service(),
        Kind::Switch => switch(parts),
        Kind::Capture => vec![any(SYS_write)],
        Kind::Status => status(),
        Kind::Control => control(),
        Kind::Broker => return broker(false),
    };
    [all(), own].concat()
}

/// System calls that no thread of the daemon ever makes.
pub(crate) fn never() -> Vec<Allowed> {
    [
        // Access to other programs and processes.
        SYS_execve,
        SYS_execveat,
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        SYS_pidfd_getfd,
        SYS_kcmp,
        // Changes of mounts and namespaces.
        SYS_mount,
        SYS_umount2,
        SYS_move_mount,
        SYS_open_tree,
        SYS_fsopen,
        SYS_pivot_root,
        SYS_chroot,
        SYS_unshare,
        SYS_setns,
        SYS_personality,
        // Control of the kernel.
        SYS_init_module,
        SYS_finit_module,
        SYS_delete_module,
        SYS_kexec_load,
        SYS_reboot,
        SYS_swapon,
        SYS_swapoff,
        SYS_bpf,
        SYS_perf_event_open,
        SYS_userfaultfd,
        SYS_io_uring_setup,
        SYS_add_key,
        SYS_request_key,
        SYS_keyctl,
        // Changes of user and group.
        SYS_setuid,
        SYS_setgid,
        SYS_setresuid,
        SYS_setresgid,
        SYS_setgroups,
    ]
    .map(any)
    .to_vec()
}

/// System calls of every thread: to allocate, to wait, to end, and to report a defect.
fn all() -> Vec<Allowed> {
    let process = std::process::id();
    vec![
        // Memory, but none that can be executed.
        any(SYS_brk),
        any(SYS_madvise),
        when(SYS_mmap, &[Lacks(2, PROT_EXEC as u32)]),
        when(SYS_mprotect, &[Lacks(2, PROT_EXEC as u32)]),
        any(SYS_mremap),
        any(SYS_munmap),
        when(SYS_prctl, &[Is(0, PR_SET_VMA)]),
        // A spare thread that begins work sets its name.
        when(SYS_prctl, &[Is(0, PR_SET_NAME as u32)]),
        // Allocating of a missing page of guest memory, by the handler of SIGBUS. The userfaultfd
        // was made at the start.
        when(SYS_ioctl, &[Is(1, UFFDIO_COPY)]),
        when(SYS_ioctl, &[Is(1, UFFDIO_ZEROPAGE)]),
        // Waiting and time.
        any(SYS_clock_gettime),
        any(SYS_clock_nanosleep),
        any(SYS_futex),
        any(SYS_nanosleep),
        any(SYS_restart_syscall),
        any(SYS_sched_getaffinity),
        any(SYS_sched_yield),
        any(SYS_getrandom),
        // Closing of descriptors. Debug builds of the standard library first check whether the
        // descriptor is open.
        any(SYS_close),
        when(SYS_fcntl, &[Is(1, F_GETFD as u32)]),
        // The end of threads and of the process (also by abort), and the return from signal
        // handlers.
        any(SYS_exit),
        any(SYS_exit_group),
        any(SYS_getpid),
        any(SYS_gettid),
        any(SYS_rt_sigprocmask),
        any(SYS_rt_sigreturn),
        any(SYS_sigaltstack),
        // Signal handlers of the runtime restore the default actions and abort.
        when(SYS_rt_sigaction, &[Is(0, SIGABRT as u32)]),
        when(SYS_rt_sigaction, &[Is(0, SIGBUS as u32)]),
        when(SYS_rt_sigaction, &[Is(0, SIGSEGV as u32)]),
        when(SYS_tgkill, &[Is(0, process), Is(2, SIGABRT as u32)]),
        // Messages of signal handlers.
        when(SYS_write, &[Is(0, STDERR_FILENO as u32)]),
        when(SYS_writev, &[Is(0, STDERR_FILENO as u32)]),
        #[cfg(target_arch = "x86_64")]
        any(SYS_poll),
        any(SYS_ppoll),
    ]
}

/// Interrupts: signalling of the clients' eventfds by AIO.
fn interrupts() -> Vec<Allowed> {
    vec![
        any(SYS_io_submit),
        any(SYS_io_getevents),
        // The last user of an AIO context destroys it.
        any(SYS_io_destroy),
    ]
}

/// Access to the daemon's own eventfds.
fn events() -> Vec<Allowed> {
    vec![any(SYS_read), any(SYS_write)]
}

/// Mapping of guest memory, after checks of its files.
fn guest_memory() -> Vec<Allowed> {
    vec![
        when(SYS_fcntl, &[Is(1, F_GET_SEALS as u32)]),
        any(SYS_fstat),
        any(SYS_fstatfs),
        when(SYS_ioctl, &[Is(1, UFFDIO_REGISTER)]),
    ]
}

/// Accepting and serving clients of a listening socket.
fn clients() -> Vec<Allowed> {
    vec![
        any(SYS_accept4),
        // Sets clients to non-blocking mode.
        when(SYS_ioctl, &[Is(1, FIONBIO as u32)]),
        any(SYS_recvfrom),
        when(SYS_sendto, &[Null(4)]),
    ]
}

/// Getting the user at the other end of a socket.
fn credentials() -> Allowed {
    when(
        SYS_getsockopt,
        &[Is(1, SOL_SOCKET as u32), Is(2, SO_PEERCRED as u32)],
    )
}

/// Requests to the broker process, which accesses paths for the daemon.
fn errands() -> Vec<Allowed> {
    vec![any(SYS_recvfrom), when(SYS_sendto, &[Null(4)])]
}

/// System calls of the broker process, which accesses paths for the daemon. A broker that
/// `replaces` files creates and renames files. It opens no existing file and connects no socket. A
/// broker that connects sockets checks whose the peer's is, by a descriptor that gives no access to
/// the file's content.
pub(crate) fn broker(replaces: bool) -> Vec<Allowed> {
    let mut own = vec![
        any(SYS_recvmsg),
        when(SYS_sendto, &[Null(4)]),
        #[cfg(target_arch = "x86_64")]
        any(SYS_unlink),
        any(SYS_unlinkat),
    ];
    if replaces {
        let new = Has(2, (O_WRONLY | O_CREAT | O_EXCL) as u32);
        own.extend([
            when(SYS_openat, &[new, Lacks(2, O_RDWR as u32)]),
            any(SYS_write),
            any(SYS_fsync),
            #[cfg(target_arch = "x86_64")]
            any(SYS_renameat),
            any(SYS_renameat2),
        ]);
    } else {
        own.extend([
            any(SYS_connect),
            when(SYS_openat, &[Has(2, O_PATH as u32)]),
            any(SYS_fstat),
            any(SYS_geteuid),
        ]);
    }
    [all(), own].concat()
}

fn main(parts: Parts) -> Vec<Allowed> {
    // The state that it hands over is written by `pwrite`.
    let mut own = vec![any(SYS_pwrite64)];
    if let Some(manager) = parts.store {
        // Passes descriptors to the service manager, by this number. It is not negative.
        own.push(when(SYS_sendmsg, &[Is(0, manager as u32)]));
    }
    [events(), interrupts(), errands(), own].concat()
}

fn worker() -> Vec<Allowed> {
    [events(), interrupts()].concat()
}

fn service() -> Vec<Allowed> {
    [events(), interrupts(), guest_memory()].concat()
}

fn socket() -> Vec<Allowed> {
    let own = vec![
        any(SYS_recvmsg),
        credentials(),
        // Keeps a descriptor open until the service manager has it.
        when(SYS_fcntl, &[Is(1, F_DUPFD_CLOEXEC as u32)]),
        when(SYS_fcntl, &[Is(1, F_GETFL as u32)]),
        // Replies, which go through a pipe.
        any(SYS_pipe2),
        any(SYS_splice),
        // Checks whether a client's descriptor is an eventfd.
        #[cfg(target_arch = "x86_64")]
        any(SYS_readlink),
        #[cfg(not(target_arch = "x86_64"))]
        any(SYS_readlinkat),
    ];
    [
        own,
        events(),
        interrupts(),
        guest_memory(),
        clients(),
        errands(),
    ]
    .concat()
}

fn switch(parts: Parts) -> Vec<Allowed> {
    let mut own = vec![
        #[cfg(target_arch = "x86_64")]
        any(SYS_epoll_wait),
        any(SYS_epoll_pwait),
        any(SYS_epoll_pwait2),
        any(SYS_epoll_ctl),
        any(SYS_recvfrom),
        when(SYS_sendto, &[Null(4)]),
        // Connections of network interfaces, and frames to them. Unlike `sendmsg`, `writev` can't
        // pass descriptors.
        any(SYS_accept4),
        credentials(),
        any(SYS_writev),
    ];
    if parts.unix {
        // Receiving of batches. Unlike `recvmsg`, this call can't receive descriptors.
        own.push(any(SYS_readv));
    }
    if parts.udp {
        // Sending and receiving of several frames by one call.
        own.extend([any(SYS_recvmsg), any(SYS_sendmsg)]);
    }
    if parts.tap {
        own.extend([
            any(SYS_readv),
            // Attaching to an interface that was created again.
            when(SYS_ioctl, &[Is(1, TUNSETIFF as u32)]),
            when(SYS_ioctl, &[Is(1, SIOCGIFINDEX as u32)]),
        ]);
    }
    // The switch does work of sleeping workers.
    [own, worker(), errands()].concat()
}

fn status() -> Vec<Allowed> {
    [events(), clients()].concat()
}

fn control() -> Vec<Allowed> {
    let option = |name: c_int| {
        when(
            SYS_getsockopt,
            &[Is(1, SOL_SOCKET as u32), Is(2, name as u32)],
        )
    };
    let own = vec![
        credentials(),
        any(SYS_geteuid),
        // Receiving and checking the sockets of added ports.
        any(SYS_recvmsg),
        option(SO_DOMAIN),
        option(SO_TYPE),
        option(SO_ACCEPTCONN),
        any(SYS_getsockname),
        any(SYS_eventfd2),
        // Writing of capture files, which the service manager may keep.
        any(SYS_fstat),
        when(SYS_fcntl, &[Is(1, F_DUPFD_CLOEXEC as u32)]),
        when(SYS_fcntl, &[Is(1, F_GETFL as u32)]),
    ];
    // When a port is removed, its device is reset and its broker is requested to remove the paths.
    [own, events(), clients(), interrupts(), errands()].concat()
}
