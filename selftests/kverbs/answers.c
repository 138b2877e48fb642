// SPDX-License-Identifier: GPL-2.0
/*
 * Answers of the control queue that are forged before the driver reads them. Afterwards the objects
 * of device and driver differ, so the device has to be bound again.
 */

#include "kverbs.h"
#include "../../include/uapi/linux/virtio_rdma.h"

#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/virtio.h>
#include <linux/virtio_ring.h>

/* In place of a status: the answer is empty. */
#define NO_STATUS	255

static struct virtqueue *forged;
static void (*real_callback)(struct virtqueue *vq);
static forge_t *forge;
static u8 forged_command;
static u16 seen;

static u64 address(const struct vring_desc *desc)
{
	return le64_to_cpu((__force __le64)desc->addr);
}

/* The two descriptors of a command: request and answer. */
static const struct vring_desc *descriptors(const struct vring *ring, u32 head)
{
	const struct vring_desc *first = &ring->desc[head];

	if (le16_to_cpu((__force __le16)first->flags) & VRING_DESC_F_INDIRECT)
		return phys_to_virt(address(first));
	return NULL;
}

static void on_answers(struct virtqueue *vq)
{
	const struct vring *ring = virtqueue_get_vring(vq);
	const struct vring_desc *pair;
	struct vring_used_elem *used;
	u8 *request;

	while (seen != used_index(vq)) {
		used = &ring->used->ring[seen % ring->num];
		WRITE_ONCE(seen, seen + 1);
		pair = descriptors(ring, le32_to_cpu((__force __le32)used->id));
		if (!pair)
			continue;
		request = phys_to_virt(address(&pair[0]));
		if (request[0] == forged_command)
			forge(phys_to_virt(address(&pair[1])), used);
	}
	real_callback(vq);
}

/* From now on, changes the answers to a command. An answer begins with a byte of the status. */
void forge_answers(struct virtqueue *vq, u8 command, forge_t *change)
{
	forged = vq;
	forged_command = command;
	forge = change;
	seen = used_index(vq);
	real_callback = vq->callback;
	vq->callback = on_answers;
}

void forge_no_answers(void)
{
	forged->callback = real_callback;
	/* An interrupt may still be at its end. */
	msleep(100);
}

static uint gid_irq;
static u8 gid_answer;

static void answer_gid(u8 *answer, struct vring_used_elem *used)
{
	if (gid_answer == NO_STATUS)
		used->len = 0;
	else
		answer[0] = gid_answer;
}

/* No answer of the control queue arrives until the module is unloaded. Then the answers to
 * additions of GIDs have the status @answer. */
int answer_to_gids(struct virtio_device *vdev, uint irq, u8 answer)
{
	if (!irq)
		return -EINVAL;
	gid_irq = irq;
	gid_answer = answer;
	disable_irq(gid_irq);
	forge_answers(control_queue(vdev), VIRTIO_RDMA_CMD_ADD_GID, answer_gid);
	return 0;
}

void gids_exit(void)
{
	int tries;

	if (!gid_irq)
		return;
	enable_irq(gid_irq);
	for (tries = 0; tries < 1000 && READ_ONCE(seen) != used_index(forged); tries++)
		msleep(10);
	forge_no_answers();
	gid_irq = 0;
}
