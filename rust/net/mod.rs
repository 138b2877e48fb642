// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over network devices, for those who depend on one without driving it.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

pub mod device;
pub mod notifier;
