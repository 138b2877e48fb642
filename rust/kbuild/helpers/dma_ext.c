// SPDX-License-Identifier: GPL-2.0

#include <linux/dma-mapping.h>

__rust_helper int rust_helper_dma_mapping_error(struct device *dev, dma_addr_t address)
{
	return dma_mapping_error(dev, address);
}
