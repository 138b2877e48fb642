// SPDX-License-Identifier: GPL-2.0
/*
 * Fast registration: MRs that are mapped and registered by work requests, and protection domains.
 *
 * The MRs cover memory of B in pages that are not contiguous, from the middle of the first page to
 * the middle of the last page.
 */

#include "kverbs.h"

#include <linux/gfp.h>
#include <linux/interrupt.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>

#define PAGES	4
#define START	200
#define LENGTH	(PAGES * PAGE_SIZE - START - 300)
#define ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)

struct fast {
	struct ib_mr *mr;
	u8 *pages[PAGES];
	struct scatterlist list[PAGES];
	int mapped;
};

static void fast_free(struct pair *pair, struct fast *fast)
{
	int i;

	if (!IS_ERR_OR_NULL(fast->mr))
		ib_dereg_mr(fast->mr);
	if (fast->mapped)
		ib_dma_unmap_sg(pair->dev, fast->list, PAGES, DMA_BIDIRECTIONAL);
	for (i = 0; i < PAGES; i++)
		free_page((unsigned long)fast->pages[i]);
	kfree(fast);
}

static struct fast *fast_alloc(struct pair *pair, struct ib_pd *pd)
{
	struct fast *fast = kzalloc(sizeof(*fast), GFP_KERNEL);
	int i;

	if (!fast)
		return NULL;
	sg_init_table(fast->list, PAGES);
	for (i = 0; i < PAGES; i++) {
		unsigned int from = i == 0 ? START : 0;
		unsigned int to = i == PAGES - 1 ? PAGE_SIZE - 300 : PAGE_SIZE;

		fast->pages[i] = (u8 *)get_zeroed_page(GFP_KERNEL);
		if (!fast->pages[i])
			goto free;
		sg_set_buf(&fast->list[i], fast->pages[i] + from, to - from);
	}
	fast->mapped = ib_dma_map_sg(pair->dev, fast->list, PAGES, DMA_BIDIRECTIONAL);
	if (fast->mapped != PAGES)
		goto free;
	fast->mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, PAGES);
	if (IS_ERR(fast->mr))
		goto free;
	return fast;
free:
	fast_free(pair, fast);
	return NULL;
}

/* The byte at an offset in the MR. */
static u8 *at(struct fast *fast, unsigned int offset)
{
	return &fast->pages[(START + offset) / PAGE_SIZE][(START + offset) % PAGE_SIZE];
}

static bool holds(struct fast *fast, unsigned int offset, const u8 *bytes, unsigned int length)
{
	unsigned int i;

	for (i = 0; i < length; i++)
		if (*at(fast, offset + i) != bytes[i])
			return false;
	return true;
}

static int map(struct fast *fast)
{
	return ib_map_mr_sg(fast->mr, fast->list, PAGES, NULL, PAGE_SIZE);
}

static struct ib_reg_wr reg_wr_of(struct fast *fast, struct work *work, int access)
{
	return (struct ib_reg_wr) {
		.wr = { .wr_cqe = &work->cqe, .opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED },
		.mr = fast->mr,
		.key = fast->mr->rkey,
		.access = access,
	};
}

static bool reg(struct side *side, struct fast *fast, int access, enum ib_wc_status status)
{
	struct work *work = work_get();
	struct ib_reg_wr wr = reg_wr_of(fast, work, access);

	work_init(work);
	EXPECT(map(fast) == PAGES);
	EXPECT(fast->mr->length == LENGTH);
	EXPECT(!ib_post_send(side->qp, &wr.wr, NULL));
	EXPECT(work_wait(work, status));
	EXPECT(status != IB_WC_SUCCESS || work->wc.opcode == IB_WC_REG_MR);
	return true;
}

static bool invalidate(struct side *side, u32 key, enum ib_wc_status status)
{
	struct work *work = work_get();
	struct ib_send_wr wr = {
		.wr_cqe = &work->cqe,
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = key,
	};

	work_init(work);
	EXPECT(!ib_post_send(side->qp, &wr, NULL));
	EXPECT(work_wait(work, status));
	EXPECT(status != IB_WC_SUCCESS || work->wc.opcode == IB_WC_LOCAL_INV);
	return true;
}

static bool write_mr(struct pair *pair, struct fast *fast, u32 rkey, u32 offset, u32 length,
		     enum ib_wc_status status)
{
	return rdma_at(pair, IB_WR_RDMA_WRITE, 0, length, fast->mr->iova + offset, rkey, status);
}

