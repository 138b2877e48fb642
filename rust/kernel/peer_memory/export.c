// SPDX-License-Identifier: GPL-2.0
/*
 * Exports of functions that other modules call. They are written in Rust, which has no way to
 * export symbols.
 */

#include <linux/export.h>

#include "../../../include/rdma/peer.h"

EXPORT_SYMBOL_GPL(rdma_peer_register);
EXPORT_SYMBOL_GPL(rdma_peer_unregister);
