// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over network devices, for drivers that depend on the network device of
//! another driver.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

pub mod device;
pub mod notifier;
pub mod rtnl;