static bool has_fast_reg(struct ib_device *dev)
{
	return dev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS;
}

static bool test_alloc_mr(struct pair *pair)
{
	u32 max = pair->dev->attrs.max_fast_reg_page_list_len;
	struct ib_mr *mr;

	EXPECT(max >= 256);
	mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, max);
	EXPECT(!IS_ERR(mr));
	EXPECT(!ib_dereg_mr(mr));
	EXPECT(IS_ERR(ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, max + 1)));
	EXPECT(IS_ERR(ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 0)));
	EXPECT(pair->dev->attrs.kernel_cap_flags & IBK_SG_GAPS_REG ||
	       IS_ERR(ib_alloc_mr(pair->pd, IB_MR_TYPE_SG_GAPS, 4)));
	return true;
}

/* ib_map_mr_sg() stops at a gap between two elements, and when the MR has no more room. */
static bool map_mr(struct pair *pair, struct fast *fast)
{
	struct scatterlist list[PAGES];
	unsigned int offset = 100;
	struct ib_mr *small;
	int mapped;

	EXPECT(map(fast) == PAGES && fast->mr->length == LENGTH);
	EXPECT(fast->mr->iova == sg_dma_address(fast->list));
	EXPECT(ib_map_mr_sg(fast->mr, fast->list, PAGES, &offset, PAGE_SIZE) == PAGES &&
	       offset == 0);
	EXPECT(fast->mr->length == LENGTH - 100);

	memcpy(list, fast->list, sizeof(list));
	sg_dma_len(&list[1]) -= 1;
	EXPECT(ib_map_mr_sg(fast->mr, list, PAGES, NULL, PAGE_SIZE) == 2);

	small = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, PAGES - 1);
	EXPECT(!IS_ERR(small));
	mapped = ib_map_mr_sg(small, fast->list, PAGES, NULL, PAGE_SIZE);
	ib_dereg_mr(small);
	EXPECT(mapped == PAGES - 1);
	return true;
}

static bool write_and_read(struct pair *pair, struct fast *fast)
{
	u32 key = fast->mr->rkey, length = 6000, offset = PAGE_SIZE - START - 10;

	fill(&pair->a, 1);
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	EXPECT(write_mr(pair, fast, key, offset, length, IB_WC_SUCCESS));
	EXPECT(holds(fast, offset, pair->a.memory, length));
	EXPECT(!*at(fast, offset - 1) && !*at(fast, offset + length));
	EXPECT(write_mr(pair, fast, key, LENGTH - 8, 8, IB_WC_SUCCESS));
	EXPECT(holds(fast, LENGTH - 8, pair->a.memory, 8));
	memset(pair->a.memory, 0, SIZE);
	EXPECT(rdma_at(pair, IB_WR_RDMA_READ, 0, length, fast->mr->iova + offset, key,
		       IB_WC_SUCCESS));
	EXPECT(holds(fast, offset, pair->a.memory, length));
	EXPECT(write_mr(pair, fast, key, LENGTH - 7, 8, IB_WC_REM_ACCESS_ERR));
	return true;
}

/* The MR has the access flags of its last registration. */
static bool access_flags(struct pair *pair, struct fast *fast)
{
	u32 key = fast->mr->rkey;
	struct work *recv = work_get();
	struct ib_sge sge;
	struct ib_recv_wr wr = { .wr_cqe = &recv->cqe, .sg_list = &sge, .num_sge = 1 };

	EXPECT(reg(&pair->b, fast, IB_ACCESS_REMOTE_READ, IB_WC_SUCCESS));
	EXPECT(rdma_at(pair, IB_WR_RDMA_READ, 0, 64, fast->mr->iova, key, IB_WC_SUCCESS));
	EXPECT(write_mr(pair, fast, key, 0, 64, IB_WC_REM_ACCESS_ERR));
	EXPECT(!pair_connect(pair));
	sge = (struct ib_sge) { .addr = fast->mr->iova, .length = 64, .lkey = fast->mr->lkey };
	work_init(recv);
	EXPECT(!ib_post_recv(pair->b.qp, &wr, NULL));
	EXPECT(!post_send(pair, &pair->a, work_get(), 0, 64));
	EXPECT(work_wait(recv, IB_WC_LOC_PROT_ERR));

	EXPECT(!pair_connect(pair));
	EXPECT(invalidate(&pair->b, key, IB_WC_SUCCESS));
	EXPECT(reg(&pair->b, fast, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE, IB_WC_SUCCESS));
	EXPECT(write_mr(pair, fast, key, 0, 64, IB_WC_SUCCESS));
	EXPECT(rdma_at(pair, IB_WR_RDMA_READ, 0, 64, fast->mr->iova, key, IB_WC_REM_ACCESS_ERR));
	return true;
}

