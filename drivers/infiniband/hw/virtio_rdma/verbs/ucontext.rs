// SPDX-License-Identifier: GPL-2.0

//! User contexts: each has a doorbell page of its own.

use super::{
    device::IbDevice,
    peer_memory::{
        self,
        Attachment, //
    }, //
};
use crate::{
    abi::{
        feature::Feature,
        ring::{
            CQ_SLOTS,
            WORK_SLOTS, //
        },
        uverbs::{
            AllocContextReq,
            AllocContextResp,
            ContextFlags, //
        },
        versions::{
            Disagreement,
            Versions, //
        },
        wire::Wire, //
    },
    device::Queues,
    doorbell::DoorbellPage,
    rdma::{
        queue_memory::Barriers,
        ucontext::{
            NewContext,
            UserContexts, //
        },
        Udata, //
    }, //
};
use core::ops::RangeInclusive;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// A user context.
pub(crate) struct Context {
    /// Number of the doorbell page for its queues; `None` in virtqueue mode. The context's mapping
    /// owns the page, so that no other context gets it before the process has unmapped it.
    doorbell_page: Option<u32>,
    /// The exporter whose memory the process can register besides its own.
    exporter: Option<Attachment>,
}

impl Context {
    /// Number of the doorbell page; `EINVAL` in virtqueue mode.
    pub(super) fn doorbell_page(&self) -> Result<u32> {
        self.doorbell_page.ok_or(EINVAL)
    }

    #[cfg_attr(not(OUT_OF_TREE), expect(dead_code))]
    pub(super) fn exporter(&self) -> Option<&Attachment> {
        self.exporter.as_ref()
    }
}

/// Number of slots of a ring for `entries` entries, limited to the range of its kind.
fn slots_for(entries: u32, slots: RangeInclusive<u32>) -> u32 {
    entries
        .checked_next_power_of_two()
        .map_or(*slots.end(), |needed| {
            needed.clamp(*slots.start(), *slots.end())
        })
}

/// The interface version of a context, for the response. It is 0 for a provider that states no
/// versions.
///
/// # Errors
///
/// `EINVAL` for an invalid range. `ENOPROTOOPT`, with a log message, if provider and module have no
/// version in common. Other errors would be misunderstood: for libibverbs, `EPROTONOSUPPORT` means
/// that the kernel lacks this verb, and older modules return `EOPNOTSUPP` for any range of
/// versions.
fn agree(context: &NewContext<'_, IbDevice>, provider: &Versions) -> Result<u32> {
    let module = Versions::SPOKEN;
    let older = match module.agree(provider) {
        Ok(_) if *provider == Versions::ZERO => return Ok(0),
        Ok(version) => return Ok(version),
        Err(Disagreement::NoRange) => return Err(EINVAL),
        Err(Disagreement::OldModule) => "module is older: update the module",
        Err(Disagreement::OldProvider) => "provider is older: update the provider",
    };
    if context.may_log_refusal() {
        let provider = provider.or_unstated();
        dev_warn!(
            context.device().virtio.as_device(),
            "process {}: its provider speaks interface versions {} to {}, \
             this module {} to {}: the {}\n",
            context.process(),
            provider.oldest,
            provider.newest,
            module.oldest,
            module.newest,
            older
        );
    }
    Err(ENOPROTOOPT)
}

impl UserContexts for IbDevice {
    type Context = Context;
    type Registers = DoorbellPage;

    fn alloc_context(context: &mut NewContext<'_, Self>, udata: &Udata<'_>) -> Result<Context> {
        let device = &context.device().virtio;
        // The kernel's tree takes no new drivers whose processes post and poll by system calls.
        if !cfg!(OUT_OF_TREE) && matches!(device.queues(), Queues::Transport(_)) {
            return Err(EOPNOTSUPP);
        }
        let request: AllocContextReq = udata.request()?;
        let version = agree(context, &request.versions)?;
        let exporter = peer_memory::attach(context.device(), &request)?;
        let limits = &device.limits().queues;
        let mut response = AllocContextResp {
            max_qp_slots: slots_for(limits.max_qp_wr, WORK_SLOTS),
            max_cq_slots: slots_for(limits.max_cqe, CQ_SLOTS),
            rate_limits: device.limits().rate_limits.unwrap_or_default(),
            version,
            ..AllocContextResp::default()
        };
        let mut doorbell_page = None;
        if let Queues::OwnRings(own_rings) = device.queues() {
            let page = own_rings.doorbells().alloc()?;
            doorbell_page = Some(page.index());
            response.flags = ContextFlags::OWN_RINGS;
            for (feature, flag) in [
                (Feature::MemWindows, ContextFlags::MEM_WINDOWS),
                (Feature::AtomicWrite, ContextFlags::ATOMIC_WRITE),
                (Feature::Flush, ContextFlags::FLUSH),
            ] {
                if device.limits().has(feature) {
                    response.flags = response.flags | flag;
                }
            }
            if device.barriers() == Barriers::Platform {
                response.flags = response.flags | ContextFlags::ORDER_PLATFORM;
            }
            response.max_inline_data = limits.max_inline_data;
            response.doorbell_offset = context.add_registers(page)?.0;
            response.doorbell_size = u32::try_from(PAGE_SIZE)?;
        }
        udata.respond(&response)?;
        Ok(Context {
            doorbell_page,
            exporter,
        })
    }
}
