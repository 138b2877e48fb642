// SPDX-License-Identifier: GPL-2.0
/*
 * Messages, RDMA, queues and address handles.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/etherdevice.h>

static bool test_send(struct pair *pair)
{
	struct work *send = work_get(), *recv = work_get();

	fill(&pair->a, 1);
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 4096));
	EXPECT(!post_send(pair, &pair->a, send, 0, 3000));
	EXPECT(work_wait(send, IB_WC_SUCCESS));
	EXPECT(work_wait(recv, IB_WC_SUCCESS));
	EXPECT(send->wc.opcode == IB_WC_SEND && send->wc.qp == pair->a.qp);
	EXPECT(recv->wc.opcode == IB_WC_RECV && recv->wc.qp == pair->b.qp);
	EXPECT(recv->wc.byte_len == 3000 && !(recv->wc.wc_flags & IB_WC_WITH_IMM));
	EXPECT(is_equal(pair, 0, 0, 3000));
	return true;
}

static bool test_send_imm_inline(struct pair *pair)
{
	struct work *send = work_get(), *recv = work_get();
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	struct ib_sge sges[2];
	struct ib_send_wr wr = {
		.wr_cqe = &send->cqe,
		.sg_list = sges,
		.num_sge = 2,
		.opcode = IB_WR_SEND_WITH_IMM,
		.send_flags = IB_SEND_SIGNALED | IB_SEND_INLINE,
		.ex.imm_data = cpu_to_be32(0x12345678),
	};
	u32 most;

	fill(&pair->a, 2);
	sges[0] = (struct ib_sge) { .addr = (uintptr_t)pair->a.memory, .length = 13 };
	sges[1] = (struct ib_sge) { .addr = (uintptr_t)pair->a.memory + 13, .length = 51 };
	EXPECT(!post_recv(pair, &pair->b, recv, 64, 64));
	work_init(send);
	EXPECT(!ib_post_send(pair->a.qp, &wr, NULL));
	EXPECT(work_wait(send, IB_WC_SUCCESS));
	EXPECT(work_wait(recv, IB_WC_SUCCESS));
	EXPECT(recv->wc.wc_flags & IB_WC_WITH_IMM &&
	       recv->wc.ex.imm_data == cpu_to_be32(0x12345678));
	EXPECT(recv->wc.byte_len == 64 && is_equal(pair, 64, 0, 64));

	/* As much as the QP says, which may be more than was asked for, and no more. */
	EXPECT(!ib_query_qp(pair->a.qp, &attr, IB_QP_CAP, &init));
	most = init.cap.max_inline_data;
	sges[1].length = most - sges[0].length;
	EXPECT(has_cq_virtqueues(pair->dev) ? most >= 64 : most > 64);
	EXPECT(!post_recv(pair, &pair->b, recv, 64, most));
	work_init(send);
	EXPECT(!ib_post_send(pair->a.qp, &wr, NULL));
	EXPECT(work_wait(send, IB_WC_SUCCESS) && work_wait(recv, IB_WC_SUCCESS));
	EXPECT(recv->wc.byte_len == most && is_equal(pair, 64, 0, most));
	sges[1].length++;
	EXPECT(ib_post_send(pair->a.qp, &wr, NULL) == -EINVAL);
	return true;
}

static bool test_write(struct pair *pair)
{
	fill(&pair->a, 3);
	memset(pair->b.memory, 0, SIZE);
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE, 11, 500, 5001, pair->pd->unsafe_global_rkey,
		    IB_WC_SUCCESS));
	EXPECT(is_equal(pair, 500, 11, 5001));
	EXPECT(!pair->b.memory[499] && !pair->b.memory[5501]);
	return true;
}

static bool test_write_imm(struct pair *pair)
{
	struct work *recv = work_get();

	fill(&pair->a, 4);
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 200));
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE_WITH_IMM, 0, 1000, 100, pair->pd->unsafe_global_rkey,
		    IB_WC_SUCCESS));
	EXPECT(work_wait(recv, IB_WC_SUCCESS));
	EXPECT(recv->wc.opcode == IB_WC_RECV_RDMA_WITH_IMM &&
	       recv->wc.ex.imm_data == cpu_to_be32(77));
	EXPECT(recv->wc.byte_len == 100 && is_equal(pair, 1000, 0, 100));
	return true;
}

static bool test_read(struct pair *pair)
{
	fill(&pair->b, 5);
	EXPECT(rdma(pair, IB_WR_RDMA_READ, 20, 40, 6000, pair->pd->unsafe_global_rkey,
		    IB_WC_SUCCESS));
	EXPECT(is_equal(pair, 40, 20, 6000));
	return true;
}

