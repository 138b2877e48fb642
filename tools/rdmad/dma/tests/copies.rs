// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Copies of pieces of any length and alignment, which different instructions do.

use dma::DmaSpace;

/// Bytes of a VM's memory.
const MEMORY: usize = 256 << 10;
/// Lengths around the limits at which other instructions do the copy.
const LENGTHS: [usize; 10] = [
    1, 7, 64, 4095, 4096, 32_760, 32_768, 32_769, 65_528, 131_072,
];

/// Memory of a VM, and a model of its contents.
struct Vm {
    space: DmaSpace,
    model: Vec<u8>,
}

impl Vm {
    fn new(random: &mut fastrand::Rng) -> Self {
        let space = DmaSpace::anonymous(0, MEMORY as u64);
        let mut vm = Self {
            space,
            model: vec![0; MEMORY],
        };
        random.fill(&mut vm.model);
        let view = vm.space.enter();
        view.slice_mut(0, MEMORY)
            .unwrap()
            .write(0, &vm.model)
            .unwrap();
        drop(view);
        vm
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        let view = self.space.enter();
        view.slice(0, MEMORY).unwrap().read(0, &mut bytes).unwrap();
        bytes
    }
}

/// Addresses at which pieces of `len` bytes begin: the first byte of a cache line, and others.
fn starts(len: usize, random: &mut fastrand::Rng) -> [usize; 4] {
    let any = random.usize(..=MEMORY - len);
    [0, 64, 4096 + 24, any].map(|start| start.min(MEMORY - len))
}

#[test]
fn a_copy_to_another_vm_stores_its_bytes_and_no_others() {
    let mut random = fastrand::Rng::with_seed(1);
    let (a, mut b) = (Vm::new(&mut random), Vm::new(&mut random));
    for len in LENGTHS {
        for from in starts(len, &mut random) {
            for to in starts(len, &mut random) {
                let (ours, theirs) = (a.space.enter(), b.space.enter());
                let source = ours.slice(from as u64, len).unwrap();
                let target = theirs.slice_mut(to as u64, len).unwrap();
                assert_eq!(source.copy_to(&target), len);
                drop(theirs);
                b.model[to..][..len].copy_from_slice(&a.model[from..][..len]);
                assert!(b.memory() == b.model, "{len} bytes from {from} to {to}");
            }
        }
    }
    assert!(a.memory() == a.model);
}

#[test]
fn an_overlapping_copy_moves_the_bytes() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut vm = Vm::new(&mut random);
    for len in LENGTHS {
        for distance in [0, 8, 64, 4096, len / 2, len / 2 / 64 * 64, len] {
            for (from, to) in [(4096, 4096 + distance), (4096 + distance, 4096)] {
                if to.max(from) + len > MEMORY {
                    continue;
                }
                let view = vm.space.enter();
                let source = view.slice(from as u64, len).unwrap();
                source.copy_to(&view.slice_mut(to as u64, len).unwrap());
                drop(view);
                vm.model.copy_within(from..from + len, to);
                assert!(vm.memory() == vm.model, "{len} bytes from {from} to {to}");
            }
        }
    }
}

/// The shorter piece determines the length of the copy.
#[test]
fn a_copy_ends_with_the_shorter_piece() {
    let mut random = fastrand::Rng::with_seed(1);
    let (a, mut b) = (Vm::new(&mut random), Vm::new(&mut random));
    for (from, to) in [(65_536, 40_000), (40_000, 65_536), (65_536, 100)] {
        let (ours, theirs) = (a.space.enter(), b.space.enter());
        let source = ours.slice(64, from).unwrap();
        let len = source.copy_to(&theirs.slice_mut(128, to).unwrap());
        assert_eq!(len, from.min(to));
        drop(theirs);
        b.model[128..][..len].copy_from_slice(&a.model[64..][..len]);
        assert!(b.memory() == b.model, "{from} bytes to {to}");
    }
}
