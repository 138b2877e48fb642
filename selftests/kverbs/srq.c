// SPDX-License-Identifier: GPL-2.0
/*
 * Two QPs with one SRQ, each with its own sender.
 */

#include "kverbs.h"

#define MESSAGE	100

bool has_srq(struct ib_device *dev)
{
	return dev->attrs.max_srq;
}

/* An SRQ of DEPTH receives without an event handler. */
struct ib_srq *basic_srq(struct pair *pair)
{
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = DEPTH, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};

	return ib_create_srq(pair->pd, &attr);
}

struct shared {
	struct pair *pair;
	struct ib_srq *srq;
	struct side send[2];
	struct side recv[2];
	struct completion limit;
};

static void srq_event(struct ib_event *event, void *context)
{
	struct shared *shared = context;

	if (event->event == IB_EVENT_SRQ_LIMIT_REACHED && event->element.srq == shared->srq)
		complete(&shared->limit);
}

/* Creates a QP with the memory and the CQs of @from and the SRQ @srq. */
static bool side_of(struct pair *pair, struct side *side, const struct side *from,
		    struct ib_srq *srq)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2,
			.max_recv_sge = 2 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = from->send_cq,
		.recv_cq = from->recv_cq,
		.srq = srq,
	};

	*side = *from;
	side->qp = ib_create_qp(pair->pd, &attr);
	return !IS_ERR(side->qp);
}

