// SPDX-License-Identifier: GPL-2.0

#include <linux/virtio_config.h>

__rust_helper bool rust_helper___virtio_test_bit(const struct virtio_device *vdev,
						 unsigned int fbit)
{
	return __virtio_test_bit(vdev, fbit);
}

__rust_helper void rust_helper___virtio_clear_bit(struct virtio_device *vdev, unsigned int fbit)
{
	__virtio_clear_bit(vdev, fbit);
}

__rust_helper int rust_helper_virtio_find_vqs(struct virtio_device *vdev, unsigned int nvqs,
					      struct virtqueue *vqs[], struct virtqueue_info info[],
					      struct irq_affinity *desc)
{
	return virtio_find_vqs(vdev, nvqs, vqs, info, desc);
}

__rust_helper int rust_helper_virtqueue_set_affinity(struct virtqueue *vq,
						     const struct cpumask *cpu_mask)
{
	return virtqueue_set_affinity(vq, cpu_mask);
}

__rust_helper void rust_helper_virtio_device_ready(struct virtio_device *vdev)
{
	virtio_device_ready(vdev);
}

__rust_helper void rust_helper_virtio_synchronize_cbs(struct virtio_device *vdev)
{
	virtio_synchronize_cbs(vdev);
}

__rust_helper bool rust_helper_virtio_get_shm_region(struct virtio_device *vdev,
						     struct virtio_shm_region *region, u8 id)
{
	return virtio_get_shm_region(vdev, region, id);
}
