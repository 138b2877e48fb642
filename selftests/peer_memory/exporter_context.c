// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
/*
 * Contexts that are attached to the sample exporter, by the direct verbs of the provider:
 *
 * - exporter_context DEVICE refusals: tests attributes that are refused.
 * - exporter_context DEVICE data GID: moves data from and to the exporter's memory. GID is an
 *   index.
 * - exporter_context DEVICE hold: attaches a context, registers memory of the exporter, reports
 *   this, and waits to be killed.
 * - exporter_context DEVICE errno: prints the name of the error of attaching a context.
 *
 * The exit status is 0 on success; otherwise the program prints what has failed.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <infiniband/virtio_rdma_dv.h>

/* Constants of samples/rdma_peer_sample.rs: its name, and the start and length of its memory, in
 * bytes. */
#define SAMPLE "sample"
#define START 0x1000ul
#define SIZE (8 * 4096ul)

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

#define check(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s (errno %d, %s)\n", __LINE__, #condition, \
				errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct ibv_device *device;

static uint8_t first(size_t at, uint32_t id)
{
	return at + id;
}

static struct ibv_context *attach(uint32_t id, const char *name, uint32_t comp_mask)
{
	struct virtio_rdma_dv_open_device_attr attr = {
		.comp_mask = comp_mask,
		.peer_info = { .peer_id = id, .peer_name = name },
	};

	errno = 0;
	return virtio_rdma_dv_open_device(device, &attr);
}

static struct ibv_context *attach_sample(uint32_t id)
{
	return attach(id, SAMPLE, VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO);
}

static struct ibv_mr *reg(struct ibv_pd *pd, uintptr_t address, size_t length, int access)
{
	errno = 0;
	return ibv_reg_mr(pd, (void *)address, length, access);
}

static struct side side_of(struct ibv_context *context)
{
	struct side side = { .context = context };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	check(context);
	side.pd = ibv_alloc_pd(context);
	check(side.pd);
	side.cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	check(side.cq);
	init.send_cq = side.cq;
	init.recv_cq = side.cq;
	side.qp = ibv_create_qp(side.pd, &init);
	check(side.qp);
	return side;
}

static void close_side(struct side *side)
{
	check(!ibv_destroy_qp(side->qp));
	check(!ibv_destroy_cq(side->cq));
	check(!ibv_dealloc_pd(side->pd));
	check(!ibv_close_device(side->context));
}