static bool shared_init(struct pair *pair, struct shared *shared)
{
	struct ib_srq_init_attr attr = {
		.event_handler = srq_event,
		.srq_context = shared,
		.attr = { .max_wr = 8, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	int i;

	memset(shared, 0, sizeof(*shared));
	shared->pair = pair;
	init_completion(&shared->limit);
	shared->srq = ib_create_srq(pair->pd, &attr);
	EXPECT(!IS_ERR(shared->srq));
	EXPECT(attr.attr.max_wr >= 8);
	for (i = 0; i < 2; i++) {
		EXPECT(side_of(pair, &shared->send[i], &pair->a, NULL));
		EXPECT(side_of(pair, &shared->recv[i], &pair->b, shared->srq));
		EXPECT(!side_connect(pair, &shared->send[i], &shared->recv[i]));
		EXPECT(!side_connect(pair, &shared->recv[i], &shared->send[i]));
	}
	return true;
}

/* Draining a QP with an SRQ waits for the event after which the QP takes no more receives. */
static void shared_free(struct shared *shared)
{
	int i;

	for (i = 0; i < 2; i++) {
		if (!IS_ERR_OR_NULL(shared->send[i].qp)) {
			ib_drain_qp(shared->send[i].qp);
			ib_destroy_qp(shared->send[i].qp);
		}
		if (!IS_ERR_OR_NULL(shared->recv[i].qp)) {
			/* abi */
			ib_drain_qp(shared->recv[i].qp);
			ib_destroy_qp(shared->recv[i].qp);
		}
	}
	if (!IS_ERR_OR_NULL(shared->srq))
		ib_destroy_srq(shared->srq);
}

static int post(struct shared *shared, struct work *work, u32 offset)
{
	struct ib_sge sge = sge_of(shared->pair, &shared->pair->b, offset, MESSAGE);
	struct ib_recv_wr wr = { .wr_cqe = &work->cqe, .sg_list = &sge, .num_sge = 1 };

	work_init(work);
	return ib_post_srq_recv(shared->srq, &wr, NULL);
}

/* Sends message @number over one of the QPs. The oldest receive takes it. */
static bool message(struct shared *shared, struct work *recv, unsigned int number)
{
	struct pair *pair = shared->pair;
	unsigned int which = number * 7 / 3 % 2;
	struct work *send = work_get();

	fill(&pair->a, number);
	EXPECT(!post_send(pair, &shared->send[which], send, 0, MESSAGE));
	EXPECT(work_wait(send, IB_WC_SUCCESS));
	EXPECT(work_wait(recv, IB_WC_SUCCESS));
	EXPECT(recv->wc.qp == shared->recv[which].qp && recv->wc.byte_len == MESSAGE);
	EXPECT(is_equal(pair, number % 8 * MESSAGE, 0, MESSAGE));
	return true;
}

static bool shared_messages(struct shared *shared)
{
	struct ib_srq_attr attr = { .srq_limit = 4 };
	struct work *recv[8];
	struct ib_recv_wr nothing = { };
	unsigned int i;

	for (i = 0; i < 8; i++) {
		recv[i] = work_get();
		EXPECT(!post(shared, recv[i], i * MESSAGE));
	}
	EXPECT(ib_post_srq_recv(shared->srq, &nothing, NULL) == -ENOMEM);
	EXPECT(ib_destroy_srq_user(shared->srq, NULL) == -EBUSY);
	for (i = 0; i < 40; i++) {
		/* abi: R-565 */
		EXPECT(message(shared, recv[i % 8], i));
		recv[i % 8] = work_get();
		EXPECT(!post(shared, recv[i % 8], i % 8 * MESSAGE));
	}

	/* abi: R-562 */
	EXPECT(!ib_modify_srq(shared->srq, &attr, IB_SRQ_LIMIT));
	/* abi: R-563 */
	EXPECT(!ib_query_srq(shared->srq, &attr) && attr.srq_limit == 4 && attr.max_sge == 1);
	for (; i < 44; i++)
		EXPECT(message(shared, recv[i % 8], i));
	EXPECT(!completion_done(&shared->limit));
	EXPECT(message(shared, recv[i % 8], i));
	/* abi */
	EXPECT(wait_for_completion_timeout(&shared->limit, 30 * HZ));
	EXPECT(!ib_query_srq(shared->srq, &attr) && !attr.srq_limit);
	return true;
}

static bool test_srq(struct pair *pair)
{
	/* Static: after a failed test, ib_destroy_srq() may fail too, and the SRQ's event handler
	 * may then use `shared` after this function has returned. */
	static struct shared shared;
	bool passed = shared_init(pair, &shared) && shared_messages(&shared);

	shared_free(&shared);
	return passed;
}

/* A QP is destroyed before its completions are polled. The slots of their receives are free again,
 * and the completions are never seen. */
static bool destroy_unpolled(struct shared *shared, struct ib_cq *cq)
{
	struct pair *pair = shared->pair;
	struct side b = { .recv_cq = cq, .send_cq = pair->b.send_cq, .memory = pair->b.memory,
		.dma = pair->b.dma };
	struct work *recv[8], *send = work_get();
	struct ib_wc wc;
	int i;

	EXPECT(side_of(pair, &shared->recv[0], &b, shared->srq));
	EXPECT(side_of(pair, &shared->send[0], &pair->a, NULL));
	EXPECT(!side_connect(pair, &shared->send[0], &shared->recv[0]));
	EXPECT(!side_connect(pair, &shared->recv[0], &shared->send[0]));
	for (i = 0; i < 8; i++) {
		recv[i] = work_get();
		EXPECT(!post(shared, recv[i], i * MESSAGE));
	}
	EXPECT(!post_send(pair, &shared->send[0], send, 0, MESSAGE));
	EXPECT(work_wait(send, IB_WC_SUCCESS));
	EXPECT(post(shared, recv[0], 0) == -ENOMEM);
	ib_destroy_qp(shared->recv[0].qp);
	shared->recv[0].qp = NULL;
	EXPECT(!post(shared, recv[0], 0));
	EXPECT(ib_poll_cq(cq, 1, &wc) == 0);
	return true;
}

static bool test_srq_unpolled(struct pair *pair)
{
	struct ib_cq_init_attr cq_attr = { .cqe = DEPTH };
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = 8, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_cq *cq = ib_create_cq(pair->dev, ignore_completions, NULL, NULL, &cq_attr);
	struct shared shared = { .pair = pair };
	bool passed;

	EXPECT(!IS_ERR(cq));
	shared.srq = ib_create_srq(pair->pd, &attr);
	passed = !IS_ERR(shared.srq) && attr.attr.max_wr == 8 && destroy_unpolled(&shared, cq);
	shared_free(&shared);
	ib_destroy_cq(cq);
	return passed;
}

const struct test srq_tests[] = {
	{ "srq", test_srq, has_srq },
	{ "srq_unpolled", test_srq_unpolled, has_srq },
	{},
};
