// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A set of joined guests that are started, brought up, and ended together.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Error, Result};
use clap::Args;
use guest::proto::{Exec, User};
use guest::setup::ROOT;
use guest::PROGRAM;

use crate::accel::Accel;
use crate::console::Shown;
use crate::host_check::{self, Needs};
use crate::install::{Install, SharedDirectory};
use crate::kernel::{Kernel, KernelOptions};
use crate::kernel_image;
use crate::kernel_log::complaints;
use crate::phases::Phases;
use crate::rdmad::{wire_directly, Daemons, DeviceOptions};
use crate::router::{Event, GuestCommand, Router};
use crate::run_dirs::RunDirs;
use crate::saved::{self, SavedGuest};
use crate::tsc::Measurement;
use crate::untrusted::{create, end, printable};
use crate::vm::{Prepared, Shape, Start, Vm};

/// Interval at which a wait checks the limits of the run.
const POLL: Duration = Duration::from_millis(100);
/// Interval at which a guest that is not up yet is reported.
const SLOW: Duration = Duration::from_secs(60);
/// Time limit for fetching the kernels' messages at the end.
const DMESG_TIMEOUT: Duration = Duration::from_secs(20);
/// Environment variables of this process that commands in guests get too. TESTS selects the tests
/// of a script, and ROUNDS says how often some repeat them.
const PASSED_ON: [&str; 2] = ["ROUNDS", "TESTS"];
/// Number of log lines that are shown to explain a failure.
const TAIL: usize = 30;

/// Options of the guests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Virtual machines")]
pub struct BedOptions {
    /// Number of VMs
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=64))]
    pub vms: u8,
    /// Processors of each VM
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub smp: u32,
    /// Memory of each VM, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub mem: u32,
    /// Accelerator of the guests, instead of automatic detection
    #[arg(long, value_name = "ACCEL")]
    pub accel: Option<Accel>,
    /// Two virtio entropy devices in each VM: one that answers and, in a later slot, one that never
    /// answers
    #[arg(long)]
    pub rng: bool,
    /// Time limit of the run, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Ignore complaints of the guests' kernels, for a test that expects and checks them itself
    #[arg(long)]
    pub allow_warnings: bool,
    #[command(flatten)]
    pub device: DeviceOptions,
    #[command(flatten)]
    pub kernel: KernelOptions,
}

impl BedOptions {
    /// Resources of the machine that the guests need.
    pub fn needs(&self) -> Needs {
        Needs {
            vms: self.vms,
            mem: self.mem,
        }
    }

    /// The kernel that the user has chosen, which has what the guests need. `None` for the default
    /// one. `overlay` is whether the guests have disks.
    pub fn chosen_kernel(&self, overlay: bool) -> Result<Option<Kernel>> {
        let kernel = self.kernel.chosen()?;
        if let Some(kernel) = &kernel {
            let DeviceOptions { no_device, rxe, .. } = self.device;
            let purposes = [
                ("early", true),
                ("vm", true),
                ("device", !no_device && rxe < self.vms),
                ("rxe", rxe > 0),
                ("overlay", overlay),
            ];
            let purposes = purposes.iter().filter(|(_, wanted)| *wanted);
            let purposes: Vec<_> = purposes.map(|(purpose, _)| *purpose).collect();
            kernel.check(&purposes)?;
        }
        Ok(kernel)
    }
}

/// Reasons to end a run before its command has ended.
#[derive(Clone)]
pub struct Limits {
    /// The signal that has requested the end, or 0.
    pub signal: Arc<AtomicUsize>,
    /// The time at which the run must end; `None` without a time limit.
    pub until: Option<Instant>,
}