/* Neither an invalid MR nor a replaced key can be used. */
static bool local_inv(struct pair *pair, struct fast *fast)
{
	u32 key = fast->mr->rkey;

	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	EXPECT(invalidate(&pair->b, key, IB_WC_SUCCESS));
	EXPECT(write_mr(pair, fast, key, 0, 64, IB_WC_REM_ACCESS_ERR));
	EXPECT(!*at(fast, 0));

	EXPECT(!pair_connect(pair));
	ib_update_fast_reg_key(fast->mr, ib_inc_rkey(key));
	EXPECT(fast->mr->rkey != key);
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	fill(&pair->a, 9);
	EXPECT(write_mr(pair, fast, fast->mr->rkey, 0, 64, IB_WC_SUCCESS));
	EXPECT(holds(fast, 0, pair->a.memory, 64));
	EXPECT(write_mr(pair, fast, key, 0, 64, IB_WC_REM_ACCESS_ERR));

	EXPECT(!pair_connect(pair));
	EXPECT(invalidate(&pair->b, key, IB_WC_MW_BIND_ERR));
	EXPECT(!pair_connect(pair));
	EXPECT(write_mr(pair, fast, fast->mr->rkey, 0, 64, IB_WC_SUCCESS));
	return true;
}

/* A SEND with invalidate invalidates its key at the peer. The key of the MR over all memory can't
 * be invalidated: the SEND fails, and the key stays valid. */
static bool send_inv(struct pair *pair, struct fast *fast)
{
	u32 key = fast->mr->rkey;
	struct work *recv, *send;
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND_WITH_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = key,
		.num_sge = 1,
	};
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 100);

	wr.sg_list = &sge;
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	fill(&pair->a, 3);
	recv = work_get();
	send = work_get();
	wr.wr_cqe = &send->cqe;
	work_init(send);
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 100));
	EXPECT(!ib_post_send(pair->a.qp, &wr, NULL));
	EXPECT(work_wait(send, IB_WC_SUCCESS));
	EXPECT(work_wait(recv, IB_WC_SUCCESS));
	EXPECT(send->wc.opcode == IB_WC_SEND && recv->wc.opcode == IB_WC_RECV);
	EXPECT(recv->wc.wc_flags & IB_WC_WITH_INVALIDATE && recv->wc.ex.invalidate_rkey == key);
	EXPECT(recv->wc.byte_len == 100 && is_equal(pair, 0, 0, 100));
	EXPECT(write_mr(pair, fast, key, 0, 64, IB_WC_REM_ACCESS_ERR));

	EXPECT(!pair_connect(pair));
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	EXPECT(write_mr(pair, fast, key, 0, 64, IB_WC_SUCCESS));
	wr.ex.invalidate_rkey = pair->pd->unsafe_global_rkey;
	work_init(send);
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 100));
	EXPECT(!ib_post_send(pair->a.qp, &wr, NULL));
	EXPECT(wait_for_completion_timeout(&send->done, 30 * HZ));
	EXPECT(send->wc.status != IB_WC_SUCCESS);
	EXPECT(!pair_connect(pair));
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE, 0, 0, 64, pair->pd->unsafe_global_rkey, IB_WC_SUCCESS));
	return true;
}

