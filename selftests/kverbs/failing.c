// SPDX-License-Identifier: GPL-2.0
/*
 * The device fails, but goes on: it answers no more commands and executes work requests until it is
 * reset. Meanwhile the peer sends without a pause. Buffers that the driver has given back must not
 * change any more.
 *
 * The test takes the answers of the control queue away from the driver, and delays the reset.
 */

#include "kverbs.h"

#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>

/* More commands than the driver has in flight. */
#define COMMANDS	40
#define RECVS		(DEPTH / 2)
#define PATTERN		0xa5
/* The driver waits a minute for an answer. */
#define PATIENCE	(180 * HZ)
/* Rounds of the peer before the reset is let through, and after the buffers were given back. */
#define ROUNDS		50

/* The transport's operations with another reset. The original ones are restored when the module is
 * unloaded. */
static struct virtio_config_ops slow_ops;
static const struct virtio_config_ops *transport_ops;
static struct virtio_device *slow;
static DECLARE_COMPLETION(reset_requested);
static DECLARE_COMPLETION(reset_allowed);
static atomic_t resetting;

static void slow_reset(struct virtio_device *vdev)
{
	atomic_inc(&resetting);
	complete_all(&reset_requested);
	wait_for_completion(&reset_allowed);
	transport_ops->reset(vdev);
	atomic_dec(&resetting);
}

/* Delays all resets of the device until allow_reset(). */
static void delay_reset(struct virtio_device *vdev)
{
	slow = vdev;
	transport_ops = vdev->config;
	slow_ops = *transport_ops;
	slow_ops.reset = slow_reset;
	WRITE_ONCE(vdev->config, &slow_ops);
}

static void allow_reset(void)
{
	complete_all(&reset_allowed);
}

/* Before the module is unloaded, the device has its own operations again. */
void failing_exit(void)
{
	if (!slow)
		return;
	allow_reset();
	WRITE_ONCE(slow->config, transport_ops);
	while (atomic_read(&resetting))
		msleep(20);
	/* The last caller may still be at its return. */
	synchronize_rcu();
	msleep(100);
}

/* The driver gets no answers of commands any more. */
static void take_answers(struct virtio_device *vdev)
{
	control_queue(vdev)->callback = NULL;
}

/* Delays the reset, and makes the device fail at once. The reset waits for the module's end. */
int make_slow_reset(struct virtio_device *vdev)
{
	delay_reset(vdev);
	take_answers(vdev);
	__virtqueue_break(control_queue(vdev));
	return 0;
}

struct failing {
	struct pair *pair;
	struct work *recvs[RECVS];
	/* NULL if the device has no fast registration. */
	struct ib_mr *mr;
	/* A QP of B with an SRQ. */
	struct ib_srq *srq;
	struct ib_qp *shared;
	/* The QP takes no more receives from its SRQ. */
	struct completion last_receive;
	/* Number of commands that failed. */
	atomic_t failed;
	struct completion all_failed;
	/* The buffers of B and of the MR are given back. */
	struct completion freed;
};

/* Static: after a failed test, the kernel threads may still wait. */
static struct failing failing;

static int command(void *unused)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	if (!ib_query_qp(failing.pair->a.qp, &attr, IB_QP_STATE, &init))
		pr_info("# a command succeeds\n");
	else if (atomic_inc_return(&failing.failed) == COMMANDS)
		complete(&failing.all_failed);
	return 0;
}

/* Does what a client does whose connection is lost, and reuses its memory. */
static int give_up(void *unused)
{
	struct side *b = &failing.pair->b;

	ib_drain_qp(b->qp);
	if (failing.shared)
		ib_drain_qp(failing.shared);
	if (failing.mr)
		ib_dereg_mr(failing.mr);
	ib_destroy_qp(b->qp);
	b->qp = NULL;
	memset(b->memory, PATTERN, SIZE);
	complete(&failing.freed);
	return 0;
}

static bool start(int (*function)(void *unused))
{
	return !IS_ERR(kthread_run(function, NULL, "kverbs failing"));
}

