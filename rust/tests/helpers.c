// SPDX-License-Identifier: GPL-2.0

/* Each module has its own copy, since helpers are not exported. */
#include "../bindings/helpers/barrier.c"
#include "../bindings/helpers/dma.c"
#include "../bindings/helpers/memory.c"
#include "../bindings/helpers/net.c"
#include "../bindings/helpers/rdma.c"
#include "../bindings/helpers/sched.c"
#include "../bindings/helpers/virtio.c"