/* A READ that invalidates its own destination MR. */
static bool read_inv(struct pair *pair, struct fast *fast)
{
	struct work *work = work_get();
	struct ib_sge sge = { .length = 3000 };
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = &work->cqe,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_RDMA_READ_WITH_INV,
			.send_flags = IB_SEND_SIGNALED,
			.ex.invalidate_rkey = fast->mr->rkey,
		},
		.remote_addr = pair->b.dma,
		.rkey = pair->pd->unsafe_global_rkey,
	};

	fill(&pair->b, 77);
	EXPECT(reg(&pair->a, fast, IB_ACCESS_LOCAL_WRITE, IB_WC_SUCCESS));
	sge.addr = fast->mr->iova + 3000;
	sge.lkey = fast->mr->lkey;
	work_init(work);
	EXPECT(!ib_post_send(pair->a.qp, &wr.wr, NULL));
	EXPECT(work_wait(work, IB_WC_SUCCESS));
	EXPECT(work->wc.opcode == IB_WC_RDMA_READ);
	EXPECT(holds(fast, 3000, pair->b.memory, 3000));
	work_init(work);
	EXPECT(!ib_post_send(pair->a.qp, &wr.wr, NULL));
	EXPECT(work_wait(work, IB_WC_LOC_PROT_ERR));
	return true;
}

/* A forbidden registration completes with an error and does not change the MR. */
static bool bad_reg(struct pair *pair, struct fast *fast)
{
	u32 key = fast->mr->rkey;

	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_MW_BIND_ERR));
	EXPECT(!pair_connect(pair));
	EXPECT(invalidate(&pair->b, key, IB_WC_SUCCESS));
	fast->mr->rkey = key + 0x100;
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_MW_BIND_ERR));
	fast->mr->rkey = key;
	EXPECT(!pair_connect(pair));
	EXPECT(reg(&pair->b, fast, IB_ACCESS_REMOTE_WRITE, IB_WC_MW_BIND_ERR));
	EXPECT(!pair_connect(pair));
	EXPECT(invalidate(&pair->b, key, IB_WC_MW_BIND_ERR));
	EXPECT(!pair_connect(pair));
	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_SUCCESS));
	return true;
}

/* A QP for datagrams that can send. */
static struct ib_qp *datagram_qp(struct pair *pair)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 4,
			.max_recv_wr = 4,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.send_cq = pair->a.send_cq,
		.recv_cq = pair->a.recv_cq,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_UD,
	};
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1, .qkey = 1 };
	struct ib_qp *qp = ib_create_qp(pair->pd, &init);
	int ret;

	if (IS_ERR(qp))
		return qp;
	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY);
	attr.qp_state = IB_QPS_RTR;
	ret = ret ?: ib_modify_qp(qp, &attr, IB_QP_STATE);
	attr.qp_state = IB_QPS_RTS;
	ret = ret ?: ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN);
	if (!ret)
		return qp;
	ib_destroy_qp(qp);
	return ERR_PTR(ret);
}

static bool refuses(struct pair *pair, struct fast *fast, struct ib_qp *qp)
{
	struct work *work = work_get();
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	struct ib_reg_wr reg = reg_wr_of(fast, work, ACCESS);
	struct ib_send_wr local_inv = {
		.wr_cqe = &work->cqe,
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = fast->mr->rkey,
	};
	struct ib_rdma_wr remote = {
		.wr = { .wr_cqe = &work->cqe, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = pair->b.dma,
		.rkey = pair->pd->unsafe_global_rkey,
	};

	/* A request that is accepted completes, too. */
	work_init(work);
	EXPECT(map(fast) == PAGES);
	EXPECT(ib_post_send(qp, &reg.wr, NULL) == -EINVAL);
	EXPECT(ib_post_send(qp, &local_inv, NULL) == -EINVAL);
	remote.wr.opcode = IB_WR_RDMA_WRITE;
	EXPECT(ib_post_send(qp, &remote.wr, NULL) == -EINVAL);
	remote.wr.opcode = IB_WR_RDMA_READ;
	EXPECT(ib_post_send(qp, &remote.wr, NULL) == -EINVAL);
	return true;
}

/* QPs for datagrams can neither register nor invalidate memory nor access that of a peer. */
static bool datagrams(struct pair *pair, struct fast *fast)
{
	struct ib_qp *qp = datagram_qp(pair);
	bool passed;

	EXPECT(!IS_ERR(qp));
	passed = refuses(pair, fast, qp);
	ib_drain_qp(qp);
	ib_destroy_qp(qp);
	return passed;
}

/* An MR of another PD can neither be registered nor invalidated nor used. */
static bool wrong_pd(struct pair *pair, struct fast *fast)
{
	struct ib_pd *pd = fast->mr->pd;
	struct work *work = work_get();
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	struct ib_send_wr wr = {
		.wr_cqe = &work->cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};

	EXPECT(reg(&pair->b, fast, ACCESS, IB_WC_MW_BIND_ERR));
	EXPECT(!pair_connect(pair));
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE, 0, 0, 64, pd->unsafe_global_rkey,
		    IB_WC_REM_ACCESS_ERR));
	EXPECT(!pair_connect(pair));
	EXPECT(invalidate(&pair->b, pd->unsafe_global_rkey, IB_WC_MW_BIND_ERR));
	EXPECT(!pair_connect(pair));
	sge.lkey = pd->local_dma_lkey;
	work_init(work);
	EXPECT(!ib_post_send(pair->a.qp, &wr, NULL));
	EXPECT(work_wait(work, IB_WC_LOC_PROT_ERR));
	return true;
}

