// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A small Ethernet switch.
//!
//! It connects the virtual machines of one daemon, each with a network interface and a RoCE engine
//! behind one MAC address, and uplinks to other daemons and hosts. One thread moves the frames.
//! Sockets never block it, and all its queues are bounded, by limits or by the buffers of the
//! senders. Frames beyond a limit are dropped and counted. If it has nothing else to do, it
//! executes a bounded part of an engine's work ([`Caller::Idle`]), and may then wait for a lock as
//! a worker does. Frames of an engine are not dropped while a socket is full or another engine is
//! slow: they wait, and the engine waits for their buffers ([`engine_queues`]). Nor are frames from
//! one network interface to another dropped: the switch reads no more of them for a moment. But if
//! the socket accepts nothing for a while, they are dropped too. Ports whose frames wait for the
//! same socket get equal shares of its bytes.
//!
//! The process at the other end of a network interface's socket can make system calls for the
//! socket take long ([`budget::LongCalls`]). Beyond a small share of the thread's time, no calls
//! are made for the interface: it is not read, and frames to it wait or are dropped.
//!
//! # Forwarding
//! - A virtual machine may send only from its own MAC address; frames with another source are
//!   dropped. The addresses of virtual machines are configured. Addresses behind an uplink are
//!   learned from source addresses, and removed after [`mac_table::AGEING`].
//! - RoCEv2 (UDP port 4791) to the address of a virtual machine is delivered to its engine; all
//!   other frames are delivered to its network interface.
//! - A port with configured IP addresses may claim only these and its link-local address, and no
//!   other port may claim them: frames of network interfaces with other claims are refused. Claims
//!   are source addresses of IP, sender addresses of ARP, and neighbour discovery.
//! - Only the engine may send RoCE for its virtual machine. RoCE from the network interface is
//!   refused, whatever its receiver, unless the port is configured otherwise: any process of the
//!   guest could forge packets of the engine. This covers every frame that [any
//!   receiver](roce::net::carries_roce) might treat as RoCE.
//! - Broadcast and multicast frames are sent to all network interfaces and uplinks except their
//!   source; unicast frames to an unknown address are sent to all uplinks.
//! - RoCEv2 to a multicast address is also delivered to the engines that have joined this address,
//!   including the sender. The network interfaces receive it because a virtual machine may have
//!   another RoCE engine in its network stack.
//! - Ports of different isolation groups can't send frames to one another. Uplinks are in all
//!   groups.
//! - Frames of an engine are treated as frames of its virtual machine. Their destination may be the
//!   same virtual machine.
//!
//! RoCEv2 from one engine to another does not pass through the switch's thread: the sender puts the
//! frame into the receiver's queue, like the thread would. With a capture or faults, however, all
//! frames pass through the thread, which puts them in one order.
//!
//! # ICRC
//! Engines leave the ICRC out of their packets, and mark the frame
//! ([`roce::Frame::lacks_icrc`]). The switch adds the ICRC before the frame leaves the process, is
//! captured or gets faults. Frames without an ICRC are sent only to engines, and to a daemon at the
//! other end of a Unix socket that has agreed to receive such frames.
//!
//! # Capture
//! A [capture file](pcap) contains every accepted frame once: after the source filter and before
//! faults. A [capture of one port](Switch::capture) contains the frames from and to this port in
//! the same way. During such a capture, these frames pass through the switch's thread.
//!
//! # Faults
//! [Faults](fault) apply to RoCE frames from an engine or to an engine, once to each frame. They
//! don't apply to frames between network interfaces and uplinks.

#![deny(unsafe_code)]

mod address_filter;
mod ages;
mod backlog;
mod batch;
mod calls;
mod changes;
mod engine_queues;
mod event_loop;
mod forwarder;
mod frame_queue;
mod frames;
mod groups;
mod index;
mod link;
mod listed;
mod neighbours;
mod net_stream;
mod port_set;
mod shedding;
#[cfg(feature = "testing")]
mod stepped;
mod switch;
mod tap;
mod udp;
mod unix_remote;
mod unix_uplink;
mod waker;

pub mod fault;
pub mod mac_table;
pub mod pcap;
pub mod stats;

pub use engine_queues::{Caller, EnginePort};
pub use fault::FaultPlan;
pub use link::{DatagramPath, Uplink};
#[cfg(feature = "testing")]
pub use stepped::SteppedSwitch;
pub use switch::{Config, Error, PortConfig, Switch, UplinkConfig};
