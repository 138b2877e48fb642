// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Limits of a device that a rule can lower.

use crate::word::worded;

worded! {
    /// A limit of a device, by the name of its field in the configuration space. The number is the
    /// least value with which the connection manager of a Linux driver can use the device.
    pub enum Limit {
        /// 0: atomic operations are not offered, but work.
        AtomicCap = "atomic_cap", 0;
        MaxCq = "max_cq", 2;
        MaxCqe = "max_cqe", 640;
        MaxInlineData = "max_inline_data", 0;
        MaxMr = "max_mr", 1;
        MaxPd = "max_pd", 2;
        MaxQp = "max_qp", 2;
        MaxQpWr = "max_qp_wr", 512;
        MaxRdAtomic = "max_rd_atomic", 0;
        MaxSge = "max_sge", 2;
        MaxSrq = "max_srq", 1;
        MaxSrqWr = "max_srq_wr", 1;
    }
}
