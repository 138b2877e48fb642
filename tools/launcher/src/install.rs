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

use crate::child;
use crate::kernel_image;

/// The share with a bundle's files for guests: its tag and its mount point.
const BUNDLE: (&str, &str) = ("bundle", "/run/virtio-rdma/bundle");
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
    /// The kernel image of guests.
    pub kernel: PathBuf,
    /// A guest's description in which only the places of the files for guests are set.
    pub setup: Setup,
    /// The host's directory with the files for guests; `None` if the guests' root has them.
    pub source: Option<SharedDirectory>,
}

impl Install {
    /// The checkout whose build/target/PROFILE has this program. `kernel` is a directory with a
    /// kernel and its modules, to be used instead of the sysroot's.
    pub fn checkout(kernel: Option<&Path>) -> Result<Self> {
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
        let (image, tree, ours) = match kernel {
            None => {
                let (image, tree) = stock_kernel(&built)?;
                (image, tree, built)
            }
            Some(dir) => {
                let dir = fs::canonicalize(dir)
                    .with_context(|| format!("can't open {}", dir.display()))?;
                let (image, tree) = other_kernel(&dir)?;
                setup
                    .env
                    .push(("TESTBED_MODULES".into(), dir.display().to_string()));
                (image, tree, dir)
            }
        };
        setup.module = in_root(ours.join("module/virtio_rdma.ko"));
        setup.modules = in_root(tree);
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
            kernel: image,
            setup,
            source: None,
        })
    }

    /// The bundle whose bin has this program.
    pub fn bundle() -> Result<Self> {
        let program = env::current_exe()?;
        let bundle = program
            .ancestors()
            .nth(2)
            .filter(|bundle| bundle.join(LOADER).is_file())
            .with_context(|| format!("{} is not in the bin of a bundle", program.display()))?;
        let (tag, at) = BUNDLE;
        let files = bundle.join("guest");
        let place = |path: &Path| Place::new(tag, path);
        let tree = only_entry(&files.join("modules"))?;
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
            kernel: bundle.join("share/vmlinuz"),
            setup: Setup {
                modules: place(&Path::new("modules").join(&tree)),
                module: place(Path::new("virtio_rdma.ko")),
                provider: place(Path::new("provider")),
                ..Setup::default()
            },
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

    /// The directory for unpacked kernels.
    pub fn kernel_cache(&self) -> Option<PathBuf> {
        match &self.checkout {
            Some(top) => Some(top.join("build/cache")),
            None => kernel_image::user_cache(),
        }
    }

    fn bundled(&self) -> Result<&SharedDirectory> {
        self.source.as_ref().context("this is not a bundle")
    }
}

/// The sysroot's kernel image, and the directory of the modules that guests load at their start.
fn stock_kernel(built: &Path) -> Result<(PathBuf, PathBuf)> {
    let release = built.join("kernel.release");
    let release = fs::read_to_string(&release)
        .with_context(|| format!("no {}: run `make setup`", release.display()))?;
    let installed = Path::new("/usr/lib/modules").join(release.trim());
    let tree = built.join("modules").join(release.trim());
    if !tree.is_dir() {
        bail!("no {}: run `make tools`", tree.display());
    }
    Ok((installed.join("vmlinuz.unsigned"), tree))
}

/// The kernel image in a directory, and the directory of its modules, both without symbolic links:
/// a guest mounts the root elsewhere, where the target of an absolute link is another file.
fn other_kernel(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let image = ["vmlinuz", "arch/x86/boot/bzImage"]
        .iter()
        .map(|name| dir.join(name))
        .find(|image| image.is_file())
        .with_context(|| format!("no vmlinuz or arch/x86/boot/bzImage in {}", dir.display()))?;
    let modules = dir.join("lib/modules");
    let tree = modules.join(only_entry(&modules)?);
    let resolve =
        |path: PathBuf| fs::canonicalize(&path).with_context(|| path.display().to_string());
    Ok((resolve(image)?, resolve(tree)?))
}

fn only_entry(dir: &Path) -> Result<OsString> {
    let mut entries = fs::read_dir(dir).with_context(|| format!("can't read {}", dir.display()))?;
    let entry = entries
        .next()
        .with_context(|| format!("{} is empty", dir.display()))?;
    if entries.next().is_some() {
        bail!("{} has several entries, not one", dir.display());
    }
    Ok(entry?.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::symlink;

    #[test]
    fn modules_of_another_kernel_are_found_without_links() {
        let root = tempfile::tempdir().unwrap();
        let installed = root.path().join("usr/lib/modules");
        for release in ["7.2.1", "7.3.1"] {
            fs::create_dir_all(installed.join(release)).unwrap();
            fs::write(installed.join(release).join("vmlinuz.unsigned"), release).unwrap();
        }
        let dir = root.path().join("build");
        fs::create_dir_all(dir.join("lib/modules")).unwrap();
        symlink(
            installed.join("7.2.1/vmlinuz.unsigned"),
            dir.join("vmlinuz"),
        )
        .unwrap();
        let link = |release: &str| {
            symlink(
                installed.join(release),
                dir.join("lib/modules").join(release),
            )
        };
        link("7.2.1").unwrap();

        let tree = fs::canonicalize(installed.join("7.2.1")).unwrap();
        let found = other_kernel(&dir).unwrap();
        assert_eq!(found, (tree.join("vmlinuz.unsigned"), tree));

        link("7.3.1").unwrap();
        let error = other_kernel(&dir).unwrap_err().to_string();
        assert!(error.ends_with("has several entries, not one"), "{error}");
    }
}
