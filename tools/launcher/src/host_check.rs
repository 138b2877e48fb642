// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `virtio-rdma check`: what this machine lacks, and the commands that help.

use std::env;
use std::error::Error;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::iter;
use std::path::Path;

use rustix::fs::statvfs;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::accel::{has_virtualization, Accel};
use crate::run_dirs::random;

/// Minimum limit of open files: virtiofsd keeps each file open that a guest has looked up.
pub const FILES: u64 = 4096;
/// Limit of open files below which virtiofsd ends while a guest boots.
const LEAST_FILES: u64 = 1024;
/// Memory of a run in addition to the guests' memory, in MiB.
const OVERHEAD: u64 = 256;
/// Memory that a guest uses before its first program, in MiB.
const USED: u64 = 256;
/// Size of the unpacked kernel, in MiB.
const KERNEL: u64 = 80;
/// Size of the initramfs and the logs of a guest, in MiB.
const FILES_OF_VM: u64 = 8;

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

/// Resources of the machine that a run needs.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Number of guests.
    pub vms: u8,
    /// Memory of each guest in MiB.
    pub mem: u32,
}

/// The result of one check.
enum Finding {
    Fine(String),
    /// Guests work, but with a restriction.
    Poor(String),
    /// Guests can't run.
    Bad(String),
}

/// Requirements of guests that the machine does not meet: their names, as [`check`] prints them,
/// each with what is there, what is needed, and what helps.
#[derive(Debug)]
pub struct Unmet(Vec<(&'static str, String)>);

impl Unmet {
    /// The names of the requirements.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VMs can't run on this machine")?;
        for (name, text) in &self.0 {
            write!(f, "; {name}: {text}")?;
        }
        Ok(())
    }
}

impl Error for Unmet {}

/// The findings that can be bad.
fn requirements(needs: Needs) -> [(&'static str, Finding); 4] {
    [
        ("memory", memory(needs, available())),
        ("files", files(getrlimit(Resource::Nofile).maximum)),
        ("sockets", sockets()),
        ("disk", disk(needs)),
    ]
}

/// Fails if guests can't run on this machine.
pub fn fits(needs: Needs) -> Result<(), Unmet> {
    let bad = requirements(needs)
        .into_iter()
        .filter_map(|(name, finding)| match finding {
            Finding::Bad(text) => Some((name, text)),
            _ => None,
        });
    let unmet = Unmet(bad.collect());
    if unmet.0.is_empty() {
        Ok(())
    } else {
        Err(unmet)
    }
}

/// Checks the machine and prints the findings. `root_lacks` is what the guests' root lacks. Returns
/// 0 if guests can run.
pub fn check(needs: Needs, root: &Path, root_lacks: Option<String>) -> u8 {
    let verbs = match root_lacks {
        None => Finding::Fine("its libibverbs has a provider that fits".into()),
        Some(what) => Finding::Poor(what),
    };
    let programs = format!("RDMA programs in {}", root.display());
    let remarks = [
        ("AppArmor", namespaces()),
        ("Secure Boot", secure_boot()),
        (programs.as_str(), verbs),
    ];
    let findings = iter::once(("KVM", kvm())).chain(requirements(needs));
    let mut status = 0;
    for (name, finding) in findings.chain(remarks) {
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

/// `free` is the available memory in MiB, if it is known.
fn memory(Needs { vms, mem }: Needs, free: Option<u64>) -> Finding {
    let of_all = |each: u64| u64::from(vms) * each + OVERHEAD;
    let least = of_all(USED.min(mem.into()));
    let most = of_all(mem.into());
    match free {
        None => Finding::Poor("it is not known how much is free".into()),
        Some(free) if free < least => Finding::Bad(format!(
            "{free} MiB are free, {vms} VMs take {least} at least: give fewer --vms"
        )),
        Some(free) if free < most => Finding::Poor(format!(
            "{free} MiB are free, the VMs take up to {most} if their programs do: give a smaller \
             --mem"
        )),
        Some(free) => Finding::Fine(format!("{free} MiB are free, the VMs take up to {most}")),
    }
}

/// Available memory in MiB, within the limits of the control groups of this process.
fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok()?;
    let system = value(&system, "MemAvailable:")? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let rooms = groups
        .lines()
        .filter_map(|line| room(line, Path::new("/sys/fs/cgroup")));
    Some(rooms.fold(system, u64::min) >> 20)
}

/// The bytes that a control group and the groups around it have left, if any has a limit. `line` is
/// of `/proc/self/cgroup`, `mount` the directory of the hierarchies.
fn room(line: &str, mount: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, group) = (fields.next()?, fields.next()?);
    let (top, limit, used, prefix) = match controllers {
        "" => (mount.to_path_buf(), "memory.max", "memory.current", ""),
        _ if controllers.split(',').any(|name| name == "memory") => (
            mount.join("memory"),
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_",
        ),
        _ => return None,
    };
    let group = top.join(group.trim_start_matches('/'));
    let around = group.ancestors().take_while(|dir| dir.starts_with(&top));
    let left = around.filter_map(|dir| {
        let number =
            |name| -> Option<u64> { fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok() };
        let limit = number(limit)?;
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        // The kernel drops these pages of files before it refuses memory.
        let files = ["active_file", "inactive_file"].map(|name| format!("{prefix}{name}"));
        let files: u64 = files.iter().filter_map(|name| value(&stat, name)).sum();
        Some(limit.saturating_sub(number(used)?.saturating_sub(files)))
    });
    left.min()
}

/// The number in the line that begins with a word.
fn value(text: &str, word: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| (words.next()? == word).then_some(words))?;
    words.next()?.parse().ok()
}

/// `limit` is the hard limit of open files; `None` is no limit.
fn files(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < LEAST_FILES => Finding::Bad(format!(
            "{limit} open files are allowed, {LEAST_FILES} are needed and {FILES} wanted: \
             `ulimit -Hn 524288`, as root"
        )),
        Some(limit) if limit < FILES => Finding::Poor(format!(
            "{limit} open files are allowed, so programs in a VM can't look up more than about \
             that many files: `ulimit -Hn 524288`, as root"
        )),
        _ => Finding::Fine("enough may be open".into()),
    }
}