/* Maps an MR, then registers, uses and invalidates it in one list of work requests. Does not
 * sleep. */
static int post_chain(struct pair *pair, struct fast *fast, struct work *work)
{
	struct ib_sge sge = { .addr = sg_dma_address(fast->list), .length = LENGTH,
		.lkey = fast->mr->lkey };
	struct ib_send_wr inv = {
		.wr_cqe = &work->cqe,
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED | IB_SEND_FENCE,
		.ex.invalidate_rkey = fast->mr->rkey,
	};
	struct ib_rdma_wr read = {
		.wr = { .next = &inv, .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_RDMA_READ },
		.remote_addr = pair->b.dma,
		.rkey = pair->pd->unsafe_global_rkey,
	};
	struct ib_reg_wr reg = reg_wr_of(fast, work, IB_ACCESS_LOCAL_WRITE);

	sge.length = min_t(u32, LENGTH, SIZE);
	if (map(fast) != PAGES)
		return -EINVAL;
	reg.wr.next = &read.wr;
	reg.wr.send_flags = 0;
	return ib_post_send(pair->a.qp, &reg.wr, NULL);
}

static bool locked(struct pair *pair, struct fast *fast)
{
	static DEFINE_SPINLOCK(lock);
	unsigned long flags;
	int round, ret;

	for (round = 0; round < 20; round++) {
		struct work *work = work_get();

		fill(&pair->b, round);
		work_init(work);
		spin_lock_irqsave(&lock, flags);
		ret = post_chain(pair, fast, work);
		spin_unlock_irqrestore(&lock, flags);
		EXPECT(!ret);
		EXPECT(work_wait(work, IB_WC_SUCCESS));
		EXPECT(work->wc.opcode == IB_WC_LOCAL_INV);
		EXPECT(holds(fast, 0, pair->b.memory, min_t(u32, LENGTH, SIZE)));
		ib_update_fast_reg_key(fast->mr, ib_inc_rkey(fast->mr->rkey));
	}
	return true;
}

struct softirq {
	struct timer_list timer;
	struct pair *pair;
	struct fast *fast;
	struct work *work;
	bool was_softirq;
	int ret;
};

static void softirq_post(struct timer_list *timer)
{
	struct softirq *softirq = container_of(timer, struct softirq, timer);

	softirq->was_softirq = in_serving_softirq();
	softirq->ret = post_chain(softirq->pair, softirq->fast, softirq->work);
}

static bool softirq(struct pair *pair, struct fast *fast)
{
	struct softirq softirq = { .pair = pair, .fast = fast, .work = work_get(), .ret = -ETIME };
	bool done;

	fill(&pair->b, 111);
	work_init(softirq.work);
	timer_setup_on_stack(&softirq.timer, softirq_post, 0);
	mod_timer(&softirq.timer, jiffies);
	done = work_wait(softirq.work, IB_WC_SUCCESS);
	timer_delete_sync(&softirq.timer);
	timer_destroy_on_stack(&softirq.timer);
	EXPECT(done && softirq.was_softirq && !softirq.ret);
	EXPECT(holds(fast, 0, pair->b.memory, min_t(u32, LENGTH, SIZE)));
	return true;
}

/* Runs a test with an MR of a PD. */
static bool with_mr(struct pair *pair, struct ib_pd *pd,
		    bool (*test)(struct pair *pair, struct fast *fast))
{
	struct fast *fast;
	bool passed;

	fast = fast_alloc(pair, pd);
	EXPECT(fast);
	passed = test(pair, fast);
	fast_free(pair, fast);
	return passed;
}

#define TEST_WITH_MR(name)				\
	static bool test_##name(struct pair *pair)	\
	{						\
		return with_mr(pair, pair->pd, name);	\
	}

