// SPDX-License-Identifier: GPL-2.0
/*
 * The device dies while work is outstanding. The test script kills the daemon after a line in the
 * kernel's log.
 */

#include "kverbs.h"

#include <linux/atomic.h>
#include <linux/delay.h>

#define RECVS		(DEPTH / 2)
#define SENDS		4
#define PATIENCE	(120 * HZ)

static atomic_t fatal_events;

static void count_event(struct ib_event_handler *handler, struct ib_event *event)
{
	if (event->event == IB_EVENT_DEVICE_FATAL)
		atomic_inc(&fatal_events);
}

/* Posts work to both queues of A that can't complete: B has no receives, and A retries without
 * limit. */
static bool post_all(struct pair *pair, struct work **sends, struct work **recvs)
{
	int i;

	for (i = 0; i < RECVS; i++) {
		recvs[i] = work_get();
		EXPECT(!post_recv(pair, &pair->a, recvs[i], 0, 64));
	}
	for (i = 0; i < SENDS; i++) {
		sends[i] = work_get();
		EXPECT(!post_send(pair, &pair->a, sends[i], 0, 64));
	}
	msleep(100);
	EXPECT(!completion_done(&sends[0]->done) && !completion_done(&recvs[0]->done));
	return true;
}

/* Whether handlers are not called any more: the number of calls stays the same. */
static bool is_quiet(void)
{
	int calls, tries;

	for (tries = 0; tries < 10; tries++) {
		calls = chain_calls();
		msleep(500);
		if (calls == chain_calls())
			return true;
	}
	return false;
}

static bool outlive(struct pair *pair)
{
	struct work *sends[SENDS], *recvs[RECVS], *late[] = { work_get(), work_get() };
	struct ib_mr *mr;
	int i;

	EXPECT(post_all(pair, sends, recvs));
	EXPECT(!chain_init(pair) && chain_run(IB_WC_SUCCESS));
	pr_info("# the device may die now\n");
	EXPECT(wait_for_completion_timeout(&sends[0]->done, PATIENCE));
	/* The wait has consumed the completion, for which work_wait() waits again. */
	complete(&sends[0]->done);
	for (i = 0; i < SENDS; i++)
		EXPECT(work_wait(sends[i], IB_WC_WR_FLUSH_ERR));
	for (i = 0; i < RECVS; i++)
		EXPECT(work_wait(recvs[i], IB_WC_WR_FLUSH_ERR));
	/* Work that is posted from now on is flushed too. */
	EXPECT(!post_send(pair, &pair->a, late[0], 0, 64));
	EXPECT(!post_recv(pair, &pair->a, late[1], 0, 64));
	for (i = 0; i < ARRAY_SIZE(late); i++)
		EXPECT(work_wait(late[i], IB_WC_WR_FLUSH_ERR));
	/* A handler may still arm, poll and post. Once nothing is left to be flushed, it is not
	 * called any more. */
	EXPECT(chain_run(IB_WC_WR_FLUSH_ERR));
	EXPECT(chain_run(IB_WC_WR_FLUSH_ERR));
	EXPECT(is_quiet());
	ib_drain_qp(pair->a.qp);
	ib_drain_qp(pair->b.qp);
	/* Events are delivered by a workqueue. */
	for (i = 0; i < 1000 && !atomic_read(&fatal_events); i++)
		msleep(10);
	EXPECT(atomic_read(&fatal_events) == 1);
	/* Creating an object fails at once. */
	mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 4);
	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
	EXPECT(IS_ERR(mr));
	return true;
}

static bool test_flush(struct pair *pair)
{
	struct ib_event_handler handler;
	bool passed;

	INIT_IB_EVENT_HANDLER(&handler, pair->dev, count_event);
	ib_register_event_handler(&handler);
	passed = outlive(pair);
	chain_free();
	ib_unregister_event_handler(&handler);
	return passed;
}

const struct test death_tests[] = {
	{ "flush", test_flush },
	{},
};
