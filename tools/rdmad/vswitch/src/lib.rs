// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A small Ethernet switch.
//!
//! It joins the virtual machines of one daemon, each with a network interface and a RoCE engine
//! behind one MAC address, and uplinks to other daemons and hosts. One thread moves the frames;
//! nothing blocks it and everything it holds is bounded: where a receiver is full, frames are
//! dropped and counted. Frames of an engine wait instead for a socket that is full, and the engine
//! for their buffers, unless the socket takes nothing at all for a while.
//!
//! # Forwarding
//! - A virtual machine sends from its own MAC address alone; frames with another source are
//!   dropped. Its address is known from the start. Addresses behind an uplink are learned from
//!   source addresses, and forgotten after [`mac_table::AGEING`].
//! - RoCEv2 (UDP port 4791) for the address of a virtual machine with an engine goes to the engine;
//!   everything else goes to the network interface.
//! - An IP address that was given to a port is that port's: frames of other network interfaces that
//!   claim it are refused, and frames of its own that claim another. Claims are source addresses of
//!   IP, senders of ARP, and neighbour discovery.
//! - The engine alone speaks RoCE for its virtual machine. RoCE from the network interface is
//!   refused, whatever its receiver, unless the port is configured otherwise: any process of the
//!   guest could forge packets of the engine there. This covers whatever [any
//!   receiver](roce::net::carries_roce) might take for RoCE.
//! - Broadcast and multicast goes everywhere but back; unicast to an unknown address goes to the
//!   uplinks.
//! - RoCEv2 to a multicast address also goes to the engines that have joined it, the sender itself
//!   among them. It goes to the network interfaces all the same: a virtual machine may have an
//!   engine in its network stack.
//! - Ports of different isolation groups do not reach one another. Uplinks are in all groups.
//! - Frames of an engine enter as frames of its virtual machine. They may be addressed to that same
//!   machine.
//!
//! RoCEv2 from one engine to another needs no turn of that thread: who sends it puts it into the
//! receiver's queue, as the thread would. Only with a capture or faults do all frames pass through
//! the thread, so that they have one order.
//!
//! # Capture
//! A [capture file](pcap) has every frame once, as it was accepted: after the source filter and
//! before faults.
//!
//! # Faults
//! [Faults](fault) meet the RoCE frames that come from an engine or are about to reach one, each
//! frame once. Frames between network interfaces and uplinks are never touched.

#![deny(unsafe_code)]

mod addresses;
mod engine_queues;
mod event_loop;
mod forwarder;
mod index;
mod link;
mod neighbours;
mod orders;
#[cfg(feature = "testing")]
mod stepped;
mod switch;
mod tap;
mod udp;
mod unix_peer;
mod waker;

pub mod fault;
pub mod mac_table;
pub mod pcap;
pub mod stats;

pub use engine_queues::EnginePort;
pub use fault::FaultPlan;
pub use link::{open_net, DatagramPath, Uplink};
#[cfg(feature = "testing")]
pub use stepped::SteppedSwitch;
pub use switch::{Config, Error, PortConfig, Switch, UplinkConfig};
