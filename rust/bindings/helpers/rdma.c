// SPDX-License-Identifier: GPL-2.0

#include "../helpers.h"

struct ib_umem *rust_helper_ib_umem_get_va(struct ib_device *device, unsigned long addr, size_t size, int access)
{
	return ib_umem_get_va(device, addr, size, access);
}
