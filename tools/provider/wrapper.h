/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Input of bindgen: the interface between libibverbs and its providers, and ours to programs. */
#include <infiniband/driver.h>

#include "include/infiniband/virtio_rdma_dv.h"
