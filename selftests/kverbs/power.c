// SPDX-License-Identifier: GPL-2.0
/*
 * Suspends the virtio device behind an RDMA device and resumes it, as the transport does it with
 * the whole machine. The virtual machines can't be suspended: their file systems refuse it.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/module.h>
#include <linux/virtio.h>

static char *device;
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "RDMA device to suspend");

static uint ms;
module_param(ms, uint, 0444);
MODULE_PARM_DESC(ms, "milliseconds until it is resumed");

static struct virtio_device *vdev;

static int find(struct ib_device *dev)
{
	if (device && !strcmp(dev_name(&dev->dev), device))
		vdev = virtio_of(dev);
	return -EOPNOTSUPP;
}

static struct ib_client client = {
	.name = "suspender",
	.add = find,
};

static int __init suspend_init(void)
{
	int ret = ib_register_client(&client);

	if (ret)
		return ret;
	/* The driver unregisters the RDMA device. The virtio device stays. */
	ib_unregister_client(&client);
	if (!vdev)
		return -ENODEV;
	ret = virtio_device_freeze(vdev);
	if (ret)
		return ret;
	msleep(ms);
	return virtio_device_restore(vdev);
}

static void __exit suspend_exit(void)
{
}

module_init(suspend_init);
module_exit(suspend_exit);

MODULE_AUTHOR("The virtio-rdma authors");
MODULE_DESCRIPTION("Suspends and resumes a virtio device, for tests");
MODULE_LICENSE("GPL");
