// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of the verbs of kernel clients, between two QPs of one device.
 *
 * The tests run when the module is loaded, on the device of the module parameter, and report in
 * KTAP to the kernel's log. Loading fails if a test fails.
 */

#include "kverbs.h"

#include <linux/module.h>
#include <linux/slab.h>

static char *device;
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "RDMA device to test");

static uint gid_index = 1;
module_param(gid_index, uint, 0444);
MODULE_PARM_DESC(gid_index, "GID of both ends");

static bool death;
module_param(death, bool, 0444);
MODULE_PARM_DESC(death, "instead of the other tests, wait for the device's death and see what becomes of work");

static bool cost;
module_param(cost, bool, 0444);
MODULE_PARM_DESC(cost, "instead of the other tests, say what a post and a poll cost");

static bool lies;
module_param(lies, bool, 0444);
MODULE_PARM_DESC(lies, "instead of the other tests, forge completions of the device; queues must be virtqueues");

module_param_named(withheld, withheld_irq, uint, 0444);
MODULE_PARM_DESC(withheld,
		 "instead of the other tests, withhold answers to commands: the number of the control queue's interrupt");

static bool rescan;
module_param(rescan, bool, 0444);
MODULE_PARM_DESC(rescan, "instead of any tests, make the core look for addresses of the port, with the RTNL held");

static bool nonsense;
module_param(nonsense, bool, 0444);
MODULE_PARM_DESC(nonsense, "instead of any tests, make nonsense of the control queue: the device asks for a reset");

static bool device_nonsense;
module_param(device_nonsense, bool, 0444);
MODULE_PARM_DESC(device_nonsense,
		 "instead of any tests, make nonsense of a queue in the device's place");

static bool slow_reset;
module_param(slow_reset, bool, 0444);
MODULE_PARM_DESC(slow_reset,
		 "instead of any tests, make the device fail; its reset lasts until the module is unloaded");

static bool late_reset;
module_param(late_reset, bool, 0444);
MODULE_PARM_DESC(late_reset,
		 "instead of any tests, let the next reset of the device last until the module is unloaded");

static bool moved;
module_param(moved, bool, 0444);
MODULE_PARM_DESC(moved,
		 "instead of any tests, make the device fail when it moves to another namespace");

static uint gid_answer;
module_param(gid_answer, uint, 0444);
MODULE_PARM_DESC(gid_answer,
		 "instead of any tests, answer additions of GIDs with this status when the module is unloaded; needs withheld");

static bool broken_queue;
module_param(broken_queue, bool, 0444);
MODULE_PARM_DESC(broken_queue,
		 "instead of the other tests, break the control queue, and see what becomes of buffers");

static bool no_answer;
module_param(no_answer, bool, 0444);
MODULE_PARM_DESC(no_answer,
		 "instead of the other tests, let no command be answered, and see what becomes of buffers");

static bool broken_cq;
module_param(broken_cq, bool, 0444);
MODULE_PARM_DESC(broken_cq,
		 "instead of the other tests, break a CQ, which must be a virtqueue, and see what becomes of its completions");

static bool same_number;
module_param(same_number, bool, 0444);
MODULE_PARM_DESC(same_number, "instead of the other tests, forge the number of a new QP");

static const struct test *const usual[] = {
	data_tests,  fast_reg_tests, atomic_tests,  srq_tests,	query_tests,
	garbage_tests, handler_tests, mapping_tests, lost_tests, NULL
};
static const struct test *const liars[] = { lies_tests, NULL };
static const struct test *const last[] = { death_tests, NULL };
static const struct test *const costs[] = { cost_tests, NULL };
static const struct test *const breakers[] = { broken_queue_tests, NULL };
static const struct test *const silencers[] = { no_answer_tests, NULL };
static const struct test *const holders[] = { held_tests, NULL };
static const struct test *const numbers[] = { number_tests, NULL };
static const struct test *const slow[] = { withheld_tests, NULL };

static const struct test *const *chosen(void)
{
	if (death)
		return last;
	if (cost)
		return costs;
	if (lies)
		return liars;
	if (broken_queue)
		return breakers;
	if (no_answer)
		return silencers;
	if (broken_cq)
		return holders;
	if (withheld_irq)
		return slow;
	return same_number ? numbers : usual;
}

static unsigned int count_tests(const struct test *const *suite)
{
	const struct test *test;
	unsigned int count = 0;

	for (; *suite; suite++)
		for (test = *suite; test->name; test++)
			count++;
	return count;
}

static bool run_tests(struct pair *pair)
{
	const struct test *const *suite = chosen();
	const struct test *test;
	unsigned int number = 0;
	bool all = true;

	pr_info("KTAP version 1\n");
	pr_info("1..%u\n", count_tests(suite));
	for (; *suite; suite++) {
		for (test = *suite; test->name; test++) {
			bool passed;

			number++;
			if (test->is_possible && !test->is_possible(pair->dev)) {
				pr_info("ok %u %s # SKIP not possible here\n", number, test->name);
				continue;
			}
			passed = !pair_connect(pair) && test->run(pair);
			pr_info("%s %u %s\n", passed ? "ok" : "not ok", number, test->name);
			all &= passed;
		}
	}
	return all;
}

static int kverbs_run(struct ib_device *dev)
{
	struct pair *pair;
	int ret;

	if (nonsense || device_nonsense || slow_reset || late_reset || gid_answer) {
		struct virtio_device *vdev = virtio_of(dev);

		if (!vdev)
			return -ENODEV;
		if (slow_reset)
			return make_slow_reset(vdev);
		if (gid_answer)
			return answer_to_gids(vdev, withheld_irq, gid_answer);
		if (late_reset) {
			delay_reset(vdev);
			return 0;
		}
		return nonsense ? make_nonsense(vdev) : make_device_nonsense(vdev);
	}
	if (rescan) {
		rdma_roce_rescan_port(dev, 1);
		return 0;
	}
	pair = kzalloc(sizeof(*pair), GFP_KERNEL);
	if (!pair)
		return -ENOMEM;
	ret = pair_init(pair, dev, gid_index, cost ? IB_POLL_DIRECT : IB_POLL_SOFTIRQ);
	if (!ret)
		ret = run_tests(pair) ? 0 : -EIO;
	pair_free(pair);
	kfree(pair);
	return ret;
}

static int result = -ENODEV;

static int kverbs_add(struct ib_device *dev)
{
	if (device && !strcmp(dev_name(&dev->dev), device))
		result = kverbs_run(dev);
	return -EOPNOTSUPP;
}

static struct ib_client client = {
	.name = "kverbs",
	.add = kverbs_add,
};

/* The tests run in ib_register_client(), which calls the client's `add` with each device. */
static int __init kverbs_init(void)
{
	int ret;

	if (moved)
		return moved_init(device);
	ret = ib_register_client(&client);
	if (ret)
		return ret;
	ib_unregister_client(&client);
	if (result) {
		pr_info("failed: %d\n", result);
		failing_exit();
	}
	return result;
}

static void __exit kverbs_exit(void)
{
	if (moved)
		moved_exit();
	gids_exit();
	failing_exit();
}

module_init(kverbs_init);
module_exit(kverbs_exit);

MODULE_AUTHOR("The virtio-rdma authors");
MODULE_DESCRIPTION("Tests of RDMA verbs in the kernel");
MODULE_LICENSE("GPL");
