// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user client, as QEMU has it for a device.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use vfio_user::Command;

use super::message::{
    access, longs, message, send, store, unmap_payload, words, Header, ERROR_REPLY, HEADER_LEN,
    NO_REPLY, REPLY,
};

/// A vfio-user client, which can also send invalid messages.
pub struct Client {
    pub stream: UnixStream,
    next_id: u16,
}

impl Client {
    /// Connects and negotiates the version.
    pub fn new(path: &Path) -> Self {
        let mut client = Self {
            stream: UnixStream::connect(path).unwrap(),
            next_id: 7,
        };
        let payload = [&[0, 0, 1, 0], &b"{}\0"[..]].concat();
        let reply = client.call(Command::Version, &payload, &[]).unwrap();
        assert_eq!(reply[..4], [0, 0, 1, 0]);
        assert!(reply.ends_with(b"}\0"));
        client
    }

    pub fn post(
        &mut self,
        command: u16,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        let message = message(self.next_id, command, flags, payload);
        send(&self.stream, &message, fds);
        self.next_id
    }

    /// Receives a reply. Returns its message ID, and the payload or error number.
    pub fn reply(&mut self) -> (u16, Result<Vec<u8>, u32>) {
        let mut bytes = [0; HEADER_LEN];
        self.stream.read_exact(&mut bytes).unwrap();
        let [.., e0, e1, e2, e3] = bytes;
        let Header {
            id, size, flags, ..
        } = Header::decode(&bytes);
        let mut payload = vec![0; size as usize - HEADER_LEN];
        self.stream.read_exact(&mut payload).unwrap();
        match flags {
            REPLY => (id, Ok(payload)),
            ERROR_REPLY => {
                assert!(payload.is_empty());
                (id, Err(u32::from_ne_bytes([e0, e1, e2, e3])))
            }
            flags => panic!("flags {flags:#x}"),
        }
    }

    pub fn call(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, u32> {
        let sent = self.post(command as u16, 0, payload, fds);
        let (id, reply) = self.reply();
        assert_eq!(id, sent);
        reply
    }

    pub fn read(&mut self, region: u32, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        let access = access(region, offset, len);
        let reply = self.call(Command::RegionRead, &access, &[])?;
        assert_eq!(reply[..16], access);
        assert_eq!(reply.len(), 16 + len as usize);
        Ok(reply[16..].to_vec())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let payload = store(region, offset, data);
        self.call(Command::RegionWrite, &payload, &[]).map(drop)
    }

    /// Writes to a BAR without waiting for a reply.
    pub fn posted_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let payload = store(region, offset, data);
        self.post(Command::RegionWrite as u16, NO_REPLY, &payload, &[]);
    }

    pub fn map(
        &mut self,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        iova: u64,
        len: u64,
    ) -> Result<(), u32> {
        let payload = [words(&[32, 3]), longs(&[offset, iova, len])].concat();
        let fds: Vec<_> = fd.into_iter().collect();
        self.call(Command::DmaMap, &payload, &fds).map(drop)
    }

    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<(), u32> {
        let payload = unmap_payload(iova, len);
        let reply = self.call(Command::DmaUnmap, &payload, &[])?;
        assert_eq!(reply, payload);
        Ok(())
    }

    pub fn set_irqs(
        &mut self,
        flags: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), u32> {
        self.call(Command::SetIrqs, &words(&[20, flags, 2, start, count]), fds)
            .map(drop)
    }
}
