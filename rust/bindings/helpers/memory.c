// SPDX-License-Identifier: GPL-2.0

#include <linux/mm.h>

#include "../helpers.h"

unsigned long rust_helper_totalram_pages(void)
{
	return totalram_pages();
}
