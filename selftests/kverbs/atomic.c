// SPDX-License-Identifier: GPL-2.0
/*
 * Atomic operations, the fence, and draining.
 *
 * Atomic operations address the first 64-bit number in B's memory.
 */

#include "kverbs.h"

#include <linux/atomic.h>

#define ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | \
		 IB_ACCESS_REMOTE_ATOMIC)

/* Posts an atomic operation of A on the number at @offset in B's memory. The operation writes the
 * number's previous value to A's memory. */
static int post_atomic(struct pair *pair, struct ib_mr *mr, struct work *work,
		       enum ib_wr_opcode opcode, u32 offset,
		       u64 compare_add, u64 swap)
{
	struct ib_sge sge = sge_of(pair, &pair->a, 0, 8);
	struct ib_atomic_wr wr = {
		.wr = {
			.wr_cqe = &work->cqe,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = pair->b.dma + offset,
		.rkey = mr->rkey,
		.compare_add = compare_add,
		.swap = swap,
	};

	work_init(work);
	return ib_post_send(pair->a.qp, &wr.wr, NULL);
}

static bool atomics(struct pair *pair, struct ib_mr *mr)
{
	u64 *number = (u64 *)pair->b.memory, *before = (u64 *)pair->a.memory;
	struct work *work = work_get();

	*number = 0x123456789abcdef0;
	EXPECT(!post_atomic(pair, mr, work, IB_WR_ATOMIC_FETCH_AND_ADD, 0, 0x1111111111111111, 0));
	EXPECT(work_wait(work, IB_WC_SUCCESS));
	EXPECT(work->wc.opcode == IB_WC_FETCH_ADD);
	/* abi */
	EXPECT(*before == 0x123456789abcdef0 && *number == 0x23456789abcdf001);

	EXPECT(!post_atomic(pair, mr, work, IB_WR_ATOMIC_CMP_AND_SWP, 0, 1, 2));
	EXPECT(work_wait(work, IB_WC_SUCCESS));
	EXPECT(work->wc.opcode == IB_WC_COMP_SWAP);
	EXPECT(*before == 0x23456789abcdf001 && *number == 0x23456789abcdf001);

	EXPECT(!post_atomic(pair, mr, work, IB_WR_ATOMIC_CMP_AND_SWP, 0, 0x23456789abcdf001, 42));
	EXPECT(work_wait(work, IB_WC_SUCCESS));
	/* abi: R-618 */
	EXPECT(*before == 0x23456789abcdf001 && *number == 42);

	EXPECT(!post_atomic(pair, mr, work, IB_WR_ATOMIC_FETCH_AND_ADD, 4, 1, 0));
	EXPECT(work_wait(work, IB_WC_REM_INV_REQ_ERR));
	/* abi: R-669 */
	EXPECT(*number == 42);
	return true;
}

/* The device and this CPU increment the same number: no increment is lost. */
static bool atomics_race(struct pair *pair, struct ib_mr *mr)
{
	atomic64_t *number = (atomic64_t *)pair->b.memory;
	u64 own = 0;
	int round;

	atomic64_set(number, 0);
	for (round = 0; round < 100; round++) {
		struct work *work = work_get();

		EXPECT(!post_atomic(pair, mr, work, IB_WR_ATOMIC_FETCH_AND_ADD, 0, 1, 0));
		while (!completion_done(&work->done)) {
			atomic64_inc(number);
			own++;
			if (own % 1024 == 0)
				cond_resched();
		}
		EXPECT(work_wait(work, IB_WC_SUCCESS));
	}
	EXPECT(atomic64_read(number) == own + 100);
	return true;
}

/* A fenced SEND waits for the READ before it, and sends the data that the READ has fetched. */
static bool test_fence(struct pair *pair)
{
	int round;

	for (round = 0; round < 50; round++) {
		struct work *recv = work_get(), *send = work_get();
		struct ib_sge sge = sge_of(pair, &pair->a, 0, 2000);
		struct ib_send_wr fenced = {
			.wr_cqe = &send->cqe,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_SEND,
			.send_flags = IB_SEND_SIGNALED | IB_SEND_FENCE,
		};
		struct ib_rdma_wr read = {
			.wr = { .next = &fenced, .sg_list = &sge, .num_sge = 1,
				.opcode = IB_WR_RDMA_READ },
			.remote_addr = pair->b.dma,
			.rkey = pair->pd->unsafe_global_rkey,
		};

		fill(&pair->b, round);
		memset(pair->a.memory, 0, 2000);
		work_init(send);
		EXPECT(!post_recv(pair, &pair->b, recv, 4000, 2000));
		EXPECT(!ib_post_send(pair->a.qp, &read.wr, NULL));
		EXPECT(work_wait(send, IB_WC_SUCCESS));
		EXPECT(work_wait(recv, IB_WC_SUCCESS));
		EXPECT(!memcmp(pair->b.memory + 4000, pair->b.memory, 2000));
	}
	return true;
}

/* After a drain, every posted work request is complete. */
static bool test_drain(struct pair *pair)
{
	struct work *recvs[DEPTH / 2], *sends[DEPTH / 2];
	int i;

	for (i = 0; i < DEPTH / 2; i++) {
		recvs[i] = work_get();
		sends[i] = work_get();
		EXPECT(!post_recv(pair, &pair->a, recvs[i], 0, 64));
		/* The peer has no receives for these messages, so they wait. */
		EXPECT(!post_send(pair, &pair->a, sends[i], 0, 64));
	}
	ib_drain_qp(pair->a.qp);
	for (i = 0; i < DEPTH / 2; i++) {
		EXPECT(completion_done(&recvs[i]->done) && completion_done(&sends[i]->done));
		EXPECT(recvs[i]->wc.status == IB_WC_WR_FLUSH_ERR);
		EXPECT(sends[i]->wc.status == IB_WC_WR_FLUSH_ERR ||
		       sends[i]->wc.status == IB_WC_RNR_RETRY_EXC_ERR);
	}
	return true;
}

/* Runs a test with an MR over all memory: the core's own MR does not allow atomics. */
static bool with_mr(struct pair *pair, bool (*test)(struct pair *pair, struct ib_mr *mr))
{
	struct ib_mr *mr = pair->dev->ops.get_dma_mr(pair->pd, ACCESS);
	bool passed;

	EXPECT(!IS_ERR(mr));
	passed = test(pair, mr);
	pair->dev->ops.dereg_mr(mr, NULL);
	return passed;
}

static bool test_atomics(struct pair *pair)
{
	return with_mr(pair, atomics);
}

static bool test_atomics_race(struct pair *pair)
{
	return with_mr(pair, atomics_race);
}

static bool has_atomics(struct ib_device *dev)
{
	return dev->attrs.atomic_cap != IB_ATOMIC_NONE;
}

static bool has_global_atomics(struct ib_device *dev)
{
	return dev->attrs.atomic_cap == IB_ATOMIC_GLOB;
}

const struct test atomic_tests[] = {
	{ "atomics", test_atomics, has_atomics },
	/* abi: R-666 */
	{ "atomics_and_cpu", test_atomics_race, has_global_atomics },
	/* abi: R-628 */
	{ "fence", test_fence },
	{ "drain", test_drain },
	{},
};
