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
        /// The port became active.
        Active = ib_event_type_IB_EVENT_PORT_ACTIVE,
        /// The port went down.
        Error = ib_event_type_IB_EVENT_PORT_ERR,
        /// The port's P_Key table changed.
        PkeyChange = ib_event_type_IB_EVENT_PKEY_CHANGE,
        /// The port's GID table changed.
        GidChange = ib_event_type_IB_EVENT_GID_CHANGE,
    }
}

events! {
    /// Events of a device.
    DeviceEvent {
        /// The device failed and does not recover.
        Fatal = ib_event_type_IB_EVENT_DEVICE_FATAL,
    }
}

events! {
    /// Events of a completion queue.
    CqEvent {
        /// The CQ overflowed, or its memory is invalid.
        Error = ib_event_type_IB_EVENT_CQ_ERR,
    }
}

events! {
    /// Events of a shared receive queue.
    SrqEvent {
        /// The SRQ's memory is invalid.
        Error = ib_event_type_IB_EVENT_SRQ_ERR,
        /// The SRQ has fewer work requests than its limit.
        LimitReached = ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    }
}

events! {
    /// Events of a queue pair.
    QpEvent {
        /// The device moved the QP to the error state.
        Fatal = ib_event_type_IB_EVENT_QP_FATAL,
        /// The responder received an invalid request.
        RequestError = ib_event_type_IB_EVENT_QP_REQ_ERR,
        /// The responder received a request that violates the access flags of the QP or MR.
        AccessError = ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        /// The first packet arrived while the QP was in RTR.
        CommunicationEstablished = ib_event_type_IB_EVENT_COMM_EST,
        /// The send queue is drained.
        SendQueueDrained = ib_event_type_IB_EVENT_SQ_DRAINED,
        /// The QP, now in the error state, takes no more receives from its SRQ.
        LastWqeReached = ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
    }
}
