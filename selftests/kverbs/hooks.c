// SPDX-License-Identifier: GPL-2.0
/*
 * Hooks into the PCI transport of virtio, by which tests bring about rare situations:
 *
 * - few_vectors=FUNCTION: the PCI function gets at most two interrupt vectors, so the queues of its
 *   virtio device share one.
 * - slow_notify=DEVICE: the next notification of the virtio device takes three seconds, or until
 *   the device's queues are deleted, whichever is first. The parameter `notifying` is Y meanwhile.
 *   `overtaken` is Y if the queues were deleted during the notification. `unprotected` is Y if the
 *   caller was not in an RCU read-side critical section. The delay does not show this, since the
 *   hook is a probe and can't be preempted. A kernel without preemptible RCU does not count its
 *   readers, so there `unprotected` stays N.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/rcupdate.h>
#include <linux/virtio.h>

static char *few_vectors;
module_param(few_vectors, charp, 0444);
MODULE_PARM_DESC(few_vectors, "PCI function that gets at most two interrupt vectors");

static char *slow_notify;
module_param(slow_notify, charp, 0444);
MODULE_PARM_DESC(slow_notify, "virtio device whose next notification is slow");

static bool notifying;
module_param(notifying, bool, 0444);
MODULE_PARM_DESC(notifying, "the slow notification has begun");

static bool overtaken;
module_param(overtaken, bool, 0444);
MODULE_PARM_DESC(overtaken, "queues were deleted during the slow notification");

static bool unprotected;
module_param(unprotected, bool, 0444);
MODULE_PARM_DESC(unprotected, "the slow notification was outside of RCU read-side critical sections");

static bool is_over;

/* pci_alloc_irq_vectors_affinity(dev, min_vecs, max_vecs, flags, affd) */
static int on_alloc(struct kprobe *probe, struct pt_regs *regs)
{
	struct pci_dev *dev = (void *)regs_get_kernel_argument(regs, 0);

	/* No function has this many vectors, so the caller gets an error and takes fewer. */
	if (regs_get_kernel_argument(regs, 1) > 2 && !strcmp(pci_name(dev), few_vectors)) {
		regs->si = 4096;
		regs->dx = 4096;
	}
	return 0;
}

/* vp_notify(vq) */
static int on_notify(struct kprobe *probe, struct pt_regs *regs)
{
	struct virtqueue *vq = (void *)regs_get_kernel_argument(regs, 0);
	int ms;

	if (strcmp(dev_name(&vq->vdev->dev), slow_notify) || xchg(&notifying, true))
		return 0;
	unprotected = IS_ENABLED(CONFIG_PREEMPT_RCU) && !rcu_preempt_depth();
	for (ms = 0; ms < 3000 && !READ_ONCE(overtaken); ms++)
		mdelay(1);
	WRITE_ONCE(is_over, true);
	return 0;
}

/* vp_del_vqs(vdev) */
static int on_delete(struct kprobe *probe, struct pt_regs *regs)
{
	struct virtio_device *vdev = (void *)regs_get_kernel_argument(regs, 0);

	if (!strcmp(dev_name(&vdev->dev), slow_notify) && READ_ONCE(notifying) &&
	    !READ_ONCE(is_over))
		WRITE_ONCE(overtaken, true);
	return 0;
}

static struct kprobe alloc = {
	.symbol_name = "pci_alloc_irq_vectors_affinity",
	.pre_handler = on_alloc,
};

static struct kprobe notify = { .symbol_name = "vp_notify", .pre_handler = on_notify };
static struct kprobe delete = { .symbol_name = "vp_del_vqs", .pre_handler = on_delete };
static struct kprobe *slow[] = { &notify, &delete };

static int __init hooks_init(void)
{
	int ret = 0;

	if (few_vectors)
		ret = register_kprobe(&alloc);
	if (ret || !slow_notify)
		return ret;
	ret = register_kprobes(slow, ARRAY_SIZE(slow));
	if (ret && few_vectors)
		unregister_kprobe(&alloc);
	return ret;
}

static void __exit hooks_exit(void)
{
	if (slow_notify)
		unregister_kprobes(slow, ARRAY_SIZE(slow));
	if (few_vectors)
		unregister_kprobe(&alloc);
}

module_init(hooks_init);
module_exit(hooks_exit);

MODULE_AUTHOR("The virtio-rdma authors");
MODULE_DESCRIPTION("Hooks into the PCI transport of virtio, for tests");
MODULE_LICENSE("GPL");
