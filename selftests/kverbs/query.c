// SPDX-License-Identifier: GPL-2.0
/*
 * Queries write every byte of their structures, since these are copied to user space.
 *
 * Each query is made twice, into memory with two different patterns. A byte that differs in the
 * answers was not written.
 */

#include "kverbs.h"

#define PATTERNS 2

static const u8 patterns[PATTERNS] = { 0xa5, 0x5a };

static bool test_query_qp(struct pair *pair)
{
	static struct ib_qp_init_attr init[PATTERNS];
	static struct ib_qp_attr attr[PATTERNS];
	int i;

	for (i = 0; i < PATTERNS; i++) {
		memset(&attr[i], patterns[i], sizeof(attr[i]));
		memset(&init[i], patterns[i], sizeof(init[i]));
		EXPECT(!ib_query_qp(pair->a.qp, &attr[i], IB_QP_STATE, &init[i]));
	}
	EXPECT(!memcmp(&attr[0], &attr[1], sizeof(attr[0])));
	EXPECT(!memcmp(&init[0], &init[1], sizeof(init[0])));
	EXPECT(attr[0].qp_state == IB_QPS_RTS && attr[0].dest_qp_num == pair->b.qp->qp_num);
	EXPECT(init[0].send_cq == pair->a.send_cq && init[0].cap.max_send_wr >= DEPTH);
	return true;
}

static bool test_query_ah(struct pair *pair)
{
	static struct rdma_ah_attr answer[PATTERNS];
	struct rdma_ah_attr attr = {};
	struct ib_ah *ah;
	int i, ret = 0;

	EXPECT(!path_init(pair, &attr));
	ah = rdma_create_ah(pair->pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
	EXPECT(!IS_ERR(ah));
	for (i = 0; i < PATTERNS; i++) {
		memset(&answer[i], patterns[i], sizeof(answer[i]));
		ret = ret ?: rdma_query_ah(ah, &answer[i]);
	}
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	EXPECT(!ret);
	EXPECT(!memcmp(&answer[0], &answer[1], sizeof(answer[0])));
	EXPECT(answer[0].grh.sgid_index == pair->gid_index && answer[0].port_num == 1);
	return true;
}

const struct test query_tests[] = {
	{ "query_qp", test_query_qp },
	{ "query_ah", test_query_ah },
	{},
};
