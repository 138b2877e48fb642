// SPDX-License-Identifier: GPL-2.0

//! Compiles only if coherent memory has the method `dma_address`.

pub fn probe(memory: &kernel::dma::Coherent<u8>) -> kernel::dma::DmaAddress {
    memory.dma_address()
}
