// SPDX-License-Identifier: GPL-2.0
/*
 * The device gives a new QP the number of another one. The test forges the answer of CREATE_QP
 * before the driver reads it. Afterwards the objects of device and driver differ, so the device has
 * to be bound again.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/io.h>
#include <linux/unaligned.h>
#include <linux/virtio.h>
#include <linux/virtio_ring.h>

#define CREATE_QP	11
/* Offset of the number in the answer, which begins with a byte of the status. */
#define QPN		1
#define MESSAGE		100

static void (*real_callback)(struct virtqueue *vq);
static u16 seen;
static u32 forged;

static u64 address(const struct vring_desc *desc)
{
	return le64_to_cpu((__force __le64)desc->addr);
}

/* The two descriptors of a command: request and answer. */
static const struct vring_desc *descriptors(const struct vring *ring, u32 head)
{
	const struct vring_desc *first = &ring->desc[head];

	if (le16_to_cpu((__force __le16)first->flags) & VRING_DESC_F_INDIRECT)
		return phys_to_virt(address(first));
	return NULL;
}

static void forge(struct virtqueue *vq)
{
	const struct vring *ring = virtqueue_get_vring(vq);
	const struct vring_desc *pair;
	u8 *request;

	for (; seen != used_index(vq); seen++) {
		pair = descriptors(ring, le32_to_cpu((__force __le32)
						     ring->used->ring[seen % ring->num].id));
		if (!pair)
			continue;
		request = phys_to_virt(address(&pair[0]));
		if (request[0] == CREATE_QP)
			put_unaligned_le32(forged, (u8 *)phys_to_virt(address(&pair[1])) + QPN);
	}
	real_callback(vq);
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
	struct virtqueue *vq = control_queue(virtio_of(pair->dev));
	struct ib_qp *qp;
	struct ib_wc wc;

	EXPECT(!ib_modify_qp(pair->a.qp, &reset, IB_QP_STATE));
	EXPECT(!side_connect(pair, &pair->a, b) && !side_connect(pair, b, &pair->a));
	EXPECT(!ib_post_srq_recv(srq, &wr, NULL));
	EXPECT(!post_send(pair, &pair->a, send, 0, MESSAGE) && work_wait(send, IB_WC_SUCCESS));

	forged = b->qp->qp_num;
	seen = used_index(vq);
	real_callback = vq->callback;
	vq->callback = forge;
	qp = shared_qp(pair, cq, other);
	vq->callback = real_callback;
	/* An interrupt may still be at its end. */
	msleep(100);
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
