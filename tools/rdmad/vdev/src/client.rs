// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Requests of a client and their answers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dma::MapError;
use rustix::io::Errno;
use vfio_bindings::bindings::vfio;
use vfio_user::Command;
use vfio_user::DmaMapFlags;
use vfio_user::DmaUnmapFlags;

use crate::client_stream::ClientMessage;
use crate::function::PciFunction;
use crate::irq_set::IrqSet;
use crate::message::discard;
use crate::message::finish;
use crate::message::finish_error;
use crate::message::Header;
use crate::message::Payload;
use crate::message::Truncated;
use crate::message::MAX_FDS;
use crate::message::MAX_TRANSFER;
use crate::pci;
use crate::server::Signals;

/// Version of the protocol.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;
/// Length of `struct vfio_region_info`.
const REGION_INFO_LEN: u32 = 32;
/// Length of the reply to DEVICE_GET_INFO and DEVICE_GET_IRQ_INFO.
const INFO_LEN: u32 = 16;

/// A command that fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("command is truncated")]
    Truncated,
    #[error("command is not supported")]
    Unsupported,
    /// An optional interrupt that the function does not have. Clients ask for each to find out.
    #[error("no such interrupt")]
    NoInterrupt,
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{0}")]
    Map(#[from] MapError),
    /// The client goes on, and may be a VM that runs already: it must not lose its connection.
    #[error(
        "the VM's memory can't be used: {0}; QEMU needs -object memory-backend-memfd,share=on,..."
    )]
    Memory(MapError),
    #[error("{0}")]
    Interrupt(io::Error),
}

impl From<Truncated> for CommandError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

impl CommandError {
    fn errno(&self) -> i32 {
        match self {
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::Map(MapError::TooMany | MapError::TooManyOfAll) => Errno::NOSPC,
            Self::Map(MapError::TooMuch { .. }) => Errno::NOMEM,
            Self::Map(MapError::Overlap { .. }) => Errno::EXIST,
            _ => Errno::INVAL,
        }
        .raw_os_error()
    }
}

/// Whether a command is answered now.
enum Answer {
    Now,
    /// When the reset is done.
    Later,
}

/// A client's session.
pub(crate) struct Client {
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    /// The DEVICE_RESET that is running.
    reset: Option<Header>,
}

impl Client {
    pub(crate) fn new(function: Arc<PciFunction>, signals: Arc<Signals>) -> Self {
        Self {
            function,
            signals,
            reset: None,
        }
    }

    /// Carries out a message and appends its reply, if it wants one, to `out`.
    pub(crate) fn handle(&mut self, message: ClientMessage<'_>, out: &mut Vec<u8>) {
        let ClientMessage {
            header,
            payload,
            fds,
        } = message;
        if !header.is_command() {
            self.log(header, &"a reply, though nothing was asked");
            return;
        }
        let start = header.begin_reply(out);
        match self.execute(header, Payload(payload), fds, out) {
            Ok(Answer::Now) if header.wants_reply() => finish(out, start),
            Ok(_) => discard(out, start),
            Err(error) => {
                if !matches!(error, CommandError::NoInterrupt) {
                    self.log(header, &error);
                }
                if header.wants_reply() {
                    finish_error(out, start, error.errno());
                } else {
                    discard(out, start);
                }
            }
        }
    }

    /// Answers the DEVICE_RESET that was running.
    pub(crate) fn reset_done(&mut self, out: &mut Vec<u8>) {
        if let Some(header) = self.reset.take().filter(Header::wants_reply) {
            let start = header.begin_reply(out);
            finish(out, start);
        }
    }

    fn log(&self, header: Header, error: &dyn std::fmt::Display) {
        let log = &self.function.state.log;
        match Command::n(header.command) {
            Some(command) => log.warn(format_args!("vfio-user command {command:?}: {error}")),
            None => log.warn(format_args!(
                "vfio-user command {}: {error}",
                header.command
            )),
        }
    }

