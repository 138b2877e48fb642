/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/*
 * Structures that the driver of virtio RDMA devices and its provider exchange through uverbs.
 *
 * Generated from rust/shared/abi by tools/dev/headers.
 */

#ifndef _UAPI_RDMA_VIRTIO_RDMA_ABI_H
#define _UAPI_RDMA_VIRTIO_RDMA_ABI_H

#include <linux/types.h>
#include <linux/virtio_rdma.h>

/* Version of a provider or module that does not state its versions. */
#define VIRTIO_RDMA_UNSTATED 6

/**
 * struct virtio_rdma_versions - range of versions that one side supports; all zero if it does
 *	not state them
 * @oldest: the oldest
 * @newest: the newest
 */
struct virtio_rdma_versions {
	__u32 oldest;
	__u32 newest;
};

/* Bytes of an exporter's name, including at least one terminating zero. */
#define VIRTIO_RDMA_PEER_NAME_SIZE 64

/*
 * Capabilities that the module offers to the provider (__le32).
 */
/* Queues are own rings. Otherwise the kernel holds the queues. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_OWN_RINGS (1U << 0)
/* Memory windows are supported. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_MEM_WINDOWS (1U << 1)
/* Atomic WRITE is supported. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_ATOMIC_WRITE (1U << 2)
/* FLUSH is supported. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_FLUSH (1U << 3)
/* Accesses to rings need the platform's device barriers instead of barriers between CPUs. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_ORDER_PLATFORM (1U << 4)

/*
 * Properties of a new context (__le32).
 */
/* The context is attached to an exporter. */
#define VIRTIO_RDMA_CONTEXT_ATTRIBUTES_PEER (1U << 0)

/**
 * struct virtio_rdma_alloc_context_req - request of ALLOC_CONTEXT. May be absent, which means
 *	all zero
 * @attributes: the fields below that are valid; other fields are zero
 * @peer_id: id of the context, which is passed to the exporter
 * @peer_name: the exporter's name, followed by at least one zero byte
 * @versions: versions that the provider supports
 */
struct virtio_rdma_alloc_context_req {
	__u32 attributes;
	__u32 peer_id;
	__u8 peer_name[VIRTIO_RDMA_PEER_NAME_SIZE];
	struct virtio_rdma_versions versions;
};

/**
 * struct virtio_rdma_alloc_context_resp - response of ALLOC_CONTEXT
 * @flags: capabilities
 * @max_inline_data: largest inline payload of a send work request, in bytes
 * @doorbell_offset: mmap offset of the context's doorbell page (shared, write only)
 * @max_qp_slots: maximum number of slots of a send or receive ring
 * @max_cq_slots: maximum number of slots of a CQ ring
 * @rate_limits: ranges for rate limits of QPs; all zero if they are not supported
 * @doorbell_size: number of bytes to map at doorbell_offset
 * @version: version of the context; 0 if the request states none
 */
struct virtio_rdma_alloc_context_resp {
	__u32 flags;
	__u32 max_inline_data;
	__aligned_u64 doorbell_offset;
	__u32 max_qp_slots;
	__u32 max_cq_slots;
	struct virtio_rdma_rate_limit_config rate_limits;
	__u32 doorbell_size;
	__u32 version;
};

/**
 * struct virtio_rdma_user_ring - a ring that a process requests; all zero for no ring
 * @addr: page-aligned address of the process's memory for the ring; 0 to have the kernel
 *	allocate it
 * @slots: number of slots; 0 for no ring
 * @slot_shift: slots have 2^n bytes
 * @reserved: reserved, zero
 */
struct virtio_rdma_user_ring {
	__aligned_u64 addr;
	__u32 slots;
	__u8 slot_shift;
	__u8 reserved[3];
};

/**
 * struct virtio_rdma_ring_mapping - the mapping of a ring in kernel memory; all zero for
 *	other rings
 * @offset: mmap offset
 * @length: length in bytes. Only the whole ring can be mapped
 */
struct virtio_rdma_ring_mapping {
	__aligned_u64 offset;
	__aligned_u64 length;
};

/**
 * struct virtio_rdma_create_cq_req - request of CREATE_CQ
 * @ring: the CQ's ring
 */
