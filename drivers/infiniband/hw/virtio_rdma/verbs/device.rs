// SPDX-License-Identifier: GPL-2.0

//! The device as `ib_core` sees it: registration, limits, events of the port.

use super::{
    gid::GidCommands,
    port,
    port_state::{
        PortState,
        Teller, //
    },
    resource_limit::ResourceLimit, //
};
use crate::{
    abi::{
        config::{
            self,
            DeviceCaps as Caps, //
        },
        ctrl::RspQueryPort,
        feature::Feature,
        ib::{
            AsyncEvent,
            PORT, //
        },
        versions::{
            Versions,
            RELEASE, //
        },
    },
    device::{
        Device,
        Queues, //
    },
    event_handlers::{
        EventHandler,
        EventRegistration, //
    },
    net,
    netdev::PortOwner,
    rdma::{
        self,
        attributes::{
            AtomicCap,
            DeviceAttr, //
        },
        event::{
            DeviceEvent,
            PortEvent, //
        },
        page_list::{
            MappedPages,
            PageList, //
        },
        user_memory::total_pages, //
    },
    sync::{
        deferred::{
            Call,
            Deferred, //
        },
        periodic::Periodic,
        workqueue::Workqueue, //
    },
    virtio, //
};
use kernel::{
    device::Bound,
    prelude::*,
    sizes::SZ_4K,
    sync::{
        atomic::{
            AtomicFlag,
            Full,
            Release, //
        },
        Arc, //
    }, //
};

/// `RDMA_DRIVER_UNKNOWN`: the user space ABI has no number for this driver, so the provider matches
/// the modalias of the parent device.
const DRIVER_ID: u32 = 0;

// All capabilities that `Limits::capabilities` passes on.
assert_same! {
    DRIVER_ID => rdma_driver_id_RDMA_DRIVER_UNKNOWN,
    Caps::BAD_PKEY_CNTR.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_BAD_PKEY_CNTR,
    Caps::BAD_QKEY_CNTR.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_BAD_QKEY_CNTR,
    Caps::CHANGE_PHY_PORT.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_CHANGE_PHY_PORT,
    Caps::UD_AV_PORT_ENFORCE.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE,
    Caps::SYS_IMAGE_GUID.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_SYS_IMAGE_GUID,
    Caps::RC_RNR_NAK_GEN.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_RC_RNR_NAK_GEN,
    Caps::MEM_WINDOW.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_MEM_WINDOW,
    Caps::MEM_MGT_EXTENSIONS.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS,
    Caps::MEM_WINDOW_TYPE_2A.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A,
    Caps::MEM_WINDOW_TYPE_2B.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B,
    Caps::FLUSH_GLOBAL.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_FLUSH_GLOBAL,
    Caps::FLUSH_PERSISTENT.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_FLUSH_PERSISTENT,
    Caps::ATOMIC_WRITE.0 => ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_ATOMIC_WRITE,
}

/// Size in bytes of the largest MR whose 4 KiB pages fit one flat list.
const MAX_FLAT_MR_SIZE: u64 = (PageList::MAX_PAGES * SZ_4K) as u64;

/// Rings of processes take at most 1/`RING_PARTS` of the machine's memory.
const RING_PARTS: usize = 4;

/// The driver's part of an `ib_device`.
pub(super) struct IbDevice {
    /// The virtio device that serves this one.
    pub(super) virtio: Arc<Device>,
    /// The port's attributes when the device was registered; the sizes of its tables do not change.
    pub(super) port: RspQueryPort,
    /// Additions to the port's GID table.
    pub(super) gids: Pin<KBox<GidCommands>>,
    /// Limits the number of AHs, which the device does not count.
    pub(super) ahs: Arc<ResourceLimit>,
    /// Limits the pages of rings of all processes together, with or without cgroups. The kernel
    /// can't reclaim these pages; a memory cgroup limits only the pages of its own processes.
    pub(super) ring_pages: Arc<ResourceLimit>,
    pub(super) port_state: PortState,
}

#[vtable]
impl rdma::Driver for IbDevice {
    type OwnerModule = crate::LocalModule;

    const NAME: &'static CStr = c"virtio_rdma%d";
    const NODE_DESC: &'static CStr = c"virtio_rdma";
    const DRIVER_ID: u32 = DRIVER_ID;
    const UVERBS_ABI_VERSION: u32 = Versions::SPOKEN.oldest;
    const OPERATIONS: rdma::Operations<Self> = rdma::Operations::new()
        .with_gid_table()
        .with_memory_regions()
        .with_dmabuf_regions()
        .with_fast_registration()
        .with_memory_windows()
        .with_address_handles()
        .with_queues()
        .with_multicast_groups()
        .with_client_queues()
        .with_user_contexts()
        .with_user_queues()
        .with_shared_receive_queues()
        .with_cq_moderation()
        .with_qp_counters()
        .with_standard_counters()
        .with_resource_details();

