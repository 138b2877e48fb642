// SPDX-License-Identifier: GPL-2.0

//! The table of a driver's callbacks.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    ah,
    attributes,
    counter,
    cq,
    device,
    gid,
    mmap,
    mr,
    multicast,
    mw,
    pd,
    pma,
    port,
    qp,
    qp_attr,
    restrack,
    srq,
    stats,
    ucontext,
    wc,
    wr,
    Driver, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};
use kernel::ModuleMetadata;

/// The verbs of a device, built at compile time from the traits that its driver implements.
///
/// The methods can be called in any order. A method also adds the verbs that its own verbs depend
/// on, so an object that can be created can be destroyed.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     cq::UserCompletionQueues, pd::ProtectionDomains, port::Ports, qp::UserQueuePairs,
///     qp_attr::ModifyQueuePairs, Operations,
/// };
///
/// /// The verbs of a device with queue pairs of kernel clients.
/// const fn verbs<T: Ports + ProtectionDomains + ModifyQueuePairs>() -> Operations<T> {
///     Operations::new().with_queues()
/// }
///
/// /// The verbs of a device with queue pairs of processes too.
/// const fn user_verbs<T>() -> Operations<T>
/// where
///     T: Ports + ModifyQueuePairs + UserCompletionQueues + UserQueuePairs,
/// {
///     Operations::new().with_user_queues()
/// }
/// ```
pub struct Operations<T: Driver> {
    table: bindings::ib_device_ops,
    _driver: PhantomData<T>,
}

impl<T: port::Ports + pd::ProtectionDomains> Default for Operations<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Driver> Operations<T> {
    /// The callbacks that every device has.
    pub const fn new() -> Self
    where
        T: port::Ports + pd::ProtectionDomains,
    {
        // SAFETY: Zeroes are a table without any callback.
        let mut table: bindings::ib_device_ops = unsafe { MaybeUninit::zeroed().assume_init() };
        table.owner = <T::OwnerModule as ModuleMetadata>::THIS_MODULE.as_ptr();
        table.driver_id = T::DRIVER_ID;
        table.uverbs_abi_ver = T::UVERBS_ABI_VERSION;
        table.modify_device = Some(device::modify);
        table.query_device = Some(attributes::query::<T>);
        table.get_dev_fw_str = Some(attributes::firmware_version);
        table.query_port = Some(port::query::<T>);
        table.get_port_immutable = Some(port::immutable::<T>);
        table.get_link_layer = Some(port::link_layer);
        table.query_pkey = Some(port::query_pkey::<T>);
        table.alloc_pd = Some(pd::alloc::<T>);
        table.dealloc_pd = Some(pd::dealloc::<T>);
        table.size_ib_pd = pd::Pd::<T>::SIZE;
        Self {
            table,
            _driver: PhantomData,
        }
    }

    /// Adds a GID table that follows the addresses of the port's network device.
    pub const fn with_gid_table(mut self) -> Self
    where
        T: gid::GidTable,
    {
        self.table.add_gid = Some(gid::add::<T>);
        self.table.del_gid = Some(gid::delete::<T>);
        self
    }

    /// Adds memory regions.
    pub const fn with_memory_regions(mut self) -> Self
    where
        T: mr::MemoryRegions,
    {
        self.table.get_dma_mr = Some(mr::get_dma::<T>);
        self.table.reg_user_mr = Some(mr::reg_user::<T>);
        self.table.rereg_user_mr = Some(mr::rereg_user::<T>);
        self.table.dereg_mr = Some(mr::dereg::<T>);
        self
    }

    /// Adds MRs over memory of other drivers.
    pub const fn with_dmabuf_regions(mut self) -> Self
    where
        T: mr::DmabufRegions,
    {
        self = self.with_memory_regions();
        self.table.reg_user_mr_dmabuf = Some(mr::reg_dmabuf::<T>);
        self
    }

    /// Adds MRs for fast registration.
    pub const fn with_fast_registration(mut self) -> Self
    where
        T: mr::FastRegistration,
    {
        self = self.with_memory_regions();
        self.table.alloc_mr = Some(mr::alloc::<T>);
        self.table.map_mr_sg = Some(mr::map::<T>);
        self
    }

    /// Adds memory windows.
    pub const fn with_memory_windows(mut self) -> Self
    where
        T: mw::MemoryWindows,
    {
        self.table.alloc_mw = Some(mw::alloc::<T>);
        self.table.dealloc_mw = Some(mw::dealloc::<T>);
        self.table.size_ib_mw = mw::Mw::<T>::SIZE;
        self
    }

    /// Adds address handles, of kernel clients and of processes.
    pub const fn with_address_handles(mut self) -> Self
    where
        T: ah::AddressHandles,
    {
        self.table.create_ah = Some(ah::create::<T>);
        self.table.create_user_ah = Some(ah::create_user::<T>);
        self.table.query_ah = Some(ah::query::<T>);
        self.table.destroy_ah = Some(ah::destroy::<T>);
        self.table.size_ib_ah = ah::Ah::<T>::SIZE;
        self
    }