static void connect_to(struct side *side, const struct side *other, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ACCESS,
	};

	check(!ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = other->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	check(!ibv_query_gid(side->context, 1, gid_index, &attr.ah_attr.grh.dgid));
	check(!ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	check(!ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			     IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void run(struct side *side, enum ibv_wr_opcode opcode, struct ibv_mr *local, uintptr_t at,
		uint32_t length,
		struct ibv_mr *remote, uintptr_t remote_at)
{
	struct ibv_sge sge = { .addr = at, .length = length, .lkey = local->lkey };
	struct ibv_send_wr wr = {
		.opcode = opcode,
		.sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = { .remote_addr = remote_at, .rkey = remote->rkey },
	}, *bad;
	struct ibv_wc wc;
	int polled;

	check(!ibv_post_send(side->qp, &wr, &bad));
	do
		polled = ibv_poll_cq(side->cq, 1, &wc);
	while (!polled);
	check(polled == 1);
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	check(wc.status == IBV_WC_SUCCESS);
}

static int refusals(void)
{
	char long_name[100];

	memset(long_name, 'a', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	/* Unknown bits of comp_mask, alone and with a known bit. */
	check(!attach(7, SAMPLE, 1 << 1) && errno == EINVAL);
	check(!attach(7, SAMPLE, VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO | 1u << 31) && errno == EINVAL);
	/* Exporters that do not exist. */
	check(!attach(7, "nobody", VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO) && errno == EINVAL);
	check(!attach(7, SAMPLE "s", VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO) && errno == EINVAL);
	check(!attach(7, "", VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO) && errno == EINVAL);
	check(!attach(7, NULL, VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO) && errno == EINVAL);
	check(!attach(7, long_name, VIRTIO_RDMA_DV_SET_ATTR_PEER_INFO) && errno == EINVAL);
	/* Numbers that the exporter does not know. */
	check(!attach_sample(0) && errno == EINVAL);
	check(!attach_sample(256) && errno == EINVAL);
	check(!virtio_rdma_dv_open_device(device, NULL) && errno == EINVAL);
	return 0;
}

/* In a context without an exporter, addresses are the process's own, and the process has no memory
 * at the exporter's addresses. */
static void no_exporter(void)
{
	struct side side = side_of(attach(7, "not looked at", 0));

	check(!reg(side.pd, START, 4096, ACCESS) && errno == EFAULT);
	close_side(&side);
}

static int data(int gid_index)
{
	struct side exporter = side_of(attach_sample(7)), plain = side_of(ibv_open_device(device));
	struct side other = side_of(attach_sample(9));
	uint8_t *buffer = aligned_alloc(4096, SIZE), *own = aligned_alloc(4096, SIZE);
	struct ibv_mr *there, *here, *mine, *part, *others;
	size_t at;

	check(buffer && own);
	connect_to(&exporter, &plain, gid_index);
	connect_to(&plain, &exporter, gid_index);
	there = reg(exporter.pd, START, SIZE, ACCESS);
	check(there);
	here = reg(plain.pd, (uintptr_t)buffer, SIZE, ACCESS);
	check(here);

	/* Remote operations address the exporter's memory by the exporter's own addresses. */
	run(&plain, IBV_WR_RDMA_READ, here, (uintptr_t)buffer, SIZE, there, START);
	for (at = 0; at < SIZE; at++)
		check(buffer[at] == first(at, 7));
	memset(buffer, 0xee, 3000);
	run(&plain, IBV_WR_RDMA_WRITE, here, (uintptr_t)buffer, 3000, there, START + 5000);
	memset(buffer, 0, SIZE);
	run(&plain, IBV_WR_RDMA_READ, here, (uintptr_t)buffer, SIZE, there, START);
	for (at = 0; at < SIZE; at++)
		check(buffer[at] == (at >= 5000 && at < 8000 ? 0xee : first(at, 7)));

	/* A region that starts in the middle of a page, as the local source of a WRITE. */
	part = reg(exporter.pd, START + 2 * 4096 + 1000, 2000, ACCESS);
	check(part);
	memset(buffer, 0, SIZE);
	run(&exporter, IBV_WR_RDMA_WRITE, part, START + 2 * 4096 + 1000, 2000, here,
	    (uintptr_t)buffer + 100);
	for (at = 0; at < 2000; at++)
		check(buffer[100 + at] == first(2 * 4096 + 1000 + at, 7));
	check(!buffer[99] && !buffer[2100]);

	/* In the same context, an address that is not the exporter's is the process's own. */
	memset(own, 0x5a, SIZE);
	mine = reg(exporter.pd, (uintptr_t)own, SIZE, ACCESS);
	check(mine);
	run(&exporter, IBV_WR_RDMA_WRITE, mine, (uintptr_t)own, SIZE, here, (uintptr_t)buffer);
	check(!memcmp(own, buffer, SIZE));

	/* Each context has memory of its own at the same address. */
	others = reg(other.pd, START, SIZE, ACCESS);
	check(others);
	check(!ibv_destroy_qp(exporter.qp));
	exporter.qp = ibv_create_qp(exporter.pd, &(struct ibv_qp_init_attr) {
		.qp_type = IBV_QPT_RC,
		.send_cq = exporter.cq,
		.recv_cq = exporter.cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	});
	check(exporter.qp);
	check(!ibv_modify_qp(plain.qp, &(struct ibv_qp_attr) { .qp_state = IBV_QPS_RESET },
			     IBV_QP_STATE));
	connect_to(&other, &plain, gid_index);
	connect_to(&plain, &other, gid_index);
	run(&plain, IBV_WR_RDMA_READ, here, (uintptr_t)buffer, SIZE, others, START);
	for (at = 0; at < SIZE; at++)
		check(buffer[at] == first(at, 9));

	/* Impossible registrations: beyond the end, with windows, and a change of a region's memory
	 * to the exporter's. */
	check(!reg(exporter.pd, START + 4096, SIZE, ACCESS) && errno == EFAULT);
	check(!reg(exporter.pd, START, SIZE, ACCESS | IBV_ACCESS_MW_BIND) && errno == EOPNOTSUPP);
	errno = 0;
	check(ibv_rereg_mr(mine, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)START, 4096, 0) &&
	      errno == EOPNOTSUPP);
	check(ibv_rereg_mr(there, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			   IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);

	check(!ibv_dereg_mr(there) && !ibv_dereg_mr(part) && !ibv_dereg_mr(mine) &&
	      !ibv_dereg_mr(others));
	check(!ibv_dereg_mr(here));
	close_side(&exporter);
	close_side(&plain);
	close_side(&other);
	free(buffer);
	free(own);
	no_exporter();
	return 0;
}

static int hold(void)
{
	struct side side = side_of(attach_sample(7));

	check(reg(side.pd, START, SIZE, ACCESS));
	puts("attached");
	fflush(stdout);
	/* Nothing is cleaned up: the device may be gone by then. */
	pause();
	return 0;
}

static int count_copies(struct dl_phdr_info *info, size_t size, void *count)
{
	if (strstr(info->dlpi_name, "libvirtio_rdma"))
		++*(int *)count;
	return 0;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	const char *what = argc > 2 ? argv[2] : "";
	int i, copies = 0;

	check(list);
	for (i = 0; list[i] && argc > 1; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			device = list[i];
	check(device);
	check(virtio_rdma_dv_is_supported(device));
	/* The program and libibverbs share one copy of the library. */
	dl_iterate_phdr(count_copies, &copies);
	check(copies == 1);
	if (!strcmp(what, "refusals"))
		return refusals();
	if (!strcmp(what, "data") && argc > 3)
		return data(atoi(argv[3]));
	if (!strcmp(what, "hold"))
		return hold();
	if (!strcmp(what, "errno")) {
		puts(attach_sample(7) ? "none" : strerrorname_np(errno));
		return 0;
	}
	fprintf(stderr, "usage: exporter_context DEVICE refusals | data GID | hold | errno\n");
	return 2;
}
