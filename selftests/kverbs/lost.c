// SPDX-License-Identifier: GPL-2.0
/*
 * A CQ that overflows: the device adds no more completions to it, but draining its QP still ends,
 * and posts to other QPs do not cost more.
 */

#include "kverbs.h"

#include <linux/kprobes.h>
#include <linux/kthread.h>

#define PATIENCE (30 * HZ)

/* Entries of the CQ: a power of two, fewer than the slots of a send queue. */
#define ENTRIES	(DEPTH / 4)

/* Number of work requests after the first one. The handler of the first one blocks all later
 * completion handlers of the CQ. */
#define WRITES	(DEPTH / 2)

struct lost {
	struct side side;
	struct work *writes[WRITES];
	struct work *recvs[WRITES];
	/* The first work request. Its handler waits until the CQ has overflowed. */
	struct ib_cqe first;
	bool holds;
	struct completion held;
	struct completion proceed;
	/* Completed by the CQ's error event. */
	struct completion overflow;
	struct completion drained;
};

/* Static: if the test fails, its kernel thread may still wait in ib_drain_qp(). The later tests
 * fail then too. */
static struct lost lost;

static void first_done(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&lost.held);
	if (lost.holds)
		wait_for_completion_timeout(&lost.proceed, PATIENCE);
}

static void cq_event(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_CQ_ERR)
		complete_all(&lost.overflow);
}

static int drain(void *unused)
{
	ib_drain_qp(lost.side.qp);
	complete(&lost.drained);
	return 0;
}

/* Connects the QP to itself, a second time after it was in ERR. */
static int connect_twice(struct pair *pair)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	int ret;

	ret = side_connect(pair, &lost.side, &lost.side);
	ret = ret ?: ib_modify_qp(lost.side.qp, &attr, IB_QP_STATE);
	attr.qp_state = IB_QPS_RESET;
	ret = ret ?: ib_modify_qp(lost.side.qp, &attr, IB_QP_STATE);
	return ret ?: side_connect(pair, &lost.side, &lost.side);
}

/* Creates a QP that is connected to itself. */
static int lost_init(struct pair *pair, enum ib_poll_context context)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			.max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	struct side *side = &lost.side;

	if (lost.side.qp)
		return -EBUSY;
	memset(&lost, 0, sizeof(lost));
	lost.holds = context != IB_POLL_DIRECT;
	lost.first.done = first_done;
	init_completion(&lost.held);
	init_completion(&lost.proceed);
	init_completion(&lost.overflow);
	init_completion(&lost.drained);
	side->send_cq = ib_alloc_cq(pair->dev, NULL, ENTRIES, 0, context);
	if (IS_ERR(side->send_cq))
		return PTR_ERR(side->send_cq);
	side->send_cq->event_handler = cq_event;
	side->recv_cq = pair->a.recv_cq;
	attr.send_cq = side->send_cq;
	attr.recv_cq = side->recv_cq;
	side->qp = ib_create_qp(pair->pd, &attr);
	if (IS_ERR(side->qp))
		return PTR_ERR(side->qp);
	return connect_twice(pair);
}

static bool overflow(struct pair *pair, enum ib_poll_context context)
{
	struct task_struct *task;
	int i, succeeded = 0;

	EXPECT(!lost_init(pair, context));
	for (i = 0; i < WRITES; i++) {
		lost.recvs[i] = work_get();
		EXPECT(!post_recv(pair, &lost.side, lost.recvs[i], 0, 0));
	}
	EXPECT(!write_nothing(lost.side.qp, &lost.first));
	if (lost.holds)
		EXPECT(wait_for_completion_timeout(&lost.held, PATIENCE));
	for (i = 0; i < WRITES; i++) {
		lost.writes[i] = work_get();
		work_init(lost.writes[i]);
		EXPECT(!write_nothing(lost.side.qp, &lost.writes[i]->cqe));
	}
	EXPECT(wait_for_completion_timeout(&lost.overflow, PATIENCE));
	complete(&lost.proceed);
	/* The device may still execute the work requests of a QP that was not moved to ERR. So
	 * they are not flushed. */
	if (context == IB_POLL_DIRECT)
		ib_process_cq_direct(lost.side.send_cq, -1);
	EXPECT(!completion_done(&lost.writes[WRITES - 1]->done));

	task = kthread_run(drain, NULL, "kverbs drain");
	EXPECT(!IS_ERR(task));
	EXPECT(wait_for_completion_timeout(&lost.drained, PATIENCE));
	/* CQEs that were written before the overflow are valid. All other work requests are
	 * flushed, in order. */
	for (i = 0; i < WRITES; i++) {
		EXPECT(completion_done(&lost.writes[i]->done) &&
		       completion_done(&lost.recvs[i]->done));
		EXPECT(lost.recvs[i]->wc.status == IB_WC_WR_FLUSH_ERR);
		if (lost.writes[i]->wc.status == IB_WC_SUCCESS)
			EXPECT(succeeded++ == i);
		else
			EXPECT(lost.writes[i]->wc.status == IB_WC_WR_FLUSH_ERR);
	}
	EXPECT(succeeded > 0 && succeeded < WRITES);
	ib_destroy_qp(lost.side.qp);
	ib_free_cq(lost.side.send_cq);
	lost.side.qp = NULL;
	return true;
}