TEST_WITH_MR(map_mr)
TEST_WITH_MR(write_and_read)
TEST_WITH_MR(access_flags)
TEST_WITH_MR(local_inv)
TEST_WITH_MR(send_inv)
TEST_WITH_MR(read_inv)
TEST_WITH_MR(bad_reg)
TEST_WITH_MR(locked)
TEST_WITH_MR(softirq)
TEST_WITH_MR(datagrams)

static bool test_wrong_pd(struct pair *pair)
{
	struct ib_pd *pd = ib_alloc_pd(pair->dev, IB_PD_UNSAFE_GLOBAL_RKEY);
	bool passed;

	EXPECT(!IS_ERR(pd));
	passed = with_mr(pair, pd, wrong_pd);
	ib_dealloc_pd(pd);
	return passed;
}

static bool lacks_fast_reg(struct ib_device *dev)
{
	return !has_fast_reg(dev);
}

/*
 * Without MEM_MGT_EXTENSIONS, the driver refuses the commands and work requests of fast
 * registration. Here the driver masks the capability because REG_PAGES is missing; the device
 * itself would execute such requests.
 */
static bool test_refused(struct pair *pair)
{
	u32 key = pair->pd->unsafe_global_rkey;
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 64);
	struct ib_send_wr local_inv = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = key };
	struct ib_send_wr send_inv = {
		.sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND_WITH_INV,
			.ex.invalidate_rkey = key,
	};
	struct ib_rdma_wr read_inv = {
		.wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IB_WR_RDMA_READ_WITH_INV,
			.ex.invalidate_rkey = sge.lkey,
		},
		.remote_addr = pair->b.dma,
		.rkey = key,
	};
	/* The PD's MR over all memory is used, since no MR can be allocated. */
	struct ib_reg_wr reg = {
		.wr = { .opcode = IB_WR_REG_MR },
		.mr = pair->pd->__internal_mr,
		.key = key,
		.access = ACCESS,
	};
	struct ib_mr *mr = ib_alloc_mr(pair->pd, IB_MR_TYPE_MEM_REG, 1);
	bool is_refused = mr == ERR_PTR(-EINVAL);

	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
	EXPECT(is_refused);
	/* Not 0: clients divide by the limit. */
	EXPECT(pair->dev->attrs.max_fast_reg_page_list_len == 1);
	EXPECT(ib_post_send(pair->a.qp, &local_inv, NULL) == -EINVAL);
	EXPECT(ib_post_send(pair->a.qp, &send_inv, NULL) == -EINVAL);
	EXPECT(ib_post_send(pair->a.qp, &read_inv.wr, NULL) == -EINVAL);
	EXPECT(ib_post_send(pair->a.qp, &reg.wr, NULL) == -EINVAL);
	/* None of the requests has reached the device: the queue still works. */
	fill(&pair->a, 7);
	EXPECT(rdma(pair, IB_WR_RDMA_WRITE, 0, 0, 64, key, IB_WC_SUCCESS));
	EXPECT(is_equal(pair, 0, 0, 64));
	return true;
}

const struct test fast_reg_tests[] = {
	/* abi: R-349 */
	{ "alloc_mr", test_alloc_mr, has_fast_reg },
	/* abi: R-339 */
	{ "map_mr", test_map_mr, has_fast_reg },
	/* abi: R-333 */
	{ "reg_mr_write_and_read", test_write_and_read, has_fast_reg },
	/* abi */
	{ "reg_mr_access_flags", test_access_flags, has_fast_reg },
	/* abi */
	{ "local_inv", test_local_inv, has_fast_reg },
	/* abi */
	{ "send_with_inv", test_send_inv, has_fast_reg },
	/* abi */
	{ "read_with_inv", test_read_inv, has_fast_reg },
	/* abi */
	{ "reg_mr_errors", test_bad_reg, has_fast_reg },
	{ "reg_mr_with_lock", test_locked, has_fast_reg },
	{ "reg_mr_in_softirq", test_softirq, has_fast_reg },
	{ "datagrams_refused", test_datagrams, has_fast_reg },
	/* abi */
	{ "wrong_pd", test_wrong_pd, has_fast_reg },
	/* abi */
	{ "fast_reg_refused", test_refused, lacks_fast_reg },
	{},
};
