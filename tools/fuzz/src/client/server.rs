// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the vfio-user server: the replies and the effects of messages.

use testkit::vfio::message::{words, Header};

use super::framing::{Broken, Framing, Message, Write};
use super::map::{Map, Region};
use super::message::{command, Body, Reply, MAX_FDS, MAX_TRANSFER};
use super::things::Thing;
use super::vectors::{Vectors, VECTORS};
use super::{EINVAL, EOPNOTSUPP};
use crate::function::{Function, Step, Task, BARS};

/// Index of the region of the configuration space, its length in bytes, and the number of regions.
const CONFIG: u32 = 7;
const CONFIG_LEN: u64 = 256;
const REGIONS: u32 = 9;
/// Number of interrupt types: INTx, MSI, MSI-X.
const IRQS: u32 = 3;
/// Maximum number and total length in bytes of unread replies, below the capacity of the socket.
const MAX_REPLIES: usize = 64;
const MAX_BYTES: usize = 0x1_8000;

/// The model of the server's state for one client.
#[derive(Clone, Debug)]
pub struct Server {
    pub function: Function,
    pub map: Map,
    pub vectors: Vectors,
    framing: Framing,
    /// Header of a DEVICE_RESET that has no reply yet. `is_reset` is set when its reset is done.
    reset: Option<Header>,
    is_reset: bool,
    replies: Vec<Reply>,
}

impl Server {
    /// The state for a new client.
    pub fn new(function: Function) -> Self {
        Self {
            function,
            map: Map::default(),
            vectors: Vectors::default(),
            framing: Framing::default(),
            reset: None,
            is_reset: false,
            replies: Vec::new(),
        }
    }

    /// Whether the sockets of client and server have room for a write of the client and its
    /// replies.
    pub fn has_room(&self, write: &Write) -> bool {
        let mut ahead = self.clone();
        ahead.framing.write(write.clone());
        let (bytes, writes) = ahead.framing.unread();
        // A protocol error is ignored: only the number and length of the replies are needed.
        let _ = ahead.serve();
        let replies: usize = ahead.replies.iter().map(Reply::len).sum();
        let few = writes <= MAX_REPLIES / 2 && ahead.replies.len() <= MAX_REPLIES;
        few && bytes <= MAX_BYTES && replies <= MAX_BYTES
    }

    /// Adds a write of the client.
    pub fn write(&mut self, write: Write) {
        self.framing.write(write);
    }

