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

u16 rust_helper_dma_load_acquire_u16(const u16 *word)
{
	u16 value = READ_ONCE(*word);

	dma_mb();
	return value;
}

void rust_helper_dma_store_release_u16(u16 *word, u16 value)
{
	dma_mb();
	WRITE_ONCE(*word, value);
}

u16 rust_helper_virt_load_acquire_u16(const u16 *word)
{
	return virt_load_acquire(word);
}

void rust_helper_virt_store_release_u16(u16 *word, u16 value)
{
	virt_store_release(word, value);
}
