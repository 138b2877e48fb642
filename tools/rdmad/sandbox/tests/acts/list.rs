// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Table of system calls that are forbidden to every thread.
//!
//! The arguments of each call make it harmless even without the sandbox: most calls fail.

use libc::*;

/// A system call with arguments.
pub struct Act {
    pub name: &'static str,
    pub number: c_long,
    arguments: [c_long; 6],
}

impl Act {
    /// Makes the system call.
    pub fn call(&self) -> c_long {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: Each call of the table fails, maps memory at an address that the kernel chooses,
        // or makes a descriptor. None of them writes to memory through a pointer argument.
        unsafe { syscall(self.number, a, b, c, d, e, f) }
    }
}

const fn act(name: &'static str, number: c_long, given: &[c_long]) -> Act {
    let mut arguments = [0; 6];
    let mut at = 0;
    while at < given.len() {
        arguments[at] = given[at];
        at += 1;
    }
    Act {
        name,
        number,
        arguments,
    }
}

/// -1: an invalid descriptor, user or process.
const NONE: c_long = -1;
const HERE: c_long = AT_FDCWD as c_long;
/// A null pointer in the place of a name or structure.
const NULL: c_long = 0;
const PAGE: c_long = 4096;
const ANONYMOUS: c_long = (MAP_PRIVATE | MAP_ANONYMOUS) as c_long;
const CODE: c_long = (PROT_READ | PROT_EXEC) as c_long;
/// An invalid combination of `CLONE_` flags: `CLONE_SIGHAND` without `CLONE_VM`.
const BAD_CLONE: c_long = CLONE_SIGHAND as c_long;

const fn socket_of(name: &'static str, family: c_int, kind: c_int) -> Act {
    act(name, SYS_socket, &[family as c_long, kind as c_long])
}