impl Limits {
    /// An error if the time is over or a signal has arrived.
    pub fn check(&self) -> Result<()> {
        if self.signal.load(Ordering::Relaxed) != 0 {
            bail!("interrupted");
        }
        if self.is_over() {
            bail!("the time is over (--timeout)");
        }
        Ok(())
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// The files that guests need, and the identity of their commands.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The name of this program.
    pub name: &'static str,
    /// Locations of programs and files.
    pub install: Install,
    /// The host's directories that guests see.
    pub sources: Vec<SharedDirectory>,
    /// The user of the commands, if not root.
    pub user: Option<User>,
    /// Environment variables of the commands.
    pub env: Vec<(String, String)>,
    /// The directory of the disks that keep the guests' changes of their root.
    pub overlay: Option<PathBuf>,
    /// The directory for logs, if the user has set one.
    pub logs: Option<PathBuf>,
}

impl Ground {
    /// Guests that see the sysroot and the checkout of this program.
    pub fn checkout(options: &BedOptions) -> Result<Self> {
        let env = PASSED_ON
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        Ok(Self {
            name: "testbed",
            install: Install::checkout(options.chosen_kernel(false)?)?,
            sources: vec![SharedDirectory::new("/", ROOT, "/")],
            user: None,
            env: env.collect(),
            overlay: None,
            logs: None,
        })
    }

    /// Whether logs are kept after the run.
    pub fn logs_stay(&self) -> bool {
        self.logs.is_some() || self.install.checkout.is_some()
    }
}

/// Guests did not start, but may the next time: a guest's kernel has panicked before its user space
/// started, so before it loaded our module, or a guest could not be restored.
#[derive(Debug)]
struct FailedStart {
    /// The reason in one line.
    reason: String,
    /// The message for the user, with the ends of the logs.
    said: String,
}

impl fmt::Display for FailedStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for FailedStart {}

/// The running guests.
pub struct Bed {
    /// The directories of the run.
    pub dirs: RunDirs,
    /// The properties of the guests.
    pub shape: Shape,
    /// The time until all guests were up.
    pub boot_time: Duration,
    /// The phases of the start, with those of VM 1.
    pub phases: Phases,
    ground: Ground,
    router: Arc<Router>,
    vms: Vec<Vm>,
    /// The threads that show the guests' consoles.
    consoles: Vec<Shown>,
    /// Whether complaints of the guests' kernels are ignored.
    allow_warnings: bool,
    daemons: Arc<Daemons>,
    /// The limits of the run.
    pub limits: Limits,
}

impl Bed {
    /// Starts the guests and brings their networks and devices up. Starts nothing on a machine that
    /// lacks what they need. If guests can't be restored, boots them. If a guest's kernel panics
    /// before its user space starts, boots all guests once more: under emulation, this happens
    /// about once in 400 boots.
    pub fn start(options: &BedOptions, ground: Ground, limits: Limits) -> Result<Self> {
        host_check::fits(options.needs())?;
        let name = ground.name;
        let booted = Self::boot(options, ground.clone(), limits.clone(), true);
        let error = booted.as_ref().err();
        let Some(failed) = error.and_then(|error| error.downcast_ref::<FailedStart>()) else {
            return booted;
        };
        eprintln!("{name}: once more, since {}", failed.reason);
        Self::boot(options, ground, limits, false)
    }

