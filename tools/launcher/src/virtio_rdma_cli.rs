// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The command line of `virtio-rdma`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::{Args, Parser, Subcommand};
use guest::proto::User;
use guest::setup::{Place, ROOT};
use guest::TOOLS;

use crate::accel::Accel;
use crate::bed::{BedOptions, Ground};
use crate::ctl::{ctl, CtlOptions};
use crate::demo::demo;
use crate::host_check;
use crate::install::{Install, SharedDirectory, DRIVER, MODULES};
use crate::kernel::KernelOptions;
use crate::rdmad::{DataPath, DeviceOptions};
use crate::root::Root;
use crate::run::{self, Job};

/// The virtiofs tag of the working directory.
const WORK: &str = "work";

/// Runs commands in virtual machines that are joined by RDMA, without RDMA hardware
#[derive(Parser)]
#[command(name = "virtio-rdma", version, max_term_width = 100)]
struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a command on VM 1 and end with its status
    ///
    /// The VMs see the files of this system, or of another root; what a VM writes is visible only
    /// to that VM. The command runs as the same user, in the same directory and environment, and
    /// reaches the other VMs by `on N COMMAND`. Status 125: the VMs could not be started or the
    /// command did not finish; 99: it passed, but a guest's kernel complained.
    Run {
        #[command(flatten)]
        machines: Machines,
        #[command(flatten)]
        job: Job,
    },
    /// Open a shell on VM 1
    Shell {
        #[command(flatten)]
        machines: Machines,
    },
    /// Run a demo on two VMs: their devices, ibv_rc_pingpong, and perftest on both data paths
    Demo {
        /// Options of `run`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Ask the daemon of a run that is under way: why a QP hangs, events, captures ...
    ///
    /// For example: virtio-rdma ctl qp vm1 --why
    Ctl(CtlOptions),
    /// Report what this machine lacks, and the commands that help
    Check {
        #[command(flatten)]
        machines: Machines,
    },
}

/// Options of the VMs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Virtual machines")]
struct Machines {
    /// Number of VMs
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=64))]
    vms: u8,
    /// Processors of each VM
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    smp: u32,
    /// Memory of each VM: MiB, or with a suffix M or G
    #[arg(long, value_name = "SIZE", default_value = "1024", value_parser = mebibytes)]
    mem: u32,
    /// Root of the VMs, for example a directory with an unpacked image
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Keep the changes of VM N's root on a disk, DIR/vmN.img, also for later runs
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,
    /// Give commands in the VMs an environment variable (may be repeated)
    ///
    /// NAME has the caller's value. With --root, commands have only TERM, the variables of the
    /// locale (LANG, LC_*), TZ, HOME, USER, LOGNAME and PATH of the caller, and these variables.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Let the VMs write to this working directory
    #[arg(long)]
    rw: bool,
    /// Put RDMA programs with their own libraries first in PATH: perftest, ibv_devinfo ...
    #[arg(long)]
    tools: bool,
    /// Time limit of the run in seconds; then the ends of all logs are shown
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Keep the logs of the VMs and the daemon in a directory
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,
    /// Accelerator of the VMs, instead of automatic detection
    #[arg(long, value_name = "ACCEL")]
    accel: Option<Accel>,
    /// Number of VMs, the last ones, that have Linux's rdma_rxe instead of this device
    #[arg(long, value_name = "N", default_value_t = 0)]
    rxe: u8,
    /// Ports of each VM: each is an RDMA device of its own
    ///
    /// Port P of VM N has the address 10.9.(P-1).N and, from the second on, the name vmN-pP.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    ports: Option<u8>,
    /// Data path between VMs
    #[arg(long, value_name = "PATH")]
    path: Option<DataPath>,
    /// Faults of the packets between the VMs: drop=0.01,seed=7,... Implies --path wire
    #[arg(long, value_name = "FAULTS")]
    faults: Option<String>,
    /// Failures by the rules of a scenario: a file, or reg-fails, dying-peer, lossy-1pct ...
    ///
    /// At the end, a line for each rule of a VM's port tells how often it has applied.
    #[arg(long, value_name = "FILE|NAME")]
    chaos: Option<String>,
    /// Write the packets between the VMs to a file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    kernel: KernelOptions,
}

