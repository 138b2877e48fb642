// SPDX-License-Identifier: GPL-2.0
/*
 * The virtqueue of a CQ breaks after the driver has taken a completion out of it, before a poll.
 * The completion is delivered though its buffer can't be given back.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/virtio.h>

#define PATIENCE_MS	30000

/* The number of completions that the device has written to all CQs. */
static unsigned int used_by_cqs(struct virtio_device *vdev)
{
	unsigned int sum = 0;
	struct virtqueue *vq;

	virtio_device_for_each_vq(vdev, vq)
		if (is_cq(vq))
			sum += used_index(vq);
	return sum;
}

static struct ib_qp *qp_on(struct pair *pair, struct ib_cq *send_cq)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1,
			.max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = send_cq,
		.recv_cq = pair->a.recv_cq,
	};

	return ib_create_qp(pair->pd, &attr);
}

/* @qp is connected to itself. The destruction of @other makes the driver look for its completions
 * among those of the CQ, so it takes the completion of @qp out of the virtqueue. */
static bool deliver_held(struct pair *pair, struct ib_cq *cq, struct ib_qp *qp,
			 struct ib_qp *other)
{
	struct virtio_device *vdev = virtio_of(pair->dev);
	unsigned int used = used_by_cqs(vdev), waited;
	struct work *work = work_get();

	work_init(work);
	EXPECT(!write_nothing(qp, &work->cqe));
	for (waited = 0; used_by_cqs(vdev) == used && waited < PATIENCE_MS; waited += 10)
		msleep(10);
	EXPECT(used_by_cqs(vdev) != used);
	ib_destroy_qp(other);
	virtio_break_device(vdev);
	ib_process_cq_direct(cq, -1);
	EXPECT(completion_done(&work->done) && work->wc.status == IB_WC_SUCCESS);
	return true;
}

static bool test_held(struct pair *pair)
{
	struct ib_cq *cq = ib_alloc_cq(pair->dev, NULL, DEPTH, 0, IB_POLL_DIRECT);
	struct side side = {};
	struct ib_qp *other;
	bool passed;

	EXPECT(!IS_ERR(cq));
	side.qp = qp_on(pair, cq);
	EXPECT(!IS_ERR(side.qp) && !side_connect(pair, &side, &side));
	other = qp_on(pair, cq);
	EXPECT(!IS_ERR(other));
	passed = deliver_held(pair, cq, side.qp, other);
	ib_destroy_qp(side.qp);
	ib_free_cq(cq);
	return passed;
}

const struct test held_tests[] = {
	{ "held_completion_of_a_broken_cq", test_held },
	{},
};
