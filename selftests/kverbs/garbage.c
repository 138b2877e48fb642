// SPDX-License-Identifier: GPL-2.0
/*
 * Attributes that a mask does not name are not read.
 *
 * Kernel clients such as the connection manager leave these attributes uninitialized on their
 * stack. Here they have the pattern that gcc gives to uninitialized variables.
 */

#include "kverbs.h"

#include <linux/cleanup.h>
#include <linux/slab.h>
#include <linux/string.h>

#define GARBAGE	0xfe

static struct ib_qp_attr *garbage(struct ib_qp_attr *attr)
{
	return memset(attr, GARBAGE, sizeof(*attr));
}

static int to_init(struct side *side, struct ib_qp_attr *attr)
{
	garbage(attr)->qp_state = IB_QPS_INIT;
	attr->pkey_index = 0;
	attr->port_num = 1;
	attr->qp_access_flags = IB_ACCESS_REMOTE_WRITE;
	return ib_modify_qp(side->qp, attr,
			    IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS);
}

static int to_rtr(struct pair *pair, struct side *side, struct side *peer, struct ib_qp_attr *attr)
{
	int ret;

	garbage(attr)->qp_state = IB_QPS_RTR;
	attr->path_mtu = IB_MTU_1024;
	attr->dest_qp_num = peer->qp->qp_num;
	attr->rq_psn = 7;
	attr->max_dest_rd_atomic = 4;
	attr->min_rnr_timer = 12;
	memset(&attr->ah_attr, 0, sizeof(attr->ah_attr));
	ret = path_init(pair, &attr->ah_attr);
	return ret ?: ib_modify_qp(side->qp, attr,
				   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
				   IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC |
				   IB_QP_MIN_RNR_TIMER);
}

static int to_rts(struct side *side, struct ib_qp_attr *attr)
{
	garbage(attr)->qp_state = IB_QPS_RTS;
	attr->sq_psn = 7;
	attr->timeout = 14;
	attr->retry_cnt = 7;
	attr->rnr_retry = 7;
	attr->max_rd_atomic = 4;
	return ib_modify_qp(side->qp, attr,
			    IB_QP_STATE | IB_QP_SQ_PSN | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
			    IB_QP_RNR_RETRY | IB_QP_MAX_QP_RD_ATOMIC);
}

static int to(struct side *side, struct ib_qp_attr *attr, enum ib_qp_state state)
{
	garbage(attr)->qp_state = state;
	return ib_modify_qp(side->qp, attr, IB_QP_STATE);
}

static bool test_qp(struct pair *pair)
{
	struct ib_qp_attr *attr __free(kfree) = kzalloc(sizeof(*attr), GFP_KERNEL);
	struct side *sides[] = { &pair->a, &pair->b };
	int i;

	EXPECT(attr);
	for (i = 0; i < 2; i++) {
		EXPECT(!to(sides[i], attr, IB_QPS_RESET));
		EXPECT(!to_init(sides[i], attr));
		EXPECT(!to_rtr(pair, sides[i], sides[1 - i], attr));
		EXPECT(!to_rts(sides[i], attr));
	}
	fill(&pair->a, 1);
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE, 0, 0, SIZE, pair->pd->unsafe_global_rkey,
		    IB_WC_SUCCESS));
	EXPECT(is_equal(pair, 0, 0, SIZE));
	for (i = 0; i < 2; i++)
		EXPECT(!to(sides[i], attr, IB_QPS_ERR));
	return true;
}

/* The limit is cleared as soon as the device has reported that the empty SRQ is below it. */
static bool srq_limit(struct ib_srq *srq, u32 max_wr)
{
	struct ib_srq_attr attr;

	memset(&attr, GARBAGE, sizeof(attr));
	attr.srq_limit = 3;
	EXPECT(!ib_modify_srq(srq, &attr, IB_SRQ_LIMIT));
	memset(&attr, GARBAGE, sizeof(attr));
	EXPECT(!ib_query_srq(srq, &attr));
	EXPECT(attr.srq_limit <= 3 && attr.max_wr == max_wr && attr.max_sge == 1);
	return true;
}

static bool test_srq(struct pair *pair)
{
	struct ib_srq_init_attr init;
	struct ib_srq *srq;
	bool passed;

	/* An SRQ of this type has no CQ, and a new SRQ has no limit. */
	memset(&init, GARBAGE, sizeof(init));
	init.event_handler = NULL;
	init.srq_type = IB_SRQT_BASIC;
	init.attr.max_wr = 8;
	init.attr.max_sge = 1;
	srq = ib_create_srq(pair->pd, &init);
	EXPECT(!IS_ERR(srq));
	passed = srq_limit(srq, init.attr.max_wr);
	EXPECT(!ib_destroy_srq_user(srq, NULL));
	return passed;
}

static bool test_device(struct pair *pair)
{
	static const char other[] = "garbage";
	const __be64 guid = pair->dev->attrs.sys_image_guid;
	struct ib_device_modify change, before;

	memset(&before, GARBAGE, sizeof(before));
	memcpy(before.node_desc, pair->dev->node_desc, sizeof(before.node_desc));
	memset(&change, GARBAGE, sizeof(change));
	memset(change.node_desc, 0, sizeof(change.node_desc));
	memcpy(change.node_desc, other, sizeof(other));
	EXPECT(!ib_modify_device(pair->dev, IB_DEVICE_MODIFY_NODE_DESC, &change));
	EXPECT(!strcmp(pair->dev->node_desc, other));
	EXPECT(!ib_modify_device(pair->dev, IB_DEVICE_MODIFY_NODE_DESC, &before));
	EXPECT(!memcmp(pair->dev->node_desc, before.node_desc, sizeof(before.node_desc)));
	EXPECT(pair->dev->attrs.sys_image_guid == guid);
	return true;
}

const struct test garbage_tests[] = {
	{ "garbage_qp", test_qp },
	{ "garbage_srq", test_srq, has_srq },
	{ "garbage_device", test_device },
	{},
};
