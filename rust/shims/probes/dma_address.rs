// SPDX-License-Identifier: GPL-2.0

//! Coherent memory has a DMA address.

pub fn probe(memory: &kernel::dma::Coherent<u8>) -> kernel::dma::DmaAddress {
    memory.dma_address()
}
