// SPDX-License-Identifier: GPL-2.0

/*
 * The RDMA core's private header: no other header declares the list of completion events that a
 * process has not read yet.
 */
#include <../drivers/infiniband/core/uverbs.h>

/*
 * Whether a process has an unread completion event of its CQ. An event leaves the list before the
 * process gets it. So a process that arms the CQ again after an event has an empty list.
 */
__rust_helper bool rust_helper_ib_cq_event_unread(struct ib_cq *cq)
{
	return cq->uobject && !list_empty_careful(&cq->uobject->comp_list);
}
