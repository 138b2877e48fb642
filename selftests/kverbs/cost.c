// SPDX-License-Identifier: GPL-2.0
/*
 * The cost of a post and a poll, in ticks of the processor's time stamp counter.
 *
 * On an emulated processor whose clock counts instructions (QEMU's -icount shift=0), a tick is an
 * instruction. The test polls after the completions have arrived, so that polls of an empty CQ do
 * not count.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/math64.h>
#include <linux/timex.h>

/* Unmeasured rounds at first: they fill caches, and let an emulator translate the code. */
#define WARM	16
#define ROUNDS	256
#define PATIENCE_MS	30000

/* Ticks of a post and of a poll, without the cost of the measurement. */
struct cost {
	u64 post;
	u64 poll;
};

/* The ticks between two successive readings of the counter, with interrupts disabled: the cost of a
 * measurement. */
static u64 cost_of_reading(void)
{
	unsigned long flags;
	cycles_t began, ended;

	local_irq_save(flags);
	began = get_cycles();
	ended = get_cycles();
	local_irq_restore(flags);
	return ended - began;
}

static bool post_one(struct pair *pair, u64 *ticks)
{
	struct work *work = work_get();
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	struct ib_rdma_wr wr = write_of(pair, &work->cqe, &sge, 0);
	unsigned long flags;
	cycles_t began;
	int ret;

	local_irq_save(flags);
	began = get_cycles();
	ret = ib_post_send(pair->a.qp, &wr.wr, NULL);
	*ticks = get_cycles() - began;
	local_irq_restore(flags);
	EXPECT(!ret);
	return true;
}

static bool poll_one(struct pair *pair, u64 *ticks)
{
	unsigned int waited;
	unsigned long flags;
	struct ib_wc wc;
	cycles_t began;
	int count = 0;

	for (waited = 0; !count && waited < PATIENCE_MS; waited++) {
		fsleep(1000);
		local_irq_save(flags);
		began = get_cycles();
		count = ib_poll_cq(pair->a.send_cq, 1, &wc);
		*ticks = get_cycles() - began;
		local_irq_restore(flags);
	}
	EXPECT(count == 1);
	EXPECT(wc.status == IB_WC_SUCCESS);
	return true;
}

static bool cost_of_a_write(struct pair *pair)
{
	struct cost sum = {};
	u64 reading, post, poll;
	int i;

	for (i = -WARM; i < ROUNDS; i++) {
		EXPECT(post_one(pair, &post));
		EXPECT(poll_one(pair, &poll));
		if (i < 0)
			continue;
		reading = cost_of_reading();
		sum.post += post - reading;
		sum.poll += poll - reading;
	}
	pr_info("# ticks of a post_send: %llu\n", div_u64(sum.post, ROUNDS));
	pr_info("# ticks of a poll_cq: %llu\n", div_u64(sum.poll, ROUNDS));
	return true;
}

const struct test cost_tests[] = {
	{ "cost_of_a_write", cost_of_a_write },
	{ }
};
