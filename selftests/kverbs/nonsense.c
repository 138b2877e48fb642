// SPDX-License-Identifier: GPL-2.0
/*
 * What only a broken driver does: it writes to a virtqueue what makes no sense.
 */

#include "kverbs.h"

#include <linux/virtio.h>
#include <linux/virtio_ring.h>

/* The control queue is told to have more requests than its ring holds. */
int make_nonsense(struct ib_device *dev)
{
	struct virtio_device *vdev = virtio_of(dev);
	const struct vring *ring;
	struct virtqueue *vq;
	u16 index;

	if (!vdev)
		return -ENODEV;
	vq = list_first_entry(&vdev->vqs, struct virtqueue, list);
	ring = virtqueue_get_vring(vq);
	index = le16_to_cpu((__force __le16)ring->avail->idx);
	WRITE_ONCE(ring->avail->idx, (__force __virtio16)cpu_to_le16(index + 0x7000));
	virtqueue_notify(vq);
	return 0;
}
