/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Common parts of the tests: two connected QPs of one device, and work on them.
 */

#ifndef KVERBS_H
#define KVERBS_H

/* This header is included before all others, so that pr_fmt is defined before them. */
#define pr_fmt(fmt) "kverbs: " fmt

#include <linux/completion.h>
#include <linux/printk.h>
#include <rdma/ib_verbs.h>

#define DEPTH	16
#define SIZE	8192

/* A work request and its completion. */
struct work {
	struct ib_cqe cqe;
	struct completion done;
	struct ib_wc wc;
};

struct side {
	struct ib_cq *send_cq;
	struct ib_cq *recv_cq;
	struct ib_qp *qp;
	u8 *memory;
	u64 dma;
};

struct pair {
	struct ib_device *dev;
	struct ib_pd *pd;
	unsigned int gid_index;
	/* How the send CQs are polled. */
	enum ib_poll_context sent;
	struct side a;
	struct side b;
};

#define EXPECT(condition)							\
	do {									\
		if (!(condition)) {						\
			pr_info("# %s:%d: %s\n", __FILE_NAME__, __LINE__, #condition); \
			return false;						\
		}								\
	} while (0)

/* pair.c */
int pair_init(struct pair *pair, struct ib_device *dev, unsigned int gid_index,
	      enum ib_poll_context sent);
void pair_free(struct pair *pair);
int pair_connect(struct pair *pair);
int side_connect(struct pair *pair, struct side *side, struct side *peer);
int path_init(struct pair *pair, struct rdma_ah_attr *attr);

/* work.c */
void ignore_completions(struct ib_cq *cq, void *context);
struct work *work_get(void);
void work_init(struct work *work);
bool work_wait(struct work *work, enum ib_wc_status status);
struct ib_sge sge_of(struct pair *pair, struct side *side, u32 offset, u32 length);
int post_recv(struct pair *pair, struct side *side, struct work *work, u32 offset, u32 length);
int post_send(struct pair *pair, struct side *side, struct work *work, u32 offset, u32 length);
int write_nothing(struct ib_qp *qp, struct ib_cqe *cqe);
struct ib_rdma_wr write_of(struct pair *pair, struct ib_cqe *cqe, struct ib_sge *sge, u32 remote);
bool rdma_at(struct pair *pair, enum ib_wr_opcode opcode, u32 local, u32 length, u64 remote,
	     u32 rkey,
	     enum ib_wc_status status);
bool rdma(struct pair *pair, enum ib_wr_opcode opcode, u32 local, u32 remote, u32 length, u32 rkey,
	  enum ib_wc_status status);
void fill(struct side *side, u8 seed);
bool is_equal(struct pair *pair, u32 to, u32 from, u32 length);

/*
 * A test returns whether it has passed. At its start the two QPs are connected and idle; at its end
 * they may be in any state. A test is skipped if the device or the kernel lacks the tested feature.
 */
struct test {
	const char *name;
	bool (*run)(struct pair *pair);
	bool (*is_possible)(struct ib_device *dev);
};

/* handler.c */
int chain_init(struct pair *pair);
void chain_free(void);
bool chain_run(enum ib_wc_status status);
int chain_calls(void);

/* srq.c */
bool has_srq(struct ib_device *dev);
struct ib_srq *basic_srq(struct pair *pair);

/* transport.c */
struct virtio_device;
struct virtqueue;

struct virtio_device *virtio_of(struct ib_device *dev);
struct virtqueue *control_queue(struct virtio_device *vdev);
bool is_cq(struct virtqueue *vq);
bool has_cq_virtqueues(struct ib_device *dev);
u16 used_index(struct virtqueue *vq);

/* withheld.c */
extern uint withheld_irq;

/* nonsense.c */
int make_nonsense(struct virtio_device *vdev);
int make_device_nonsense(struct virtio_device *vdev);

/* failing.c */
void delay_reset(struct virtio_device *vdev);
int make_slow_reset(struct virtio_device *vdev);
bool is_reset_requested(void);
void failing_exit(void);

/* moved.c */
int moved_init(const char *device);
void moved_exit(void);

/* answers.c */
struct vring_used_elem;
typedef void forge_t(u8 *answer, struct vring_used_elem *used);
void forge_answers(struct virtqueue *vq, u8 command, forge_t *change);
void forge_no_answers(void);
int answer_to_gids(struct virtio_device *vdev, uint irq, u8 answer);
void gids_exit(void);

extern const struct test data_tests[];
extern const struct test fast_reg_tests[];
extern const struct test atomic_tests[];
extern const struct test death_tests[];
extern const struct test cost_tests[];
extern const struct test srq_tests[];
extern const struct test query_tests[];
extern const struct test garbage_tests[];
extern const struct test handler_tests[];
extern const struct test lies_tests[];
extern const struct test mapping_tests[];
extern const struct test lost_tests[];
extern const struct test broken_queue_tests[];
extern const struct test no_answer_tests[];
extern const struct test held_tests[];
extern const struct test number_tests[];
extern const struct test withheld_tests[];

#endif
