// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The accelerators of guests, and parameters of the kernel for each.

use std::fs::{self, OpenOptions};

use clap::ValueEnum;

use crate::tsc;

/// The accelerator that runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// QEMU's translator.
    Tcg,
    /// The same, with one processor at a time and a clock that goes by what is executed: the time
    /// stamp counter ticks once an instruction.
    Counted,
}

/// Parameters of the kernel for an emulated processor, whose time stamp counter ticks at `tsc_khz`.
fn emulated(tsc_khz: u64) -> String {
    format!(
        " init_on_alloc=1 tsc_early_khz={tsc_khz} tsc=reliable no_timer_check \
         watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 \
         sysctl.kernel.hung_task_timeout_secs=240"
    )
}

/// Whether the processor can run guests.
pub fn has_virtualization() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split(' ').any(|flag| flag == "vmx" || flag == "svm"))
}

impl Accel {
    /// KVM if it can run a guest. Its device file can be there and open on a host whose processor
    /// offers no virtualization, so both are looked at.
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

    /// Arguments of QEMU.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => &[
                "-accel",
                "tcg,thread=multi",
                // With ERMS and FSRM the kernel clears and copies pages by a string instruction
                // that is translated byte by byte: starting a program takes more than twice as
                // long.
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

    /// Parameters of the kernel about it.
    pub fn command_line(self) -> String {
        match self {
            Self::Kvm => String::new(),
            // - A page that virtiofsd fills behind QEMU's back may still be cached as translated
            //   code, unless the guest itself writes the page first.
            // - The guest's time stamp counter is the host's. On a busy host the kernel measures it
            //   wrongly, by a factor of 30 even, and takes it for broken when it watches it.
            // - By that counter it gives the timer ten ticks for five interrupts, and panics
            //   without them. Under KVM it knows not to.
            // - Where an instruction costs twenty, what hangs is told from what is slow by a longer
            //   wait.
            Self::Tcg => emulated(tsc::khz()),
            // An instruction is a nanosecond.
            Self::Counted => emulated(1_000_000),
        }
    }
}
