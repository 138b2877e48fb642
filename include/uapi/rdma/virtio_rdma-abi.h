/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/*
 * Structures that the driver of virtio RDMA devices and its provider exchange through uverbs.
 *
 * Generated from rust/abi by tools/testbed/headers.
 */

#ifndef _UAPI_RDMA_VIRTIO_RDMA_ABI_H
#define _UAPI_RDMA_VIRTIO_RDMA_ABI_H

#include <linux/types.h>
#include <linux/virtio_rdma.h>

/* The version of a provider that does not state any, and of a module that answers none. */
#define VIRTIO_RDMA_UNSTATED 6

/**
 * struct virtio_rdma_versions - versions that one side speaks; all zero if it does not state
 *	them
 * @oldest: the oldest
 * @newest: the newest
 */
struct virtio_rdma_versions {
	__u32 oldest;
	__u32 newest;
};

/* Bytes of a peer's name, with the zero that ends it. */
#define VIRTIO_RDMA_PEER_NAME_SIZE 64

/*
 * Abilities that the module offers to the provider (__le32).
 */
/* Queues are own rings; without it they live in the kernel. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_OWN_RINGS (1U << 0)
/* There are memory windows. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_MEM_WINDOWS (1U << 1)
/* There are atomic WRITEs. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_ATOMIC_WRITE (1U << 2)
/* There are FLUSHes. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_FLUSH (1U << 3)
/* Rings are ordered by the barriers of the platform instead of those between CPUs. */
#define VIRTIO_RDMA_CONTEXT_FLAGS_ORDER_PLATFORM (1U << 4)

/*
 * Properties of a new context (__le32).
 */
/* It is attached to a peer. */
#define VIRTIO_RDMA_CONTEXT_ATTRIBUTES_PEER (1U << 0)

/**
 * struct virtio_rdma_alloc_context_req - request of ALLOC_CONTEXT. There may be none: then it
 *	is all zero
 * @attributes: the fields below that count; the others are zero
 * @peer_id: the number that the peer is told
 * @peer_name: the peer's name, filled up with zeroes, one at least
 * @versions: versions that the provider speaks
 */
struct virtio_rdma_alloc_context_req {
	__u32 attributes;
	__u32 peer_id;
	__u8 peer_name[VIRTIO_RDMA_PEER_NAME_SIZE];
	struct virtio_rdma_versions versions;
};

/**
 * struct virtio_rdma_alloc_context_resp - response of ALLOC_CONTEXT
 * @flags: the abilities that are offered
 * @max_inline_data: inline payload of a send work request in bytes at most
 * @doorbell_offset: offset for mmap of the context's doorbell page (shared, write only)
 * @max_qp_slots: slots of a send or receive ring at most
 * @max_cq_slots: slots of a CQ ring at most
 * @rate_limits: rates that a QP's sends can be limited to; all zero if they can not
 * @doorbell_size: bytes to map there
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
 * struct virtio_rdma_user_ring - a ring that a process asks for. Without slots it is none,
 *	and all zero
 * @addr: address of the process's memory for it, aligned to the page size; 0 for memory of
 *	the kernel
 * @slots: number of slots; 0 for no ring
 * @slot_shift: slot size is 2^n bytes
 * @reserved: reserved, zero
 */
struct virtio_rdma_user_ring {
	__aligned_u64 addr;
	__u32 slots;
	__u8 slot_shift;
	__u8 reserved[3];
};

/**
 * struct virtio_rdma_ring_mapping - where the process maps a ring in memory of the kernel;
 *	all zero for any other ring
 * @offset: offset for mmap
 * @length: length in bytes of the whole, which is what can be mapped
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
 * @cqn: handle, as the doorbell takes it
 * @reserved: reserved, zero
 * @ring: where the process maps the CQ's ring
 */
struct virtio_rdma_create_cq_resp {
	__u32 cqn;
	__u32 reserved;
	struct virtio_rdma_ring_mapping ring;
};

/**
 * struct virtio_rdma_resize_cq_req - request of RESIZE_CQ
 * @ring: the ring that takes the place of the present one at once, if that is memory of the
 *	process. In memory of the kernel it is prepared only; the CQ moves to the ring that was
 *	prepared last with a request of no ring
 */
struct virtio_rdma_resize_cq_req {
	struct virtio_rdma_user_ring ring;
};

/**
 * struct virtio_rdma_resize_cq_resp - response of RESIZE_CQ
 * @end: producer's position that the old ring ends with, if the CQ has moved
 * @reserved: reserved, zero
 * @ring: where the process maps the ring that was prepared
 */
struct virtio_rdma_resize_cq_resp {
	__u32 end;
	__u8 reserved[4];
	struct virtio_rdma_ring_mapping ring;
};

/**
 * struct virtio_rdma_create_qp_req - request of CREATE_QP
 * @sq: the send queue's ring
 * @rq: the receive queue's ring; none with an SRQ
 */
struct virtio_rdma_create_qp_req {
	struct virtio_rdma_user_ring sq;
	struct virtio_rdma_user_ring rq;
};

/**
 * struct virtio_rdma_create_qp_resp - response of CREATE_QP
 * @sq: where the process maps the send queue's ring
 * @rq: where the process maps the receive queue's ring
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
 * @srqn: handle, as the doorbell takes it
 * @reserved: reserved, zero
 * @ring: where the process maps the SRQ's ring
 */
struct virtio_rdma_create_srq_resp {
	__u32 srqn;
	__u32 reserved;
	struct virtio_rdma_ring_mapping ring;
};

/**
 * struct virtio_rdma_modify_srq_req - request of MODIFY_SRQ, which has no response in uverbs
 * @ring: with IB_SRQ_MAX_WR, as in struct virtio_rdma_resize_cq_req; else none
 * @mapping_addr: where the process wants the struct virtio_rdma_ring_mapping of a ring that
 *	is prepared; else 0
 */
struct virtio_rdma_modify_srq_req {
	struct virtio_rdma_user_ring ring;
	__aligned_u64 mapping_addr;
};

/**
 * struct virtio_rdma_modify_qp_req - request of MODIFY_QP, with a rate limit alone: how it is
 *	shaped. There may be none
 * @max_burst_size: burst in bytes, 0 for the device's default
 * @typical_packet_size: typical length of a packet in bytes, 0 for the port's MTU
 * @reserved: reserved, zero
 */
struct virtio_rdma_modify_qp_req {
	__u32 max_burst_size;
	__u16 typical_packet_size;
	__u8 reserved[2];
};

/**
 * struct virtio_rdma_create_ah_resp - response of CREATE_AH
 * @av: the address vector that a UD send work request to the AH carries. The kernel has
 *	resolved the MAC address
 * @reserved: reserved, zero
 */
struct virtio_rdma_create_ah_resp {
	struct virtio_rdma_address_vector av;
	__u8 reserved[5];
};

#endif /* _UAPI_RDMA_VIRTIO_RDMA_ABI_H */