fn sockets() -> Finding {
    let dir = env::temp_dir();
    // Other launchers look at the same time, and in other namespaces have the same numbers.
    let probe = dir.join(format!("virtio-rdma-probe.{:08x}", random()));
    match fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
        Ok(()) => Finding::Fine(format!("{} takes them", dir.display())),
        Err(error) => Finding::Bad(format!(
            "{}: {error}: `export TMPDIR=DIR` with a directory that you may write to",
            dir.display()
        )),
    }
}

/// The initramfs and logs of the guests are in the directory of temporary files, and the unpacked
/// kernel if its own directory takes none.
fn disk(Needs { vms, .. }: Needs) -> Finding {
    let dir = env::temp_dir();
    let Ok(at) = statvfs(&dir) else {
        return Finding::Poor(format!(
            "it is not known how much of {} is free",
            dir.display()
        ));
    };
    let free = (at.f_bavail.saturating_mul(at.f_frsize)) >> 20;
    let wanted = KERNEL + u64::from(vms) * FILES_OF_VM;
    let (dir, said) = (
        dir.display(),
        format!("{free} MiB are free, {wanted} are needed"),
    );
    if free < wanted {
        Finding::Bad(format!("{dir}: {said}: `export TMPDIR=DIR`"))
    } else {
        Finding::Fine(format!("{dir}: {said}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(finding: &Finding) -> &'static str {
        match finding {
            Finding::Fine(_) => "fine",
            Finding::Poor(_) => "poor",
            Finding::Bad(_) => "bad",
        }
    }

    #[test]
    fn memory_is_refused_if_guests_could_not_boot() {
        let needs = Needs { vms: 4, mem: 1024 };
        let grades = [Some(1279), Some(1280), Some(4351), Some(4352), None];
        let grades = grades.map(|free| grade(&memory(needs, free)));
        assert_eq!(grades, ["bad", "poor", "poor", "fine", "poor"]);
        let small = Needs { vms: 4, mem: 128 };
        assert_eq!(grade(&memory(small, Some(768))), "fine");
    }

    #[test]
    fn few_open_files_are_refused() {
        let grades = [Some(1023), Some(1024), Some(4095), Some(4096), None];
        let grades = grades.map(|limit| grade(&files(limit)));
        assert_eq!(grades, ["bad", "poor", "poor", "fine", "fine"]);
        let Finding::Bad(text) = files(Some(256)) else {
            panic!("256 files suffice");
        };
        assert!(
            text.contains("256 open files are allowed, 1024 are needed"),
            "{text}"
        );
    }

    #[test]
    fn control_groups_limit_memory() {
        let mount = env::temp_dir().join(format!("cgroup.{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = mount.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("outer/memory.max", "9000\n");
        write("outer/memory.current", "8000\n");
        write(
            "outer/memory.stat",
            "anon 4\nactive_file 100\ninactive_file 500\n",
        );
        write("outer/inner/memory.max", "max\n");
        write("outer/inner/memory.current", "7000\n");
        write("memory/job/memory.limit_in_bytes", "700\n");
        write("memory/job/memory.usage_in_bytes", "600\n");
        write(
            "memory/job/memory.stat",
            "active_file 1\ntotal_active_file 50\n",
        );
        let room = |line| room(line, &mount);
        assert_eq!(room("0::/outer/inner"), Some(1600));
        assert_eq!(room("0::/"), None);
        assert_eq!(room("4:cpu,memory:/job"), Some(150));
        assert_eq!(room("4:cpu:/job"), None);
        assert_eq!(room("nonsense"), None);
        fs::remove_dir_all(mount).unwrap();
    }
}
