/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Functions of virtio RDMA devices that libibverbs does not offer. See
 * virtio_rdma_dv_open_device(3).
 */

#ifndef INFINIBAND_VIRTIO_RDMA_DV_H
#define INFINIBAND_VIRTIO_RDMA_DV_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* The version of this header. The soname of the library has the major version. */
#define VIRTIO_RDMA_DV_VERSION_MAJOR 1
#define VIRTIO_RDMA_DV_VERSION_MINOR 0

/* Bytes of the name of an exporter, terminating NUL included. */
#define VIRTIO_RDMA_DV_PEER_NAME_MAX 64

#ifdef __cplusplus
extern "C" {
#endif

/* Members of struct virtio_rdma_dv_open_device_attr that are valid. */
enum virtio_rdma_dv_set_attr {
	VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO = 1 << 0,
};

/* An exporter: a driver of the system whose device memory has addresses of its own. */
struct virtio_rdma_dv_peer_info {
	/* An identifier whose meaning the exporter defines. */
	uint32_t peer_id;
	const char *peer_name;
};

struct virtio_rdma_dv_open_device_attr {
	/* Bits of enum virtio_rdma_dv_set_attr. */
	uint32_t comp_mask;
	struct virtio_rdma_dv_peer_info peer_info;
};

/* Values of resource_type in calls of a parent domain's allocators: the purpose of the memory. */
enum virtio_rdma_dv_res_type {
	VIRTIO_RDMA_DV_RES_CQ = 1,
	VIRTIO_RDMA_DV_RES_QP = 2,
	VIRTIO_RDMA_DV_RES_SRQ = 3,
};

/* Whether the functions below accept the device. */
bool virtio_rdma_dv_is_supported(struct ibv_device *device);

/*
 * Opens a device as ibv_open_device does, with attributes. With an exporter, a memory region of the
 * context refers to the exporter's memory if the exporter claims its address.
 *
 * Returns NULL with errno on failure: EINVAL for unknown bits in comp_mask, a name that no exporter
 * has, or an id that the exporter does not know; EOPNOTSUPP if the device is not a virtio RDMA
 * device or does not support peer memory.
 */
struct ibv_context *virtio_rdma_dv_open_device(struct ibv_device *device,
					       const struct virtio_rdma_dv_open_device_attr *attr);

#ifdef __cplusplus
}
#endif

#endif
