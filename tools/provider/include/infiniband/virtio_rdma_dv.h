/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Abilities of virtio RDMA devices beside the verbs of libibverbs. See
 * virtio_rdma_dv_open_device(3).
 */

#ifndef INFINIBAND_VIRTIO_RDMA_DV_H
#define INFINIBAND_VIRTIO_RDMA_DV_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* Of this header. The library of the same major version, which its soname has, knows all that
 * the header names. */
#define VIRTIO_RDMA_DV_VERSION_MAJOR 1
#define VIRTIO_RDMA_DV_VERSION_MINOR 0

/* Bytes of the name of a peer, terminating NUL included. */
#define VIRTIO_RDMA_DV_PEER_NAME_MAX 64

#ifdef __cplusplus
extern "C" {
#endif

/* Members of struct virtio_rdma_dv_open_device_attr that are valid. */
enum virtio_rdma_dv_set_attr {
	VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO = 1 << 0,
};

/* A peer: a driver of the system whose memory has addresses of its own. */
struct virtio_rdma_dv_peer_info {
	/* A number for the peer, which knows its meaning. */
	uint32_t peer_id;
	const char *peer_name;
};

struct virtio_rdma_dv_open_device_attr {
	/* Bits of enum virtio_rdma_dv_set_attr. */
	uint32_t comp_mask;
	struct virtio_rdma_dv_peer_info peer_info;
};

/* Purposes of memory that the allocators of a parent domain are asked for: their resource_type. */
enum virtio_rdma_dv_res_type {
	VIRTIO_RDMA_DV_RES_CQ = 1,
	VIRTIO_RDMA_DV_RES_QP = 2,
	VIRTIO_RDMA_DV_RES_SRQ = 3,
};

/* Whether a device is one that the functions below take. */
bool virtio_rdma_dv_is_supported(struct ibv_device *device);

/*
 * Opens a device as ibv_open_device does, with attributes. With a peer, memory regions of the
 * context are the peer's memory where the peer says that an address is one of its own.
 *
 * Returns NULL with errno on failure: EINVAL for unknown bits in comp_mask, a name that is no
 * peer's and an id that the peer does not know, EOPNOTSUPP if the device is another one's or has no
 * memory of peers.
 */
struct ibv_context *virtio_rdma_dv_open_device(struct ibv_device *device,
					       const struct virtio_rdma_dv_open_device_attr *attr);

#ifdef __cplusplus
}
#endif

#endif
