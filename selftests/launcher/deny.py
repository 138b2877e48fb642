#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Runs a command without the system calls that container engines deny: deny.py COMMAND...

They fail with EPERM, and clone3 with ENOSYS, so that C libraries use clone instead. clone itself
may make no namespaces.
"""

import ctypes
import errno
import os
import struct
import sys

# Numbers of x86-64.
DENIED = {
    "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "add_key": 248, "request_key": 249,
    "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279, "perf_event_open": 298,
    "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
    "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "syslog": 103, "pivot_root": 155, "acct": 163, "settimeofday": 164,
    "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "sethostname": 170,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "kexec_load": 246, "chroot": 161,
}
CLONE, CLONE3 = 56, 435
NEW_NAMESPACES = 0x7E020000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_EQ, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# Offsets in struct seccomp_data.
NUMBER, FIRST_ARGUMENT = 0, 16


def program():
    """The filter's instructions. Each test that does not match continues behind its return."""
    yield LOAD, 0, 0, NUMBER
    for number in DENIED.values():
        yield JUMP_EQ, 0, 1, number
        yield RETURN, 0, 0, ERRNO | errno.EPERM
    yield JUMP_EQ, 0, 1, CLONE3
    yield RETURN, 0, 0, ERRNO | errno.ENOSYS
    yield JUMP_EQ, 0, 3, CLONE
    yield LOAD, 0, 0, FIRST_ARGUMENT
    yield JUMP_ANY_BIT, 0, 1, NEW_NAMESPACES
    yield RETURN, 0, 0, ERRNO | errno.EPERM
    yield RETURN, 0, 0, ALLOW


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def main():
    instructions = [struct.pack("HBBI", *one) for one in program()]
    filter_ = Program(len(instructions), b"".join(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_)) != 0
    ):
        sys.exit(f"deny.py: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
