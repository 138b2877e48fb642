// SPDX-License-Identifier: GPL-2.0
/*
 * Symbols for functions that C headers define inline or as macros, which Rust can't call. The
 * build strips the prefix "rust_helper_" for Rust. In the kernel's tree, rust/helpers/helpers.c
 * would include the other files of this folder, and the content of each file *_ext.c would be added
 * to an existing file.
 */

#include <linux/compiler_types.h>

#define __rust_helper

#include "barrier_ext.c"
#include "cpumask_ext.c"
#include "device_ext.c"
#include "dma_ext.c"
#include "mm_ext.c"
#include "netdevice.c"
#include "netlink.c"
#include "rdma.c"
#include "sched.c"
#include "virtio.c"

/* bindgen must not see the structures of the core's own header. */
#ifdef __BINDGEN__
bool rust_helper_ib_cq_event_unread(struct ib_cq *cq);
#else
#include "rdma_private.c"
#endif
