// SPDX-License-Identifier: GPL-2.0
/*
 * Two QPs of one device, and their connection.
 */

#include "kverbs.h"

#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>

static int side_init(struct pair *pair, struct side *side)
{
	struct ib_qp_init_attr attr = {
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 4,
			.max_recv_sge = 4,
			.max_inline_data = 64,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};

	side->memory = kzalloc(SIZE, GFP_KERNEL);
	if (!side->memory)
		return -ENOMEM;
	side->dma = ib_dma_map_single(pair->dev, side->memory, SIZE, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(pair->dev, side->dma)) {
		kfree(side->memory);
		side->memory = NULL;
		return -ENOMEM;
	}
	side->send_cq = ib_alloc_cq(pair->dev, NULL, 2 * DEPTH, 0, pair->sent);
	if (IS_ERR(side->send_cq))
		return PTR_ERR(side->send_cq);
	side->recv_cq = ib_alloc_cq(pair->dev, NULL, 2 * DEPTH, 0, IB_POLL_WORKQUEUE);
	if (IS_ERR(side->recv_cq))
		return PTR_ERR(side->recv_cq);
	attr.send_cq = side->send_cq;
	attr.recv_cq = side->recv_cq;
	side->qp = ib_create_qp(pair->pd, &attr);
	return PTR_ERR_OR_ZERO(side->qp);
}

static void side_free(struct pair *pair, struct side *side)
{
	if (!IS_ERR_OR_NULL(side->qp)) {
		ib_drain_qp(side->qp);
		ib_destroy_qp(side->qp);
	}
	if (!IS_ERR_OR_NULL(side->recv_cq))
		ib_free_cq(side->recv_cq);
	if (!IS_ERR_OR_NULL(side->send_cq))
		ib_free_cq(side->send_cq);
	if (side->memory) {
		ib_dma_unmap_single(pair->dev, side->dma, SIZE, DMA_BIDIRECTIONAL);
		kfree(side->memory);
	}
}

/* The path from the device to itself. */
int path_init(struct pair *pair, struct rdma_ah_attr *attr)
{
	const struct ib_gid_attr *gid;
	struct net_device *netdev;

	gid = rdma_get_gid_attr(pair->dev, 1, pair->gid_index);
	if (IS_ERR(gid))
		return PTR_ERR(gid);
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(attr, 1);
	rdma_ah_set_grh(attr, (union ib_gid *)&gid->gid, 0, pair->gid_index, 64, 0);
	rdma_put_gid_attr(gid);
	netdev = ib_device_get_netdev(pair->dev, 1);
	if (!netdev)
		return -ENODEV;
	ether_addr_copy(attr->roce.dmac, netdev->dev_addr);
	dev_put(netdev);
	return 0;
}

int side_connect(struct pair *pair, struct side *side, struct side *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ |
			IB_ACCESS_REMOTE_WRITE,
	};
	int ret;

	if (pair->dev->attrs.atomic_cap != IB_ATOMIC_NONE)
		attr.qp_access_flags |= IB_ACCESS_REMOTE_ATOMIC;

	ret = ib_modify_qp(side->qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			   IB_QP_ACCESS_FLAGS);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = IB_MTU_1024;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.rq_psn = 100;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	ret = path_init(pair, &attr.ah_attr);
	if (ret)
		return ret;
	ret = ib_modify_qp(side->qp, &attr,
			   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTS;
	attr.sq_psn = 100;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	return ib_modify_qp(side->qp, &attr,
			    IB_QP_STATE | IB_QP_SQ_PSN | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				IB_QP_RNR_RETRY |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

/* Connects the two QPs, in whatever state they are. Posted work is dropped. */
int pair_connect(struct pair *pair)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RESET };
	int ret;

	ret = ib_modify_qp(pair->a.qp, &attr, IB_QP_STATE);
	ret = ret ?: ib_modify_qp(pair->b.qp, &attr, IB_QP_STATE);
	ret = ret ?: side_connect(pair, &pair->a, &pair->b);
	return ret ?: side_connect(pair, &pair->b, &pair->a);
}

int pair_init(struct pair *pair, struct ib_device *dev, unsigned int gid_index,
	      enum ib_poll_context sent)
{
	int ret;

	pair->dev = dev;
	pair->gid_index = gid_index;
	pair->sent = sent;
	pair->pd = ib_alloc_pd(dev, IB_PD_UNSAFE_GLOBAL_RKEY);
	if (IS_ERR(pair->pd))
		return PTR_ERR(pair->pd);
	ret = side_init(pair, &pair->a);
	return ret ?: side_init(pair, &pair->b);
}

void pair_free(struct pair *pair)
{
	if (IS_ERR_OR_NULL(pair->pd))
		return;
	side_free(pair, &pair->b);
	side_free(pair, &pair->a);
	ib_dealloc_pd(pair->pd);
}