    fn query_device(this: &rdma::Device<Self>) -> DeviceAttr {
        let limits = this.virtio.limits();
        let config = &limits.config;
        let with = |feature, limit| if limits.has(feature) { limit } else { 0 };
        let groups = |limit| with(Feature::Multicast, limit);
        let srq = limits.srq.unwrap_or_default();
        let moderation = limits.cq_moderation.unwrap_or_default();
        let srq_caps = limits.srq.map_or(0, |_| DeviceAttr::SRQ_RESIZE);
        DeviceAttr {
            fw_ver: RELEASE,
            sys_image_guid: config.sys_image_guid,
            vendor_id: config.vendor_id,
            vendor_part_id: config.vendor_part_id,
            hw_ver: config.hw_ver,
            device_cap_flags: limits.capabilities().0 | srq_caps,
            kernel_cap_flags: match limits.blocks_loopback() {
                true => DeviceAttr::BLOCK_MULTICAST_LOOPBACK,
                false => 0,
            },
            max_mr_size: this.max_mr_size(),
            page_size_cap: config.page_size_cap,
            max_mr: config.max_mr,
            max_mw: with(Feature::MemWindows, config.max_mw),
            max_pd: config.max_pd,
            max_qp: limits.queues.max_qp,
            max_qp_wr: limits.queues.max_qp_wr,
            max_send_sge: config.max_send_sge,
            max_recv_sge: config.max_recv_sge,
            max_sge_rd: config.max_sge_rd,
            max_cq: limits.queues.max_cq,
            max_cqe: limits.queues.max_cqe,
            max_qp_rd_atom: config.max_qp_rd_atom,
            max_res_rd_atom: config.max_res_rd_atom,
            max_qp_init_rd_atom: config.max_qp_init_rd_atom,
            atomic_cap: match limits.atomic_cap() {
                config::AtomicCap::Hca => AtomicCap::Hca,
                config::AtomicCap::Global => AtomicCap::Global,
                config::AtomicCap::None => AtomicCap::None,
            },
            max_mcast_grp: groups(config.max_mcast_grp),
            max_mcast_qp_attach: groups(config.max_mcast_qp_attach),
            max_total_mcast_qp_attach: groups(config.max_total_mcast_qp_attach),
            max_ah: config.max_ah,
            // 1 without fast registration: some kernel clients divide by this limit before they
            // look at the capability, or do not look at it. `alloc_mr` refuses the MR.
            max_fast_reg_page_list_len: this.max_fast_reg_pages().max(1),
            max_srq: srq.max_srq,
            max_srq_wr: srq.max_srq_wr,
            max_srq_sge: srq.max_srq_sge,
            max_pkeys: config.max_pkeys,
            local_ca_ack_delay: config.local_ca_ack_delay,
            // The verbs have 16 bits for both.
            max_cq_moderation_count: u16::try_from(moderation.max_count).unwrap_or(u16::MAX),
            max_cq_moderation_period: u16::try_from(moderation.max_period).unwrap_or(u16::MAX),
        }
    }
}

impl IbDevice {
    /// Size in bytes of the largest MR.
    pub(super) fn max_mr_size(&self) -> u64 {
        self.virtio.limits().max_mr_size(MAX_FLAT_MR_SIZE)
    }

    /// Maximum number of pages of an MR for fast registration.
    pub(super) fn max_fast_reg_pages(&self) -> u32 {
        let limits = self.virtio.limits();
        limits.max_fast_reg_pages(MappedPages::MAX_PAGES as u32)
    }
}

/// The registered device. Dropping it unregisters the device.
pub(crate) struct Verbs {
    /// Dropped first: events of the port need the device.
    _events: EventRegistration,
    registration: rdma::Registration<IbDevice>,
}

impl Verbs {
    /// Registers the device with `ib_core`.
    pub(crate) fn new(bus: &virtio::Device<Bound>, device: Arc<Device>) -> Result<Self> {
        let config = &device.limits().config;
        let port = port::ask(&device)?;
        let ahs = ResourceLimit::new(usize::try_from(config.max_ah)?)?;
        let ring_pages = ResourceLimit::new(total_pages() / RING_PARTS)?;
        // In virtqueue mode the kernel posts and polls for processes; `alloc_context` allows this
        // only out of the kernel's tree.
        let is_polled = cfg!(OUT_OF_TREE) && matches!(device.queues(), Queues::Transport(_));
        let registration = rdma::Registration::new(
            &rdma::device::Config {
                bound_device: bus.as_ref(),
                // Programs that read the topology of devices expect a PCI function.
                parent: bus
                    .pci_function()
                    .map_or(bus.as_ref(), |function| function.as_ref()),
                dma_device: bus.dma_device().ok_or(ENODEV)?,
                node_guid: config.sys_image_guid,
                ports: config.phys_port_cnt,
                completion_vectors: device.comp_vectors(),
                user_queues_in_kernel: is_polled.then_some(device.limits().queues.max_qp),
                port_counters: device.limits().has(Feature::Counters),
                qp_counters: device.limits().has(Feature::CounterSets),
                adaptive_moderation: device.limits().has(Feature::CqModeration),
            },
            Ok(IbDevice {
                virtio: device.clone(),
                port,
                gids: GidCommands::new()?,
                ahs,
                ring_pages,
                port_state: PortState::new()?,
            }),
        )?;
        let events = PortEvents::new(registration.device())?;
        Ok(Self {
            _events: device.event_handlers().register_device(events)?,
            registration,
        })
    }

