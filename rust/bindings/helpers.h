/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions that C headers define inline, which bindgen cannot call: helpers/ gives each a symbol.
 * The build strips "rust_helper_" from the names that Rust sees.
 */

#ifndef RUST_BINDINGS_HELPERS_H
#define RUST_BINDINGS_HELPERS_H

#include <linux/netdevice.h>
#include <linux/virtio_config.h>
#include <net/netlink.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>

/* helpers/virtio.c */
bool rust_helper___virtio_test_bit(const struct virtio_device *vdev, unsigned int fbit);
void rust_helper___virtio_clear_bit(struct virtio_device *vdev, unsigned int fbit);
int rust_helper_virtio_find_vqs(struct virtio_device *vdev, unsigned int nvqs,
				struct virtqueue *vqs[], struct virtqueue_info info[],
				struct irq_affinity *desc);
void rust_helper_virtio_device_ready(struct virtio_device *vdev);
void rust_helper_virtio_synchronize_cbs(struct virtio_device *vdev);
bool rust_helper_virtio_get_shm_region(struct virtio_device *vdev,
				       struct virtio_shm_region *region, u8 id);
void rust_helper_device_lock(struct device *dev);
void rust_helper_device_unlock(struct device *dev);

/* helpers/barrier.c */
void rust_helper_mb(void);
void rust_helper_virt_mb(void);
u32 rust_helper_dma_load_acquire_u32(const u32 *word);
void rust_helper_dma_store_release_u32(u32 *word, u32 value);
u32 rust_helper_virt_load_acquire_u32(const u32 *word);
void rust_helper_virt_store_release_u32(u32 *word, u32 value);

/* helpers/sched.c */
void rust_helper_cond_resched(void);
bool rust_helper_current_is_dying(void);

/* helpers/memory.c */
unsigned long rust_helper_totalram_pages(void);

/* helpers/dma.c */
int rust_helper_dma_mapping_error(struct device *dev, dma_addr_t address);

/* helpers/net.c */
struct net_device *rust_helper_netdev_notifier_info_to_dev(void *info);
void rust_helper_dev_hold(struct net_device *dev);
void rust_helper_dev_put(struct net_device *dev);
struct device *rust_helper_netdev_parent(const struct net_device *dev);
const u8 *rust_helper_netdev_perm_addr(const struct net_device *dev);
unsigned int rust_helper_netdev_mtu(const struct net_device *dev);
bool rust_helper_netdev_is_ethernet(const struct net_device *dev);
bool rust_helper_netif_running(const struct net_device *dev);
bool rust_helper_netif_oper_up(const struct net_device *dev);
bool rust_helper_netif_is_lag_port(const struct net_device *dev);

/* helpers/rdma.c */
struct ib_umem *rust_helper_ib_umem_get_va(struct ib_device *device, unsigned long addr,
					   size_t size, int access);
size_t rust_helper_ib_umem_num_dma_blocks(struct ib_umem *umem, unsigned long pgsz);
void rust_helper___rdma_umem_block_iter_start(struct ib_block_iter *biter, struct ib_umem *umem,
					      unsigned long pgsz);
bool rust_helper_ucontext_refusal_ratelimit(void);
bool rust_helper_ib_device_try_get(struct ib_device *device);
int rust_helper_ib_no_udata_io(struct ib_udata *udata);
struct ib_ucontext *rust_helper_rdma_udata_to_ucontext(struct ib_udata *udata);
int rust_helper_rdma_user_mmap_io_noncached(struct ib_ucontext *ucontext,
					    struct vm_area_struct *vma,
					    unsigned long pfn, unsigned long size,
					    struct rdma_user_mmap_entry *entry);
bool rust_helper_ib_cq_event_unread(struct ib_cq *cq);
bool rust_helper_uverbs_cq_has_buffer(const struct uverbs_attr_bundle *attrs);
struct nlattr *rust_helper_nla_nest_start(struct sk_buff *skb, int attrtype);
void rust_helper_nla_nest_end(struct sk_buff *skb, struct nlattr *start);
void rust_helper_nla_nest_cancel(struct sk_buff *skb, struct nlattr *start);

#endif
