// SPDX-License-Identifier: GPL-2.0
/*
 * For a while, DMA mappings for memory that the device writes fail: for events, completions in
 * virtqueues, and command responses. With an IOMMU, such mappings fail if memory for page tables is
 * short.
 */

#include "kverbs.h"

#include <linux/delay.h>
#include <linux/dma-direct.h>
#include <linux/dma-map-ops.h>
#include <linux/virtio.h>

/* More messages than there are buffers for completions and events. */
#define MESSAGES	2000

static dma_addr_t map_unless_written(struct device *dev, phys_addr_t phys, size_t size,
				     enum dma_data_direction dir, unsigned long attrs)
{
	return dir == DMA_TO_DEVICE ? phys_to_dma(dev, phys) : DMA_MAPPING_ERROR;
}

/* Nothing to do, since no bounce buffers are used. */
static void unmap(struct device *dev, dma_addr_t addr, size_t size, enum dma_data_direction dir,
		  unsigned long attrs)
{
}

static const struct dma_map_ops short_of_memory = {
	.map_phys = map_unless_written,
	.unmap_phys = unmap,
};

/* Posts a message from A to B. */
static bool post_message(struct pair *pair, struct work *recv, struct work *send)
{
	EXPECT(!post_recv(pair, &pair->b, recv, 0, 64));
	EXPECT(!post_send(pair, &pair->a, send, 0, 64));
	return true;
}

/* Whether the last message and later messages complete. */
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

/* Whether both work requests complete within a second. A later wait still finds the completions. */
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

/* Sends until no buffer is left for completions, then lets mappings succeed again. */
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

/* Whether the test can set DMA operations for the device. The device must use the direct mapping,
 * without DMA operations and without an IOMMU. */
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