fn mebibytes(text: &str) -> Result<u32> {
    let (digits, factor) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 1024),
        None => (text.strip_suffix(['M', 'm']).unwrap_or(text), 1),
    };
    let number: u32 = digits.parse().context("not a size like 512, 512M or 2G")?;
    number
        .checked_mul(factor)
        .filter(|size| *size >= 128)
        .context("a VM needs at least 128 MiB")
}

impl Machines {
    fn bed(&self) -> BedOptions {
        let path = match &self.faults {
            Some(_) => self.path.or(Some(DataPath::Wire)),
            None => self.path,
        };
        BedOptions {
            vms: self.vms,
            smp: self.smp,
            mem: self.mem,
            accel: self.accel,
            rng: false,
            timeout: self.timeout,
            allow_warnings: false,
            device: DeviceOptions {
                rxe: self.rxe,
                ports: self.ports,
                path,
                faults: self.faults.clone(),
                chaos: self.chaos.clone(),
                pcap: self.pcap.clone(),
                ..DeviceOptions::default()
            },
            kernel: self.kernel.clone(),
        }
    }

    /// VMs with the caller's root, user, directory and environment.
    fn ground(&self) -> Result<Ground> {
        let kernel = self.bed().chosen_kernel(self.overlay.is_some())?;
        let mut install = Install::bundle(kernel.clone())?;
        let root = directory(&self.root)?;
        let mut sources = vec![SharedDirectory::new(&root, ROOT, "/")];
        if let Some(kernel) = &kernel {
            let modules = kernel.modules.as_deref();
            let driver = kernel.driver.as_ref().and_then(|driver| driver.parent());
            for (dir, (tag, at)) in [(modules, MODULES), (driver, DRIVER)] {
                sources.extend(dir.map(|dir| SharedDirectory::new(dir, tag, at)));
            }
        }
        if self.rw {
            let dir = env::current_dir().context("can't find the working directory")?;
            if dir == Path::new("/") {
                bail!("--rw: the working directory is the root: change to another one");
            }
            let mut source = SharedDirectory::new(&dir, WORK, &dir);
            source.share.writable = true;
            sources.push(source);
        }
        let mut env = caller_env();
        if root != Path::new("/") {
            env.retain(|(name, _)| is_for_all_roots(name));
        }
        for text in &self.env {
            let (name, value) = variable(text)?;
            env.retain(|(present, _)| *present != name);
            env.push((name, value));
        }
        if self.tools {
            let tools = install.files()?.join("tools");
            if !tools.is_dir() {
                bail!("--tools: no {}: this bundle has none", tools.display());
            }
            install.setup.tools = Some(Place {
                share: install.setup.provider.share.clone(),
                path: "tools".into(),
            });
            put_first(&mut env, TOOLS);
        } else if let Some(what) = self.root_lacks(&install)? {
            eprintln!("virtio-rdma: {}: {what}", root.display());
        }
        Ok(Ground {
            name: "virtio-rdma",
            install,
            sources,
            user: Some(User::own()?),
            env,
            overlay: self.overlay.clone(),
            logs: self.artifacts.clone(),
        })
    }

    fn root_lacks(&self, install: &Install) -> Result<Option<String>> {
        let providers = install.files()?.join("provider");
        Ok(Root::look(&self.root).lacks(&providers))
    }
}

fn directory(dir: &Path) -> Result<PathBuf> {
    let full = fs::canonicalize(dir).with_context(|| format!("can't open {}", dir.display()))?;
    if !full.is_dir() {
        bail!("{} is not a directory", dir.display());
    }
    Ok(full)
}

/// The caller's environment variables, without those that are not UTF-8.
fn caller_env() -> Vec<(String, String)> {
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Whether a variable of the caller is for commands in any root. Others may hold secrets, and a
/// root other than the caller's own may be a stranger's.
fn is_for_all_roots(name: &str) -> bool {
    let names = [
        "TERM", "LANG", "LANGUAGE", "TZ", "HOME", "USER", "LOGNAME", "PATH",
    ];
    names.contains(&name) || name.starts_with("LC_")
}

/// The variable of an option `--env`: NAME=VALUE, or NAME with the caller's value.
fn variable(text: &str) -> Result<(String, String)> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    let value = env::var(text).with_context(|| format!("--env {text}"))?;
    Ok((text.to_owned(), value))
}

