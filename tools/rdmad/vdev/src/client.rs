// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Requests of a client and their answers.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dma::{MapError, Region};
use rustix::io::Errno;
use vfio_bindings::bindings::vfio;

use crate::client_stream::ClientMessage;
use crate::function::PciFunction;
use crate::irq_set::IrqSet;
use crate::message::{
    discard, finish, finish_error, DeviceInfo, DmaMap, DmaUnmap, Header, InfoRequest, IrqInfo,
    Payload, RegionAccess, RegionInfo, Structure, Truncated, Version, VfioUserCommand, MAP_WRITE,
    MAX_FDS, MAX_TRANSFER, UNMAP_ALL, UNMAP_GET_DIRTY_PAGE_INFO,
};
use crate::pci;
use crate::server::Signals;

/// Version of the protocol.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;

/// Number of engines that may die at a message before its client is dropped, for the sake of the
/// other clients.
const DEATHS: u64 = 3;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("command is truncated")]
    Truncated,
    #[error("command is not supported")]
    Unsupported,
    /// The function does not have this optional kind of interrupt. Clients probe for each kind.
    #[error("no such interrupt")]
    NoInterrupt,
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{0}")]
    Map(#[from] MapError),
    /// Guest memory can't be mapped. The connection stays open: the client may be a running VM.
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
            Self::Map(MapError::TooMuch { .. } | MapError::LeftBehind { .. }) => Errno::NOMEM,
            Self::Map(MapError::Overlap { .. }) => Errno::EXIST,
            _ => Errno::INVAL,
        }
        .raw_os_error()
    }
}

/// When a command is answered.
enum ReplyTime {
    Now,
    /// The command is answered when its reset is done.
    Later,
}

/// Executes the commands of a client.
pub(crate) struct Client {
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    /// Header of the DEVICE_RESET command that is being executed.
    reset: Option<Header>,
    /// Whether the next message is the first one after the death of an engine.
    is_first: bool,
    /// Whether the last engine may have executed the next command that wants a reply.
    may_repeat: bool,
}

impl Client {
    pub(crate) fn new(function: Arc<PciFunction>, signals: Arc<Signals>) -> Self {
        Self {
            function,
            signals,
            reset: None,
            is_first: false,
            may_repeat: false,
        }
    }

    /// Goes on serving a client whose engine has died, maybe while it reset the function by
    /// `reset`, which is done now.
    pub(crate) fn resume(&mut self, reset: Option<Header>) {
        self.reset = reset;
        self.is_first = true;
        self.may_repeat = true;
    }

    /// Executes a message and appends its reply, if the client wants a reply, to `out`.
    ///
    /// # Errors
    ///
    /// Several engines have died at this message.
    pub(crate) fn handle(
        &mut self,
        message: ClientMessage<'_>,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let ClientMessage {
            header,
            payload,
            fds,
        } = message;
        let is_first = mem::take(&mut self.is_first);
        let record = &self.function.state.record;
        if record.begin_message(&header, is_first) >= DEATHS {
            return Err(io::Error::other(format!(
                "{DEATHS} engines in a row have died at command {}",
                header.command
            )));
        }
        if !header.is_command() {
            self.log(header, &"a reply, though nothing was asked");
            return Ok(());
        }
        let start = header.begin_reply(out);
        match self.execute(header, Payload(payload), fds, out) {
            Ok(ReplyTime::Now) if header.wants_reply() => {
                self.may_repeat = false;
                finish(out, start);
            }
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
        Ok(())
    }

    /// Appends the reply to the pending DEVICE_RESET, if the client waits for one, to `out`.
    pub(crate) fn reset_done(&mut self, out: &mut Vec<u8>) {
        if let Some(header) = self.reset.take().filter(Header::wants_reply) {
            let start = header.begin_reply(out);
            finish(out, start);
        }
    }

    /// Forgets the record of a DEVICE_RESET whose reply can't be lost any more.
    pub(crate) fn forget_reset(&self) {
        self.function.state.record.set_reset(None);
    }

