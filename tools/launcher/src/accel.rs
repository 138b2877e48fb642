// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The accelerators of guests, and the kernel parameters for each.

use std::fs::{self, OpenOptions};

use clap::ValueEnum;

use crate::tsc::Measurement;

/// The accelerator that executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// The host's processor, by KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
    /// QEMU's translator with instruction counting: one processor runs at a time, and the time
    /// stamp counter ticks once per instruction.
    Counted,
}

/// Kernel parameters for a processor whose time stamp counter runs at `tsc_khz` kHz. `None` for one
/// that is not emulated.
pub fn command_line(tsc_khz: Option<u64>) -> String {
    // - init_on_alloc: virtiofsd may fill a page of which QEMU has cached translated code. QEMU
    //   drops that code only if the guest itself writes the page first.
    // - tsc_early_khz, tsc: on a busy host the kernel's calibration of the time stamp counter may
    //   be wrong by a factor of 30, and its watchdog would mark the counter as unstable.
    // - no_timer_check: the kernel waits ten ticks of that counter for five timer interrupts and
    //   panics if they are late. Under KVM it skips this check.
    // - The timeouts are longer because a guest's instruction costs about 20 of the host's.
    tsc_khz.map_or_else(String::new, |tsc_khz| {
        format!(
            " init_on_alloc=1 tsc_early_khz={tsc_khz} tsc=reliable no_timer_check \
             watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 \
             sysctl.kernel.hung_task_timeout_secs=240"
        )
    })
}

/// Whether the processor supports virtualization.
pub fn has_virtualization() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split(' ').any(|flag| flag == "vmx" || flag == "svm"))
}

impl Accel {
    /// KVM if it can run a guest, else TCG. Checks the device file and the processor: `/dev/kvm`
    /// may exist on a host whose processor has no virtualization.
    pub fn detect() -> Self {
        let opens = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok();
        if has_virtualization() && opens {
            Self::Kvm
        } else {
            Self::Tcg
        }
    }

    /// QEMU's arguments for the accelerator.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => &[
                "-accel",
                "tcg,thread=multi",
                // With ERMS and FSRM, the kernel clears and copies pages by a string instruction,
                // which QEMU executes byte by byte: a program's start would take more than twice
                // as long.
                "-cpu",
                "max,-erms,-fsrm",
            ],
            Self::Counted => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0",
                "-cpu",
                "max,-erms,-fsrm",
            ],
        }
    }

    /// QEMU's argument for a guest with `count` processors.
    pub fn processors(self, count: u32) -> String {
        match (self, count) {
            // For a guest that can't have a second processor, QEMU leaves out the barriers of
            // locked instructions. But the device is a second processor to the guest's memory, so
            // doorbells would get lost.
            (Self::Tcg, 1) => "1,maxcpus=2".into(),
            _ => count.to_string(),
        }
    }

    /// The rate in kHz at which the time stamp counter of a guest runs, if it is emulated. `tsc`
    /// measures the host's counter, which is the guest's too.
    pub fn tsc_khz(self, tsc: &Measurement) -> Option<u64> {
        match self {
            Self::Kvm => None,
            Self::Tcg => Some(tsc.khz()),
            // The counter ticks once per instruction, and an instruction takes a nanosecond: 1 GHz.
            Self::Counted => Some(1_000_000),
        }
    }
}
