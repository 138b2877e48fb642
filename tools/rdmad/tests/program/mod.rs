// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The daemon with one port, and the port's control commands.

use std::path::Path;
use std::process::Command;

use testkit::vfio::Driver;
use virtio_rdma_abi::ctrl::ControlCommand;
use virtio_rdma_abi::ctrl::RESPONSE_OK;
use virtio_rdma_abi::wire::Wire;

use crate::process::Daemon;

/// Number of descriptors of the control queue.
pub const SIZE: u16 = 16;

/// Starts a daemon with a port whose socket is `dir`/vfio, and waits until it is ready.
pub fn daemon(dir: &Path, more: &[&str]) -> Daemon {
    let port = format!(
        "a,vfio={},mac=52:54:00:09:00:01",
        dir.join("vfio").display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    command
        .args(["--port", &port, "--ready-fd", "1"])
        .args(more);
    Daemon::start(command)
}

/// Executes a command of the control queue.
pub fn call<R: ControlCommand>(driver: &mut Driver, request: R) -> Result<R::Response, u8> {
    let mut bytes = vec![R::COMMAND.value()];
    bytes.resize(1 + R::SIZE, 0);
    request.put(&mut bytes[1..]);
    let room = 1 + <R::Response as Wire>::SIZE;
    let answer = driver.echo(0, SIZE, &bytes, room as u32);
    match answer[0] {
        RESPONSE_OK => Ok(<R::Response as Wire>::get(&answer[1..])),
        errno => Err(errno),
    }
}
