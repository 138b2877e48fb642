// SPDX-License-Identifier: GPL-2.0
/*
 * For a time, the device's transport gets no memory mapped that the device is to write to: no
 * event, no completion of a virtqueue and no answer of a command. Behind an IOMMU it is memory for
 * page tables that may run out.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/dma-direct.h>
#include <linux/dma-map-ops.h>
#include <linux/virtio.h>

/* More than there are buffers for events. */
#define MESSAGES	2000

static dma_addr_t map_unless_written(struct device *dev, phys_addr_t phys, size_t size,
				     enum dma_data_direction dir, unsigned long attrs)
{
	return dir == DMA_TO_DEVICE ? phys_to_dma(dev, phys) : DMA_MAPPING_ERROR;
}

/* Nothing bounces, so there is nothing to be done. */
static void unmap(struct device *dev, dma_addr_t addr, size_t size, enum dma_data_direction dir,
		  unsigned long attrs)
{
}

static const struct dma_map_ops short_of_memory = {
	.map_phys = map_unless_written,
	.unmap_phys = unmap,
};

/* A sends, B receives. */
static bool post_message(struct pair *pair, struct work *recv, struct work *send)
{
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 64));
	EXPECT(!post_send(pair, &pair->a, send, 0, 64));
	return true;
}

/* The last work request completes, and so does the next one. */
static bool goes_on(struct pair *pair, struct work *recv, struct work *send)
{
	int i;

	for (i = 0; i < 4 * DEPTH; i++) {
		EXPECT(work_wait(recv, IB_WC_SUCCESS));
		EXPECT(work_wait(send, IB_WC_SUCCESS));
		recv = work_get();
		send = work_get();
		EXPECT(post_message(pair, recv, send));
	}
	return work_wait(recv, IB_WC_SUCCESS) && work_wait(send, IB_WC_SUCCESS);
}

/* Whether both complete within a second. It is not taken note of. */
static bool complete_soon(struct work *recv, struct work *send)
{
	int tries;

	for (tries = 0; tries < 1000; tries++) {
		if (completion_done(&recv->done) && completion_done(&send->done))
			return true;
		usleep_range(1000, 1100);
	}
	return false;
}

/* Sends until there is nothing left to tell of completions with, and then has memory again. */
static bool run_short(struct pair *pair, struct device *dma)
{
	struct work *recv, *send;
	bool is_posted, is_done;
	int i = 0;

	set_dma_ops(dma, &short_of_memory);
	do {
		recv = work_get();
		send = work_get();
		is_posted = post_message(pair, recv, send);
		is_done = is_posted && complete_soon(recv, send);
	} while (is_done && ++i < MESSAGES);
	set_dma_ops(dma, NULL);
	pr_info("# stalled after %d messages\n", i);
	EXPECT(is_posted && !is_done);
	return goes_on(pair, recv, send);
}

static struct device *dma_device(struct ib_device *dev)
{
	struct virtio_device *vdev = virtio_of(dev);

	return vdev ? vdev->dev.parent : NULL;
}

static bool test_run_short(struct pair *pair)
{
	return run_short(pair, dma_device(pair->dev));
}

/* Whether operations that are set for the device are used, and are not missed. */
static bool takes_operations(struct ib_device *dev)
{
	struct device *dma = dma_device(dev);

	return IS_ENABLED(CONFIG_ARCH_HAS_DMA_OPS) && dma && !get_dma_ops(dma) &&
		!dev_dma_iommu(dma);
}

const struct test mapping_tests[] = {
	{ "short_of_mapped_memory", test_run_short, takes_operations },
	{},
};
