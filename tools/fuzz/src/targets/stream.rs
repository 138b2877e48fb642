// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The byte stream of a vfio-user client.
//!
//! A client sends messages, cut wherever it likes, in any order with the steps of the service
//! thread. Each command that wants a reply gets the one that a model expects, in order.

use std::cell::RefCell;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use dma::DmaSpace;
use vdev::Stepped;

use crate::client::{command, Header, Reply, HEADER_LEN, MAX_FDS, MAX_TRANSFER};
use crate::function::{send_bytes, Echo};

/// Region of the configuration space, and its length.
const CONFIG: (u32, u64) = (7, 256);
/// Error numbers.
const EINVAL: u32 = 22;
/// Steps of an input.
const STEPS: usize = 200;

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

/// Runs the target.
pub fn run(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        // One that a finding has left behind is not used again.
        let mut taken = bench.take().unwrap_or_else(Bench::new);
        let mut run = Run::new(&mut taken);
        // Bytes that run out end the input.
        let _ = run.steps(&mut Unstructured::new(data));
        run.end();
        *bench = Some(taken);
    });
}

/// A function.
struct Bench {
    stepped: Stepped,
    initial: [u8; 256],
}

impl Bench {
    fn new() -> Self {
        let (device, space) = (Arc::new(Echo::default()), Arc::<DmaSpace>::default());
        let stepped = Stepped::new(device, space).expect("a function");
        let mut initial = [0; 256];
        stepped.config_read(0, &mut initial);
        Self { stepped, initial }
    }
}

/// One input.
struct Run<'a> {
    bench: &'a mut Bench,
    client: UnixStream,
    id: u16,
    expected: Vec<Reply>,
}

impl<'a> Run<'a> {
    fn new(bench: &'a mut Bench) -> Self {
        let client = bench.stepped.connect().expect("socket");
        client.set_nonblocking(true).expect("socket");
        Self {
            client,
            id: 0,
            expected: Vec::new(),
            bench,
        }
    }

    fn steps(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            self.step(input)?;
            self.serve();
        }
        Ok(())
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        if input.arbitrary()? {
            let (major, minor) = (input.arbitrary::<u8>()? & 1, input.arbitrary::<u8>()? & 3);
            let payload = [major, 0, minor, 0];
            let body = (major == 0).then(|| {
                let mut body = vec![0, 0, minor.min(1), 0];
                let text = format!(
                    "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\
                     \"max_data_xfer_size\":{MAX_TRANSFER}}}}}\0"
                );
                body.extend_from_slice(text.as_bytes());
                body
            });
            self.send(command::VERSION, &payload, body.ok_or(EINVAL));
        } else {
            let (offset, len) = (
                u64::from(input.arbitrary::<u16>()? & 0x1ff),
                input.arbitrary::<u16>()? & 0x1ff,
            );
            let mut payload = offset.to_ne_bytes().to_vec();
            payload.extend_from_slice(&CONFIG.0.to_ne_bytes());
            payload.extend_from_slice(&u32::from(len).to_ne_bytes());
            let body = (offset + u64::from(len) <= CONFIG.1).then(|| {
                let mut body = payload.clone();
                body.extend_from_slice(&self.bench.initial[offset as usize..][..len.into()]);
                body
            });
            self.send(command::REGION_READ, &payload, body.ok_or(EINVAL));
        }
        Ok(())
    }

    fn send(&mut self, command: u16, payload: &[u8], body: std::result::Result<Vec<u8>, u32>) {
        self.id = self.id.wrapping_add(1);
        let header = Header {
            id: self.id,
            command,
            size: (HEADER_LEN + payload.len()) as u32,
            flags: 0,
        };
        send_bytes(&self.client, &[&header.encode(), payload].concat(), &[]);
        self.expected.push(Reply::new(&header, body));
    }

    /// The socket thread serves what has come, and the client takes the replies.
    fn serve(&mut self) {
        let serving = self.bench.stepped.serve_client();
        assert!(serving.expect("no rule is broken"), "the client is there");
        let mut bytes = Vec::new();
        // Ends where the socket is empty.
        let _ = self.client.read_to_end(&mut bytes);
        let mut stream = &bytes[..];
        for reply in self.expected.drain(..) {
            reply.take(&mut stream);
        }
        assert!(stream.is_empty(), "replies that nobody asked for");
    }

    fn end(self) {
        self.bench.stepped.disconnect();
    }
}
