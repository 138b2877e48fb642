// SPDX-License-Identifier: GPL-2.0
/*
 * The virtio device behind an RDMA device, and its virtqueues.
 */

#include "kverbs.h"

#include <linux/virtio.h>
#include <linux/virtio_ring.h>

static int is_virtio(struct device *dev, const void *data)
{
	return is_virtio_device(dev);
}

/* The RDMA device's parent is a PCI function that is the virtio device's parent or, on other
 * transports, the virtio device itself. */
struct virtio_device *virtio_of(struct ib_device *dev)
{
	struct device *parent = dev->dev.parent;
	struct device *child;

	if (!parent)
		return NULL;
	if (is_virtio_device(parent))
		return dev_to_virtio(parent);
	child = device_find_child(parent, NULL, is_virtio);
	if (!child)
		return NULL;
	/* The virtio device exists as long as the RDMA device. */
	put_device(child);
	return dev_to_virtio(child);
}

struct virtqueue *control_queue(struct virtio_device *vdev)
{
	return list_first_entry(&vdev->vqs, struct virtqueue, list);
}

bool is_cq(struct virtqueue *vq)
{
	return !strncmp(vq->name, "cq.", 3);
}

/* Whether the device is in virtqueue mode: CQs are virtqueues of the transport. */
bool has_cq_virtqueues(struct ib_device *dev)
{
	struct virtqueue *vq;

	virtio_device_for_each_vq(virtio_of(dev), vq)
		if (is_cq(vq))
			return true;
	return false;
}

/* The number of buffers of a split virtqueue that the device has used, modulo 2^16. */
u16 used_index(struct virtqueue *vq)
{
	return le16_to_cpu((__force __le16)READ_ONCE(virtqueue_get_vring(vq)->used->idx));
}
