// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The locations of the programs and files for guests: in a checkout and its sysroot, or in a
//! bundle.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};
use guest::setup::{Place, Setup, Share, ROOT};

use crate::kernel::{only_entry, Kernel};
use crate::{cache, child};

/// The share with a bundle's files for guests: its tag and its mount point.
const BUNDLE: (&str, &str) = ("bundle", "/run/virtio-rdma/bundle");
/// The share with the modules of a kernel of the user's: its tag and its mount point.
pub const MODULES: (&str, &str) = ("modules", "/run/virtio-rdma/modules");
/// The share with the driver for this kernel.
pub const DRIVER: (&str, &str) = ("driver", "/run/virtio-rdma/driver");
/// The dynamic loader of a bundle's programs.
const LOADER: &str = "lib/ld-linux-x86-64.so.2";

/// The path of the demo's script for guests, in a checkout.
pub const DEMO: &str = "tools/launcher/guest/demo";

/// The command line that starts a program.
#[derive(Clone, Debug)]
pub struct Program(Vec<OsString>);

impl Program {
    /// A program of this system.
    pub fn new(path: impl Into<OsString>) -> Self {
        Self(vec![path.into()])
    }

    /// A program of a bundle, which uses the bundle's loader and libraries.
    fn bundled(bundle: &Path, name: &str) -> Self {
        Self(vec![
            bundle.join(LOADER).into(),
            "--library-path".into(),
            bundle.join("lib").into(),
            "--argv0".into(),
            name.into(),
            bundle.join("libexec").join(name).into(),
        ])
    }

    /// A command that starts the program as a child, which is killed with this process.
    pub fn command(&self) -> Result<Command> {
        let mut command = child::command()?;
        command.args(&self.0);
        Ok(command)
    }

    /// The words of the command line.
    pub fn words(&self) -> &[OsString] {
        &self.0
    }
}

/// A directory that guests see.
#[derive(Clone, Debug)]
pub struct SharedDirectory {
    /// The directory on this system.
    pub dir: PathBuf,
    /// Its tag and mount point in guests.
    pub share: Share,
}

impl SharedDirectory {
    /// A directory that is read-only for guests.
    pub fn new(dir: impl Into<PathBuf>, tag: &str, at: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            share: Share {
                tag: tag.to_owned(),
                at: at.into(),
                writable: false,
            },
        }
    }
}

/// The files of a checkout or a bundle.
#[derive(Clone, Debug)]
pub struct Install {
    /// The checkout's top directory; `None` for a bundle. Guests of a checkout see the sysroot in
    /// which this program runs.
    pub checkout: Option<PathBuf>,
    /// The QEMU program.
    pub qemu: Program,
    /// The virtiofs server, virtiofsd.
    pub virtiofsd: Program,
    /// The device's daemon.
    pub daemon: Program,
    /// The program that makes file systems.
    pub mke2fs: Program,
    /// The directory of QEMU's firmware; `None` for QEMU's default.
    pub firmware: Option<PathBuf>,
    /// The first program of a guest.
    pub guest: PathBuf,
    /// The kernel of guests, with its modules and the driver on this system.
    pub kernel: Kernel,
    /// A guest's description in which only the places of the files for guests are set.
    pub setup: Setup,
    /// The host's directory with the files for guests; `None` if the guests' root has them.
    pub source: Option<SharedDirectory>,
}

impl Install {
    /// The checkout whose build/target/PROFILE has this program. `kernel` is used instead of the
    /// sysroot's.
    pub fn checkout(kernel: Option<Kernel>) -> Result<Self> {
        let program = env::current_exe()?;
        let top = program
            .ancestors()
            .nth(4)
            .filter(|top| top.join(DEMO).is_file())
            .with_context(|| {
                format!(
                    "{} is not in the build/target of a checkout",
                    program.display()
                )
            })?;
        let built = top.join("build");
        let in_root = |path: PathBuf| Place::new(ROOT, path);
        let mut setup = Setup {
            provider: in_root(built.join("provider")),
            ..Setup::default()
        };
        let kernel = match kernel {
            Some(kernel) => kernel,
            None => stock_kernel(&built)?,
        };
        if let Some(dir) = &kernel.dir {
            let dir = dir.display().to_string();
            setup.env.push(("TESTBED_MODULES".into(), dir));
        }
        setup.modules = kernel.modules.clone().map(in_root);
        setup.driver = kernel.driver.clone().map(in_root);
        setup.empty = vec!["/tmp".into()];
        let programs = program.with_file_name("").display().to_string();
        setup.env.push(("TESTBED_PROGRAMS".into(), programs));
        let guest = program.with_file_name("virtio-rdma-guest");
        if !guest.is_file() {
            bail!("no {}: run `make tools`", guest.display());
        }
        Ok(Self {
            checkout: Some(top.to_path_buf()),
            qemu: Program::new("qemu-system-x86_64"),
            virtiofsd: Program::new("/usr/libexec/virtiofsd"),
            daemon: Program::new(program.with_file_name("virtio-rdmad")),
            mke2fs: Program::new("/usr/sbin/mke2fs"),
            firmware: None,
            guest,
            kernel,
            setup,
            source: None,
        })
    }

