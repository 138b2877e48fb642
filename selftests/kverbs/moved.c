// SPDX-License-Identifier: GPL-2.0
/*
 * The device fails while the core moves it to another network namespace, at a moment when it is not
 * registered and no client has it. The clients that have it after the move get the event.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/virtio.h>

#define PATIENCE_MS	10000

static bool failed_in_between;
module_param(failed_in_between, bool, 0444);
MODULE_PARM_DESC(failed_in_between, "the device failed while it was not registered");

static bool told;
module_param(told, bool, 0444);
MODULE_PARM_DESC(told, "a client that has the device after the move got its event");

static const char *name;
static struct ib_device *moving;
static struct virtio_device *virtio;
static struct ib_event_handler handler;
static bool has_moved;

static void on_event(struct ib_event_handler *unused, struct ib_event *event)
{
	if (event->event == IB_EVENT_DEVICE_FATAL)
		WRITE_ONCE(told, true);
}

/* device_rename(dev, name): the core is between the removal of all clients and their return. The
 * driver finds the failure on another CPU. */
static int on_rename(struct kprobe *probe, struct pt_regs *regs)
{
	int ms;

	if ((void *)regs_get_kernel_argument(regs, 0) != &moving->dev || xchg(&has_moved, true))
		return 0;
	make_slow_reset(virtio);
	virtio_config_changed(virtio);
	for (ms = 0; ms < PATIENCE_MS && !is_reset_requested(); ms++)
		mdelay(1);
	failed_in_between = is_reset_requested();
	return 0;
}

static struct kprobe rename = { .symbol_name = "device_rename", .pre_handler = on_rename };

static int moved_add(struct ib_device *dev)
{
	if (strcmp(dev_name(&dev->dev), name))
		return -EOPNOTSUPP;
	if (has_moved) {
		INIT_IB_EVENT_HANDLER(&handler, dev, on_event);
		ib_register_event_handler(&handler);
	}
	moving = dev;
	virtio = virtio_of(dev);
	return 0;
}

static void moved_remove(struct ib_device *dev, void *data)
{
	if (handler.device)
		ib_unregister_event_handler(&handler);
	handler.device = NULL;
}

static struct ib_client client = {
	.name = "kverbs moved",
	.add = moved_add,
	.remove = moved_remove,
};

int moved_init(const char *device)
{
	int ret;

	name = device;
	ret = ib_register_client(&client);
	if (ret)
		return ret;
	ret = virtio ? register_kprobe(&rename) : -ENODEV;
	if (ret)
		ib_unregister_client(&client);
	return ret;
}

void moved_exit(void)
{
	unregister_kprobe(&rename);
	ib_unregister_client(&client);
}
