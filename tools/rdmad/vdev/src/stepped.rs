// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A PCI function without threads, for tests. By method calls, a test does the work of the socket
//! thread and of the service thread in single steps. Each step runs the code of these threads.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use budget::CallClock;
use dma::DmaSpace;
use sandbox::{Gate, Passer};

use crate::aio::Aio;
use crate::function::PciFunction;
use crate::record::Record;
use crate::reply_pipe::ReplyPipe;
use crate::server::Signals;
use crate::session::{Served, Session};
use crate::VirtioDevice;

/// A function whose threads are replaced by method calls.
pub struct SteppedFunction {
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    session: Option<Session>,
    passer: Passer,
    /// State of the service thread: whether the driver has set DRIVER_OK.
    active: bool,
}

impl SteppedFunction {
    /// Makes a function of `device`. The client's guest memory is mapped in `space`.
    pub fn new(device: Arc<dyn VirtioDevice>, space: Arc<DmaSpace>) -> io::Result<Self> {
        Ok(Self {
            signals: Arc::new(Signals::new(&space)?),
            function: Arc::new(PciFunction::new(
                "stepped",
                device,
                space,
                Arc::new(Aio::new()?),
                Record::for_tests(),
                // No signal takes long, so that a repeated step always has the same effect.
                CallClock::manual(Instant::now()),
            )),
            session: None,
            passer: Arc::new(Gate::default()).enter(),
            active: false,
        })
    }

    /// Connects a client and returns its end of the connection. The previous client must have
    /// [disconnected](Self::disconnect).
    pub fn connect(&mut self) -> io::Result<UnixStream> {
        assert!(self.session.is_none(), "one client at a time");
        let (client, server) = UnixStream::pair()?;
        let (function, signals) = (self.function.clone(), self.signals.clone());
        let session = Session::new(server, ReplyPipe::new()?, function, signals)?;
        self.session = Some(session);
        Ok(client)
    }

    /// Does the work of the socket thread: serves input until there is none, and answers a
    /// completed reset. Returns whether the client is still connected; fails if it broke the
    /// protocol. The client must read its replies before they fill the socket.
    pub fn serve_client(&mut self) -> io::Result<bool> {
        let Some(session) = &mut self.session else {
            return Ok(false);
        };
        loop {
            if Signals::take(&self.signals.wake) {
                session.reset_done(&self.passer)?;
            }
            match session.serve(&self.passer)? {
                Served::Input => {}
                Served::Nothing => return Ok(true),
                Served::Closed => return Ok(false),
            }
        }
    }

    /// Does one piece of work of the service thread. Returns whether there was any.
    pub fn serve_device(&mut self) -> bool {
        self.function.serve_waiting(&mut self.active)
    }

    /// Disconnects the client. Returns when no code accesses guest memory any more.
    pub fn disconnect(&mut self) {
        self.session = None;
        self.function.begin_disconnect();
        while self.serve_device() {}
        self.function.end_disconnect();
        Signals::take(&self.signals.wake);
    }

    /// Number of changes of the device's state that wait for the service thread.
    pub fn tasks(&self) -> usize {
        self.function.tasks()
    }

    /// Notifies the driver of a change of the device configuration.
    pub fn config_changed(&self) {
        self.function.config_changed();
    }

    /// Reads the configuration space.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    /// Writes the configuration space.
    pub fn config_write(&self, offset: u64, data: &[u8]) {
        self.function.config_write(offset, data);
    }

    pub fn bar_read(&self, bar: u32, offset: u64, data: &mut [u8]) {
        self.function.bar_read(bar, offset, data);
    }

    pub fn bar_write(&self, bar: u32, offset: u64, data: &[u8]) {
        self.function.bar_write(bar, offset, data);
    }
}
