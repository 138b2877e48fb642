/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Peers: drivers whose devices have memory with addresses of its own, which RDMA shall reach.
 *
 * A process opens an RDMA device with the name of a peer and a number that means something to it.
 * The peer looks up memory that the process registers in that context, and answers with a DMA
 * buffer. See Documentation/peers.md.
 */

#ifndef RDMA_PEER_H
#define RDMA_PEER_H

#include <linux/types.h>

struct dma_buf;
struct module;

/* Bytes of a name, with the one that ends it. */
#define RDMA_PEER_NAME_MAX 64

/**
 * struct rdma_peer_range - where memory of a peer lies
 * @dmabuf: the buffer, with a reference that becomes the caller's
 * @offset: of its first byte; in its page it is the same as that of the address
 */
struct rdma_peer_range {
	struct dma_buf *dmabuf;
	u64 offset;
};

/**
 * struct rdma_peer - a peer @owner: the module that it is part of, which stays as long as a context
 *	is attached @name: what processes know it by @get_context_private_data: called when a
 *	process opens a device with this peer. Returns what the other callbacks are given for the
 *	context, or an ERR_PTR, with which the process fails: -EINVAL for an id that is not known.
 *	@put_context_private_data: called once for each success of the former, when the context
 *	goes: it was closed, or its process or its device is gone. Its memory regions are gone by
 *	then. @get_range: finds memory of the context by its address. Returns 0, or -ENXIO for what
 *	is no address of the peer and so is one of the process, or another error, with which the
 *	registration fails.
 *
 * Contexts are got and ranges looked up in the process that asks, so that the peer may judge by its
 * credentials. All callbacks may sleep. Callbacks for one context may run at the same time, but for
 * the one that puts it.
 */
struct rdma_peer {
	struct module *owner;
	const char *name;
	void *(*get_context_private_data)(u64 peer_id);
	void (*put_context_private_data)(void *context);
	int (*get_range)(void *context, u64 address, u64 length, struct rdma_peer_range *range);
};

/**
 * rdma_peer_register - makes a peer known
 * @peer: stays as it is until it is unregistered
 *
 * Return: 0, -EINVAL without a name that fits or without one of the callbacks, -EEXIST if there is
 * a peer of this name, -ENOSPC if there are too many.
 */
int rdma_peer_register(const struct rdma_peer *peer);

/**
 * rdma_peer_unregister - unregisters a peer for good
 * @peer: a registered peer without attached contexts, whose module is being unloaded
 */
void rdma_peer_unregister(const struct rdma_peer *peer);

#endif
