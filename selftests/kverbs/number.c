// SPDX-License-Identifier: GPL-2.0
/*
 * The device gives a new QP the number of another one. The test forges the answer of CREATE_QP
 * before the driver reads it. Afterwards the objects of device and driver differ, so the device has
 * to be bound again.
 */

#include "kverbs.h"
#include "../../include/uapi/linux/virtio_rdma.h"

#include <linux/unaligned.h>

/* Offset of the number in the answer. */
#define QPN		1
#define MESSAGE		100

static u32 forged;

static void forge_number(u8 *answer, struct vring_used_elem *used)
{
	put_unaligned_le32(forged, answer + QPN);
}

static struct ib_qp *shared_qp(struct pair *pair, struct ib_cq *cq, struct ib_srq *srq)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = pair->b.send_cq,
		.recv_cq = cq,
		.srq = srq,
	};

	return ib_create_qp(pair->pd, &attr);
}

/* A completion of a receive from an SRQ waits to be polled when the number is given again. It is
 * still delivered, with the id of its receive. */
static bool receive(struct pair *pair, struct ib_cq *cq, struct ib_srq *srq, struct side *b,
		    struct ib_srq *other)
{
	struct ib_sge sge = sge_of(pair, &pair->b, 0, MESSAGE);
	struct work *recv = work_get(), *send = work_get();
	struct ib_recv_wr wr = { .wr_cqe = &recv->cqe, .sg_list = &sge, .num_sge = 1 };
	struct ib_qp_attr reset = { .qp_state = IB_QPS_RESET };
	struct ib_qp *qp;
	struct ib_wc wc;

	EXPECT(!ib_modify_qp(pair->a.qp, &reset, IB_QP_STATE));
	EXPECT(!side_connect(pair, &pair->a, b) && !side_connect(pair, b, &pair->a));
	EXPECT(!ib_post_srq_recv(srq, &wr, NULL));
	EXPECT(!post_send(pair, &pair->a, send, 0, MESSAGE) && work_wait(send, IB_WC_SUCCESS));

	forged = b->qp->qp_num;
	forge_answers(control_queue(virtio_of(pair->dev)), VIRTIO_RDMA_CMD_CREATE_QP, forge_number);
	qp = shared_qp(pair, cq, other);
	forge_no_answers();
	EXPECT(IS_ERR(qp));

	EXPECT(ib_poll_cq(cq, 1, &wc) == 1);
	EXPECT(wc.wr_cqe == &recv->cqe && wc.status == IB_WC_SUCCESS && wc.qp == b->qp);
	return true;
}

static bool test_same_number(struct pair *pair)
{
	struct ib_cq_init_attr attr = { .cqe = DEPTH };
	struct ib_cq *cq = ib_create_cq(pair->dev, ignore_completions, NULL, NULL, &attr);
	struct ib_srq *srq = basic_srq(pair), *other = basic_srq(pair);
	struct side b = pair->b;
	bool passed;

	EXPECT(!IS_ERR(cq) && !IS_ERR(srq) && !IS_ERR(other));
	b.qp = shared_qp(pair, cq, srq);
	EXPECT(!IS_ERR(b.qp));
	passed = receive(pair, cq, srq, &b, other);
	ib_destroy_qp(b.qp);
	ib_destroy_srq(srq);
	ib_destroy_srq(other);
	ib_destroy_cq(cq);
	return passed;
}

const struct test number_tests[] = {
	{ "same_number", test_same_number, has_srq },
	{},
};