    /// Adds completion queues and queue pairs.
    pub const fn with_queues(mut self) -> Self
    where
        T: qp_attr::ModifyQueuePairs,
    {
        self.table.create_cq = Some(cq::create::<T>);
        self.table.destroy_cq = Some(cq::destroy::<T>);
        self.table.pre_destroy_cq = Some(cq::pre_destroy::<T>);
        self.table.post_destroy_cq = Some(cq::post_destroy::<T>);
        self.table.size_ib_cq = cq::Cq::<T>::SIZE;
        if self.table.create_qp.is_none() {
            self.table.create_qp = Some(qp::create::<T>);
        }
        self.table.modify_qp = Some(qp_attr::modify::<T>);
        self.table.query_qp = Some(qp_attr::query::<T>);
        self.table.destroy_qp = Some(qp::destroy::<T>);
        self.table.size_ib_qp = qp::Qp::<T>::SIZE;
        self
    }

    /// Adds multicast groups.
    pub const fn with_multicast_groups(mut self) -> Self
    where
        T: multicast::MulticastGroups,
    {
        self = self.with_queues();
        self.table.attach_mcast = Some(multicast::attach::<T>);
        self.table.detach_mcast = Some(multicast::detach::<T>);
        self
    }

    /// Adds posting, polling and arming by kernel clients.
    pub const fn with_client_queues(mut self) -> Self
    where
        T: wr::ClientQueuePairs + wc::ClientCompletionQueues,
    {
        self = self.with_queues();
        self.table.post_send = Some(wr::post_send::<T>);
        self.table.post_recv = Some(wr::post_recv::<T>);
        self.table.poll_cq = Some(wc::poll_cq::<T>);
        self.table.req_notify_cq = Some(wc::req_notify_cq::<T>);
        self
    }

    /// Adds shared receive queues.
    pub const fn with_shared_receive_queues(mut self) -> Self
    where
        T: srq::SharedReceiveQueues,
    {
        self = self.with_user_contexts().with_queues();
        self.table.create_srq = Some(srq::create::<T>);
        self.table.modify_srq = Some(srq::modify::<T>);
        self.table.query_srq = Some(srq::query::<T>);
        self.table.destroy_srq = Some(srq::destroy::<T>);
        self.table.post_srq_recv = Some(srq::post_recv::<T>);
        self.table.size_ib_srq = srq::Srq::<T>::SIZE;
        self
    }

    /// Adds user contexts.
    pub const fn with_user_contexts(mut self) -> Self
    where
        T: ucontext::UserContexts,
    {
        self.table.alloc_ucontext = Some(ucontext::alloc::<T>);
        self.table.dealloc_ucontext = Some(ucontext::dealloc::<T>);
        self.table.disassociate_ucontext = Some(ucontext::disassociate);
        self.table.size_ib_ucontext = ucontext::Context::<T>::SIZE;
        self.table.mmap = Some(mmap::mmap::<T>);
        self.table.mmap_free = Some(mmap::free::<T>);
        self
    }

    /// Adds completion queues and queue pairs in memory of processes.
    pub const fn with_user_queues(mut self) -> Self
    where
        T: cq::UserCompletionQueues + qp::UserQueuePairs + qp_attr::ModifyQueuePairs,
    {
        self = self.with_user_contexts().with_queues();
        self.table.create_user_cq = Some(cq::create_user::<T>);
        self.table.resize_user_cq = Some(cq::resize_user::<T>);
        self.table.create_qp = Some(qp::create_any::<T>);
        self
    }

    /// Adds the moderation of completion queues.
    pub const fn with_cq_moderation(mut self) -> Self
    where
        T: cq::ModerateCompletionQueues,
    {
        self.table.modify_cq = Some(cq::moderate::<T>);
        self
    }

    /// Adds port counters; see [`Config::port_counters`](super::device::Config::port_counters).
    pub const fn with_port_counters(mut self) -> Self
    where
        T: stats::PortCounters,
    {
        self.table.alloc_hw_port_stats = Some(stats::alloc::<T>);
        self.table.get_hw_stats = Some(stats::read::<T>);
        self
    }

    /// Adds the standard counters of ports; see
    /// [`Config::port_counters`](super::device::Config::port_counters).
    pub const fn with_standard_counters(mut self) -> Self
    where
        T: pma::StandardCounters,
    {
        self.table.process_mad = Some(pma::process_mad::<T>);
        self
    }

    /// Adds counters of queue pairs; see
    /// [`Config::qp_counters`](super::device::Config::qp_counters).
    pub const fn with_qp_counters(mut self) -> Self
    where
        T: counter::QpCounters + qp_attr::ModifyQueuePairs,
    {
        self = self.with_port_counters().with_queues();
        self.table.counter_init = Some(counter::init);
        self.table.counter_alloc_stats = Some(counter::alloc_stats::<T>);
        self.table.counter_bind_qp = Some(counter::bind::<T>);
        self.table.counter_unbind_qp = Some(counter::unbind::<T>);
        self.table.counter_dealloc = Some(counter::dealloc::<T>);
        self.table.counter_update_stats = Some(counter::update::<T>);
        self.table.size_rdma_counter = counter::SIZE;
        self
    }

    /// Adds the driver's details to the core's descriptions of objects.
    pub const fn with_resource_details(mut self) -> Self
    where
        T: restrack::ResourceDetails,
    {
        self.table.fill_res_qp_entry = Some(restrack::fill_qp::<T>);
        self.table.fill_res_cq_entry = Some(restrack::fill_cq::<T>);
        self.table.fill_res_mr_entry = Some(restrack::fill_mr::<T>);
        self.table.fill_res_srq_entry = Some(restrack::fill_srq::<T>);
        self
    }

    /// The C table.
    pub(super) const fn as_raw(&self) -> &bindings::ib_device_ops {
        &self.table
    }
}