/* The ring wraps around many times, with one completion for several work requests. */
static bool test_unsignaled(struct pair *pair)
{
	struct ib_rdma_wr wrs[DEPTH / 2];
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 8);
	struct work *work = work_get();
	int round, i;

	for (round = 0; round < 100; round++) {
		memset(wrs, 0, sizeof(wrs));
		fill(&pair->a, round);
		for (i = 0; i < ARRAY_SIZE(wrs); i++) {
			wrs[i].wr.next = i + 1 < ARRAY_SIZE(wrs) ? &wrs[i + 1].wr : NULL;
			wrs[i].wr.wr_cqe = &work->cqe;
			wrs[i].wr.sg_list = &sge;
			wrs[i].wr.num_sge = 1;
			wrs[i].wr.opcode = IB_WR_RDMA_WRITE;
			wrs[i].wr.send_flags = wrs[i].wr.next ? 0 : IB_SEND_SIGNALED;
			wrs[i].remote_addr = pair->b.dma + 8 * i;
			wrs[i].rkey = pair->pd->unsafe_global_rkey;
		}
		work_init(work);
		EXPECT(!ib_post_send(pair->a.qp, &wrs[0].wr, NULL));
		EXPECT(work_wait(work, IB_WC_SUCCESS));
		for (i = 0; i < ARRAY_SIZE(wrs); i++)
			EXPECT(is_equal(pair, 8 * i, 0, 8));
	}
	return true;
}

/* If a list has more receives than the queue has slots, bad_wr is the first receive without a slot.
 * The receives before it are posted. */
static bool test_full(struct pair *pair)
{
	struct work *works[DEPTH + 1];
	struct ib_recv_wr wrs[DEPTH + 1] = {};
	struct ib_sge sge = sge_of(pair, &pair->b, 0, 64);
	const struct ib_recv_wr *bad = NULL;
	struct work *send = work_get();
	int i;

	for (i = 0; i <= DEPTH; i++) {
		works[i] = work_get();
		work_init(works[i]);
		wrs[i].next = i < DEPTH ? &wrs[i + 1] : NULL;
		wrs[i].wr_cqe = &works[i]->cqe;
		wrs[i].sg_list = &sge;
		wrs[i].num_sge = 1;
	}
	EXPECT(ib_post_recv(pair->b.qp, wrs, &bad) == -ENOMEM);
	EXPECT(bad == &wrs[DEPTH]);
	for (i = 0; i < DEPTH; i++) {
		EXPECT(!post_send(pair, &pair->a, send, 0, 64));
		EXPECT(work_wait(send, IB_WC_SUCCESS));
		EXPECT(work_wait(works[i], IB_WC_SUCCESS));
	}
	return true;
}

/*
 * A work request that the QP does not support ends its list: it is returned as bad_wr, the requests
 * before it are executed, the requests after it are not. It takes no slot: after more refused
 * requests than the queue has slots, the queue still works.
 */
static bool test_refused(struct pair *pair)
{
	struct work *works[3] = { work_get(), work_get(), work_get() };
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	const struct ib_send_wr *bad;
	struct ib_rdma_wr wrs[3];
	int round, i;

	for (round = 0; round <= 2 * DEPTH; round++) {
		fill(&pair->a, round);
		fill(&pair->b, 0xff);
		memset(wrs, 0, sizeof(wrs));
		bad = NULL;
		for (i = 0; i < 3; i++) {
			work_init(works[i]);
			wrs[i].wr.next = i < 2 ? &wrs[i + 1].wr : NULL;
			wrs[i].wr.wr_cqe = &works[i]->cqe;
			wrs[i].wr.sg_list = &sge;
			wrs[i].wr.num_sge = 1;
			wrs[i].wr.opcode = IB_WR_RDMA_WRITE;
			wrs[i].wr.send_flags = IB_SEND_SIGNALED;
			wrs[i].remote_addr = pair->b.dma + 64 * i;
			wrs[i].rkey = pair->pd->unsafe_global_rkey;
		}
		/* An unknown flag, or a READ with inline data. */
		wrs[1].wr.send_flags |= round % 2 ? 1 << 30 : IB_SEND_INLINE;
		wrs[1].wr.opcode = round % 2 ? IB_WR_RDMA_WRITE : IB_WR_RDMA_READ;
		EXPECT(ib_post_send(pair->a.qp, &wrs[0].wr, &bad) == -EINVAL);
		EXPECT(bad == &wrs[1].wr);
		EXPECT(!ib_post_send(pair->a.qp, &wrs[2].wr, NULL));
		EXPECT(work_wait(works[0], IB_WC_SUCCESS));
		EXPECT(work_wait(works[2], IB_WC_SUCCESS));
		EXPECT(!completion_done(&works[1]->done));
		EXPECT(is_equal(pair, 0, 0, 64) && is_equal(pair, 128, 0, 64));
		EXPECT(!is_equal(pair, 64, 0, 64));
	}
	return true;
}

