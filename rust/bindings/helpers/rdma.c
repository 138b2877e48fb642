// SPDX-License-Identifier: GPL-2.0

#include <linux/ratelimit.h>

#include <rdma/uverbs_ioctl.h>

/* The core's own header: no other declares the list of completion events that a process has not
 * read yet. */
#include <../drivers/infiniband/core/uverbs.h>

#include "../helpers.h"

struct ib_umem *rust_helper_ib_umem_get_va(struct ib_device *device, unsigned long addr,
					   size_t size, int access)
{
	return ib_umem_get_va(device, addr, size, access);
}

size_t rust_helper_ib_umem_num_dma_blocks(struct ib_umem *umem, unsigned long pgsz)
{
	return ib_umem_num_dma_blocks(umem, pgsz);
}

void rust_helper___rdma_umem_block_iter_start(struct ib_block_iter *biter, struct ib_umem *umem,
					      unsigned long pgsz)
{
	__rdma_umem_block_iter_start(biter, umem, pgsz);
}

bool rust_helper_ib_device_try_get(struct ib_device *device)
{
	return ib_device_try_get(device);
}

bool rust_helper_ucontext_refusal_ratelimit(void)
{
	static DEFINE_RATELIMIT_STATE(refusals, DEFAULT_RATELIMIT_INTERVAL,
				      DEFAULT_RATELIMIT_BURST);

	return __ratelimit(&refusals);
}

int rust_helper_ib_no_udata_io(struct ib_udata *udata)
{
	return ib_no_udata_io(udata);
}

struct ib_ucontext *rust_helper_rdma_udata_to_ucontext(struct ib_udata *udata)
{
	return container_of(udata, struct uverbs_attr_bundle, driver_udata)->context;
}

int rust_helper_rdma_user_mmap_io_noncached(struct ib_ucontext *ucontext,
					    struct vm_area_struct *vma,
					    unsigned long pfn, unsigned long size,
					    struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_io(ucontext, vma, pfn, size, pgprot_noncached(vma->vm_page_prot),
				 entry);
}

/*
 * Whether a process has a completion event of its CQ that it has not read. An event is taken off
 * the list before the process sees it, so one that answers an event finds the list empty.
 */
bool rust_helper_ib_cq_event_unread(struct ib_cq *cq)
{
	return cq->uobject && !list_empty_careful(&cq->uobject->comp_list);
}

/* Whether a process that creates a CQ brings memory for it by attributes of the verb. */
bool rust_helper_uverbs_cq_has_buffer(const struct uverbs_attr_bundle *attrs)
{
	return uverbs_attr_is_valid(attrs, UVERBS_ATTR_CREATE_CQ_BUFFER_VA) ||
	       uverbs_attr_is_valid(attrs, UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH) ||
	       uverbs_attr_is_valid(attrs, UVERBS_ATTR_CREATE_CQ_BUFFER_FD) ||
	       uverbs_attr_is_valid(attrs, UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET) ||
	       uverbs_attr_is_valid(attrs, UVERBS_ATTR_CREATE_CQ_BUF_UMEM);
}

struct nlattr *rust_helper_nla_nest_start(struct sk_buff *skb, int attrtype)
{
	return nla_nest_start(skb, attrtype);
}

void rust_helper_nla_nest_end(struct sk_buff *skb, struct nlattr *start)
{
	nla_nest_end(skb, start);
}

void rust_helper_nla_nest_cancel(struct sk_buff *skb, struct nlattr *start)
{
	nla_nest_cancel(skb, start);
}
