// SPDX-License-Identifier: GPL-2.0
/*
 * A completion handler that arms, polls and posts, as the documentation of ib_core's locking
 * allows. The handler is called with interrupts disabled and the driver's locks held.
 */

#include "kverbs.h"

#define LENGTH	50
#define PATIENCE (30 * HZ)

static struct chain {
	struct pair *pair;
	struct ib_cq *cq;
	struct side a;
	struct side b;
	struct work work;
	/* State of the current run. */
	enum ib_wc_status status;
	atomic_t calls;
	int left;
	int wrong;
	struct completion done;
} chain;

static int chain_post(void)
{
	struct ib_sge sge = sge_of(chain.pair, &chain.pair->a, 0, 64);
	struct ib_rdma_wr wr = write_of(chain.pair, &chain.work.cqe, &sge, 0);

	return ib_post_send(chain.a.qp, &wr.wr, NULL);
}

static void chain_completed(struct ib_cq *cq, void *context)
{
	struct ib_wc wc;

	atomic_inc(&chain.calls);
	chain.wrong += ib_req_notify_cq(cq, IB_CQ_NEXT_COMP) < 0;
	while (ib_poll_cq(cq, 1, &wc) == 1) {
		chain.wrong += wc.status != chain.status;
		if (--chain.left == 0)
			complete(&chain.done);
		else
			chain.wrong += !!chain_post();
	}
}

static int end_init(struct side *side)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			.max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = chain.cq,
		.recv_cq = chain.cq,
	};

	side->qp = ib_create_qp(chain.pair->pd, &attr);
	return PTR_ERR_OR_ZERO(side->qp);
}

/* Creates two QPs whose CQ has the handler. They can be created before the device dies and used
 * after its death. */
int chain_init(struct pair *pair)
{
	struct ib_cq_init_attr attr = { .cqe = 4 * DEPTH };
	int ret;

	memset(&chain, 0, sizeof(chain));
	chain.pair = pair;
	init_completion(&chain.done);
	chain.cq = ib_create_cq(pair->dev, chain_completed, NULL, NULL, &attr);
	if (IS_ERR(chain.cq))
		return PTR_ERR(chain.cq);
	ret = end_init(&chain.a);
	ret = ret ?: end_init(&chain.b);
	ret = ret ?: side_connect(pair, &chain.a, &chain.b);
	return ret ?: side_connect(pair, &chain.b, &chain.a);
}

void chain_free(void)
{
	if (!IS_ERR_OR_NULL(chain.b.qp))
		ib_destroy_qp(chain.b.qp);
	if (!IS_ERR_OR_NULL(chain.a.qp))
		ib_destroy_qp(chain.a.qp);
	if (!IS_ERR_OR_NULL(chain.cq))
		ib_destroy_cq(chain.cq);
}

/* On completion, the handler posts the next work request. Each request completes with @status. */
bool chain_run(enum ib_wc_status status)
{
	reinit_completion(&chain.done);
	chain.status = status;
	chain.left = LENGTH;
	chain.wrong = 0;
	EXPECT(ib_req_notify_cq(chain.cq, IB_CQ_NEXT_COMP) >= 0);
	EXPECT(!chain_post());
	EXPECT(wait_for_completion_timeout(&chain.done, PATIENCE));
	EXPECT(!chain.wrong);
	return true;
}

/* The number of the handler's calls so far. */
int chain_calls(void)
{
	return atomic_read(&chain.calls);
}

static bool test_handler(struct pair *pair)
{
	bool passed;

	passed = !chain_init(pair) && chain_run(IB_WC_SUCCESS) && chain_run(IB_WC_SUCCESS);
	chain_free();
	return passed;
}

const struct test handler_tests[] = {
	/* abi: R-554 */
	{ "handler_posts_polls_arms", test_handler },
	{},
};
