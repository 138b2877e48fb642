// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Control virtqueue (RFC, "Device Operation: controlq").
//!
//! A request is a [`Command`] byte and the command's request structure. A response is one byte,
//! [`RESPONSE_OK`] or an [`Errno`], and on success the command's response structure.
//! [`ControlCommand`] associates command, request and response types, so a wrong combination does
//! not compile.

use super::wire::Wire;

/// Makes a structure the request of a command: `request!(REQUEST, COMMAND, RESPONSE)`.
///
/// `of FIELD` names the field of the request that has the number of its object, `new FIELD` the
/// field of the response that has the number of the new object.
macro_rules! request {
    ($request:ty, $command:ident, $response:ty
        $(, of $($of:ident).+)? $(, new $($new:ident).+)?
    ) => {
        impl ControlCommand for $request {
            const COMMAND: Command = Command::$command;
            type Response = $response;

            $(
                fn number(&self) -> Option<u32> {
                    Some(self.$($of).+.into())
                }
            )?

            $(
                fn new_number(response: &$response) -> Option<u32> {
                    Some(response.$($new).+.into())
                }
            )?
        }
        const _: () = assert!(<$request as Wire>::SIZE < MAX_REQUEST);
        const _: () = assert!(<$response as Wire>::SIZE < MAX_RESPONSE);
    };
}

mod counter_set;
mod cq;
mod mr;
mod port;
mod qp;
mod srq;

pub use counter_set::*;
pub use cq::*;
pub use mr::*;
pub use port::*;
pub use qp::*;
pub use srq::*;

/// Virtqueue number of the control queue.
pub const CONTROL_QUEUE: u16 = 0;
/// Response byte of a successful command.
pub const RESPONSE_OK: u8 = 0;
/// Length of the longest request in bytes: the command byte and the longest request structure.
pub const MAX_REQUEST: usize = 1 + CmdModifyQp::SIZE;
/// Length of the longest response in bytes: the response byte and the longest response structure.
pub const MAX_RESPONSE: usize = 1 + RspQueryCounters::SIZE;

wire_enum! {
    /// Command byte.
    pub enum Command: u8 {
        /// Query the attributes of a port.
        QueryPort = 1,
        /// Create a CQ.
        CreateCq = 2,
        /// Destroy a CQ.
        DestroyCq = 3,
        /// Create a PD.
        CreatePd = 4,
        /// Destroy a PD.
        DestroyPd = 5,
        /// Create an MR over all memory.
        GetDmaMr = 6,
        /// Create an MR for fast registration.
        CreateMr = 7,
        /// Set the pages of an MR for fast registration.
        MapMrSg = 8,
        /// Create an MR with its pages.
        RegUserMr = 9,
        /// Destroy an MR.
        DeregMr = 10,
        /// Create a QP.
        CreateQp = 11,
        /// Change attributes and state of a QP.
        ModifyQp = 12,
        /// Query attributes and state of a QP.
        QueryQp = 13,
        /// Destroy a QP.
        DestroyQp = 14,
        /// Query an entry of the P_Key table.
        QueryPkey = 15,
        /// Set an entry of the GID table.
        AddGid = 16,
        /// Clear an entry of the GID table.
        DelGid = 17,
        /// Arm a CQ in virtqueue mode.
        ReqNotifyCq = 18,
        /// Create a memory window.
        AllocMw = 19,
        /// Destroy a memory window.
        DeallocMw = 20,
        /// Create an SRQ.
        CreateSrq = 21,
        /// Arm the limit event of an SRQ, or move the SRQ to a longer ring.
        ModifySrq = 22,
        /// Query the attributes of an SRQ.
        QuerySrq = 23,
        /// Destroy an SRQ.
        DestroySrq = 24,
        /// Move a CQ to another ring.
        ResizeCq = 25,
        /// Limit the rate at which a QP sends.
        SetRateLimit = 26,
        /// Attach a UD QP to a multicast group.
        AttachMcast = 27,
        /// Detach a UD QP from a multicast group.
        DetachMcast = 28,
        /// Query the counters of a port.
        QueryCounters = 29,
        /// Change access flags, PD or memory of an MR that was created with its pages.
        ReregMr = 30,
        /// Revoke the device's access to the memory of an MR.
        RevokeMr = 31,
        /// Set the moderation of a CQ.
        ModifyCq = 32,
        /// Create a counter set.
        CreateCounterSet = 33,
        /// Destroy a counter set.
        DestroyCounterSet = 34,
        /// Bind a QP to a counter set, or unbind it.
        BindCounterSet = 35,
        /// Query the counters of a counter set.
        QueryCounterSet = 36,
        /// Set state and MTU of a port's network device.
        SetPort = 37,
    }
}

wire_enum! {
    /// Response byte of a failed command. The numbers are those of Linux on most architectures.
    pub enum Errno: u8 {
        /// The operation is not permitted.
        Eperm = 1,
        /// The device failed. Drivers must treat unknown numbers like this one.
        Eio = 5,
        /// The device is busy: the same command may succeed later.
        Eagain = 11,
        /// A limit is reached.
        Enomem = 12,
        /// The device can't access the memory.
        Efault = 14,
        /// Other objects use the object.
        Ebusy = 16,
        /// The object exists already.
        Eexist = 17,
        /// The request is invalid.
        Einval = 22,
        /// A table or list is full.
        Enospc = 28,
        /// The device does not support the operation.
        Eopnotsupp = 95,
        /// The address belongs to another port.
        Eaddrinuse = 98,
        /// A part of the device or of the network did not answer in time.
        Etimedout = 110,
    }
}

/// A request structure, with its command byte and response structure.
pub trait ControlCommand: Wire {
    /// The command.
    const COMMAND: Command;
    /// The response structure on success.
    type Response: Wire;

    /// The number of the object that the request changes, queries or destroys.
    fn number(&self) -> Option<u32> {
        None
    }

    /// The number of the object that the command has created.
    fn new_number(response: &Self::Response) -> Option<u32> {
        let _ = response;
        None
    }
}

wire_struct! {
    /// No data.
    pub struct Empty: 0 {}
}
