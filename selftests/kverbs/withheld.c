// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs whose commands the device seems not to answer: the interrupt of the control queue is
 * disabled for a while.
 */

#include "kverbs.h"

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/kthread.h>
#include <linux/slab.h>
#include <linux/virtio.h>
#include <linux/virtio_ring.h>

/* Number of QPs that are destroyed together, unless the device supports fewer. */
#define CROWD 100
/* The driver's limit of commands in flight. */
#define COMMANDS 32
/* Enough QPs for all numbers of a device in virtqueue mode. */
#define MOST 1200
#define ROUNDS 20

uint withheld_irq;

/* A verb that a thread runs. */
struct call {
	struct pair *pair;
	struct ib_qp *qp;
	int ret;
	struct completion done;
};

static struct ib_qp *small_qp(struct pair *pair)
{
	struct ib_qp_init_attr attr = {
		.cap = {
			.max_send_wr = 1,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = pair->a.send_cq,
		.recv_cq = pair->a.recv_cq,
	};

	return ib_create_qp(pair->pd, &attr);
}

static int destroy(void *data)
{
	struct call *call = data;

	call->ret = ib_destroy_qp(call->qp);
	complete(&call->done);
	return 0;
}

static int create(void *data)
{
	struct call *call = data;

	call->qp = small_qp(call->pair);
	call->ret = PTR_ERR_OR_ZERO(call->qp);
	complete(&call->done);
	return 0;
}

static bool start(struct call *call, int (*verb)(void *))
{
	init_completion(&call->done);
	return !IS_ERR(kthread_run(verb, call, "kverbs"));
}

/* Number of descriptors of the control queue that are not free. */
static unsigned int in_flight(struct pair *pair)
{
	struct virtqueue *control = control_queue(virtio_of(pair->dev));

	return virtqueue_get_vring_size(control) - READ_ONCE(control->num_free);
}

/* Waits until at least this many descriptors are in flight. Returns how many there are. */
static unsigned int await_in_flight(struct pair *pair, unsigned int wanted)
{
	unsigned int tries;

	for (tries = 0; tries < 1000 && in_flight(pair) < wanted; tries++)
		msleep(20);
	return in_flight(pair);
}

/* Destructions do not wait for each other: they fill the control queue. */
static bool crowd_is_destroyed(struct pair *pair)
{
	struct call *calls = kcalloc(CROWD, sizeof(*calls), GFP_KERNEL);
	unsigned int i, count, each, all;
	bool started = true;
	int ret = 0;

	EXPECT(calls);
	for (count = 0; count < CROWD; count++) {
		calls[count].qp = small_qp(pair);
		if (IS_ERR(calls[count].qp))
			break;
	}
	EXPECT(count > COMMANDS);
	/* In virtqueue mode a CQ may be armed by a command. */
	for (i = 0; i < 100 && in_flight(pair); i++)
		msleep(20);
	disable_irq(withheld_irq);
	started &= start(&calls[0], destroy);
	each = await_in_flight(pair, 1);
	for (i = 1; i < count; i++)
		started &= start(&calls[i], destroy);
	all = await_in_flight(pair, COMMANDS * each);
	enable_irq(withheld_irq);
	for (i = 0; started && i < count; i++) {
		wait_for_completion(&calls[i].done);
		ret = ret ?: calls[i].ret;
	}
	pr_info("# %u destructions: %u commands in flight\n", count, each ? all / each : 0);
	EXPECT(started && !ret);
	EXPECT(each && all >= COMMANDS * each);
	kfree(calls);
	return true;
}

/*
 * The number of a QP whose destruction was not answered yet may be refused to a new QP: its
 * virtqueues are not reset. Afterwards it is the only number that is free, and is used again.
 */
static bool number_is_used_again(struct pair *pair)
{
	struct ib_qp **qps = kvcalloc(MOST, sizeof(*qps), GFP_KERNEL);
	unsigned int count, round, each;
	bool passed = true;

	EXPECT(qps);
	for (count = 0; count < MOST; count++) {
		qps[count] = small_qp(pair);
		if (IS_ERR(qps[count]))
			break;
	}
	EXPECT(count);
	for (round = 0; passed && round < ROUNDS; round++) {
		struct call last = { .pair = pair, .qp = qps[--count] };
		struct call next = { .pair = pair };
		u32 number = last.qp->qp_num;

		disable_irq(withheld_irq);
		passed = start(&last, destroy);
		each = await_in_flight(pair, 1);
		passed = passed && start(&next, create);
		await_in_flight(pair, 2 * each);
		enable_irq(withheld_irq);
		if (!passed)
			break;
		wait_for_completion(&last.done);
		wait_for_completion(&next.done);
		if (next.ret == -ENOMEM)
			create(&next);
		passed = !last.ret && !next.ret && next.qp->qp_num == number;
		if (!next.ret)
			qps[count++] = next.qp;
		else
			pr_info("# round %u: %d\n", round, next.ret);
	}
	while (count)
		ib_destroy_qp(qps[--count]);
	kvfree(qps);
	return passed;
}

static bool has_few_numbers(struct ib_device *dev)
{
	return dev->attrs.max_qp < MOST;
}

const struct test withheld_tests[] = {
	{ "crowd_is_destroyed", crowd_is_destroyed },
	{ "number_is_used_again", number_is_used_again, has_few_numbers },
	{}
};