    fn execute(
        &mut self,
        header: Header,
        payload: Payload<'_>,
        fds: Vec<OwnedFd>,
        out: &mut Vec<u8>,
    ) -> Result<Answer, CommandError> {
        match Command::n(header.command).ok_or(CommandError::Unsupported)? {
            Command::RegionWrite => self.region_write(payload, out)?,
            Command::RegionRead => self.region_read(payload, out)?,
            Command::Version => version(payload, out)?,
            Command::DmaMap => self.dma_map(payload, fds)?,
            Command::DmaUnmap => self.dma_unmap(payload, out)?,
            Command::DeviceGetInfo => {
                for word in [
                    INFO_LEN,
                    vfio::VFIO_DEVICE_FLAGS_PCI | vfio::VFIO_DEVICE_FLAGS_RESET,
                    vfio::VFIO_PCI_NUM_REGIONS,
                    // INTx, MSI and MSI-X; the device has no error or request interrupt.
                    vfio::VFIO_PCI_MSIX_IRQ_INDEX + 1,
                ] {
                    out.extend_from_slice(&word.to_ne_bytes());
                }
            }
            Command::DeviceGetRegionInfo => self.region_info(payload, out)?,
            Command::GetIrqInfo => self.irq_info(payload, out)?,
            Command::SetIrqs => self.set_irqs(payload, fds)?,
            Command::DeviceReset => {
                if self.reset.is_some() {
                    return Err(CommandError::Invalid("a reset is running"));
                }
                self.reset = Some(header);
                let signals = self.signals.clone();
                self.function
                    .begin_function_reset(Box::new(move || Signals::raise(&signals.wake)));
                return Ok(Answer::Later);
            }
            _ => return Err(CommandError::Unsupported),
        }
        Ok(Answer::Now)
    }

