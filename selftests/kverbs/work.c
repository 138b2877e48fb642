// SPDX-License-Identifier: GPL-2.0
/*
 * Work requests that a test waits for.
 */

#include "kverbs.h"

#define PATIENCE (30 * HZ)

/* The completion handler of a CQ that its test polls. */
void ignore_completions(struct ib_cq *cq, void *context)
{
}

static void work_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct work *work = container_of(wc->wr_cqe, struct work, cqe);

	work->wc = *wc;
	complete(&work->done);
}

/* Work requests are taken from this pool in turn and not from the stack, since they outlive a
 * failed test. */
static struct work pool[8 * DEPTH];

struct work *work_get(void)
{
	static unsigned int next;

	return &pool[next++ % ARRAY_SIZE(pool)];
}

void work_init(struct work *work)
{
	work->cqe.done = work_done;
	init_completion(&work->done);
	memset(&work->wc, 0xff, sizeof(work->wc));
}

bool work_wait(struct work *work, enum ib_wc_status status)
{
	EXPECT(wait_for_completion_timeout(&work->done, PATIENCE));
	if (work->wc.status != status)
		pr_info("# status %d instead of %d\n", work->wc.status, status);
	return work->wc.status == status;
}

struct ib_sge sge_of(struct pair *pair, struct side *side, u32 offset, u32 length)
{
	return (struct ib_sge) {
		.addr = side->dma + offset,
		.length = length,
		.lkey = pair->pd->local_dma_lkey,
	};
}

int post_recv(struct pair *pair, struct side *side, struct work *work, u32 offset, u32 length)
{
	struct ib_sge sge = sge_of(pair, side, offset, length);
	struct ib_recv_wr wr = { .wr_cqe = &work->cqe, .sg_list = &sge, .num_sge = 1 };

	work_init(work);
	return ib_post_recv(side->qp, &wr, NULL);
}

int post_send(struct pair *pair, struct side *side, struct work *work, u32 offset, u32 length)
{
	struct ib_sge sge = sge_of(pair, side, offset, length);
	struct ib_send_wr wr = {
		.wr_cqe = &work->cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};

	work_init(work);
	return ib_post_send(side->qp, &wr, NULL);
}

/* Posts an RDMA WRITE without a byte. */
int write_nothing(struct ib_qp *qp, struct ib_cqe *cqe)
{
	struct ib_rdma_wr wr = {
		.wr = { .wr_cqe = cqe, .opcode = IB_WR_RDMA_WRITE, .send_flags = IB_SEND_SIGNALED },
	};

	return ib_post_send(qp, &wr.wr, NULL);
}

/* An RDMA WRITE of @sge to an offset in the memory of B. */
struct ib_rdma_wr write_of(struct pair *pair, struct ib_cqe *cqe, struct ib_sge *sge, u32 remote)
{
	return (struct ib_rdma_wr) {
		.wr = {
			.wr_cqe = cqe,
			.sg_list = sge,
			.num_sge = 1,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = pair->b.dma + remote,
		.rkey = pair->pd->unsafe_global_rkey,
	};
}

void fill(struct side *side, u8 seed)
{
	int i;

	for (i = 0; i < SIZE; i++)
		side->memory[i] = seed + i * 7;
}

bool is_equal(struct pair *pair, u32 to, u32 from, u32 length)
{
	return !memcmp(pair->b.memory + to, pair->a.memory + from, length);
}

/* Executes an RDMA operation of A at the address @remote of B. */
bool rdma_at(struct pair *pair, enum ib_wr_opcode opcode, u32 local, u32 length, u64 remote,
	     u32 rkey,
	     enum ib_wc_status status)
{
	struct ib_sge sges[2];
	struct work *work = work_get();
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = &work->cqe,
			.sg_list = sges,
			.num_sge = 2,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED,
			.ex.imm_data = cpu_to_be32(77),
		},
		.remote_addr = remote,
		.rkey = rkey,
	};

	sges[0] = sge_of(pair, &pair->a, local, length / 3);
	sges[1] = sge_of(pair, &pair->a, local + length / 3, length - length / 3);
	work_init(work);
	EXPECT(!ib_post_send(pair->a.qp, &wr.wr, NULL));
	EXPECT(work_wait(work, status));
	return true;
}

/* Executes an RDMA operation of A at an offset in the memory of B. */
bool rdma(struct pair *pair, enum ib_wr_opcode opcode, u32 local, u32 remote, u32 length, u32 rkey,
	  enum ib_wc_status status)
{
	return rdma_at(pair, opcode, local, length, pair->b.dma + remote, rkey, status);
}
