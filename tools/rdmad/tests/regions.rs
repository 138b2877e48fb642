// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Access to the device configuration and to the doorbell region.

mod process;
mod program;

use program::call;
use program::daemon;
use program::SIZE;
use testkit::vfio::{reg, Client, Driver};
use virtio_rdma_abi::config::OwnRingsConfig;
use virtio_rdma_abi::config::CONFIG_SIZE;
use virtio_rdma_abi::config::OWN_RINGS_CONFIG_OFFSET;
use virtio_rdma_abi::ctrl::CmdQueryCounters;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::feature::Features;

/// Registers of the device's features: the selected 32-bit half, and its bits.
const DEVICE_SELECT: u64 = 0;
const DEVICE_FEATURE: u64 = 4;
/// BAR of the doorbell region.
const DOORBELLS: u32 = 4;

/// Number of doorbells that the device has received.
fn rung(driver: &mut Driver) -> u64 {
    let counters = call(driver, CmdQueryCounters { port: 1 }).unwrap();
    counters.doorbells
}

/// A field of the configuration can be read by one access, by halves and byte by byte.
// abi: R-1107
#[test]
fn the_configuration_is_read_by_any_width() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = daemon(dir.path(), &[]);
    let mut driver = Driver::new(Client::new(&dir.path().join("vfio")));
    let mut read = |width: u32| {
        let offsets = (0..CONFIG_SIZE as u64).step_by(width as usize);
        let parts = offsets.map(|at| driver.client.read(2, reg::CONFIG + at, width).unwrap());
        parts.flatten().collect::<Vec<u8>>()
    };
    let bytes = read(1);
    assert_eq!(bytes.len(), CONFIG_SIZE);
    for width in [2, 4, 8] {
        assert_eq!(read(width), bytes, "{width}");
    }
}

/// Guests with larger pages need a larger distance between doorbell pages, the stride. The
/// configuration reports the stride, the region has room for all doorbell pages, and only writes to
/// the start of a page ring a doorbell.
#[test]
fn doorbells_are_rung_at_their_stride() {
    for (more, shift) in [
        (&[][..], 12),
        (&["--doorbell-stride", "16K"][..], 14),
        (&["--doorbell-stride", "64K"][..], 16),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let _daemon = daemon(dir.path(), more);
        let mut driver = Driver::new(Client::new(&dir.path().join("vfio")));
        let at = reg::CONFIG + OWN_RINGS_CONFIG_OFFSET as u64;
        let config = driver.client.read(2, at, OwnRingsConfig::SIZE as u32);
        let config = OwnRingsConfig::decode(&config.unwrap()).unwrap();
        // abi: R-1102, R-1103
        assert_eq!((config.doorbell_shift, config.reserved), (shift, [0; 3]));
        let stride = 1 << shift;
        let len = u64::from(config.doorbell_pages) * stride;

        let features = Features::of(&[Feature::RingAddr, Feature::Counters]);
        assert_eq!(driver.negotiate(features.0 | vdev::TRANSPORT_FEATURES), 11);
        driver.enable_queue(0, SIZE);
        driver.write8(reg::STATUS, 15);
        let mut ring = |offset: u64| {
            let before = rung(&mut driver);
            let stored = driver.client.write(DOORBELLS, offset, &[0; 4]);
            stored.map(|()| rung(&mut driver) - before)
        };
        for (offset, rings) in [
            (0, 1),
            // abi: R-1101
            (stride, 1),
            // abi: R-69
            (len - stride, 1),
            // abi: R-537
            (4, 0),
            (stride / 2, 0),
            (stride + 4, 0),
            (len - 4, 0),
        ] {
            assert_eq!(ring(offset), Ok(rings), "{offset:#x} of {shift}");
        }
        // A write beyond the last page fails.
        assert!(ring(len).is_err(), "{shift}");
    }
}

/// VIRTIO_F_ORDER_PLATFORM is offered only with the option `--order-platform`. A driver may decline
/// it.
// abi: R-1120, R-1121
#[test]
fn the_order_of_the_platform_is_offered_if_told() {
    for (more, is_offered) in [(&[][..], false), (&["--order-platform"][..], true)] {
        let dir = tempfile::tempdir().unwrap();
        let _daemon = daemon(dir.path(), more);
        let mut driver = Driver::new(Client::new(&dir.path().join("vfio")));
        driver.write32(DEVICE_SELECT, 1);
        let features = driver.client.read(2, DEVICE_FEATURE, 4).unwrap();
        let bit = vdev::F_ORDER_PLATFORM - 32;
        assert_eq!(features[0] & (1 << bit) != 0, is_offered);
        assert_eq!(driver.negotiate(vdev::TRANSPORT_FEATURES), 11);
        let with = vdev::TRANSPORT_FEATURES | (1 << vdev::F_ORDER_PLATFORM);
        assert_eq!(driver.negotiate(with) == 11, is_offered);
    }
}