static bool test_query(struct pair *pair)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	EXPECT(!ib_query_qp(pair->a.qp, &attr, IB_QP_STATE | IB_QP_DEST_QPN, &init));
	EXPECT(attr.qp_state == IB_QPS_RTS && attr.dest_qp_num == pair->b.qp->qp_num);
	EXPECT(attr.path_mtu == IB_MTU_1024 && attr.timeout == 14 && attr.retry_cnt == 7);
	EXPECT(init.cap.max_send_wr >= DEPTH && init.cap.max_inline_data >= 64);
	EXPECT(init.sq_sig_type == IB_SIGNAL_REQ_WR);
	return true;
}

/* AHs are created and destroyed in atomic context. A query returns their attributes. */
static bool test_ah(struct pair *pair)
{
	struct rdma_ah_attr attr = {}, got = {};
	unsigned long flags;
	int queried = -EINVAL;
	struct ib_ah *ah;

	EXPECT(!path_init(pair, &attr));
	rdma_ah_set_sl(&attr, 3);
	attr.grh.traffic_class = 0x68;
	attr.grh.flow_label = 0xabcde;
	local_irq_save(flags);
	ah = rdma_create_ah(pair->pd, &attr, 0);
	if (!IS_ERR(ah)) {
		queried = rdma_query_ah(ah, &got);
		rdma_destroy_ah(ah, 0);
	}
	local_irq_restore(flags);
	EXPECT(!IS_ERR(ah) && !queried);
	EXPECT(got.type == attr.type && got.ah_flags == IB_AH_GRH && got.port_num == 1 &&
	       got.sl == 3);
	EXPECT(!memcmp(&got.grh.dgid, &attr.grh.dgid, sizeof(got.grh.dgid)));
	EXPECT(got.grh.sgid_index == pair->gid_index && got.grh.hop_limit == 64);
	EXPECT(got.grh.traffic_class == 0x68 && got.grh.flow_label == 0xabcde);
	EXPECT(ether_addr_equal(got.roce.dmac, attr.roce.dmac));

	/* A flow label has 20 bits. Some programs set more. */
	attr.grh.flow_label = ~0;
	ah = rdma_create_ah(pair->pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
	EXPECT(!IS_ERR(ah));
	queried = rdma_query_ah(ah, &got);
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	EXPECT(!queried && got.grh.flow_label == 0xfffff);
	return true;
}

/* A CQ of IB_POLL_DIRECT is polled without events. After its QP is destroyed, the CQ has no
 * completions any more. */
static bool test_direct(struct pair *pair)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_RC,
	};
	struct ib_qp_attr modify = { .qp_state = IB_QPS_ERR };
	struct side side = pair->a;
	struct work *works[2] = { work_get(), work_get() }, *early = work_get();
	bool passed = false;
	int i;

	side.send_cq = ib_alloc_cq(pair->dev, NULL, 8, 0, IB_POLL_DIRECT);
	EXPECT(!IS_ERR(side.send_cq));
	attr.send_cq = side.send_cq;
	attr.recv_cq = side.send_cq;
	side.qp = ib_create_qp(pair->pd, &attr);
	if (IS_ERR(side.qp))
		goto free_cq;
	if (post_recv(pair, &side, early, 0, 64) != -EINVAL)
		goto destroy;
	if (side_connect(pair, &side, &pair->b))
		goto destroy;
	for (i = 0; i < 2; i++)
		if (post_recv(pair, &side, works[i], 0, 64))
			goto destroy;
	if (ib_modify_qp(side.qp, &modify, IB_QP_STATE))
		goto destroy;
	for (i = 0; i < 3000 && !completion_done(&works[0]->done); i++) {
		ib_process_cq_direct(side.send_cq, 1);
		msleep(10);
	}
	passed = completion_done(&works[0]->done) && works[0]->wc.status == IB_WC_WR_FLUSH_ERR;
