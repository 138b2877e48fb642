// SPDX-License-Identifier: GPL-2.0

#include <linux/mm.h>

__rust_helper unsigned long rust_helper_totalram_pages(void)
{
	return totalram_pages();
}
