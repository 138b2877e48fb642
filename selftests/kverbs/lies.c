// SPDX-License-Identifier: GPL-2.0
/*
 * Impossible completions. The test forges the device's CQEs in memory before the driver polls them.
 * It finds them in the buffers of virtqueues, so own rings must not be negotiated.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/io.h>
#include <linux/unaligned.h>
#include <linux/virtio.h>
#include <linux/virtio_ring.h>

#define MAX_QUEUES 1024
#define POSTED	512
#define SENT	100

/* Offsets in a CQE, in bytes. */
#define OPCODE		9
#define BYTE_LEN	14
#define QP_NUM		22
#define WC_FLAGS	30
#define PORT_NUM	37

#define MAX_FIELDS	3

struct lie {
	const char *name;
	struct {
		unsigned int offset;
		unsigned int size;
		u32 value;
	} fields[MAX_FIELDS];
	/* The byte_len of the completion that the client gets; 0 if the driver gives up the CQ. */
	u32 received;
};

static const struct lie table[] = {
	{ "port_num", { { PORT_NUM, 1, 200 } }, SENT },
	{ "byte_len", { { BYTE_LEN, 4, POSTED + 1 } } },
	{ "byte_len, all ones", { { BYTE_LEN, 4, ~0 } } },
	{ "byte_len of an RDMA WRITE",
	  { { OPCODE, 1, 0x81 }, { WC_FLAGS, 4, IB_WC_WITH_IMM }, { BYTE_LEN, 4, 1 << 30 } },
		POSTED },
	{ "a GRH of RC", { { WC_FLAGS, 4, IB_WC_GRH } } },
	{ "a VLAN of RC", { { WC_FLAGS, 4, IB_WC_WITH_VLAN } } },
	{ "two kinds of data", { { WC_FLAGS, 4, IB_WC_WITH_IMM | IB_WC_WITH_INVALIDATE } } },
	{ "an RDMA WRITE without immediate data", { { OPCODE, 1, 0x81 } } },
	{ "an operation that was not asked for", { { OPCODE, 1, 0x82 } } },
	{ "a QP that does not exist", { { QP_NUM, 4, 0xabcdef } } },
};

/* Counts used buffers of all CQs. */
static void count_used(struct ib_device *dev, u16 *counts)
{
	struct virtqueue *vq;

	virtio_device_for_each_vq(virtio_of(dev), vq)
		if (is_cq(vq) && vq->index < MAX_QUEUES)
			counts[vq->index] = used_index(vq);
}

/* The CQE that has arrived since count_used() has filled @before, or NULL. */
static u8 *find_cqe(struct ib_device *dev, const u16 *before)
{
	const struct vring *ring;
	struct virtqueue *vq;
	u32 head;

	virtio_device_for_each_vq(virtio_of(dev), vq) {
		if (!is_cq(vq) || vq->index >= MAX_QUEUES || used_index(vq) == before[vq->index])
			continue;
		ring = virtqueue_get_vring(vq);
		head = le32_to_cpu((__force __le32)
				   ring->used->ring[before[vq->index] % ring->num].id);
		return phys_to_virt(le64_to_cpu((__force __le64)ring->desc[head].addr));
	}
	return NULL;
}

static void count_error(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_CQ_ERR)
		atomic_inc(context);
}

/* B receives a message, whose CQE is forged before the first poll. B's CQ is never armed, and A's
 * SEND is unsignaled, so the only new CQE is B's. */
static bool receive_forged(struct pair *pair, struct side *a, struct side *b, const struct lie *lie,
			   atomic_t *errors)
{
	struct ib_sge sge = sge_of(pair, &pair->a, 0, SENT);
	struct ib_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND };
	struct ib_qp_attr to_err = { .qp_state = IB_QPS_ERR };
	struct work *recv = work_get();
	static u16 before[MAX_QUEUES];
	u8 *cqe = NULL;
	struct ib_wc wc;
	int i, count;

	EXPECT(!side_connect(pair, a, b) && !side_connect(pair, b, a));
	count_used(pair->dev, before);
	EXPECT(!post_recv(pair, b, recv, 0, POSTED));
	EXPECT(!ib_post_send(a->qp, &wr, NULL));
	for (i = 0; i < 3000 && !cqe; i++) {
		msleep(10);
		cqe = find_cqe(pair->dev, before);
	}
	EXPECT(cqe && get_unaligned_le32(cqe + BYTE_LEN) == SENT &&
	       get_unaligned_le32(cqe + QP_NUM) == b->qp->qp_num);
	for (i = 0; i < MAX_FIELDS; i++)
		if (lie->fields[i].size == 1)
			cqe[lie->fields[i].offset] = lie->fields[i].value;
		else if (lie->fields[i].size)
			put_unaligned_le32(lie->fields[i].value, cqe + lie->fields[i].offset);
	count = ib_poll_cq(b->recv_cq, 1, &wc);
	if (lie->received) {
		EXPECT(count == 1 && wc.status == IB_WC_SUCCESS && wc.port_num == 1);
		EXPECT(wc.byte_len == lie->received);
		return true;
	}
	EXPECT(count == 0);
	/* Events are delivered by a workqueue. */
	for (i = 0; i < 3000 && !atomic_read(errors); i++)
		msleep(10);
	EXPECT(atomic_read(errors) == 1);
	/* Neither missed events nor completions are reported any more. */
	EXPECT(ib_req_notify_cq(b->recv_cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) == 0);
	EXPECT(ib_poll_cq(b->recv_cq, 1, &wc) == 0);
	/* The receive is still outstanding, so it is flushed: clients wait for its completion. */
	EXPECT(!ib_modify_qp(b->qp, &to_err, IB_QP_STATE));
	EXPECT(ib_poll_cq(b->recv_cq, 1, &wc) == 1);
	EXPECT(wc.wr_cqe == &recv->cqe && wc.status == IB_WC_WR_FLUSH_ERR);
	return true;
}

static bool tell(struct pair *pair, const struct lie *lie)
{
	struct ib_cq_init_attr cq_attr = { .cqe = DEPTH };
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			.max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	struct side a = {}, b = { .memory = pair->b.memory, .dma = pair->b.dma };
	atomic_t errors = ATOMIC_INIT(0);
	bool passed;

	b.recv_cq = ib_create_cq(pair->dev, ignore_completions, count_error, &errors, &cq_attr);
	EXPECT(!IS_ERR(b.recv_cq));
	attr.send_cq = b.recv_cq;
	attr.recv_cq = b.recv_cq;
	a.qp = ib_create_qp(pair->pd, &attr);
	b.qp = IS_ERR(a.qp) ? a.qp : ib_create_qp(pair->pd, &attr);
	passed = !IS_ERR(b.qp) && receive_forged(pair, &a, &b, lie, &errors);
	if (!IS_ERR(b.qp))
		ib_destroy_qp(b.qp);
	if (!IS_ERR(a.qp))
		ib_destroy_qp(a.qp);
	ib_destroy_cq(b.recv_cq);
	if (!passed)
		pr_info("# %s\n", lie->name);
	return passed;
}

static bool test_forged_completions(struct pair *pair)
{
	bool all = true;
	int i;

	for (i = 0; i < ARRAY_SIZE(table); i++)
		all &= tell(pair, &table[i]);
	return all;
}

const struct test lies_tests[] = {
	/* abi: R-710 */
	{ "forged_completions", test_forged_completions },
	{},
};