    fn dma_map(&self, mut payload: Payload<'_>, fds: Vec<OwnedFd>) -> Result<(), CommandError> {
        let _argsz = payload.u32()?;
        let flags = DmaMapFlags::from_bits_retain(payload.u32()?);
        let (offset, iova, len) = (payload.u64()?, payload.u64()?, payload.u64()?);
        let writable = flags.contains(DmaMapFlags::WRITE);
        let result = match fds.into_iter().next() {
            Some(fd) => self.function.space.map(iova, fd, offset, len, writable),
            None => Err(MapError::NoFile),
        };
        match result {
            Ok(()) => {}
            // RAM begins at address 0: without it the device can do nothing.
            Err(error @ (MapError::NoFile | MapError::NotMemory)) if iova == 0 && writable => {
                return Err(CommandError::Memory(error));
            }
            // Other memory without a file is a ROM or another device's, such as that of a VGA. It
            // can't be reached: a guest that points the device there gets an error for that access.
            // The client must get none: QEMU ends the VM then.
            Err(MapError::NoFile) => {
                if writable {
                    self.function.state.log.warn(format_args!(
                        "{len:#x} bytes at DMA address {iova:#x} came without a file: they can't be used for RDMA"
                    ));
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        tracing::debug!(
            port = self.function.state.log.name(),
            "mapped {len:#x} bytes at DMA address {iova:#x}, writable: {writable}"
        );
        Ok(())
    }

    fn dma_unmap(&self, payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let mut fields = payload;
        let _argsz = fields.u32()?;
        let flags = DmaUnmapFlags::from_bits_retain(fields.u32()?);
        let (iova, len) = (fields.u64()?, fields.u64()?);
        if flags.contains(DmaUnmapFlags::GET_DIRTY_PAGE_INFO) {
            return Err(CommandError::Unsupported);
        }
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.function.space.clear();
        } else {
            let count = self.function.space.unmap(iova, len)?;
            tracing::debug!(
                port = self.function.state.log.name(),
                "unmapped {len:#x} bytes at DMA address {iova:#x}: {count} regions"
            );
        }
        out.extend_from_slice(&payload.0[..payload.0.len() - fields.0.len()]);
        Ok(())
    }

    fn region_info(&self, mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let (_argsz, _flags, index) = (payload.u32()?, payload.u32()?, payload.u32()?);
        let size = match index {
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => pci::CONFIG_LEN as u64,
            vfio::VFIO_PCI_BAR0_REGION_INDEX..=vfio::VFIO_PCI_BAR5_REGION_INDEX => {
                self.function.bar_len(index)
            }
            _ if index < vfio::VFIO_PCI_NUM_REGIONS => 0,
            _ => return Err(CommandError::Invalid("no such region")),
        };
        // Never mmap: a client that maps a region makes every write to it wait for the reply.
        let flags = if size == 0 {
            0
        } else {
            vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE
        };
        for word in [REGION_INFO_LEN, flags, index, 0] {
            out.extend_from_slice(&word.to_ne_bytes());
        }
        out.extend_from_slice(&size.to_ne_bytes());
        out.extend_from_slice(&0u64.to_ne_bytes());
        Ok(())
    }

    fn irq_info(&self, mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let (_argsz, _flags, index) = (payload.u32()?, payload.u32()?, payload.u32()?);
        // Without NORESIZE: with it the client would set up all vectors anew for each that the
        // guest adds.
        let (flags, count) = match index {
            vfio::VFIO_PCI_MSIX_IRQ_INDEX => (
                vfio::VFIO_IRQ_INFO_EVENTFD,
                u32::from(self.function.state.interrupts.count()),
            ),
            vfio::VFIO_PCI_INTX_IRQ_INDEX | vfio::VFIO_PCI_MSI_IRQ_INDEX => (0, 0),
            _ => return Err(CommandError::NoInterrupt),
        };
        for word in [INFO_LEN, flags, index, count] {
            out.extend_from_slice(&word.to_ne_bytes());
        }
        Ok(())
    }

    fn set_irqs(&self, payload: Payload<'_>, fds: Vec<OwnedFd>) -> Result<(), CommandError> {
        let state = &self.function.state;
        IrqSet::decode(payload, fds, state.interrupts.count())?
            .apply(&state.interrupts, |vector| state.trigger(vector))
            .map_err(CommandError::Interrupt)
    }

    fn region_read(&self, payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let (access, _) = Access::decode(payload, self)?;
        access.encode(out);
        let at = out.len();
        out.resize(at + access.count as usize, 0);
        let data = &mut out[at..];
        if access.region == vfio::VFIO_PCI_CONFIG_REGION_INDEX {
            self.function.config_read(access.offset, data);
        } else {
            self.function.bar_read(access.region, access.offset, data);
        }
        Ok(())
    }

    fn region_write(&self, payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let (access, mut payload) = Access::decode(payload, self)?;
        let data = payload.bytes(access.count as usize)?;
        if access.region == vfio::VFIO_PCI_CONFIG_REGION_INDEX {
            self.function.config_write(access.offset, data);
        } else {
            self.function.bar_write(access.region, access.offset, data);
        }
        access.encode(out);
        Ok(())
    }
}

/// A register access: what precedes the data.
#[derive(Clone, Copy, Debug)]
struct Access {
    offset: u64,
    region: u32,
    count: u32,
}

impl Access {
    /// Decodes and checks an access; what follows it is its data.
    fn decode<'a>(
        mut payload: Payload<'a>,
        client: &Client,
    ) -> Result<(Self, Payload<'a>), CommandError> {
        let access = Self {
            offset: payload.u64()?,
            region: payload.u32()?,
            count: payload.u32()?,
        };
        let len = match access.region {
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => pci::CONFIG_LEN as u64,
            bar => client.function.bar_len(bar),
        };
        let inside = access
            .offset
            .checked_add(u64::from(access.count))
            .is_some_and(|end| end <= len);
        if !inside || access.count > MAX_TRANSFER {
            return Err(CommandError::Invalid("access beyond the region"));
        }
        Ok((access, payload))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_ne_bytes());
        out.extend_from_slice(&self.region.to_ne_bytes());
        out.extend_from_slice(&self.count.to_ne_bytes());
    }
}

/// Negotiates the protocol's version. The client's capabilities limit what is sent to it, which is
/// no descriptors and no requests, so they don't matter here.
fn version(mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
    let (major, minor) = (payload.u16()?, payload.u16()?);
    if major != MAJOR {
        return Err(CommandError::Invalid("protocol's major version is not 0"));
    }
    out.extend_from_slice(&MAJOR.to_ne_bytes());
    out.extend_from_slice(&minor.min(MINOR).to_ne_bytes());
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{MAX_FDS},"max_data_xfer_size":{MAX_TRANSFER}}}}}"#
    );
    out.extend_from_slice(capabilities.as_bytes());
    out.push(0);
    Ok(())
}
