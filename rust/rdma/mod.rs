// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over the InfiniBand core.
