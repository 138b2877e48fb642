// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;

/// Asynchronous events of one object type (`enum ib_event_type`).
pub trait Event: Copy {
    /// The value of `enum ib_event_type`.
    fn as_raw(self) -> bindings::ib_event_type;
}

macro_rules! events {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $value:ident,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl Event for $name {
            fn as_raw(self) -> bindings::ib_event_type {
                match self {
                    $(Self::$variant => bindings::$value,)*
                }
            }
        }
    };
}

events! {
    /// Events of a port.
    PortEvent {
        /// It became active.
        Active = ib_event_type_IB_EVENT_PORT_ACTIVE,
        /// It went down.
        Error = ib_event_type_IB_EVENT_PORT_ERR,
        /// Its table of P_Keys changed.
        PkeyChange = ib_event_type_IB_EVENT_PKEY_CHANGE,
        /// Its table of GIDs changed.
        GidChange = ib_event_type_IB_EVENT_GID_CHANGE,
    }
}

events! {
    /// Events of a device.
    DeviceEvent {
        /// It failed and does not recover.
        Fatal = ib_event_type_IB_EVENT_DEVICE_FATAL,
    }
}

events! {
    /// Events of a completion queue.
    CqEvent {
        /// It overflowed, or its memory makes no sense.
        Error = ib_event_type_IB_EVENT_CQ_ERR,
    }
}

events! {
    /// Events of a shared receive queue.
    SrqEvent {
        /// Its memory makes no sense.
        Error = ib_event_type_IB_EVENT_SRQ_ERR,
        /// Fewer work requests are left than its limit.
        LimitReached = ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    }
}

events! {
    /// Events of a queue pair.
    QpEvent {
        /// It went to the error state by itself.
        Fatal = ib_event_type_IB_EVENT_QP_FATAL,
        /// Its responder met an invalid request.
        RequestError = ib_event_type_IB_EVENT_QP_REQ_ERR,
        /// Its responder met an access violation.
        AccessError = ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        /// The first packet arrived before it was ready to send.
        CommunicationEstablished = ib_event_type_IB_EVENT_COMM_EST,
        /// Its send queue is drained.
        SendQueueDrained = ib_event_type_IB_EVENT_SQ_DRAINED,
        /// The last receive of its shared receive queue was consumed.
        LastWqeReached = ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
    }
}
