// SPDX-License-Identifier: GPL-2.0

/*
 * The RDMA core's own header: no other declares the list of completion events that a process has
 * not read yet.
 */
#include <../drivers/infiniband/core/uverbs.h>

/*
 * Whether a process has a completion event of its CQ that it has not read. An event is taken off
 * the list before the process sees it, so one that answers an event finds the list empty.
 */
__rust_helper bool rust_helper_ib_cq_event_unread(struct ib_cq *cq)
{
	return cq->uobject && !list_empty_careful(&cq->uobject->comp_list);
}
