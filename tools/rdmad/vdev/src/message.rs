// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of the vfio-user protocol, version 0.1 (QEMU, docs/interop/vfio-user). Integers are in
//! host byte order.

/// Longest accepted message in bytes, header included.
pub(crate) const MAX_MESSAGE: usize = 0x1_0000 + 0x100;
/// Longest register access in bytes, as announced to the client: the configuration space.
pub(crate) const MAX_TRANSFER: u32 = 0x1000;
/// Longest reply in bytes, that to such a read.
pub(crate) const MAX_REPLY: usize = Header::LEN + RegionAccess::LEN + MAX_TRANSFER as usize;
/// Maximum number of file descriptors in one message, as announced to the client.
pub const MAX_FDS: usize = 16;

const FLAG_TYPE: u32 = 0xf;
const TYPE_COMMAND: u32 = 0;
const FLAG_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// Commands of a client that the function implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VfioUserCommand {
    Version = 1,
    DmaMap,
    DmaUnmap,
    DeviceGetInfo,
    DeviceGetRegionInfo,
    GetRegionIoFds,
    GetIrqInfo,
    SetIrqs,
    RegionRead,
    RegionWrite,
    DmaRead,
    DmaWrite,
    DeviceReset,
    UserDirtyPages,
}

impl VfioUserCommand {
    /// All commands in the order of their numbers, which start at 1.
    const ALL: [Self; 14] = [
        Self::Version,
        Self::DmaMap,
        Self::DmaUnmap,
        Self::DeviceGetInfo,
        Self::DeviceGetRegionInfo,
        Self::GetRegionIoFds,
        Self::GetIrqInfo,
        Self::SetIrqs,
        Self::RegionRead,
        Self::RegionWrite,
        Self::DmaRead,
        Self::DmaWrite,
        Self::DeviceReset,
        Self::UserDirtyPages,
    ];

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        let mut known = Self::ALL.into_iter();
        known.find(|command| *command as u16 == number)
    }
}

/// A structure of the protocol, packed: its fields have no padding between them.
pub(crate) trait Structure: Sized {
    const LEN: usize;

    fn decode(payload: &mut Payload<'_>) -> Result<Self, Truncated>;

    fn encode(&self, out: &mut Vec<u8>);
}

/// Defines structures of the protocol, with their lengths in bytes.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident, $len:literal: { $($field:ident: $type:ident,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        impl Structure for $name {
            const LEN: usize = 0 $(+ size_of::<$type>())*;

            fn decode(payload: &mut Payload<'_>) -> Result<Self, Truncated> {
                Ok(Self {
                    $($field: $type::from_ne_bytes(payload.array()?),)*
                })
            }

            fn encode(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&self.$field.to_ne_bytes());)*
            }
        }

        const _: () = assert!($name::LEN == $len);
    )*};
}

structures! {
    /// Header of a message. `size` is the length of the whole message.
    Header, 16: {
        id: u16,
        command: u16,
        size: u32,
        flags: u32,
        error: u32,
    }

    /// Start of VERSION and of its reply; a JSON text follows.
    Version, 4: {
        major: u16,
        minor: u16,
    }

    /// Payload of DMA_MAP.
    DmaMap, 32: {
        argsz: u32,
        flags: u32,
        offset: u64,
        iova: u64,
        len: u64,
    }

    /// Start of the payload of DMA_UNMAP and of its reply.
    DmaUnmap, 24: {
        argsz: u32,
        flags: u32,
        iova: u64,
        len: u64,
    }

    /// The start of DEVICE_GET_REGION_INFO and DEVICE_GET_IRQ_INFO. The rest is ignored.
    InfoRequest, 12: {
        argsz: u32,
        flags: u32,
        index: u32,
    }

    /// Reply to DEVICE_GET_INFO.
    DeviceInfo, 16: {
        argsz: u32,
        flags: u32,
        num_regions: u32,
        num_irqs: u32,
    }

    /// Reply to DEVICE_GET_REGION_INFO, `struct vfio_region_info`.
    RegionInfo, 32: {
        argsz: u32,
        flags: u32,
        index: u32,
        cap_offset: u32,
        size: u64,
        offset: u64,
    }

    /// Reply to DEVICE_GET_IRQ_INFO, `struct vfio_irq_info`.
    IrqInfo, 16: {
        argsz: u32,
        flags: u32,
        index: u32,
        count: u32,
    }

    /// Start of SET_IRQS: `struct vfio_irq_set` without its data.
    IrqSetHeader, 20: {
        argsz: u32,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
    }

    /// A register access: the start of REGION_READ, REGION_WRITE and their replies.
    RegionAccess, 16: {
        offset: u64,
        region: u32,
        count: u32,
    }
}

/// Flag of DMA_MAP: the device may write to the region.
pub(crate) const MAP_WRITE: u32 = 1 << 1;
/// Flags of DMA_UNMAP.
pub(crate) const UNMAP_GET_DIRTY_PAGE_INFO: u32 = 1 << 1;
pub(crate) const UNMAP_ALL: u32 = 1 << 2;

impl Header {
    pub(crate) fn is_command(&self) -> bool {
        self.flags & FLAG_TYPE == TYPE_COMMAND
    }

    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }

    /// Starts a reply to this message in `out`; [`finish`] completes it.
    pub(crate) fn begin_reply(&self, out: &mut Vec<u8>) -> ReplyStart {
        let start = ReplyStart(out.len());
        let reply = Self {
            size: 0,
            flags: FLAG_REPLY,
            error: 0,
            ..*self
        };
        reply.encode(out);
        start
    }
}

/// Offset of a reply in the output.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct ReplyStart(usize);

/// Removes a reply that is not to be sent from the output.
pub(crate) fn discard(out: &mut Vec<u8>, start: ReplyStart) {
    out.truncate(start.0);
}

/// Completes a reply whose payload has been appended.
pub(crate) fn finish(out: &mut [u8], start: ReplyStart) {
    // A reply is no longer than MAX_MESSAGE, so its length fits.
    let size = (out.len() - start.0) as u32;
    out[start.0 + 4..start.0 + 8].copy_from_slice(&size.to_ne_bytes());
}

/// Completes a reply as an error, without payload.
pub(crate) fn finish_error(out: &mut Vec<u8>, start: ReplyStart, errno: i32) {
    out.truncate(start.0 + Header::LEN);
    out[start.0 + 8..start.0 + 12].copy_from_slice(&(FLAG_REPLY | FLAG_ERROR).to_ne_bytes());
    // Linux error numbers are positive.
    out[start.0 + 12..start.0 + 16].copy_from_slice(&errno.unsigned_abs().to_ne_bytes());
    finish(out, start);
}

/// The unread part of a payload. Reading beyond the end fails with [`Truncated`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a>(pub(crate) &'a [u8]);

/// The payload is too short for its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truncated;

impl<'a> Payload<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*bytes)
    }
}
