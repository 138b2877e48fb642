/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Exporters of peer memory: drivers whose device memory has addresses of its own and can be
 * registered for RDMA.
 *
 * A process opens an RDMA device with the name of an exporter and an id that the exporter knows.
 * When the process registers memory in this context, the exporter looks the address up. For its own
 * memory it returns a DMA buffer. See Documentation/peer-memory.md.
 */

#ifndef RDMA_PEER_H
#define RDMA_PEER_H

#include <linux/types.h>

struct dma_buf;
struct module;

/* Maximum number of bytes of an exporter's name, terminating NUL included. */
#define RDMA_PEER_NAME_MAX 64

/**
 * struct rdma_peer_range - memory of an exporter
 * @dmabuf: the buffer that contains the memory; the caller gets a reference to it
 * @offset: offset of the first byte in the buffer, equal to the address modulo the page size
 */
struct rdma_peer_range {
	struct dma_buf *dmabuf;
	u64 offset;
};

/**
 * struct rdma_peer - an exporter of peer memory
 * @owner: the exporter's module, which stays loaded as long as a context is attached to it
 * @name: the name by which processes select the exporter
 * @get_context_private_data: called when a process opens a device with this exporter. Returns a
 *	pointer that the other callbacks get as the context, or an ERR_PTR, with which the open
 *	fails: -EINVAL for an unknown id.
 * @put_context_private_data: called once for each context, after its last memory region was
 *	destroyed, when the context is closed or its process or its device is gone
 * @get_range: finds memory of the context by its address. Returns 0, -ENXIO for an address that
 *	belongs to the process and not to the exporter, or another error, with which the
 *	registration fails.
 *
 * get_context_private_data() and get_range() are called in the process that opens the device or
 * registers memory, so the exporter may check the credentials of the current task. All callbacks
 * may sleep. Calls of get_range() for one context may run at the same time, but not at the same
 * time as put_context_private_data().
 */
struct rdma_peer {
	struct module *owner;
	const char *name;
	void *(*get_context_private_data)(u64 peer_id);
	void (*put_context_private_data)(void *context);
	int (*get_range)(void *context, u64 address, u64 length, struct rdma_peer_range *range);
};

/**
 * rdma_peer_register - registers an exporter
 * @exporter: the exporter, which must not change until it is unregistered
 *
 * Return: 0, -EINVAL if the name is missing, empty or too long or a callback is missing, -EEXIST if
 * an exporter of this name is registered, -ENOSPC if there are too many exporters, -ENODEV if the
 * RDMA driver is not initialized.
 */
int rdma_peer_register(const struct rdma_peer *exporter);

/**
 * rdma_peer_unregister - unregisters an exporter for good
 * @exporter: a registered exporter without attached contexts, whose module is being unloaded
 */
void rdma_peer_unregister(const struct rdma_peer *exporter);

#endif