    /// Starts the guests. They are restored, if they can be and `may_restore` is set.
    fn boot(
        options: &BedOptions,
        ground: Ground,
        limits: Limits,
        may_restore: bool,
    ) -> Result<Self> {
        let phases = Phases::new();
        let tsc = Measurement::start();
        let dirs = RunDirs::new(&ground.install, ground.logs.as_deref())?;
        let shape = shape(options, &ground);
        let (daemons, wirings) = if options.device.no_device {
            (Daemons::default(), wire_directly(&dirs, shape.vms)?)
        } else {
            let vms = (shape.vms, options.mem);
            Daemons::start(&dirs, &ground.install, vms, &options.device)?
        };
        let daemons = Arc::new(daemons);
        // A weak reference: the daemons must end with the bed, but threads that serve a guest may
        // outlive the bed.
        let host = Arc::downgrade(&daemons);
        let mut bed = Self {
            dirs,
            shape,
            boot_time: Duration::ZERO,
            phases,
            ground,
            router: Router::new(Box::new(move |words| {
                host.upgrade().context("the run has ended")?.command(words)
            })),
            vms: Vec::new(),
            consoles: Vec::new(),
            allow_warnings: options.allow_warnings,
            daemons,
            limits,
        };
        let prepare = |(number, wiring)| Prepared::new(&bed.dirs, &bed.shape, number, wiring);
        let prepared: Vec<_> = (1..).zip(&wirings).map(prepare).collect::<Result<_>>()?;
        if let Some(port) = options.kernel.gdb {
            for command in Kernel::gdb(&bed.shape.install.kernel.image, port, options.vms) {
                eprintln!("{}: {command}", bed.ground.name);
            }
        }
        // Meanwhile, the daemons and the servers start.
        if bed.shape.accel != Accel::Kvm {
            let install = &mut bed.shape.install;
            let cache = install.cache("kernels");
            let image = &mut install.kernel.image;
            *image = kernel_image::unpacked(image, cache.as_deref(), bed.dirs.run());
        }
        let tsc_khz = bed.shape.accel.tsc_khz(&tsc);
        let saved = if may_restore {
            bed.saved_guest(tsc_khz)
        } else {
            None
        };
        let start = saved.map_or(Start::Boot { tsc_khz }, Start::Restore);
        bed.daemons.await_ready()?;
        let mut links = Vec::new();
        for (prepared, wiring) in prepared.into_iter().zip(&wirings) {
            let (vm, link) = Vm::start(&bed.dirs, &bed.shape, prepared, wiring, &start)?;
            links.push(bed.router.attach(vm.number, link)?);
            if options.kernel.console {
                let console = Shown::start(vm.number, vm.console.file.clone());
                bed.consoles.push(console);
            }
            bed.vms.push(vm);
            if bed.vms.len() == 1 {
                bed.phases.end("launcher");
            }
        }
        let mut agent = Duration::ZERO;
        for (at, events) in links.iter().enumerate() {
            if !bed.is_up(at, events, &start)? {
                let vm = &mut bed.vms[at];
                let number = vm.number;
                let console = tail(&vm.console.file);
                let dead = vm.dead_servers().join("\n");
                let said = [dead, tail(&vm.messages), console.clone()].join("\n");
                let said = format!("VM {number} ended before it was up:\n{}", said.trim());
                let reason = match (early_panic(&console), start) {
                    (_, Start::Restore(saved)) => {
                        saved.forget();
                        format!("VM {number} could not be restored: {}", last_line(&said))
                    }
                    (Some(panic), _) => {
                        format!("the kernel of VM {number} panicked early: {panic}")
                    }
                    (None, _) => return Err(Error::msg(said)),
                };
                return Err(Error::new(FailedStart { reason, said }));
            }
            if at == 0 {
                agent = bed.phases.elapsed();
            }
        }
        // Complaints before user space has started are ignored: our module was not loaded yet.
        bed.new_complaints();
        let marks = bed.bring_up()?;
        bed.boot_time = bed.phases.elapsed();
        bed.phases.add_guest(&marks, agent)?;
        bed.phases.end("all VMs");
        Ok(bed)
    }

    /// The saved guest that can be restored as any of the guests. `None` if there is none.
    fn saved_guest(&self, tsc_khz: Option<u64>) -> Option<SavedGuest> {
        match SavedGuest::of(&self.dirs, &self.shape, tsc_khz, &self.limits) {
            Ok(saved) => saved,
            Err(error) => {
                let name = self.ground.name;
                eprintln!("{name}: the VMs boot, since none could be saved: {error:#}");
                None
            }
        }
    }

    /// Waits for a guest's agent. Says each minute how far the guest is. Returns false if it has
    /// ended, or if it was restored and does not go on.
    fn is_up(&self, at: usize, events: &Receiver<Event>, start: &Start) -> Result<bool> {
        let began = Instant::now();
        let mut said = Duration::ZERO;
        loop {
            if let Some(event) = self.next_within(events, POLL) {
                return Ok(event == Event::Up);
            }
            self.limits.check()?;
            if matches!(start, Start::Restore(_)) && began.elapsed() > saved::LIMIT {
                return Ok(false);
            }
            if began.elapsed() >= said + SLOW {
                said += SLOW;
                let vm = &self.vms[at];
                let console = tail(&vm.console.file);
                eprintln!(
                    "{}: VM {} is not up after {} s; the last line of its console: {}",
                    self.ground.name,
                    vm.number,
                    said.as_secs(),
                    last_line(&console)
                );
            }
        }
    }

