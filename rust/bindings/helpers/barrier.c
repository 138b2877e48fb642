// SPDX-License-Identifier: GPL-2.0

#include <asm/barrier.h>
#include <linux/compiler.h>

#include "../helpers.h"

void rust_helper_mb(void)
{
	mb();
}

void rust_helper_virt_mb(void)
{
	virt_mb();
}

u32 rust_helper_dma_load_acquire_u32(const u32 *word)
{
	u32 value = READ_ONCE(*word);

	dma_mb();
	return value;
}

void rust_helper_dma_store_release_u32(u32 *word, u32 value)
{
	dma_mb();
	WRITE_ONCE(*word, value);
}

u32 rust_helper_virt_load_acquire_u32(const u32 *word)
{
	return virt_load_acquire(word);
}

void rust_helper_virt_store_release_u32(u32 *word, u32 value)
{
	virt_store_release(word, value);
}
