// SPDX-License-Identifier: GPL-2.0

#include <asm/barrier.h>
#include <linux/compiler.h>

__rust_helper void rust_helper_virt_mb(void)
{
	/* The caller documents what this pairs with. */
	virt_mb();
}

__rust_helper u32 rust_helper_dma_load_acquire_u32(const u32 *word)
{
	u32 value = READ_ONCE(*word);

	/* Pairs with the device's release of the word. */
	dma_mb();
	return value;
}

__rust_helper void rust_helper_dma_store_release_u32(u32 *word, u32 value)
{
	/* Pairs with the device's acquire of the word. */
	dma_mb();
	WRITE_ONCE(*word, value);
}

__rust_helper u32 rust_helper_virt_load_acquire_u32(const u32 *word)
{
	/* Pairs with the release of the word by the host. */
	return virt_load_acquire(word);
}

__rust_helper void rust_helper_virt_store_release_u32(u32 *word, u32 value)
{
	/* Pairs with the acquire of the word by the host. */
	virt_store_release(word, value);
}
