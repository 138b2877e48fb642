/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Input of bindgen: the subsystems whose headers the kernel crate does not bind yet.
 */

#include <linux/hw_random.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_pci.h>

#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/uverbs_types.h>

#include <trace/events/virtio_rdma.h>

#include "../../../include/rdma/peer.h"

#include "../helpers/helpers.c"