    /// Brings the networks and devices of all guests up, in parallel. Returns the phases that VM 1
    /// has reported.
    fn bring_up(&self) -> Result<String> {
        let running: Vec<_> = self
            .vms
            .iter()
            .map(|vm| (vm, self.ask(vm.number, "up")))
            .collect();
        let mut first = None;
        for (vm, command) in running {
            let (status, output) = self.collect(&command)?;
            let output = String::from_utf8_lossy(&output).into_owned();
            if status != Some(0) {
                let what = printable(&output);
                bail!("can't bring VM {} up:\n{}", vm.number, what.trim());
            }
            first.get_or_insert(output);
        }
        Ok(first.unwrap_or_default())
    }

    /// Runs our program in a guest, with the argument `what`.
    fn ask(&self, vm: usize, what: &str) -> GuestCommand {
        self.router.exec(&Exec {
            vm,
            argv: vec![PROGRAM.into(), what.into()],
            ..Exec::default()
        })
    }

    /// Starts a command in a guest. Its working directory has the same path as this process's.
    pub fn exec(&self, vm: usize, argv: Vec<String>, terminal: Option<(u16, u16)>) -> GuestCommand {
        let cwd = std::env::current_dir()
            .map(|dir| dir.display().to_string())
            .unwrap_or_default();
        self.router.exec(&Exec {
            vm,
            argv,
            cwd,
            env: self.ground.env.clone(),
            user: self.ground.user.clone(),
            terminal,
        })
    }

    /// Waits for the next event of a command or link. An error if the run must end.
    pub fn next(&self, events: &Receiver<Event>) -> Result<Event> {
        loop {
            match self.next_within(events, POLL) {
                Some(event) => return Ok(event),
                None => self.limits.check()?,
            }
        }
    }

    /// The next event, if it arrives within `time`.
    pub fn next_within(&self, events: &Receiver<Event>, time: Duration) -> Option<Event> {
        match events.recv_timeout(time) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Lost),
        }
    }

    /// Waits for a command. Returns its status, or `None` if its guest has ended, and its output.
    fn collect(&self, command: &GuestCommand) -> Result<(Option<u8>, Vec<u8>)> {
        let mut output = Vec::new();
        loop {
            match self.next(&command.events)? {
                Event::Stdout(bytes) | Event::Stderr(bytes) => output.extend(bytes),
                Event::Exit(status) => return Ok((Some(status), output)),
                Event::Lost => return Ok((None, output)),
                Event::Up | Event::Taken(_) => {}
            }
        }
    }

    /// Processor time of all QEMUs.
    pub fn processor_time(&self) -> Duration {
        self.vms.iter().map(Vm::processor_time).sum()
    }

    /// Whether all guests and daemons are still running.
    pub fn is_whole(&mut self) -> bool {
        self.daemons.all_run() && self.vms.iter_mut().all(Vm::runs)
    }

    /// The last message of a QEMU that has aborted after its daemon was killed. The abort is a bug
    /// of QEMU 11.1, not of the daemon: one of QEMU's assertions may fail when the daemon is gone.
    pub fn abort_without_daemon(&self) -> Option<String> {
        if self.daemons.all_run() {
            return None;
        }
        // QEMU may still be running for a moment, but it prints nothing after a failed assertion.
        let said = self.vms.iter().map(|vm| tail(&vm.messages));
        said.filter_map(|said| failed_assertion(&said)).next()
    }

    /// The QPs whose work stands still, each with the reason.
    pub fn stalled(&self) -> Vec<String> {
        self.daemons.stalled()
    }

    /// The rules of scenarios, each with how often it has applied.
    pub fn rules(&self) -> Vec<String> {
        self.daemons.rules()
    }

    /// Failures of daemons since the last call, and complaints of guests' kernels.
    pub fn new_complaints(&mut self) -> Vec<String> {
        let mut found = self.daemons.complaints();
        for vm in &mut self.vms {
            let new = vm.console.new_lines().flat_map(|new| complaints(&new));
            let counted = new.filter(|_| !self.allow_warnings);
            found.extend(counted.map(|line| format!("VM {}: {}", vm.number, printable(&line))));
        }
        found
    }

    /// Ends the guests, and keeps the logs for [`log_tails`](Self::log_tails). Returns the failures
    /// and complaints of guests and daemons.
    pub fn end(&mut self) -> Vec<String> {
        let mut wrong = self.new_complaints();
        // Ending the guests has a time limit of its own: the limit of the run may be over.
        self.limits = Limits {
            signal: Arc::default(),
            until: Some(Instant::now() + DMESG_TIMEOUT),
        };
        self.save_messages();
        for vm in &self.vms {
            self.router.power_off(vm.number);
        }
        for vm in &mut self.vms {
            if !vm.end() {
                wrong.push(format!("VM {} did not end by itself", vm.number));
            }
        }
        // A daemon may have failed while the guests ended.
        wrong.extend(self.new_complaints());
        wrong
    }

    /// The last lines of each non-empty log of the run.
    pub fn log_tails(&self) -> String {
        let mut files: Vec<_> = fs::read_dir(&self.dirs.logs)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        let mut text = String::new();
        for file in files {
            let tail = tail(&file);
            if !tail.is_empty() {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                text.extend(["--- ", &name, "\n", &tail, "\n"]);
            }
        }
        text
    }

    /// Saves each guest's kernel messages to the logs: the console has only the warnings.
    fn save_messages(&self) {
        let running: Vec<_> = self
            .vms
            .iter()
            .map(|vm| (vm.number, self.ask(vm.number, "dmesg")))
            .collect();
        for (number, command) in running {
            let file = self.dirs.logs.join(format!("vm{number}.dmesg"));
            if let Ok((Some(0), messages)) = self.collect(&command) {
                let _ = create(&file).and_then(|mut file| file.write_all(&messages));
            }
        }
    }
}

