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
 * Counted sections without interrupts: the section that ends last restores the state from before
 * the first section. Each module has its own count. Sections of two modules nest, as their calls
 * do.
 */
void virtio_rdma_shim_interrupt_disable(void);
void virtio_rdma_shim_interrupt_enable(void);

static DEFINE_PER_CPU(unsigned int, depth);
static DEFINE_PER_CPU(unsigned long, before);

void virtio_rdma_shim_interrupt_disable(void)
{
	unsigned long flags;

	/*
	 * Otherwise, releasing a spin lock inside the section would try to reschedule while
	 * interrupts are disabled, and lose the request.
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
