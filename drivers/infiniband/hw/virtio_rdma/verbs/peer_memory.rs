// SPDX-License-Identifier: GPL-2.0

//! Peer memory: other drivers, whose memory a process registers by its address.
//!
//! Only the out-of-tree module has exporters. In the kernel's tree, memory of other drivers comes
//! as DMA buffers, and a process that names an exporter is refused.

use super::device::IbDevice;
use crate::{
    abi::uverbs::AllocContextReq,
    rdma::{
        self,
        dmabuf::LockedDmabuf,
        mr::UserMemory,
        pd::Pd, //
    }, //
};
use kernel::prelude::*;

#[cfg(not(OUT_OF_TREE))]
pub(super) use self::in_tree::*;
#[cfg(OUT_OF_TREE)]
pub(super) use self::out_of_tree::*;

/// Whether all fields except the versions are at their defaults.
fn names_no_exporter(request: &AllocContextReq) -> bool {
    let asks_for_nothing = AllocContextReq {
        versions: request.versions,
        ..AllocContextReq::default()
    };
    *request == asks_for_nothing
}

#[cfg(OUT_OF_TREE)]
mod out_of_tree {
    use super::*;
    use crate::{
        abi::{
            feature::Feature,
            uverbs::ContextAttributes, //
        },
        peer_memory::{
            buffer,
            ExporterContext,
            PeerMemory, //
        }, //
    };

    /// The attachment of a user context to its exporter.
    pub(in crate::verbs) type Attachment = ExporterContext;

    /// Peer memory.
    pub(in crate::verbs) struct Range(PeerMemory);

    /// Attaches a context to the exporter that the process names, if any.
    pub(in crate::verbs) fn attach(
        ib_device: &IbDevice,
        request: &AllocContextReq,
    ) -> Result<Option<Attachment>> {
        if names_no_exporter(request) {
            return Ok(None);
        }
        if request.attributes != ContextAttributes::PEER {
            return Err(EINVAL);
        }
        if !ib_device.virtio.limits().has(Feature::Peers) {
            return Err(EOPNOTSUPP);
        }
        let name = CStr::from_bytes_until_nul(&request.peer_name).map_err(|_| EINVAL)?;
        ExporterContext::attach(name, request.peer_id.into()).map(Some)
    }

    /// The part of `memory` that belongs to the exporter of the PD's context; `None` if the memory
    /// is the process's.
    pub(in crate::verbs) fn range(pd: &Pd<IbDevice>, memory: &UserMemory) -> Result<Option<Range>> {
        let Some(exporter) = pd.context().and_then(|context| context.exporter()) else {
            return Ok(None);
        };
        Ok(exporter.range(memory.start, memory.length)?.map(Range))
    }

    impl Range {
        /// Pins the memory for the device.
        pub(in crate::verbs) fn pin<'a>(
            self,
            device: &'a rdma::Device<IbDevice>,
            memory: &UserMemory,
        ) -> Result<LockedDmabuf<'a>> {
            let PeerMemory { buffer, offset } = self.0;
            buffer::pin(device, buffer, offset, memory.length, memory.access)
        }
    }
}

#[cfg(not(OUT_OF_TREE))]
mod in_tree {
    use super::*;

    /// The attachment of a user context to an exporter: a type without values, since there are no
    /// exporters.
    pub(in crate::verbs) enum Attachment {}

    /// Peer memory: a type without values, since there are no exporters.
    pub(in crate::verbs) enum Range {}

    /// Refuses a process that names an exporter.
    pub(in crate::verbs) fn attach(
        _ib_device: &IbDevice,
        request: &AllocContextReq,
    ) -> Result<Option<Attachment>> {
        if !names_no_exporter(request) {
            return Err(EINVAL);
        }
        Ok(None)
    }

    /// Always `None`: all memory is the process's.
    pub(in crate::verbs) fn range(
        _pd: &Pd<IbDevice>,
        _memory: &UserMemory,
    ) -> Result<Option<Range>> {
        Ok(None)
    }

    impl Range {
        /// Never called, since no value of this type exists.
        pub(in crate::verbs) fn pin<'a>(
            self,
            _device: &'a rdma::Device<IbDevice>,
            _memory: &UserMemory,
        ) -> Result<LockedDmabuf<'a>> {
            match self {}
        }
    }
}
