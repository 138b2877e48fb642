// SPDX-License-Identifier: GPL-2.0
/*
 * The device fails, but continues to work: it answers no more commands and executes work requests
 * until it is reset. Meanwhile the peer sends without a pause. Buffers that the driver has given
 * back must not change any more.
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
void delay_reset(struct virtio_device *vdev)
{
	slow = vdev;
	transport_ops = vdev->config;
	slow_ops = *transport_ops;
	slow_ops.reset = slow_reset;
	WRITE_ONCE(vdev->config, &slow_ops);
}

bool is_reset_requested(void)
{
	return completion_done(&reset_requested);
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

/* A client whose connection is lost, and its function that gives its objects back. */
struct client {
	const char *name;
	void (*leave)(void);
	bool has_begun;
	/* The client uses its buffers again. */
	struct completion gone;
};

struct failing {
	struct pair *pair;
	struct work *recvs[RECVS];
	/* NULL if the device has no fast registration. */
	struct ib_mr *mr;
	struct ib_mr *lone_mr;
	/* A QP of B with an SRQ. */
	struct ib_srq *srq;
	struct ib_qp *shared;
	struct ib_srq *lone_srq;
	/* The QP takes no more receives from its SRQ. */
	struct completion last_receive;
	/* Two connected QPs on the CQs of A and B. The one of B is destroyed without a drain. */
	struct side sender;
	struct side undrained;
	/* Events of the CQ of B. */
	atomic_t cq_events;
	/* Number of commands that failed. */
	atomic_t failed;
	struct completion all_failed;
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

/* Drains first, then destroys everything that B has. */
static void drain_and_leave(void)
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
}

static void leave_qp(void)
{
	ib_destroy_qp(failing.undrained.qp);
}

static void leave_mr(void)
{
	ib_dereg_mr(failing.lone_mr);
}

static void leave_srq(void)
{
	ib_destroy_srq(failing.lone_srq);
}

/* The first one drains. The others destroy one object each, of which the driver itself has to know
 * that the device may still use its buffers. */
static struct client clients[] = {
	{ "all of B", drain_and_leave },
	{ "a QP", leave_qp },
	{ "an MR", leave_mr },
	{ "an SRQ", leave_srq },
};

static int leave(void *data)
{
	struct client *client = data;

	client->leave();
	complete_all(&client->gone);
	return 0;
}

static bool start(int (*function)(void *data), void *data)
{
	return !IS_ERR(kthread_run(function, data, "kverbs failing"));
}

static bool begin(struct client *client)
{
	if ((client->leave == leave_mr && !failing.lone_mr) ||
	    (client->leave == leave_srq && !failing.lone_srq))
		return true;
	client->has_begun = start(leave, client);
	return client->has_begun;
}

static bool all_begin(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(clients); i++)
		EXPECT(begin(&clients[i]));
	return true;
}

static bool any_gone(void)
{
	bool any = false;
	int i;

	for (i = 0; i < ARRAY_SIZE(clients); i++) {
		if (completion_done(&clients[i].gone)) {
			pr_info("# too early: %s\n", clients[i].name);
			any = true;
		}
	}
	return any;
}

static bool all_gone(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(clients); i++)
		if (clients[i].has_begun)
			EXPECT(wait_for_completion_timeout(&clients[i].gone, PATIENCE));
	return true;
}

/* The peer writes to the memory of B. Errors are ignored. */
static void write_to_b(struct pair *pair)
{
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	struct work *work = work_get();
	struct ib_rdma_wr write = write_of(pair, &work->cqe, &sge, SIZE / 2);

	work_init(work);
	if (!ib_post_send(pair->a.qp, &write.wr, NULL))
		wait_for_completion_timeout(&work->done, HZ);
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

static void cq_event(struct ib_event *event, void *context)
{
	atomic_inc(&failing.cq_events);
}

/* Creates a QP on the CQs of @of, with a receive queue or an SRQ. */
static struct ib_qp *qp_of(struct pair *pair, struct side *of, struct ib_srq *srq)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.event_handler = qp_event,
		.send_cq = of->send_cq,
		.recv_cq = of->recv_cq,
		.srq = srq,
	};

	if (!srq)
		attr.cap.max_recv_wr = DEPTH;
	return ib_create_qp(pair->pd, &attr);
}

static int shared_init(struct pair *pair)
{
	struct side side;

	if (!has_srq(pair->dev))
		return 0;
	failing.lone_srq = basic_srq(pair);
	failing.srq = basic_srq(pair);
	if (IS_ERR(failing.lone_srq) || IS_ERR(failing.srq))
		return -ENOMEM;
	failing.shared = qp_of(pair, &pair->b, failing.srq);
	if (IS_ERR(failing.shared))
		return PTR_ERR(failing.shared);
	side.qp = failing.shared;
	return side_connect(pair, &side, &side);
}