destroy:
	ib_destroy_qp(side.qp);
	if (ib_process_cq_direct(side.send_cq, -1) != 0)
		passed = false;
free_cq:
	ib_free_cq(side.send_cq);
	return passed;
}

/* A QP without a receive queue sends to a QP without a send queue. Posting to an absent queue
 * fails. */
static bool test_one_way(struct pair *pair)
{
	struct ib_qp_init_attr attr = {
		.send_cq = pair->a.send_cq,
		.recv_cq = pair->a.recv_cq,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_RC,
	};
	struct work *works[2] = { work_get(), work_get() };
	struct side from = pair->a, to = pair->b;
	bool passed = false;

	from.qp = ib_create_qp(pair->pd, &attr);
	EXPECT(!IS_ERR(from.qp));
	attr.send_cq = to.send_cq;
	attr.recv_cq = to.recv_cq;
	attr.cap = (struct ib_qp_cap) { .max_recv_wr = 4, .max_recv_sge = 1 };
	to.qp = ib_create_qp(pair->pd, &attr);
	if (IS_ERR(to.qp))
		goto destroy_from;
	if (side_connect(pair, &from, &to) || side_connect(pair, &to, &from))
		goto destroy_to;
	if (post_send(pair, &to, works[0], 0, 64) != -ENOMEM ||
	    post_recv(pair, &from, works[1], 0, 64) != -ENOMEM)
		goto destroy_to;
	fill(&from, 9);
	memset(to.memory, 0, SIZE);
	if (post_recv(pair, &to, works[1], 0, 4096) || post_send(pair, &from, works[0], 100, 1000))
		goto destroy_to;
	passed = work_wait(works[0], IB_WC_SUCCESS) && work_wait(works[1], IB_WC_SUCCESS) &&
		 is_equal(pair, 0, 100, 1000);
destroy_to:
	ib_destroy_qp(to.qp);
destroy_from:
	ib_destroy_qp(from.qp);
	return passed;
}

/* An error completes the work request with its status, and flushes the later work requests of both
 * queues. */
static bool test_bad_rkey(struct pair *pair)
{
	struct work *recv = work_get(), *send = work_get();

	EXPECT(!post_recv(pair, &pair->a, recv, 0, 64));
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE, 0, 0, 64, ~pair->pd->unsafe_global_rkey,
		    IB_WC_REM_ACCESS_ERR));
	EXPECT(!post_send(pair, &pair->a, send, 0, 64));
	EXPECT(work_wait(send, IB_WC_WR_FLUSH_ERR));
	EXPECT(work_wait(recv, IB_WC_WR_FLUSH_ERR));
	return true;
}

/* A QP in the error state can be used again after RESET. */
static bool test_reset(struct pair *pair)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	struct work *send = work_get();

	EXPECT(!ib_modify_qp(pair->a.qp, &attr, IB_QP_STATE));
	attr.qp_state = IB_QPS_RESET;
	EXPECT(!ib_modify_qp(pair->a.qp, &attr, IB_QP_STATE));
	EXPECT(post_send(pair, &pair->a, send, 0, 64) == -EINVAL);
	EXPECT(!ib_modify_qp(pair->b.qp, &attr, IB_QP_STATE));
	EXPECT(!side_connect(pair, &pair->a, &pair->b));
	EXPECT(!side_connect(pair, &pair->b, &pair->a));
	return test_send(pair) && test_unsignaled(pair);
}

/* A CQ of the maximum length, which some clients request. */
static bool test_longest_cq(struct pair *pair)
{
	struct ib_cq *cq = ib_alloc_cq(pair->dev, NULL, min(pair->dev->attrs.max_cqe, 131072), 0,
				       IB_POLL_SOFTIRQ);

	EXPECT(!IS_ERR(cq));
	ib_free_cq(cq);
	return true;
}

const struct test data_tests[] = {
	{ "send", test_send },
	{ "send_imm_inline", test_send_imm_inline },
	{ "write", test_write },
	{ "write_imm", test_write_imm },
	{ "read", test_read },
	{ "unsignaled", test_unsignaled },
	{ "full", test_full },
	{ "refused", test_refused },
	{ "query", test_query },
	{ "ah", test_ah },
	{ "direct", test_direct },
	{ "one_way", test_one_way },
	/* abi */
	{ "bad_rkey", test_bad_rkey },
	/* abi: R-209 */
	{ "reset", test_reset },
	/* abi: R-83 */
	{ "longest_cq", test_longest_cq },
	{},
};