    /// Whether this message is the last one that was begun.
    pub(crate) fn is_last(&self, header: &Header) -> bool {
        self.function.state.record.is_last(header)
    }

    fn log(&self, header: Header, error: &dyn std::fmt::Display) {
        let log = &self.function.state.log;
        match VfioUserCommand::from_number(header.command) {
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
    ) -> Result<ReplyTime, CommandError> {
        match VfioUserCommand::from_number(header.command).ok_or(CommandError::Unsupported)? {
            VfioUserCommand::RegionWrite => self.region_write(payload, out)?,
            VfioUserCommand::RegionRead => self.region_read(payload, out)?,
            VfioUserCommand::Version => version(payload, out)?,
            VfioUserCommand::DmaMap => self.dma_map(payload, fds)?,
            VfioUserCommand::DmaUnmap => self.dma_unmap(payload, out)?,
            VfioUserCommand::DeviceGetInfo => DeviceInfo {
                argsz: DeviceInfo::LEN as u32,
                flags: vfio::VFIO_DEVICE_FLAGS_PCI | vfio::VFIO_DEVICE_FLAGS_RESET,
                num_regions: vfio::VFIO_PCI_NUM_REGIONS,
                // INTx, MSI and MSI-X; the device has no error or request interrupt.
                num_irqs: vfio::VFIO_PCI_MSIX_IRQ_INDEX + 1,
            }
            .encode(out),
            VfioUserCommand::DeviceGetRegionInfo => self.region_info(payload, out)?,
            VfioUserCommand::GetIrqInfo => self.irq_info(payload, out)?,
            VfioUserCommand::SetIrqs => self.set_irqs(payload, fds)?,
            VfioUserCommand::DeviceReset => {
                if self.reset.is_some() {
                    return Err(CommandError::Invalid("a reset is running"));
                }
                self.reset = Some(header);
                self.function.state.record.set_reset(Some(&header));
                let signals = self.signals.clone();
                self.function
                    .begin_function_reset(Box::new(move || Signals::raise(&signals.wake)));
                return Ok(ReplyTime::Later);
            }
            _ => return Err(CommandError::Unsupported),
        }
        Ok(ReplyTime::Now)
    }

    fn dma_map(&self, mut payload: Payload<'_>, fds: Vec<OwnedFd>) -> Result<(), CommandError> {
        let DmaMap {
            flags,
            offset,
            iova,
            len,
            ..
        } = DmaMap::decode(&mut payload)?;
        let writable = flags & MAP_WRITE != 0;
        let region = Region {
            iova,
            offset,
            len,
            writable,
        };
        let result = match fds.into_iter().next() {
            Some(file) => self.function.map(region, file),
            None => Err(MapError::NoFile),
        };
        let record = &self.function.state.record;
        match result {
            Ok(()) => {}
            Err(MapError::Overlap { .. }) if self.may_repeat && record.has_region(region) => {}
            // Writable memory at address 0 is RAM, without which the device can do nothing.
            Err(error @ (MapError::NoFile | MapError::NotMemory)) if iova == 0 && writable => {
                return Err(CommandError::Memory(error));
            }
            // Other memory without a file is a ROM or belongs to another device, such as a VGA
            // adapter. If the guest passes an address in such memory to the device, that access
            // fails. The DMA_MAP must not fail: QEMU would end the VM.
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

    fn dma_unmap(&self, mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let request = DmaUnmap::decode(&mut payload)?;
        let DmaUnmap { iova, len, .. } = request;
        if request.flags & UNMAP_GET_DIRTY_PAGE_INFO != 0 {
            return Err(CommandError::Unsupported);
        }
        if request.flags & UNMAP_ALL != 0 {
            self.function.unmap_all();
        } else {
            let count = self.function.unmap(iova, len)?;
            tracing::debug!(
                port = self.function.state.log.name(),
                "unmapped {len:#x} bytes at DMA address {iova:#x}: {count} regions"
            );
        }
        request.encode(out);
        Ok(())
    }

    fn region_info(&self, mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let InfoRequest { index, .. } = InfoRequest::decode(&mut payload)?;
        let size = match index {
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => pci::CONFIG_LEN as u64,
            vfio::VFIO_PCI_BAR0_REGION_INDEX..=vfio::VFIO_PCI_BAR5_REGION_INDEX => {
                self.function.bar_len(index)
            }
            _ if index < vfio::VFIO_PCI_NUM_REGIONS => 0,
            _ => return Err(CommandError::Invalid("no such region")),
        };
        // VFIO_REGION_INFO_FLAG_MMAP is not set: with this flag the client would wait for a reply
        // to each REGION_WRITE to the region.
        let flags = if size == 0 {
            0
        } else {
            vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE
        };
        let info = RegionInfo {
            argsz: RegionInfo::LEN as u32,
            flags,
            index,
            cap_offset: 0,
            size,
            offset: 0,
        };
        info.encode(out);
        Ok(())
    }

    fn irq_info(&self, mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let InfoRequest { index, .. } = InfoRequest::decode(&mut payload)?;
        // VFIO_IRQ_INFO_NORESIZE is not set: with this flag the client would set up all vectors
        // again for each vector that the guest adds.
        let (flags, count) = match index {
            vfio::VFIO_PCI_MSIX_IRQ_INDEX => (
                vfio::VFIO_IRQ_INFO_EVENTFD,
                u32::from(self.function.state.interrupts.count()),
            ),
            vfio::VFIO_PCI_INTX_IRQ_INDEX | vfio::VFIO_PCI_MSI_IRQ_INDEX => (0, 0),
            _ => return Err(CommandError::NoInterrupt),
        };
        let info = IrqInfo {
            argsz: IrqInfo::LEN as u32,
            flags,
            index,
            count,
        };
        info.encode(out);
        Ok(())
    }

    fn set_irqs(&self, payload: Payload<'_>, fds: Vec<OwnedFd>) -> Result<(), CommandError> {
        let state = &self.function.state;
        IrqSet::decode(payload, fds, state.interrupts.count())?
            .apply(&state.interrupts, |vector| state.trigger(vector))
            .map_err(CommandError::Interrupt)
    }

    fn region_read(&self, payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let (access, _) = self.access(payload)?;
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
        let (access, mut payload) = self.access(payload)?;
        let data = payload.bytes(access.count as usize)?;
        if access.region == vfio::VFIO_PCI_CONFIG_REGION_INDEX {
            self.function.config_write(access.offset, data);
        } else {
            self.function.bar_write(access.region, access.offset, data);
        }
        access.encode(out);
        Ok(())
    }

    /// Decodes and checks a register access. Returns the access, and its data: the rest of the
    /// payload.
    fn access<'a>(
        &self,
        mut payload: Payload<'a>,
    ) -> Result<(RegionAccess, Payload<'a>), CommandError> {
        let access = RegionAccess::decode(&mut payload)?;
        let len = match access.region {
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => pci::CONFIG_LEN as u64,
            bar => self.function.bar_len(bar),
        };
        let end = access.offset.checked_add(u64::from(access.count));
        if end.is_none_or(|end| end > len) || access.count > MAX_TRANSFER {
            return Err(CommandError::Invalid("access beyond the region"));
        }
        Ok((access, payload))
    }
}

/// Negotiates the protocol's version. The client's capabilities limit the descriptors and requests
/// that a server sends to the client. This server sends neither, so it ignores the capabilities.
fn version(mut payload: Payload<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
    let Version { major, minor } = Version::decode(&mut payload)?;
    if major != MAJOR {
        return Err(CommandError::Invalid("protocol's major version is not 0"));
    }
    let version = Version {
        major: MAJOR,
        minor: minor.min(MINOR),
    };
    version.encode(out);
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{MAX_FDS},"max_data_xfer_size":{MAX_TRANSFER}}}}}"#
    );
    out.extend_from_slice(capabilities.as_bytes());
    out.push(0);
    Ok(())
}
