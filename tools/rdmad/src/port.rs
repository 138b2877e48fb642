// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A port: one VM's device and its sockets.

use std::sync::Arc;

use anyhow::Context;
use anyhow::Result;
use dma::DmaSpace;
use vdev::Handle;
use vdev::Listener;

use crate::cli::Args;
use crate::cli::PortArgs;
use crate::device::RdmaDevice;

/// A port in service. Dropping it ends the service.
pub struct Port {
    _server: Handle,
}

impl Port {
    /// Listens and serves.
    pub fn start(port: &PortArgs, args: &Args) -> Result<Self> {
        let listener = Listener::bind(&port.vfio)?;
        let space = Arc::new(DmaSpace::new());
        let device = Arc::new(RdmaDevice::new(port.mac, &args.withheld));
        let server = listener
            .start(&port.name, device, space)
            .context("can't start its threads")?;
        tracing::info!(port = port.name, mac = %port.mac, "listens at {}", port.vfio.display());
        Ok(Self { _server: server })
    }
}