/// All forbidden system calls.
pub const ACTS: &[Act] = &[
    // Files.
    act("open a file", SYS_openat, &[HERE, NULL]),
    act("open a file by openat2", SYS_openat2, &[HERE, NULL]),
    act(
        "open a file by its handle",
        SYS_open_by_handle_at,
        &[HERE, NULL],
    ),
    act("make a directory", SYS_mkdirat, &[HERE, NULL]),
    act("make a device", SYS_mknodat, &[HERE, NULL]),
    act("remove a file", SYS_unlinkat, &[HERE, NULL]),
    act("rename a file", SYS_renameat2, &[HERE, NULL, HERE, NULL]),
    act("link a file", SYS_linkat, &[HERE, NULL, HERE, NULL]),
    act(
        "link a file symbolically",
        SYS_symlinkat,
        &[NULL, HERE, NULL],
    ),
    act("change the mode of a file", SYS_fchmodat, &[HERE, NULL]),
    act("change the owner of a file", SYS_fchownat, &[HERE, NULL]),
    act("cut a file by its name", SYS_truncate, &[NULL]),
    act("set an attribute of a file", SYS_setxattr, &[NULL]),
    act("read a link", SYS_readlinkat, &[HERE, NULL]),
    act("change the directory", SYS_chdir, &[NULL]),
    act("watch files", SYS_inotify_init1, &[NONE]),
    act("watch all files", SYS_fanotify_init, &[NONE]),
    // Programs and processes.
    act("execute a program", SYS_execve, &[NULL]),
    act("execute a program by a descriptor", SYS_execveat, &[NONE]),
    act("fork", SYS_clone, &[BAD_CLONE]),
    act("start a thread", SYS_clone3, &[NULL]),
    act(
        "trace a process",
        SYS_ptrace,
        &[PTRACE_PEEKDATA as c_long, NONE],
    ),
    act(
        "read the memory of a process",
        SYS_process_vm_readv,
        &[NONE],
    ),
    act(
        "write the memory of a process",
        SYS_process_vm_writev,
        &[NONE],
    ),
    act("kill a process", SYS_kill, &[1, 0]),
    act("kill a thread of a process", SYS_tgkill, &[1, 1, 0]),
    act("queue a signal", SYS_rt_sigqueueinfo, &[1, 0, NULL]),
    act("open a process", SYS_pidfd_open, &[1, NONE]),
    act(
        "signal a process by a descriptor",
        SYS_pidfd_send_signal,
        &[NONE],
    ),
    act("take a descriptor of a process", SYS_pidfd_getfd, &[NONE]),
    act("change the limits of a process", SYS_prlimit64, &[1, NONE]),
    act("change the priority of a process", SYS_setpriority, &[NONE]),
    // The network.
    socket_of("make a Unix socket", AF_UNIX, SOCK_DGRAM),
    socket_of("make an IPv4 socket", AF_INET, SOCK_STREAM),
    socket_of("make an IPv6 socket", AF_INET6, SOCK_DGRAM),
    socket_of("make a netlink socket", AF_NETLINK, SOCK_RAW),
    socket_of("make a packet socket", AF_PACKET, SOCK_RAW),
    socket_of("make a vsock", AF_VSOCK, SOCK_STREAM),
    socket_of("make a socket of the crypto API", AF_ALG, SOCK_SEQPACKET),
    act("make a pair of sockets", SYS_socketpair, &[NONE]),
    act("bind a socket", SYS_bind, &[NONE]),
    act("listen", SYS_listen, &[NONE]),
    act("connect a socket", SYS_connect, &[NONE]),
    act("set an option of a socket", SYS_setsockopt, &[NONE]),
    act(
        "send to an address",
        SYS_sendto,
        &[NONE, NULL, 0, 0, PAGE, 16],
    ),
    // Views of the system.
    act("mount", SYS_mount, &[NULL, NULL, NULL, NONE]),
    act("unmount", SYS_umount2, &[NULL]),
    act("move a mount", SYS_move_mount, &[NONE, NULL, NONE, NULL]),
    act("open a file system", SYS_fsopen, &[NULL]),
    act("change the root", SYS_chroot, &[NULL]),
    act("pivot the root", SYS_pivot_root, &[NULL]),
    act("leave namespaces", SYS_unshare, &[NONE]),
    act("enter a namespace", SYS_setns, &[NONE]),
    // Other users.
    act("become another user", SYS_setuid, &[NONE]),
    act("become another group", SYS_setgid, &[NONE]),
    act("become other users", SYS_setresuid, &[NONE, NONE, NONE]),
    act("join groups", SYS_setgroups, &[NONE]),
    act("set capabilities", SYS_capset, &[NULL]),
    // The kernel.
    act("load a program of BPF", SYS_bpf, &[NONE]),
    act("open a performance counter", SYS_perf_event_open, &[NULL]),
    act("serve page faults", SYS_userfaultfd, &[NONE]),
    act("set up io_uring", SYS_io_uring_setup, &[0, NULL]),
    act("set up AIO", SYS_io_setup, &[0, NULL]),
    act("add a key", SYS_add_key, &[NULL]),
    act("use a key", SYS_keyctl, &[NONE]),
    act("load a module", SYS_init_module, &[NULL]),
    act("load a module by a descriptor", SYS_finit_module, &[NONE]),
    act("unload a module", SYS_delete_module, &[NULL]),
    act("load a kernel", SYS_kexec_load, &[0, NONE]),
    act("reboot", SYS_reboot, &[0, 0]),
    act("swap to a file", SYS_swapon, &[NULL]),
    act("set the clock", SYS_clock_settime, &[NONE]),
    act("read the log of the kernel", SYS_syslog, &[NONE]),
    // Code.
    act(
        "map memory as code",
        SYS_mmap,
        &[NULL, PAGE, CODE, ANONYMOUS, NONE],
    ),
    act("make memory code", SYS_mprotect, &[1, PAGE, CODE]),
    act(
        "make memory code by a key",
        SYS_pkey_mprotect,
        &[1, PAGE, CODE],
    ),
    act("make a file of memory", SYS_memfd_create, &[NULL]),
    act("make all memory code", SYS_personality, &[0x0040_0000]),
    // The sandbox.
    act(
        "undo no_new_privs",
        SYS_prctl,
        &[PR_SET_NO_NEW_PRIVS as c_long, 0],
    ),
    act(
        "become traceable",
        SYS_prctl,
        &[PR_SET_DUMPABLE as c_long, NONE],
    ),
    act("install a filter", SYS_seccomp, &[NONE]),
    act(
        "handle SIGSYS",
        SYS_rt_sigaction,
        &[SIGSYS as c_long, NULL, NULL, 0],
    ),
];
