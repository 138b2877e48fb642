// SPDX-License-Identifier: GPL-2.0

#include "../helpers.h"

bool rust_helper___virtio_test_bit(const struct virtio_device *vdev, unsigned int fbit)
{
	return __virtio_test_bit(vdev, fbit);
}

void rust_helper___virtio_clear_bit(struct virtio_device *vdev, unsigned int fbit)
{
	__virtio_clear_bit(vdev, fbit);
}

int rust_helper_virtio_find_vqs(struct virtio_device *vdev, unsigned int nvqs,
				struct virtqueue *vqs[], struct virtqueue_info info[],
				struct irq_affinity *desc)
{
	return virtio_find_vqs(vdev, nvqs, vqs, info, desc);
}

void rust_helper_virtio_device_ready(struct virtio_device *vdev)
{
	virtio_device_ready(vdev);
}

void rust_helper_virtio_synchronize_cbs(struct virtio_device *vdev)
{
	virtio_synchronize_cbs(vdev);
}

bool rust_helper_virtio_get_shm_region(struct virtio_device *vdev,
				       struct virtio_shm_region *region, u8 id)
{
	return virtio_get_shm_region(vdev, region, id);
}

void rust_helper_device_lock(struct device *dev)
{
	device_lock(dev);
}

void rust_helper_device_unlock(struct device *dev)
{
	device_unlock(dev);
}
