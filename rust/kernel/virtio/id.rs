// SPDX-License-Identifier: GPL-2.0

//! Device types, and the table of the types that a driver matches.
//!
//! C header: [`include/uapi/linux/virtio_ids.h`](srctree/include/uapi/linux/virtio_ids.h)

use crate::bindings;
use kernel::device_id::RawDeviceId;

/// The type of a virtio device.
#[allow(dead_code)] // All types that there are, of which a driver matches one or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum VirtioID {
    /// Network interface.
    Net = bindings::VIRTIO_ID_NET,
    /// Block device.
    Block = bindings::VIRTIO_ID_BLOCK,
    /// Console.
    Console = bindings::VIRTIO_ID_CONSOLE,
    /// Source of entropy.
    Rng = bindings::VIRTIO_ID_RNG,
    /// Memory balloon.
    Balloon = bindings::VIRTIO_ID_BALLOON,
    /// I/O memory.
    IoMem = bindings::VIRTIO_ID_IOMEM,
    /// Messages to remote processors.
    Rpmsg = bindings::VIRTIO_ID_RPMSG,
    /// SCSI host.
    Scsi = bindings::VIRTIO_ID_SCSI,
    /// 9P transport.
    NineP = bindings::VIRTIO_ID_9P,
    /// IEEE 802.11 MAC.
    Mac80211Wlan = bindings::VIRTIO_ID_MAC80211_WLAN,
    /// Serial link to a remote processor.
    RprocSerial = bindings::VIRTIO_ID_RPROC_SERIAL,
    /// CAIF transport.
    Caif = bindings::VIRTIO_ID_CAIF,
    /// Memory balloon of the later kind.
    MemoryBalloon = bindings::VIRTIO_ID_MEMORY_BALLOON,
    /// Graphics processor.
    Gpu = bindings::VIRTIO_ID_GPU,
    /// Clock.
    Clock = bindings::VIRTIO_ID_CLOCK,
    /// Input device.
    Input = bindings::VIRTIO_ID_INPUT,
    /// Socket transport.
    Vsock = bindings::VIRTIO_ID_VSOCK,
    /// Cryptographic accelerator.
    Crypto = bindings::VIRTIO_ID_CRYPTO,
    /// Distribution of signals.
    SignalDist = bindings::VIRTIO_ID_SIGNAL_DIST,
    /// Persistent storage.
    Pstore = bindings::VIRTIO_ID_PSTORE,
    /// IOMMU.
    Iommu = bindings::VIRTIO_ID_IOMMU,
    /// Memory that is plugged and unplugged.
    Mem = bindings::VIRTIO_ID_MEM,
    /// Sound card.
    Sound = bindings::VIRTIO_ID_SOUND,
    /// File system.
    Fs = bindings::VIRTIO_ID_FS,
    /// Persistent memory.
    Pmem = bindings::VIRTIO_ID_PMEM,
    /// Replay-protected memory block.
    Rpmb = bindings::VIRTIO_ID_RPMB,
    /// Simulated IEEE 802.11 radio.
    Mac80211Hwsim = bindings::VIRTIO_ID_MAC80211_HWSIM,
    /// Video encoder.
    VideoEncoder = bindings::VIRTIO_ID_VIDEO_ENCODER,
    /// Video decoder.
    VideoDecoder = bindings::VIRTIO_ID_VIDEO_DECODER,
    /// System control and management.
    Scmi = bindings::VIRTIO_ID_SCMI,
    /// Nitro secure module.
    NitroSecMod = bindings::VIRTIO_ID_NITRO_SEC_MOD,
    /// I2C adapter.
    I2cAdapter = bindings::VIRTIO_ID_I2C_ADAPTER,
    /// Watchdog.
    Watchdog = bindings::VIRTIO_ID_WATCHDOG,
    /// CAN controller.
    Can = bindings::VIRTIO_ID_CAN,
    /// DMA buffers of other machines.
    Dmabuf = bindings::VIRTIO_ID_DMABUF,
    /// Parameter server.
    ParamServ = bindings::VIRTIO_ID_PARAM_SERV,
    /// Audio policy.
    AudioPolicy = bindings::VIRTIO_ID_AUDIO_POLICY,
    /// Bluetooth controller.
    Bt = bindings::VIRTIO_ID_BT,
    /// GPIO controller.
    Gpio = bindings::VIRTIO_ID_GPIO,
    /// RDMA device, which the header does not list yet.
    Rdma = 42,
    /// SPI controller.
    Spi = bindings::VIRTIO_ID_SPI,
    /// Media device.
    Media = bindings::VIRTIO_ID_MEDIA,
}

/// The devices that an entry of a driver's table matches.
///
/// Layout-compatible with `struct virtio_device_id`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct DeviceId(bindings::virtio_device_id);

impl DeviceId {
    /// Any device of this type, by any vendor.
    pub const fn new(device: VirtioID) -> Self {
        Self::new_with_vendor(device, bindings::VIRTIO_DEV_ANY_ID)
    }

    /// A device of this type by one vendor: the subsystem vendor ID of a PCI function.
    pub const fn new_with_vendor(device: VirtioID, vendor: u32) -> Self {
        // CAST: The enumeration is a `u32`.
        let device = device as u32;
        Self(bindings::virtio_device_id { device, vendor })
    }
}

// SAFETY: `DeviceId` is a transparent wrapper of `struct virtio_device_id`.
unsafe impl RawDeviceId for DeviceId {
    type RawType = bindings::virtio_device_id;
}

/// A table of the devices that a driver matches.
pub type IdTable = &'static dyn kernel::device_id::IdTable<DeviceId, ()>;

/// Creates an `IdTable` with its alias for modpost.
///
/// # Examples
///
/// ```
/// use crate::virtio::{DeviceId, IdTable, VirtioID};
///
/// crate::virtio_device_table!(RNG_TABLE, [DeviceId::new(VirtioID::Rng)]);
///
/// let table: IdTable = &RNG_TABLE;
/// ```
#[macro_export]
macro_rules! virtio_device_table {
    ($name:ident, $ids:tt) => {
        ::kernel::module_device_table!("virtio", $crate::virtio::DeviceId, $name, @none, $ids);
    };
}
