// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Netlink requests for network interfaces and RDMA links, since a root may have no iproute2.

use std::fs;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use anyhow::{bail, Context, Result};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    recv, sendto, socket, AddressFamily, Protocol, RecvFlags, SendFlags, SocketType,
};

/// NETLINK_ROUTE is the protocol 0.
const ROUTE: Option<Protocol> = None;
const HEADER: usize = 16;
const ERROR: u16 = 2;
/// NLM_F_REQUEST, NLM_F_ACK.
const ASK: u16 = 0x1 | 0x4;
/// NLM_F_CREATE, NLM_F_REPLACE.
const CREATE: u16 = 0x400 | 0x100;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Address flag: an IPv6 address is usable at once, without duplicate address detection.
const IFA_F_NODAD: u8 = 2;
/// RDMA_NLDEV_CMD_NEWLINK of the client RDMA_NL_NLDEV.
const RDMA_NEWLINK: u16 = (5 << 10) | 3;
const RDMA_DEV_NAME: u16 = 2;
const RDMA_NDEV_NAME: u16 = 51;
const RDMA_LINK_TYPE: u16 = 65;

/// Sets a network interface up.
pub fn set_up(interface: &str) -> Result<()> {
    let mut body = vec![0; 4];
    body.extend(index(interface)?.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    ask(ROUTE, RTM_NEWLINK, 0, &body).with_context(|| format!("can't set {interface} up"))
}

/// Gives a network interface an address.
pub fn add_address(interface: &str, address: IpAddr, prefix: u8) -> Result<()> {
    let (family, flags, bytes) = match address {
        IpAddr::V4(v4) => (AddressFamily::INET, 0, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AddressFamily::INET6, IFA_F_NODAD, v6.octets().to_vec()),
    };
    let family = u8::try_from(family.as_raw()).context("address family")?;
    let mut body = vec![family, prefix, flags, 0];
    body.extend(index(interface)?.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &bytes)?;
    attribute(&mut body, IFA_ADDRESS, &bytes)?;
    ask(ROUTE, RTM_NEWADDR, CREATE, &body)
        .with_context(|| format!("can't give {interface} the address {address}"))
}

/// Makes an rxe device on a network interface.
pub fn add_rxe(name: &str, interface: &str) -> Result<()> {
    let mut body = Vec::new();
    for (kind, value) in [
        (RDMA_DEV_NAME, name),
        (RDMA_LINK_TYPE, "rxe"),
        (RDMA_NDEV_NAME, interface),
    ] {
        attribute(&mut body, kind, format!("{value}\0").as_bytes())?;
    }
    ask(Some(netlink::RDMA), RDMA_NEWLINK, 0, &body)
        .with_context(|| format!("can't make {name} on {interface}"))
}

fn index(interface: &str) -> Result<u32> {
    let file = format!("/sys/class/net/{interface}/ifindex");
    let text =
        fs::read_to_string(file).with_context(|| format!("no network interface {interface}"))?;
    Ok(text.trim().parse()?)
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) -> Result<()> {
    let length = u16::try_from(4 + value.len())?;
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
    Ok(())
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.extend(u32::try_from(HEADER + body.len())?.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((ASK | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    Ok(bytes)
}

/// Sends a request and waits for its acknowledgement.
fn ask(protocol: Option<Protocol>, kind: u16, flags: u16, body: &[u8]) -> Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    let socket: OwnedFd = socket(AddressFamily::NETLINK, SocketType::RAW, protocol)?;
    sendto(
        &socket,
        &message(kind, flags, body)?,
        SendFlags::empty(),
        &kernel,
    )?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    match result(&answer[..length])? {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(-error).into()),
    }
}

/// The negative errno in an answer, or 0.
fn result(answer: &[u8]) -> Result<i32> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let error = answer.get(HEADER..).and_then(<[u8]>::first_chunk);
    match (kind.map(u16::from_ne_bytes), error) {
        (Some(ERROR), Some(error)) => Ok(i32::from_ne_bytes(*error)),
        _ => bail!("the kernel gave an answer of {} bytes", answer.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_aligned_and_counted() {
        let mut body = Vec::new();
        attribute(&mut body, 7, b"abcde").unwrap();
        assert_eq!(body.len(), 12);
        assert_eq!(body[..4], [9u16.to_ne_bytes(), 7u16.to_ne_bytes()].concat());
        assert_eq!(&body[4..], b"abcde\0\0\0");
        let message = message(16, CREATE, &body).unwrap();
        assert_eq!(message.len(), HEADER + body.len());
        assert_eq!(message[..4], 28u32.to_ne_bytes());
        assert_eq!(message[6..8], 0x505u16.to_ne_bytes());
    }

    #[test]
    fn answers_tell_the_error() {
        let answer = |kind: u16, error: i32| {
            let mut bytes = vec![0; HEADER];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes.extend(error.to_ne_bytes());
            bytes
        };
        assert_eq!(result(&answer(ERROR, -17)).unwrap(), -17);
        assert_eq!(result(&answer(ERROR, 0)).unwrap(), 0);
        assert!(result(&answer(3, 0)).is_err());
        assert!(result(&answer(ERROR, 0)[..HEADER]).is_err());
    }

    #[test]
    fn the_kernel_answers() {
        // No interface has this index, so the request fails even for root.
        let mut body = vec![0; 4];
        body.extend(0x7fff_fff0u32.to_ne_bytes());
        body.extend([0; 8]);
        let error = ask(ROUTE, RTM_NEWLINK, 0, &body).unwrap_err();
        assert!(error.downcast_ref::<std::io::Error>().is_some(), "{error}");
    }
}
