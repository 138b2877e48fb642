// SPDX-License-Identifier: GPL-2.0

#include <linux/device.h>

__rust_helper void rust_helper_device_lock(struct device *dev)
{
	device_lock(dev);
}

__rust_helper void rust_helper_device_unlock(struct device *dev)
{
	device_unlock(dev);
}

__rust_helper int rust_helper_dev_to_node(struct device *dev)
{
	return dev_to_node(dev);
}
