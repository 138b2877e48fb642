// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The payload of SET_IRQS, `struct vfio_irq_set`. The whole payload is checked before the first
//! vector changes.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use vfio_bindings::bindings::vfio;

use crate::client::CommandError;
use crate::interrupt::{Eventfd, Interrupts};
use crate::message::{IrqSetHeader, Payload, Structure};

/// A client's request to change or raise interrupt vectors.
#[derive(Debug)]
pub(crate) enum IrqSet {
    /// Do nothing: the client disables a kind of interrupt that the function does not have.
    Nothing,
    /// Disconnect all vectors.
    Reset,
    /// Raise these vectors.
    Trigger(Range<u16>),
    /// Disconnect these vectors.
    Disconnect(Range<u16>),
    /// Connect consecutive vectors, from this one on, to these eventfds.
    Connect(u16, Vec<Eventfd>),
}

impl IrqSet {
    /// Checks a command for a function with this number of `vectors`.
    pub(crate) fn decode(
        mut payload: Payload<'_>,
        fds: Vec<OwnedFd>,
        vectors: u16,
    ) -> Result<Self, CommandError> {
        let IrqSetHeader {
            argsz,
            flags,
            index,
            start,
            count,
        } = IrqSetHeader::decode(&mut payload)?;
        let data = flags & vfio::VFIO_IRQ_SET_DATA_TYPE_MASK;
        let action = flags & vfio::VFIO_IRQ_SET_ACTION_TYPE_MASK;
        if argsz < IrqSetHeader::LEN as u32
            || flags != data | action
            || data.count_ones() != 1
            || action.count_ones() != 1
        {
            return Err(CommandError::Invalid(
                "not a length, one type of data and one action",
            ));
        }
        let trigger = action == vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
        let no_data = data == vfio::VFIO_IRQ_SET_DATA_NONE;
        if data != vfio::VFIO_IRQ_SET_DATA_EVENTFD && !fds.is_empty() {
            return Err(CommandError::Invalid(
                "descriptors that it does not announce",
            ));
        }
        if count == 0 && !(trigger && no_data && start == 0) {
            return Err(CommandError::Invalid("no vectors"));
        }
        match index {
            vfio::VFIO_PCI_MSIX_IRQ_INDEX => {}
            vfio::VFIO_PCI_INTX_IRQ_INDEX | vfio::VFIO_PCI_MSI_IRQ_INDEX if count == 0 => {
                return Ok(Self::Nothing)
            }
            vfio::VFIO_PCI_INTX_IRQ_INDEX | vfio::VFIO_PCI_MSI_IRQ_INDEX => {
                return Err(CommandError::Invalid("interrupts other than MSI-X"))
            }
            _ => return Err(CommandError::NoInterrupt),
        }
        if !trigger {
            return Err(CommandError::Unsupported);
        }
        let end = start
            .checked_add(count)
            .filter(|&end| end <= u32::from(vectors))
            .ok_or(CommandError::Invalid("no such vector"))?;
        // The end is at most `vectors`, a u16, so the casts do not truncate.
        let range = start as u16..end as u16;
        match data {
            vfio::VFIO_IRQ_SET_DATA_NONE if count == 0 => Ok(Self::Reset),
            vfio::VFIO_IRQ_SET_DATA_NONE => Ok(Self::Trigger(range)),
            // A request without descriptors disconnects the vectors. No descriptors can have got
            // lost here: the server disconnects a client whose descriptors get lost.
            vfio::VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() => Ok(Self::Disconnect(range)),
            vfio::VFIO_IRQ_SET_DATA_EVENTFD if fds.len() == range.len() => {
                let eventfds = fds.into_iter().map(Eventfd::new).collect::<io::Result<_>>();
                let eventfds = eventfds.map_err(CommandError::Interrupt)?;
                Ok(Self::Connect(range.start, eventfds))
            }
            vfio::VFIO_IRQ_SET_DATA_EVENTFD => {
                Err(CommandError::Invalid("a descriptor for each vector"))
            }
            _ => Err(CommandError::Unsupported),
        }
    }

    /// Executes the request. Fails if a pending vector can't be raised when it is connected.
    pub(crate) fn apply(self, interrupts: &Interrupts, trigger: impl Fn(u16)) -> io::Result<()> {
        match self {
            Self::Nothing => {}
            Self::Reset => interrupts.reset(),
            Self::Trigger(vectors) => vectors.for_each(trigger),
            Self::Disconnect(vectors) => {
                for vector in vectors {
                    interrupts.connect(vector, None)?;
                }
            }
            Self::Connect(first, eventfds) => {
                for (vector, eventfd) in (first..).zip(eventfds) {
                    interrupts.connect(vector, Some(eventfd))?;
                }
            }
        }
        Ok(())
    }
}