    /// Handles all that the client has written.
    pub fn serve(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.is_reset) {
            if let Some(header) = self.reset.take() {
                self.answer(&header, Ok(Body::default()));
            }
        }
        while self.framing.read()? {
            while let Some(message) = self.framing.next()? {
                self.handle(message);
            }
        }
        Ok(())
    }

    /// Replies since the last call.
    pub fn take_replies(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// Records a step of the service thread.
    pub fn stepped(&mut self, step: Step) {
        self.is_reset |= step == Step::Did(Task::Reset) && self.reset.is_some();
        self.signal_vectors();
    }

    /// Signals the eventfds of vectors that the function raised.
    pub fn signal_vectors(&mut self) {
        for raised in self.function.take_raised() {
            self.vectors.raise(raised);
        }
    }

    /// The client's descriptors that the server holds open.
    pub fn held(&self) -> Vec<Thing> {
        let mapped = self.map.regions.iter().map(|region| region.thing);
        let others = self.vectors.connected().chain(self.framing.waiting());
        mapped.chain(others).collect()
    }

    fn answer(&mut self, header: &Header, body: Result<Body, u32>) {
        if header.wants_reply() {
            self.replies.push(Reply::new(header, body));
        }
    }

    fn handle(&mut self, message: Message) {
        let header = message.header;
        if !header.is_command() {
            return;
        }
        if header.command == command::RESET {
            if self.reset.is_some() {
                self.answer(&header, Err(EINVAL));
            } else {
                self.reset = Some(header);
                self.function.begin_reset();
            }
            return;
        }
        let body = self.execute(header.command, &message.payload, &message.fds);
        self.signal_vectors();
        self.answer(&header, body);
    }

    fn execute(&mut self, number: u16, payload: &[u8], fds: &[Thing]) -> Result<Body, u32> {
        match number {
            command::VERSION => version(payload),
            command::DMA_MAP => self.map(payload, fds),
            command::DMA_UNMAP => self.unmap(payload),
            command::DEVICE_INFO => Ok(words(&[16, 3, REGIONS, IRQS]).into()),
            command::REGION_INFO => {
                let [_, _, index] = fields(payload)?;
                if index >= REGIONS {
                    return Err(EINVAL);
                }
                let len = region_len(index);
                let flags = if len > 0 { 3 } else { 0 };
                let mut body = words(&[32, flags, index, 0]);
                body.extend_from_slice(&len.to_ne_bytes());
                body.extend_from_slice(&[0; 8]);
                Ok(body.into())
            }
            command::IRQ_INFO => {
                let [_, _, index] = fields(payload)?;
                match index {
                    0 | 1 => Ok(words(&[16, 0, index, 0]).into()),
                    2 => Ok(words(&[16, 1, index, VECTORS as u32]).into()),
                    _ => Err(EINVAL),
                }
            }
            command::SET_IRQS => {
                let [len, flags, index, start, count] = fields(payload)?;
                if len < 20 {
                    return Err(EINVAL);
                }
                self.vectors.set([flags, index, start, count], fds)?;
                Ok(Body::default())
            }
            command::REGION_READ => self.read(payload),
            command::REGION_WRITE => self.store(payload),
            _ => Err(EOPNOTSUPP),
        }
    }

    fn map(&mut self, payload: &[u8], fds: &[Thing]) -> Result<Body, u32> {
        let [_, flags, o0, o1, i0, i1, l0, l1] = fields(payload)?;
        let region = Region {
            iova: long(i0, i1),
            len: long(l0, l1),
            offset: long(o0, o1),
            thing: fds.first().copied().unwrap_or(Thing(0)),
            writable: flags & 2 != 0,
        };
        self.map.map(region, !fds.is_empty())?;
        Ok(Body::default())
    }

    fn unmap(&mut self, payload: &[u8]) -> Result<Body, u32> {
        let [_, flags, i0, i1, l0, l1] = fields(payload)?;
        if flags & 2 != 0 {
            return Err(EOPNOTSUPP);
        }
        if flags & 4 != 0 {
            self.map.regions.clear();
        } else {
            self.map.unmap(long(i0, i1), long(l0, l1))?;
        }
        Ok(payload[..24].to_vec().into())
    }

    fn read(&mut self, payload: &[u8]) -> Result<Body, u32> {
        let (region, offset, len) = access(payload)?;
        let shown = match region {
            CONFIG => self.function.config_read(offset, len),
            bar => self.function.bar_read(bar, offset, len),
        };
        Ok(Body {
            bytes: [&payload[..16], &shown.bytes].concat(),
            either: shown.either.then_some(16),
        })
    }

    fn store(&mut self, payload: &[u8]) -> Result<Body, u32> {
        let (region, offset, len) = access(payload)?;
        let data = payload[16..].get(..len).ok_or(EINVAL)?;
        match region {
            CONFIG => self.function.config_write(offset, data),
            bar => self.function.bar_write(bar, offset, data),
        }
        Ok(payload[..16].to_vec().into())
    }
}

fn version(payload: &[u8]) -> Result<Body, u32> {
    let &[m0, m1, n0, n1, ..] = payload else {
        return Err(EINVAL);
    };
    if u16::from_ne_bytes([m0, m1]) != 0 {
        return Err(EINVAL);
    }
    let minor = u16::from_ne_bytes([n0, n1]).min(1);
    let mut body = [0u16.to_ne_bytes(), minor.to_ne_bytes()].concat();
    let text = format!(
        r#"{{"capabilities":{{"max_msg_fds":{MAX_FDS},"max_data_xfer_size":{MAX_TRANSFER}}}}}"#
    );
    body.extend_from_slice(text.as_bytes());
    body.push(0);
    Ok(body.into())
}

/// Decodes a register access: region, offset and length in bytes.
fn access(payload: &[u8]) -> Result<(u32, u64, usize), u32> {
    let [o0, o1, region, len] = fields(payload)?;
    let offset = long(o0, o1);
    let end = offset.checked_add(len.into()).ok_or(EINVAL)?;
    if end > region_len(region) || len > MAX_TRANSFER {
        return Err(EINVAL);
    }
    Ok((region, offset, len as usize))
}

fn region_len(region: u32) -> u64 {
    match region {
        CONFIG => CONFIG_LEN,
        bar => BARS.get(bar as usize).copied().unwrap_or(0),
    }
}

/// The first words of a payload.
fn fields<const N: usize>(payload: &[u8]) -> Result<[u32; N], u32> {
    let bytes = payload.get(..4 * N).ok_or(EINVAL)?;
    let word = |at: usize| bytes[4 * at..][..4].try_into().expect("four bytes");
    Ok(std::array::from_fn(|at| u32::from_ne_bytes(word(at))))
}

fn long(low: u32, high: u32) -> u64 {
    // Targets run on little-endian hosts.
    u64::from(low) | (u64::from(high) << 32)
}