    /// Fills the GID table from addresses that the port's network device already has. Called
    /// without the RTNL.
    pub(crate) fn follow_netdev(&self) {
        if let Some(device) = self.registration.device().try_get() {
            device.rescan_gids(PORT.into());
        }
    }

    /// The port as the owner of its network device.
    pub(crate) fn port(&self) -> Result<Arc<dyn PortOwner>> {
        let device = self.registration.device();
        let queue = Workqueue::with_rescuer(c"virtio_rdma_port")?;
        let port = pin_init!(Port {
            device: device.clone(),
            teller <- Teller::new(queue, device.clone()),
        });
        Ok(Arc::pin_init(port, GFP_KERNEL)?)
    }
}

/// The events of the device and its port.
const EVENTS: [AsyncEvent; 5] = [
    AsyncEvent::DeviceFatal,
    AsyncEvent::PortErr,
    AsyncEvent::PortActive,
    AsyncEvent::PkeyChange,
    AsyncEvent::GidChange,
];

/// Passes asynchronous events of the device and its port to `ib_core`.
struct PortEvents {
    device: rdma::DeviceRef<IbDevice>,
    missed: Deferred<MissedEvents>,
}

/// Events that arrived while the device was not registered: it moved to another network namespace.
/// The clients that have the device after the move get them.
struct MissedEvents {
    device: rdma::DeviceRef<IbDevice>,
    /// Whether each of [`EVENTS`] was missed.
    kinds: [AtomicFlag; EVENTS.len()],
}

impl PortEvents {
    fn new(device: &rdma::DeviceRef<IbDevice>) -> Result<Arc<Self>> {
        // A queue of its own: a move waits for clients.
        let queue = Workqueue::with_rescuer(c"virtio_rdma_events")?;
        let missed = MissedEvents {
            device: device.clone(),
            kinds: [const { AtomicFlag::new(false) }; EVENTS.len()],
        };
        let events = Self {
            device: device.clone(),
            missed: Deferred::new(
                &queue,
                missed,
                c"virtio_rdma_missed_events",
                kernel::static_lock_class!(),
            )?,
        };
        Ok(Arc::new(events, GFP_KERNEL)?)
    }
}

impl EventHandler for PortEvents {
    fn object(&self) -> &'static CStr {
        c"DEVICE"
    }

    fn async_event(&self, event: AsyncEvent) {
        let Some(index) = EVENTS.iter().position(|kind| *kind == event) else {
            return;
        };
        if let Some(device) = self.device.try_get() {
            dispatch(&device, event);
        } else if let Some(is_missed) = self.missed.kinds.get(index) {
            is_missed.store(true, Release);
            self.missed.queue();
        }
    }
}

impl Call for MissedEvents {
    fn call(&self) {
        // An unregistered device has no clients any more.
        let Some(device) = self.device.wait_and_get() else {
            return;
        };
        for (event, is_missed) in EVENTS.into_iter().zip(&self.kinds) {
            if is_missed.xchg(false, Full) {
                dispatch(&device, event);
            }
        }
    }
}

/// Passes an event of the device or its port to `ib_core`.
fn dispatch(device: &rdma::Device<IbDevice>, event: AsyncEvent) {
    let event = match event {
        AsyncEvent::PortActive => PortEvent::Active,
        AsyncEvent::PortErr => PortEvent::Error,
        AsyncEvent::PkeyChange => PortEvent::PkeyChange,
        AsyncEvent::GidChange => PortEvent::GidChange,
        AsyncEvent::DeviceFatal => return device.dispatch_event(DeviceEvent::Fatal),
        _ => return,
    };
    let _ = device.dispatch_port_event(PORT.into(), event);
}

/// The port, as the owner of its network device.
#[pin_data]
struct Port {
    device: rdma::DeviceRef<IbDevice>,
    #[pin]
    teller: Periodic<Teller>,
}

impl PortOwner for Port {
    fn set_netdev(&self, netdev: Option<&net::device::Device>) -> Result {
        let set = self.device.set_netdev(PORT.into(), netdev);
        self.teller.hasten();
        set
    }

    /// Tells the device. Reports port events only for the members of a bond: `ib_core` itself
    /// reports the events of other network devices.
    fn netdev_changed(&self, netdev: &net::device::Device) {
        self.teller.hasten();
        if !netdev.is_lag_port() {
            return;
        }
        if let Some(device) = self.device.try_get() {
            device.dispatch_port_state(netdev);
        }
    }
}
