// SPDX-License-Identifier: GPL-2.0

//! DMA addresses of coherent memory.

use stock::dma::{
    Coherent,
    DmaAddress, //
};

/// The method of [`Coherent`] that has another name in older series.
pub trait DmaAddressOf {
    /// The address for the device.
    fn dma_address(&self) -> DmaAddress;
}

impl<T: stock::ptr::KnownSize + ?Sized> DmaAddressOf for Coherent<T> {
    #[inline]
    fn dma_address(&self) -> DmaAddress {
        self.dma_handle()
    }
}