/* The peer writes to the memory of B. Errors are ignored. */
static void write_to_b(struct pair *pair)
{
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	struct work *work = work_get();
	struct ib_rdma_wr write = {
		.wr = {
			.wr_cqe = &work->cqe,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = pair->b.dma + SIZE / 2,
		.rkey = pair->pd->unsafe_global_rkey,
	};

	work_init(work);
	if (!ib_post_send(pair->a.qp, &write.wr, NULL))
		wait_for_completion_timeout(&work->done, HZ);
}

static bool is_freed(void)
{
	return completion_done(&failing.freed);
}

/* Whether the memory that B has given back stays as it is, while the peer still writes. */
static bool is_untouched(struct pair *pair)
{
	int i;

	for (i = 0; i < ROUNDS; i++) {
		write_to_b(pair);
		msleep(20);
		if (memchr_inv(pair->b.memory, PATTERN, SIZE))
			return false;
	}
	return true;
}

static void qp_event(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		complete(&failing.last_receive);
}

static int shared_init(struct pair *pair)
{
	struct ib_srq_init_attr srq = {
		.attr = { .max_wr = DEPTH, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.event_handler = qp_event,
		.send_cq = pair->b.send_cq,
		.recv_cq = pair->b.recv_cq,
	};
	struct side side;

	if (!pair->dev->attrs.max_srq)
		return 0;
	failing.srq = ib_create_srq(pair->pd, &srq);
	if (IS_ERR(failing.srq))
		return PTR_ERR(failing.srq);
	attr.srq = failing.srq;
	failing.shared = ib_create_qp(pair->pd, &attr);
	if (IS_ERR(failing.shared))
		return PTR_ERR(failing.shared);
	side.qp = failing.shared;
	return side_connect(pair, &side, &side);
}

static bool fail(struct pair *pair, bool is_broken)
{
	struct virtio_device *vdev = virtio_of(pair->dev);
	struct work *send;
	struct ib_mr *mr;
	int i;

	EXPECT(vdev);
	memset(&failing, 0, sizeof(failing));
	failing.pair = pair;
	init_completion(&failing.all_failed);
	init_completion(&failing.freed);
	init_completion(&failing.last_receive);
	EXPECT(!shared_init(pair));
	failing.mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 4);
	if (IS_ERR(failing.mr))
		failing.mr = NULL;
	for (i = 0; i < RECVS; i++) {
		failing.recvs[i] = work_get();
		EXPECT(!post_recv(pair, &pair->b, failing.recvs[i], 64 * i, 64));
	}

	delay_reset(vdev);
	take_answers(vdev);
	for (i = 0; i < COMMANDS; i++)
		EXPECT(start(command));
	msleep(100);
	EXPECT(!atomic_read(&failing.failed));
	if (is_broken)
		__virtqueue_break(control_queue(vdev));
	/* Also the commands that have waited for one of those in flight. */
	EXPECT(wait_for_completion_timeout(&failing.all_failed, PATIENCE));

	EXPECT(start(give_up));
	for (i = 0; i < ROUNDS && !is_freed(); i++) {
		write_to_b(pair);
		msleep(20);
	}
	if (is_freed())
		EXPECT(is_untouched(pair));
	/* Data still arrives, so nothing that belongs to B may have been given back. */
	EXPECT(!is_freed());
	EXPECT(completion_done(&reset_requested));
	send = work_get();
	EXPECT(!post_send(pair, &pair->a, send, 0, 64));
	EXPECT(work_wait(send, IB_WC_SUCCESS) && work_wait(failing.recvs[0], IB_WC_SUCCESS));
	for (i = 1; i < RECVS; i++)
		EXPECT(!completion_done(&failing.recvs[i]->done));
	/* A new object can't be created, and this takes no time. */
	mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 4);
	EXPECT(IS_ERR(mr));

	allow_reset();
	EXPECT(wait_for_completion_timeout(&failing.freed, PATIENCE));
	for (i = 1; i < RECVS; i++)
		EXPECT(work_wait(failing.recvs[i], IB_WC_WR_FLUSH_ERR));
	EXPECT(is_untouched(pair));
	if (failing.shared) {
		EXPECT(wait_for_completion_timeout(&failing.last_receive, HZ));
		ib_destroy_qp(failing.shared);
		ib_destroy_srq(failing.srq);
	}
	return true;
}

static bool test_broken_queue(struct pair *pair)
{
	return fail(pair, true);
}

static bool test_no_answer(struct pair *pair)
{
	return fail(pair, false);
}

const struct test broken_queue_tests[] = {
	/* abi: R-115 */
	{ "fails_by_a_queue", test_broken_queue },
	{},
};

const struct test no_answer_tests[] = {
	/* abi: R-115 */
	{ "fails_silently", test_no_answer },
	{},
};
