// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `virtio-rdma check`: what this machine lacks, and the commands that help.

use std::env;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::accel::{has_virtualization, Accel};

/// Minimum limit of open files: virtiofsd keeps each file open that a guest has looked up.
pub const FILES: u64 = 4096;
/// Memory of a run in addition to the guests' memory, in MiB.
const OVERHEAD: u64 = 256;

/// Raises the limit of open files to its maximum, for this process and its children: virtiofsd
/// keeps many files open.
pub fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // A limit that can't be raised may suffice. If it does not, the program that dies is named.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The result of one check.
enum Finding {
    Fine(String),
    /// Guests work, but with a restriction.
    Poor(String),
    /// Guests can't run.
    Bad(String),
}

/// Checks the machine and prints the findings. `needed` is the memory of all guests in MiB, `lacks`
/// what their root lacks. Returns 0 if guests can run.
pub fn check(needed: u64, root: &Path, lacks: Option<String>) -> u8 {
    let verbs = match lacks {
        None => Finding::Fine("its libibverbs has a provider that fits".into()),
        Some(what) => Finding::Poor(what),
    };
    let mut status = 0;
    for (name, finding) in [
        ("KVM", kvm()),
        ("memory", memory(needed)),
        ("files", files()),
        ("sockets", sockets()),
        ("AppArmor", namespaces()),
        ("Secure Boot", secure_boot()),
        ("RDMA programs", verbs),
    ] {
        let name = match name {
            "RDMA programs" => format!("{name} in {}", root.display()),
            other => other.to_owned(),
        };
        let (mark, text) = match finding {
            Finding::Fine(text) => ("ok  ", text),
            Finding::Poor(text) => ("note", text),
            Finding::Bad(text) => {
                status = 1;
                ("FAIL", text)
            }
        };
        println!("{mark} {name}: {text}");
    }
    status
}

fn kvm() -> Finding {
    if Accel::detect() == Accel::Kvm {
        return Finding::Fine("guests run at full speed".into());
    }
    let slow = "Guests run under TCG, some 20 times slower.";
    if !has_virtualization() {
        return Finding::Poor(format!(
            "the processor shows no vmx or svm: enable virtualization in the firmware, or nested \
             virtualization on the host of this VM. {slow}"
        ));
    }
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    match opened.map_err(|error| error.kind()) {
        Err(io::ErrorKind::PermissionDenied) => Finding::Poor(format!(
            "/dev/kvm is not open to you: `sudo usermod -aG kvm $USER`, then log in again. {slow}"
        )),
        _ => Finding::Poor(format!(
            "no /dev/kvm: `sudo modprobe kvm_intel` or kvm_amd, or `--device /dev/kvm` for a \
             container. {slow}"
        )),
    }
}

fn memory(needed: u64) -> Finding {
    let wanted = needed + OVERHEAD;
    let Some(free) = available() else {
        return Finding::Poor("it is not known how much is free".into());
    };
    if free >= wanted {
        Finding::Fine(format!("{free} MiB are free, the VMs take up to {wanted}"))
    } else {
        Finding::Bad(format!(
            "{free} MiB are free, the VMs take up to {wanted}: give a smaller --mem or fewer --vms"
        ))
    }
}

/// Available memory in MiB, within the control group's limit if there is one.
fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok()?;
    let line = system
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let system: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let group = number("memory.max").zip(number("memory.current"));
    let group = group.map(|(limit, used)| limit.saturating_sub(used) >> 20);
    Some(group.map_or(system >> 10, |group| group.min(system >> 10)))
}

fn files() -> Finding {
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < FILES => Finding::Poor(format!(
            "{limit} open files are allowed, {FILES} or more are wanted: `ulimit -Hn 524288`, as \
             root"
        )),
        _ => Finding::Fine("enough may be open".into()),
    }
}

fn sockets() -> Finding {
    let dir = env::temp_dir();
    let probe = dir.join(format!("virtio-rdma.probe.{}", std::process::id()));
    match fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
        Ok(()) => Finding::Fine(format!("{} takes them", dir.display())),
        Err(error) => Finding::Bad(format!(
            "{}: {error}: `export TMPDIR=DIR` with a directory that you may write to",
            dir.display()
        )),
    }
}

/// Reports that restrictions of user namespaces (AppArmor on Ubuntu, seccomp in containers) do not
/// matter.
fn namespaces() -> Finding {
    Finding::Fine("no namespaces are made here, so no rule about them matters".into())
}

fn secure_boot() -> Finding {
    Finding::Fine("the module is loaded by the guests' kernel, which runs without it".into())
}
