// SPDX-License-Identifier: GPL-2.0

//! Tests of the abstractions that need no device, and the examples of their documentation.
//!
//! The module runs them when it is loaded, and can't be loaded if one fails.

#[macro_use]
mod kunit_suite;

#[path = "../../kbuild/bindings/mod.rs"]
mod bindings;
#[allow(dead_code, unreachable_pub)]
#[path = "../dma_buf/mod.rs"]
mod dma_buf;
#[allow(dead_code, unreachable_pub)]
#[path = "../hw_random/mod.rs"]
mod hw_random;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../net/mod.rs"]
mod net;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../rdma/mod.rs"]
mod rdma;
#[allow(dead_code, unreachable_pub)]
#[path = "../sync/mod.rs"]
mod sync;
#[allow(dead_code, unreachable_pub, unused_macros)]
#[path = "../trace_event/mod.rs"]
mod trace_event;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../virtio/mod.rs"]
mod virtio;

/// The examples, extracted from the sources.
mod examples {
    include!(env!("VIRTIO_RDMA_EXAMPLES"));
}

use kernel::prelude::*;

struct Module;

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let failed = kunit_suite::run(&[
            ("virtio", virtio::tests::CASES),
            ("rdma::memory", rdma::tests::memory::CASES),
            ("rdma::null", rdma::tests::null::CASES),
            ("rdma::qp_attr", rdma::tests::qp_attr::CASES),
            ("rdma::registers", rdma::tests::registers::CASES),
            ("rdma::udata", rdma::tests::udata::CASES),
            ("rdma::verbs", rdma::tests::verbs::CASES),
            ("hw_random", hw_random::tests::CASES),
            ("sync", sync::tests::CASES),
            ("examples", examples::CASES),
        ]);
        if failed != 0 {
            return Err(EINVAL);
        }
        Ok(Self)
    }
}

module! {
    type: Module,
    name: "abstractions_test",
    authors: ["The virtio-rdma authors"],
    description: "Tests of the abstractions for virtio and RDMA drivers",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}