    /// The bundle whose bin has this program. `kernel` is used instead of the bundle's. Guests see
    /// its modules by the share [`MODULES`], and the driver by the share [`DRIVER`].
    pub fn bundle(kernel: Option<Kernel>) -> Result<Self> {
        let program = env::current_exe()?;
        let bundle = program
            .ancestors()
            .nth(2)
            .filter(|bundle| bundle.join(LOADER).is_file())
            .with_context(|| format!("{} is not in the bin of a bundle", program.display()))?;
        let (tag, at) = BUNDLE;
        let files = bundle.join("guest");
        let place = |path: &Path| Place::new(tag, path);
        let (kernel, modules, driver) = match kernel {
            Some(kernel) => {
                let driver = kernel.driver.as_ref().and_then(|driver| driver.file_name());
                let driver = Place::new(DRIVER.0, driver.unwrap_or_default());
                (kernel, Place::new(MODULES.0, "/"), driver)
            }
            None => {
                let tree = Path::new("modules").join(only_entry(&files.join("modules"))?);
                let stock = Kernel {
                    image: bundle.join("share/vmlinuz"),
                    modules: Some(files.join(&tree)),
                    driver: Some(files.join("virtio_rdma.ko")),
                    early_modules: Vec::new(),
                    dir: None,
                };
                (stock, place(&tree), place(Path::new("virtio_rdma.ko")))
            }
        };
        Ok(Self {
            checkout: None,
            qemu: Program::bundled(bundle, "qemu-system-x86_64"),
            virtiofsd: Program::bundled(bundle, "virtiofsd"),
            // The daemon is linked statically and needs no loader. If the bundle's loader started
            // it, the daemon would execute the loader when it executes itself again.
            daemon: Program::new(bundle.join("libexec/virtio-rdmad")),
            mke2fs: Program::bundled(bundle, "mke2fs"),
            firmware: Some(bundle.join("share/firmware")),
            guest: bundle.join("libexec/virtio-rdma-guest"),
            setup: Setup {
                modules: kernel.modules.is_some().then_some(modules),
                driver: kernel.driver.is_some().then_some(driver),
                provider: place(Path::new("provider")),
                ..Setup::default()
            },
            kernel,
            source: Some(SharedDirectory::new(files, tag, at)),
        })
    }

    /// The directory of a bundle's files for guests, on the host.
    pub fn files(&self) -> Result<&Path> {
        Ok(&self.bundled()?.dir)
    }

    /// The directory of a bundle's files for guests, as guests see it.
    pub fn files_in_guest(&self) -> Result<&Path> {
        Ok(&self.bundled()?.share.at)
    }

    /// The directory for files of one kind that later runs use again.
    pub fn cache(&self, kind: &str) -> Option<PathBuf> {
        cache::dir(self.checkout.as_deref(), kind)
    }

    fn bundled(&self) -> Result<&SharedDirectory> {
        self.source.as_ref().context("this is not a bundle")
    }
}

/// The sysroot's kernel, with the modules that guests load at their start.
fn stock_kernel(built: &Path) -> Result<Kernel> {
    let release = built.join("kernel.release");
    let release = fs::read_to_string(&release)
        .with_context(|| format!("no {}: run `make setup`", release.display()))?;
    let installed = Path::new("/usr/lib/modules").join(release.trim());
    let tree = built.join("modules").join(release.trim());
    if !tree.is_dir() {
        bail!("no {}: run `make tools`", tree.display());
    }
    Ok(Kernel {
        image: installed.join("vmlinuz.unsigned"),
        modules: Some(tree),
        driver: Some(built.join("module/virtio_rdma.ko")),
        early_modules: Vec::new(),
        dir: None,
    })
}
