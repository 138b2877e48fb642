// SPDX-License-Identifier: GPL-2.0
/*
 * Makes a device look slow: as long as the module is loaded, the interrupt of a virtqueue does not
 * arrive. The device continues and answers; the driver does not see the answers.
 */

#include <linux/interrupt.h>
#include <linux/module.h>

static uint irq;
module_param(irq, uint, 0444);
MODULE_PARM_DESC(irq, "interrupt number of the virtqueue, as in /proc/interrupts");

static int __init withhold_init(void)
{
	if (!irq)
		return -EINVAL;
	disable_irq(irq);
	return 0;
}

static void __exit withhold_exit(void)
{
	enable_irq(irq);
}

module_init(withhold_init);
module_exit(withhold_exit);

MODULE_AUTHOR("The virtio-rdma authors");
MODULE_DESCRIPTION("Withholds an interrupt");
MODULE_LICENSE("GPL");