fn shape(options: &BedOptions, ground: &Ground) -> Shape {
    let own = ground.install.source.iter();
    Shape {
        vms: usize::from(options.vms),
        smp: options.smp,
        mem: options.mem,
        accel: options.accel.unwrap_or_else(Accel::detect),
        setup: ground.install.setup.clone(),
        sources: ground.sources.iter().chain(own).cloned().collect(),
        install: ground.install.clone(),
        overlay: ground.overlay.clone(),
        options: options.kernel.clone(),
        all_have_device: !options.device.no_device && options.device.rxe == 0,
        rng: options.rng,
    }
}

/// The last line of a program's output, if it reports a failed assertion.
fn failed_assertion(said: &str) -> Option<String> {
    let last = said.lines().last()?;
    (last.contains(": Assertion `") && last.ends_with(" failed.")).then(|| last.to_owned())
}

/// The line by which the kernel reports its panic at the end of a console's text. `None` if the
/// first process has ended, which is our program.
fn early_panic(console: &str) -> Option<String> {
    let last = complaints(console).pop()?;
    let early = last.contains("Kernel panic") && !last.contains("Attempted to kill init");
    early.then_some(last)
}

fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or("(none)")
}

/// The last lines of a log, for an error message.
fn tail(file: &std::path::Path) -> String {
    let log = printable(&end(file));
    let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_that_failed() {
        let assertion = "qemu: util/error.c:62: error_setv: Assertion `*errp == NULL' failed.";
        assert_eq!(failed_assertion(assertion).as_deref(), Some(assertion));
        assert!(failed_assertion(&format!("{assertion}\nterminating on signal 15")).is_none());
        assert!(failed_assertion("qemu: terminating on signal 15").is_none());
        assert!(failed_assertion("").is_none());
    }

    #[test]
    fn panics_before_the_first_process() {
        let panic = "[    2.6] ---[ end Kernel panic - not syncing: Fatal exception ]---";
        let console = format!("[    2.5] BUG: unable to handle page fault\r\n{panic}\r\n");
        assert_eq!(early_panic(&console).as_deref(), Some(panic));
        let init = "[    3.1] ---[ end Kernel panic - not syncing: Attempted to kill init! ]---";
        assert!(early_panic(init).is_none());
        assert!(early_panic("[    1.0] BUG: something\r\n").is_none());
        assert!(early_panic("").is_none());
    }
}
