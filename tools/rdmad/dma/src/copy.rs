// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Copies from guest memory to guest memory.
//!
//! x86 processors with the feature ERMSB copy long pieces fastest by one string instruction, which
//! moves whole cache lines. libc uses it on some of them, but on others only its vector loops: on
//! these processors the instruction can be many times slower than a loop if source and target begin
//! at different bytes of a cache line. Messages mostly begin at the same byte, since programs align
//! their buffers, so the instruction is used for these.

use vm_memory::VolatileSlice;

/// Minimum length in bytes of a piece that is copied by a string instruction, whose start takes
/// longer than that of a loop.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 32 << 10;
/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies `from` to `to`, as many bytes as the shorter one has. They may overlap.
#[inline]
pub(crate) fn copy(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>) {
    if !copy_long(from, to) {
        from.copy_to_volatile_slice(*to);
    }
}

/// Does the copy by a string instruction. Returns false and does nothing if the instruction does
/// not suit the processor, the length or the addresses, or if the slices overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn copy_long(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>) -> bool {
    let len = from.len().min(to.len());
    if len < LONG {
        return false;
    }
    let (from, to) = (from.ptr_guard(), to.ptr_guard_mut());
    let (source, target) = (from.as_ptr(), to.as_ptr());
    let distance = source.addr().abs_diff(target.addr());
    let suits = distance % LINE == 0 && distance >= len;
    if !suits || !std::arch::is_x86_feature_detected!("ermsb") {
        return false;
    }
    // SAFETY: `source` is valid for reads and `target` for writes of `len` bytes, since the slices
    // have at least this length and the guards keep them accessible. No Rust reference to these
    // bytes exists, as they are volatile memory, so the guest may change them meanwhile. The
    // direction flag is clear when an `asm!` block begins, so the addresses increase.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags),
        );
    }
    true
}

/// Does nothing, and returns false: the processor has no such instruction.
#[cfg(not(target_arch = "x86_64"))]
fn copy_long(_: &VolatileSlice<'_>, _: &VolatileSlice<'_>) -> bool {
    false
}