static int undrained_init(struct pair *pair)
{
	struct side *sender = &failing.sender, *undrained = &failing.undrained;
	int ret;

	*sender = pair->a;
	*undrained = pair->b;
	sender->qp = qp_of(pair, &pair->a, NULL);
	undrained->qp = qp_of(pair, &pair->b, NULL);
	if (IS_ERR(sender->qp) || IS_ERR(undrained->qp))
		return -ENOMEM;
	pair->b.recv_cq->event_handler = cq_event;
	ret = side_connect(pair, sender, undrained);
	ret = ret ?: side_connect(pair, undrained, sender);
	return ret ?: post_recv(pair, undrained, work_get(), 64 * RECVS, 64);
}

static struct ib_mr *mr_of(struct pair *pair)
{
	struct ib_mr *mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 4);

	return IS_ERR(mr) ? NULL : mr;
}

static int failing_init(struct pair *pair)
{
	int i, ret;

	memset(&failing, 0, sizeof(failing));
	failing.pair = pair;
	init_completion(&failing.all_failed);
	init_completion(&failing.last_receive);
	for (i = 0; i < ARRAY_SIZE(clients); i++)
		init_completion(&clients[i].gone);
	failing.mr = mr_of(pair);
	failing.lone_mr = mr_of(pair);
	ret = shared_init(pair);
	return ret ?: undrained_init(pair);
}

/* The device still completes work of the QP that the driver has tried to destroy. The CQ, which
 * other QPs have too, takes this completion for what it is. */
static bool goes_on(struct pair *pair)
{
	struct work *send = work_get();

	/* In virtqueue mode a CQ is armed by a command. A failing device gets none, so that its
	 * completions wait for the reset. */
	if (has_cq_virtqueues(pair->dev))
		return true;
	EXPECT(!post_send(pair, &failing.sender, send, 0, 64));
	EXPECT(work_wait(send, IB_WC_SUCCESS));
	send = work_get();
	EXPECT(!post_send(pair, &pair->a, send, 0, 64));
	EXPECT(work_wait(send, IB_WC_SUCCESS) && work_wait(failing.recvs[0], IB_WC_SUCCESS));
	return true;
}

static bool fail(struct pair *pair, bool is_broken)
{
	struct virtio_device *vdev = virtio_of(pair->dev);
	struct ib_mr *mr;
	int i;

	EXPECT(vdev);
	EXPECT(!failing_init(pair));
	for (i = 0; i < RECVS; i++) {
		failing.recvs[i] = work_get();
		EXPECT(!post_recv(pair, &pair->b, failing.recvs[i], 64 * i, 64));
	}

	delay_reset(vdev);
	take_answers(vdev);
	for (i = 0; i < COMMANDS; i++)
		EXPECT(start(command, NULL));
	msleep(100);
	EXPECT(!atomic_read(&failing.failed));
	if (is_broken)
		__virtqueue_break(control_queue(vdev));
	/* Also the commands that have waited for one of those in flight. */
	EXPECT(wait_for_completion_timeout(&failing.all_failed, PATIENCE));

	EXPECT(all_begin());
	for (i = 0; i < ROUNDS && !any_gone(); i++) {
		write_to_b(pair);
		msleep(20);
	}
	if (completion_done(&clients[0].gone))
		EXPECT(is_untouched(pair));
	/* Data still arrives, so nothing that belongs to B may have been given back. */
	EXPECT(!any_gone());
	EXPECT(is_reset_requested());
	EXPECT(goes_on(pair));
	for (i = 1; i < RECVS; i++)
		EXPECT(!completion_done(&failing.recvs[i]->done));
	EXPECT(!atomic_read(&failing.cq_events));
	/* A new object can't be created, and this takes no time. */
	mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 4);
	EXPECT(IS_ERR(mr));

	allow_reset();
	EXPECT(all_gone());
	for (i = 1; i < RECVS; i++)
		EXPECT(work_wait(failing.recvs[i], IB_WC_WR_FLUSH_ERR));
	EXPECT(is_untouched(pair));
	EXPECT(!atomic_read(&failing.cq_events));
	if (failing.shared)
		EXPECT(wait_for_completion_timeout(&failing.last_receive, HZ));
	return true;
}

/* Allows the reset even if the test has failed, so that the threads end. */
static bool run(struct pair *pair, bool is_broken)
{
	bool passed = fail(pair, is_broken);

	allow_reset();
	if (!all_gone() || !passed)
		return false;
	ib_destroy_qp(failing.sender.qp);
	if (failing.shared) {
		ib_destroy_qp(failing.shared);
		ib_destroy_srq(failing.srq);
	}
	return true;
}

static bool test_broken_queue(struct pair *pair)
{
	return run(pair, true);
}

static bool test_no_answer(struct pair *pair)
{
	return run(pair, false);
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