static bool test_polled(struct pair *pair)
{
	return overflow(pair, IB_POLL_DIRECT);
}

/* After the overflow, the driver calls the completion handler, so that the consumer polls the
 * flushed work requests. */
static bool test_waiting(struct pair *pair)
{
	return overflow(pair, IB_POLL_WORKQUEUE);
}

/* The other QPs still work, and so does a new QP with a new CQ. */
static bool test_others(struct pair *pair)
{
	struct work *recv = work_get(), *send = work_get();

	EXPECT(overflow(pair, IB_POLL_DIRECT));
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 64));
	EXPECT(!post_send(pair, &pair->a, send, 0, 64));
	EXPECT(work_wait(send, IB_WC_SUCCESS) && work_wait(recv, IB_WC_SUCCESS));
	return true;
}

/* The locks that this task takes through the abstractions of Rust. */
static struct task_struct *counted;
static unsigned int locks;

static int on_lock(struct kprobe *probe, struct pt_regs *regs)
{
	if (current == counted)
		locks++;
	return 0;
}

static struct kprobe lock_probe;

static int begin_to_count(void)
{
	/* A probe that was registered before would stay disabled. */
	lock_probe = (struct kprobe) {
		.symbol_name = "rust_helper_spin_lock_irq_disable",
		.pre_handler = on_lock,
	};
	return register_kprobe(&lock_probe);
}

/* Sends a message from A to B. Returns the number of locks that both posts took, or 0 if the
 * message did not arrive. */
static unsigned int locks_of_a_message(struct pair *pair)
{
	struct work *recv = work_get(), *send = work_get();
	unsigned long flags;
	int ret;

	/* Otherwise interrupts could take locks in this task. */
	local_irq_save(flags);
	locks = 0;
	counted = current;
	ret = post_recv(pair, &pair->b, recv, 0, 64);
	ret = ret ?: post_send(pair, &pair->a, send, 0, 64);
	counted = NULL;
	local_irq_restore(flags);
	if (ret || !work_wait(send, IB_WC_SUCCESS) || !work_wait(recv, IB_WC_SUCCESS))
		return 0;
	return locks;
}

/* After an overflow, a post to another QP takes the lock of its queue, but not that of its CQ. */
static bool count_locks(struct pair *pair)
{
	unsigned int count;

	EXPECT(overflow(pair, IB_POLL_DIRECT));
	count = locks_of_a_message(pair);
	if (count != 2)
		pr_info("# locks of two posts: %u\n", count);
	return count == 2;
}

static bool test_locks_of_others(struct pair *pair)
{
	bool passed;

	EXPECT(!begin_to_count());
	passed = count_locks(pair);
	unregister_kprobe(&lock_probe);
	return passed;
}

/* A CQ in a virtqueue does not overflow: the device waits for buffers. */
static bool can_overflow(struct ib_device *dev)
{
	return !has_cq_virtqueues(dev);
}

static bool can_count_locks(struct ib_device *dev)
{
	if (!can_overflow(dev) || begin_to_count())
		return false;
	unregister_kprobe(&lock_probe);
	return true;
}

const struct test lost_tests[] = {
	{ "lost_cq_polled", test_polled, can_overflow },
	{ "lost_cq_waiting", test_waiting, can_overflow },
	{ "lost_cq_others", test_others, can_overflow },
	{ "lost_cq_locks_of_others", test_locks_of_others, can_count_locks },
	{},
};