struct virtio_rdma_create_cq_req {
	struct virtio_rdma_user_ring ring;
};

/**
 * struct virtio_rdma_create_cq_resp - response of CREATE_CQ
 * @cqn: handle, as used in doorbells
 * @reserved: reserved, zero
 * @ring: the mapping of the CQ's ring
 */
struct virtio_rdma_create_cq_resp {
	__u32 cqn;
	__u32 reserved;
	struct virtio_rdma_ring_mapping ring;
};

/**
 * struct virtio_rdma_resize_cq_req - request of RESIZE_CQ
 * @ring: the new ring. A ring in process memory replaces the current ring immediately. A ring
 *	in kernel memory is only prepared: a further request without a ring moves the CQ to the
 *	ring prepared last
 */
struct virtio_rdma_resize_cq_req {
	struct virtio_rdma_user_ring ring;
};

/**
 * struct virtio_rdma_resize_cq_resp - response of RESIZE_CQ
 * @end: producer's position at which the old ring ends, if the CQ has moved
 * @reserved: reserved, zero
 * @ring: the mapping of the prepared ring
 */
struct virtio_rdma_resize_cq_resp {
	__u32 end;
	__u8 reserved[4];
	struct virtio_rdma_ring_mapping ring;
};

/**
 * struct virtio_rdma_create_qp_req - request of CREATE_QP
 * @sq: the send queue's ring
 * @rq: the receive queue's ring; all zero with an SRQ
 */
struct virtio_rdma_create_qp_req {
	struct virtio_rdma_user_ring sq;
	struct virtio_rdma_user_ring rq;
};

/**
 * struct virtio_rdma_create_qp_resp - response of CREATE_QP
 * @sq: the mapping of the send queue's ring
 * @rq: the mapping of the receive queue's ring
 */
struct virtio_rdma_create_qp_resp {
	struct virtio_rdma_ring_mapping sq;
	struct virtio_rdma_ring_mapping rq;
};

/**
 * struct virtio_rdma_create_srq_req - request of CREATE_SRQ
 * @ring: the SRQ's ring
 */
struct virtio_rdma_create_srq_req {
	struct virtio_rdma_user_ring ring;
};

/**
 * struct virtio_rdma_create_srq_resp - response of CREATE_SRQ
 * @srqn: handle, as used in doorbells
 * @reserved: reserved, zero
 * @ring: the mapping of the SRQ's ring
 */
struct virtio_rdma_create_srq_resp {
	__u32 srqn;
	__u32 reserved;
	struct virtio_rdma_ring_mapping ring;
};

/**
 * struct virtio_rdma_modify_srq_req - request of MODIFY_SRQ, which has no driver response in
 *	uverbs
 * @ring: the new ring, as in struct virtio_rdma_resize_cq_req, if IB_SRQ_MAX_WR is set;
 *	otherwise all zero
 * @mapping_addr: address at which the kernel stores the struct virtio_rdma_ring_mapping of a
 *	prepared ring; otherwise 0
 */
struct virtio_rdma_modify_srq_req {
	struct virtio_rdma_user_ring ring;
	__aligned_u64 mapping_addr;
};

/**
 * struct virtio_rdma_modify_qp_req - request of MODIFY_QP that sets a rate limit: the shape
 *	of the limit. May be absent
 * @max_burst_size: burst in bytes, or 0 for the device's default
 * @typical_packet_size: length of a typical packet in bytes, or 0 for the path MTU of the
 *	port
 * @reserved: reserved, zero
 */
struct virtio_rdma_modify_qp_req {
	__u32 max_burst_size;
	__u16 typical_packet_size;
	__u8 reserved[2];
};

/**
 * struct virtio_rdma_create_ah_resp - response of CREATE_AH
 * @av: the address vector for UD send work requests that use the AH. The kernel has resolved
 *	the MAC address
 * @reserved: reserved, zero
 */
struct virtio_rdma_create_ah_resp {
	struct virtio_rdma_address_vector av;
	__u8 reserved[5];
};

#endif /* _UAPI_RDMA_VIRTIO_RDMA_ABI_H */
