// SPDX-License-Identifier: GPL-2.0

/* Functions for the shims in Rust. */

#include <asm/barrier.h>
#include <linux/irqflags.h>
#include <linux/percpu.h>
#include <linux/preempt.h>

#ifdef LACKS_barrier
void virtio_rdma_shim_mb(void);

void virtio_rdma_shim_mb(void)
{
	/* The caller documents what this pairs with. */
	mb();
}
#endif

#ifdef LACKS_interrupt
/*
 * Counted sections without interrupts: the last one to end, whichever it is, restores the state
 * from before the first one. Each module has counts of its own. Sections of two modules end in
 * reverse order, as calls return.
 */
void virtio_rdma_shim_interrupt_disable(void);
void virtio_rdma_shim_interrupt_enable(void);

static DEFINE_PER_CPU(unsigned int, depth);
static DEFINE_PER_CPU(unsigned long, before);

void virtio_rdma_shim_interrupt_disable(void)
{
	unsigned long flags;

	/*
	 * Without it, a spin lock that is released before the end would find interrupts disabled,
	 * and not look whether another task is to run.
	 */
	preempt_disable();
	local_irq_save(flags);
	if (__this_cpu_inc_return(depth) == 1)
		__this_cpu_write(before, flags);
}

void virtio_rdma_shim_interrupt_enable(void)
{
	if (__this_cpu_dec_return(depth) == 0)
		local_irq_restore(__this_cpu_read(before));
	preempt_enable();
}

#endif