fn put_first(env: &mut Vec<(String, String)>, dir: &str) {
    match env.iter_mut().find(|(name, _)| name == "PATH") {
        Some((_, path)) => *path = format!("{dir}:{path}"),
        None => env.push(("PATH".into(), format!("{dir}:/usr/bin:/bin"))),
    }
}

/// Executes the command line. Returns the exit status.
pub fn main() -> Result<u8> {
    match Options::parse().action {
        Action::Run { machines, job } => run::run(&machines.bed(), machines.ground()?, &job),
        Action::Shell { machines } => {
            let shell = env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
            run::shell(&machines.bed(), machines.ground()?, &[&shell])
        }
        Action::Demo { mut options } => {
            let install = Install::bundle(None)?;
            let script = install.files_in_guest()?.join("demo");
            if !options.iter().any(|option| option == "--tools") {
                options.push("--tools".into());
            }
            demo(&script, &options)
        }
        Action::Ctl(options) => ctl(&options),
        Action::Check { machines } => {
            let lacks = machines.root_lacks(&Install::bundle(None)?)?;
            Ok(host_check::check(
                machines.bed().needs(),
                &machines.root,
                lacks,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(mebibytes("512").unwrap(), 512);
        assert_eq!(mebibytes("300M").unwrap(), 300);
        assert_eq!(mebibytes("2G").unwrap(), 2048);
        for wrong in ["", "G", "2T", "64", "4194304G"] {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tools_come_first() {
        let mut env = vec![("PATH".to_owned(), "/bin".to_owned())];
        put_first(&mut env, "/t");
        assert_eq!(env[0].1, "/t:/bin");
        env.clear();
        put_first(&mut env, "/t");
        assert!(env[0].1.starts_with("/t:"));
    }

    #[test]
    fn other_roots_get_no_secrets() {
        for name in ["PATH", "HOME", "LC_ALL", "TERM"] {
            assert!(is_for_all_roots(name), "{name}");
        }
        for name in ["GITHUB_TOKEN", "SSH_AUTH_SOCK", "LD_PRELOAD", "PATHS", ""] {
            assert!(!is_for_all_roots(name), "{name}");
        }
        let own = |text: &str| variable(text).unwrap();
        assert_eq!(own("A=b=c"), ("A".into(), "b=c".into()));
        assert_eq!(own("PATH").1, env::var("PATH").unwrap());
        assert!(variable("THERE_IS_NO_SUCH_VARIABLE").is_err());
    }

    /// An option with a mistake is not taken for the command.
    #[test]
    fn options_end_at_the_command() {
        let parsed = |words: &str| {
            let words = format!("virtio-rdma run {words}");
            Options::try_parse_from(words.split_whitespace())
        };
        for words in ["--timout 5 -- true", "--bogus", "--bogus true"] {
            let error = parsed(words).err().expect(words).to_string();
            assert!(error.contains("unexpected argument"), "{error}");
        }
        for words in [
            "true --timeout 5",
            "-- true --timeout 5",
            "-- --odd --timeout 5",
        ] {
            let Action::Run { job, machines, .. } = parsed(words).ok().unwrap().action else {
                unreachable!("a run was asked for");
            };
            assert_eq!(job.command[1..], ["--timeout", "5"]);
            assert_eq!(machines.timeout, None);
        }
    }

    #[test]
    fn faults_are_those_of_packets() {
        let options = |words: &str| {
            let words = format!("virtio-rdma shell {words}");
            match Options::parse_from(words.split_whitespace()).action {
                Action::Shell { machines } => machines.bed().device,
                _ => unreachable!("a shell was asked for"),
            }
        };
        assert_eq!(options("--faults drop=0.1").path, Some(DataPath::Wire));
        assert_eq!(
            options("--path direct --faults drop=0.1").path,
            Some(DataPath::Direct)
        );
        assert_eq!(options("").path, None);
    }
}
