/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Input of bindgen: the interface of libibverbs to providers, and our own interface to programs. */
#include <infiniband/driver.h>

#include "include/infiniband/virtio_rdma_dv.h"
