// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a device that an engine leaves to the next one.
//!
//! The state of a device with an object of each kind is changed, or replaced by any bytes. It is
//! refused, or restored: then the device works or fails alone. Its neighbours work, and a reset
//! gives all memory back.

use testkit::engine::{stepped, World};
use verbs::Limits;
use virtio_rdma_abi::feature::Feature;

use crate::input::Input;
use crate::stage::{is_sound, memory, run_until_idle, Neighbour};

/// The state, in hexadecimal digits.
const GOLDEN: &str = include_str!("../../../rdmad/verbs/tests/verbs/saved.golden");

/// The devices of whose first one [`GOLDEN`] is the state, and two neighbours.
fn world() -> World {
    let limits = Limits {
        max_qp: 8,
        max_cq: 8,
        max_srq: 4,
        max_mr: 8,
        max_mw: 4,
        max_pd: 4,
        ..Limits::default()
    };
    let world = World::with_config(3, stepped::config(2), limits);
    world.negotiate(&[
        Feature::MemWindows,
        Feature::RegPages,
        Feature::RateLimit,
        Feature::CqModeration,
        Feature::Multicast,
        Feature::Counters,
        Feature::CounterSets,
    ]);
    world
}

fn golden() -> Vec<u8> {
    let lines = GOLDEN.lines().skip(1);
    let decoded = lines.map(|line| data_encoding::HEXLOWER.decode(line.as_bytes()));
    decoded.collect::<Result<Vec<_>, _>>().unwrap().concat()
}

/// Runs the target.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let state = if kind % 8 == 0 {
        rest.to_vec()
    } else {
        let mut state = golden();
        let mut input = Input::new(rest);
        while input.has_more() {
            let at = usize::from(input.any::<u16>()) % state.len();
            match input.below(8) {
                0 => state.insert(at, input.any()),
                1 => drop(state.remove(at)),
                _ => state[at] = input.any(),
            }
        }
        state
    };
    let world = world();
    let mut neighbour = Neighbour::new(&world, [1, 2]);
    neighbour.works();
    let hca = &world.vms[0].hca;
    hca.reset();
    let before = memory(&world.vms[0]);
    let restored = hca.restore(&state);
    if restored.is_ok() {
        hca.resume();
        run_until_idle(&world.runtime);
        // The device can be handed over again.
        if hca.failure().is_none() {
            hca.save().unwrap();
        }
    }
    neighbour.works();
    is_sound(&world.runtime, &world.vms[1..]);
    hca.reset();
    assert_eq!(memory(&world.vms[0]), before, "{restored:?}");
}
