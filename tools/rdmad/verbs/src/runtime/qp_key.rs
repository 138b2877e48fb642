// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of QPs within a runtime.

use virtio_rdma_abi::number::{PortId, Qpn};

use super::scheduler::{Flow, FlowKey};

/// Identifies a QP within the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpKey {
    /// The QP's port.
    pub port: PortId,
    /// QPN of the QP.
    pub qpn: Qpn,
}

impl From<QpKey> for FlowKey {
    fn from(QpKey { port, qpn }: QpKey) -> Self {
        let flow = Flow::of(qpn);
        Self { port, flow }
    }
}
