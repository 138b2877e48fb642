// SPDX-License-Identifier: GPL-2.0
/*
 * Impossible values in virtqueues, as a broken driver or a broken device would write them.
 */

#include "kverbs.h"

#include <linux/virtio.h>
#include <linux/virtio_ring.h>

/* Makes the available index of the control queue claim more requests than its ring holds. */
int make_nonsense(struct virtio_device *vdev)
{
	struct virtqueue *vq = control_queue(vdev);
	const struct vring *ring = virtqueue_get_vring(vq);
	u16 index = le16_to_cpu((__force __le16)ring->avail->idx);

	WRITE_ONCE(ring->avail->idx, (__force __virtio16)cpu_to_le16(index + 0x7000));
	virtqueue_notify(vq);
	return 0;
}

/*
 * Adds an invalid buffer id to the used ring of the first queue that reports completions.
 */
int make_device_nonsense(struct virtio_device *vdev)
{
	const struct vring *ring;
	struct virtqueue *vq;
	u16 index;

	virtio_device_for_each_vq(vdev, vq) {
		if (!is_cq(vq) && strncmp(vq->name, "event.", 6))
			continue;
		ring = virtqueue_get_vring(vq);
		/* The queue belongs to no CQ: it has no buffers. */
		if (vq->num_free == ring->num)
			continue;
		index = used_index(vq);
		ring->used->ring[index % ring->num].id = (__force __virtio32)cpu_to_le32(ring->num);
		WRITE_ONCE(ring->used->idx, (__force __virtio16)cpu_to_le16(index + 1));
		local_irq_disable();
		vring_interrupt(0, vq);
		local_irq_enable();
		return 0;
	}
	return -ENOENT;
}
