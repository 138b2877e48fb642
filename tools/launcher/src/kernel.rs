// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A kernel of the user's: its image, its modules, the driver for it, and what it lacks.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use guest::module_list::{files, is_built_in};
use guest::needs::{self, Need};

/// The places of an image in a directory that has a kernel. The last one, of an unpacked package,
/// is the beginning of the image's path.
const IMAGES: [&str; 3] = ["vmlinuz", "arch/x86/boot/bzImage", "boot/vmlinuz-"];
/// The places of modules in a directory that has a kernel.
const MODULES: [&str; 2] = ["lib/modules", "usr/lib/modules"];
/// The depth of an image in a build tree.
const DEPTH: usize = 4;

/// Options of the guests' kernel.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Kernel of the virtual machines")]
pub struct KernelOptions {
    /// Boot another kernel: an image, or a directory with vmlinuz, arch/x86/boot/bzImage or
    /// boot/vmlinuz-RELEASE
    ///
    /// A directory may also have the kernel's modules in lib/modules or usr/lib/modules, and our
    /// modules in module and kverbs.
    #[arg(long, value_name = "IMAGE")]
    pub kernel: Option<PathBuf>,
    /// Modules of this kernel: /lib/modules/RELEASE, or what modules_install has made
    ///
    /// Without modules, the kernel needs all in its image.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// Load another of these modules before the root is mounted (may be repeated)
    ///
    /// Modules without which the root can't be mounted are found without this option.
    #[arg(long = "initrd-module", value_name = "NAME", requires = "kernel")]
    pub initrd_modules: Vec<String>,
    /// The driver for this kernel, virtio_rdma.ko, unless the kernel or its modules have it
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub driver: Option<PathBuf>,
    /// Additional parameters for the kernel's command line
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub append: String,
    /// Let gdb debug the kernel of VM N at the local TCP port PORT + N - 1
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65472))]
    pub gdb: Option<u16>,
    /// Show the kernels' consoles on standard error
    #[arg(long)]
    pub console: bool,
}

/// A kernel of guests.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// The directory with modules.dep. It and the image have no symbolic links in their paths: a
    /// guest mounts the root elsewhere, where the target of an absolute link is another file.
    pub modules: Option<PathBuf>,
    /// The driver, unless it is one of the modules or a part of the image.
    pub driver: Option<PathBuf>,
    /// The files of the modules that are loaded before the root is mounted.
    pub early_modules: Vec<PathBuf>,
    /// The directory, if the user named one, not an image.
    pub dir: Option<PathBuf>,
}

impl KernelOptions {
    /// The kernel that the user has chosen. `None` for the default one.
    pub fn chosen(&self) -> Result<Option<Kernel>> {
        let Some(kernel) = &self.kernel else {
            return Ok(None);
        };
        let given = resolved(kernel)?;
        let dir = given.is_dir().then(|| given.clone());
        let image = match &dir {
            Some(dir) => image_in(dir)?,
            None => given,
        };
        let modules = match (&self.modules, &dir) {
            (Some(modules), _) => Some(module_tree(modules)?),
            (None, Some(dir)) if installed_in(dir).is_some() => Some(module_tree(dir)?),
            _ => None,
        };
        let beside = dir.as_ref().map(|dir| dir.join("module/virtio_rdma.ko"));
        let driver = match &self.driver {
            Some(driver) => Some(resolved(driver)?),
            None => beside.filter(|driver| driver.is_file()),
        };
        let early_modules = match &modules {
            Some(modules) => early(modules, &self.initrd_modules)?,
            None if self.initrd_modules.is_empty() => Vec::new(),
            None => bail!("--initrd-module: --modules DIR is missing"),
        };
        Ok(Some(Kernel {
            image,
            modules,
            driver,
            early_modules,
            dir,
        }))
    }
}

impl Kernel {
    /// Fails if the kernel lacks what VMs need for one of these purposes (see [`Need::is_for`]), as
    /// far as this is known before it starts: its configuration must be in its build tree, beside
    /// its image as `config-RELEASE`, or in the directory of its modules.
    pub fn check(&self, purposes: &[&str]) -> Result<()> {
        let head = head(&self.image)?;
        ensure!(
            head.starts_with(ELF) || head.ends_with(BZ_IMAGE),
            "{} is not the image of a kernel: a bzImage or vmlinux for x86-64",
            self.image.display()
        );
        let driver = self.driver.as_ref();
        if let Some(driver) = driver.filter(|driver| driver.extension() == Some("ko".as_ref())) {
            let is_module = self::head(driver)?.starts_with(ELF);
            ensure!(is_module, "{} is not a kernel module", driver.display());
        }
        if purposes.contains(&"device") && self.driver.is_none() {
            if let Some(modules) = &self.modules {
                let list = list(modules)?;
                if files(&list, "virtio_rdma").is_none() && !is_built_in(modules, "virtio_rdma") {
                    bail!(
                        "the kernel's modules in {} have no virtio_rdma: give its file by --driver \
                         (`make module KDIR=TREE` builds it for a kernel's build tree)",
                        modules.display()
                    );
                }
            }
        }
        let Some(config) = self.config() else {
            return Ok(());
        };
        let text = fs::read_to_string(&config)
            .with_context(|| format!("can't read {}", config.display()))?;
        let compressed = self
            .early_modules
            .iter()
            .any(|file| file.extension().is_some_and(|ending| ending != "ko"));
        let lacks: Vec<_> = needs::all()
            .filter(|need| {
                purposes.iter().any(|purpose| need.is_for(purpose))
                    || self.driver.is_some() && need.is_for("driver")
                    || compressed && need.is_for("compressed")
            })
            .filter_map(|need| self.lack(&need, &text))
            .collect();
        if !lacks.is_empty() {
            bail!(
                "the kernel lacks what a VM needs, by {}:\n  {}",
                config.display(),
                lacks.join("\n  ")
            );
        }
        Ok(())
    }

    /// The message that the kernel lacks an option, if it does.
    fn lack(&self, need: &Need, config: &str) -> Option<String> {
        let Need { option, reason, .. } = need;
        let value = config.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name == *option).then_some(value)
        });
        match value {
            None => Some(format!("{option} is not set: {reason}")),
            Some("m") if self.modules.is_none() => Some(format!(
                "{option}=m, but the option --modules is missing: {reason}"
            )),
            Some(_) => None,
        }
    }

    /// The kernel's configuration, if it is found.
    fn config(&self) -> Option<PathBuf> {
        let in_tree = self.image.ancestors().skip(1).take(DEPTH);
        let in_tree = in_tree.map(|dir| dir.join(".config"));
        let name = self.image.file_name()?.to_string_lossy();
        let release = name.split_once('-').map(|(_, release)| release.to_owned());
        let beside = release.map(|release| self.image.with_file_name(format!("config-{release}")));
        let with_modules = self
            .modules
            .iter()
            .flat_map(|modules| ["config", "build/.config"].map(|name| modules.join(name)));
        let mut places = beside.into_iter().chain(in_tree).chain(with_modules);
        places.find(|file| file.is_file())
    }

    /// The commands that attach gdb to the kernels of the VMs, the first one of which is at `port`.
    pub fn gdb(image: &Path, port: u16, vms: u8) -> impl Iterator<Item = String> + '_ {
        let mut dirs = image.ancestors().skip(1).take(DEPTH);
        let symbols = dirs.find_map(|dir| Some(dir.join("vmlinux")).filter(|file| file.is_file()));
        let symbols = symbols.unwrap_or_else(|| "vmlinux".into());
        (0..u16::from(vms)).map(move |vm| {
            let port = port + vm;
            format!("gdb {} -ex 'target remote :{port}'", symbols.display())
        })
    }
}

/// First bytes of a vmlinux or a module.
const ELF: &[u8] = b"\x7fELF";
/// Bytes at the end of the [head](head) of a bzImage (Linux boot protocol: `header` at 0x202).
const BZ_IMAGE: &[u8] = b"HdrS";

/// The first bytes of a file.
fn head(path: &Path) -> Result<Vec<u8>> {
    let told = || format!("can't read {}", path.display());
    let mut head = Vec::new();
    let file = File::open(path).with_context(told)?;
    file.take(0x206).read_to_end(&mut head).with_context(told)?;
    Ok(head)
}

fn resolved(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("can't open {}", path.display()))
}

/// The image in a directory that has a kernel.
fn image_in(dir: &Path) -> Result<PathBuf> {
    let [alone, built, packaged] = IMAGES;
    let mut places = [alone, built].into_iter().map(|name| dir.join(name));
    if let Some(image) = places.find(|image| image.is_file()) {
        return resolved(&image);
    }
    let packaged = dir.join(packaged);
    let folder = packaged.parent().unwrap_or(dir);
    let start = packaged.file_name().unwrap_or_default().to_string_lossy();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(&*start)).collect();
    names.sort();
    match &*names {
        [name] => resolved(&folder.join(name)),
        [] => bail!("no {}... in {}", IMAGES.join(" or "), dir.display()),
        _ => bail!(
            "{} has several kernels: name one of {}",
            folder.display(),
            names.join(", ")
        ),
    }
}

/// The folder of the kernels' modules in a directory.
fn installed_in(dir: &Path) -> Option<PathBuf> {
    let mut places = MODULES.iter().map(|name| dir.join(name));
    places.find(|folder| folder.is_dir())
}

/// The directory with modules.dep: `dir`, or the only one in its folder of modules.
fn module_tree(dir: &Path) -> Result<PathBuf> {
    if dir.join("modules.dep").is_file() {
        return resolved(dir);
    }
    let installed = installed_in(dir).with_context(|| {
        format!(
            "{} has no modules.dep and no {}: name /lib/modules/RELEASE, or make \
             modules_install INSTALL_MOD_PATH=DIR",
            dir.display(),
            MODULES.join(" or ")
        )
    })?;
    let release = only_entry(&installed)?;
    let tree = installed.join(&release);
    ensure!(
        tree.join("modules.dep").is_file(),
        "{} has no modules.dep: \"depmod --basedir {} {}\" makes it",
        tree.display(),
        installed.ancestors().nth(2).unwrap_or(dir).display(),
        release.to_string_lossy()
    );
    resolved(&tree)
}

fn list(modules: &Path) -> Result<String> {
    let list = modules.join("modules.dep");
    fs::read_to_string(&list).with_context(|| format!("can't read {}", list.display()))
}

/// The files of the modules that are loaded before the root is mounted: those that every VM needs
/// and that are not part of the image, and the modules `named` by the user. Each comes after those
/// that it depends on.
fn early(modules: &Path, named: &[String]) -> Result<Vec<PathBuf>> {
    let list = list(modules)?;
    for name in named {
        if files(&list, name).is_none() && !is_built_in(modules, name) {
            bail!("--initrd-module: no module {name} in {}", modules.display());
        }
    }
    let mut names = needs::modules(&["early"]);
    names.extend(named.iter().map(String::as_str));
    module_files(modules, &names)
}

/// The files of modules, each after those that it depends on. Modules that are in no file are left
/// out.
pub fn module_files(modules: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let list = list(modules)?;
    let mut all = Vec::new();
    for name in names {
        for file in files(&list, name).into_iter().flatten().rev() {
            let file = modules.join(file);
            if !all.contains(&file) {
                all.push(file);
            }
        }
    }
    Ok(all)
}

/// The name of the only entry of a directory.
pub fn only_entry(dir: &Path) -> Result<OsString> {
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

    fn write(file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn choose(kernel: &Path, modules: Option<&Path>, early: &[&str]) -> Result<Kernel> {
        let options = KernelOptions {
            kernel: Some(kernel.to_path_buf()),
            modules: modules.map(Path::to_path_buf),
            initrd_modules: early.iter().map(|name| (*name).to_owned()).collect(),
            ..KernelOptions::default()
        };
        options.chosen().map(Option::unwrap)
    }

    /// A configuration with all needs, where `value` changes options.
    fn config(value: impl Fn(&str) -> Option<&'static str>) -> String {
        let line = |need: Need| Some(format!("{}={}\n", need.option, value(need.option)?));
        needs::all().filter_map(line).collect()
    }

    #[test]
    fn a_directory_has_image_modules_and_driver_without_links() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let installed = root.join("usr/lib/modules");
        for release in ["7.2.1", "7.3.1"] {
            write(&installed.join(release).join("vmlinuz.unsigned"), release);
            write(&installed.join(release).join("modules.dep"), "");
        }
        let dir = root.join("build");
        write(&dir.join("module/virtio_rdma.ko"), "");
        fs::create_dir_all(dir.join("lib/modules")).unwrap();
        let link = |release: &str| {
            let tree = installed.join(release);
            symlink(tree, dir.join("lib/modules").join(release)).unwrap();
        };
        symlink(
            installed.join("7.2.1/vmlinuz.unsigned"),
            dir.join("vmlinuz"),
        )
        .unwrap();
        link("7.2.1");
        let kernel = choose(&dir, None, &[]).unwrap();
        let tree = installed.join("7.2.1");
        assert_eq!(kernel.image, tree.join("vmlinuz.unsigned"));
        assert_eq!(kernel.modules, Some(tree));
        assert_eq!(kernel.driver, Some(dir.join("module/virtio_rdma.ko")));

        link("7.3.1");
        let error = choose(&dir, None, &[]).unwrap_err().to_string();
        assert!(error.ends_with("has several entries, not one"), "{error}");
    }

    /// A package of a distribution, unpacked.
    #[test]
    fn a_package_has_image_and_modules() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let told = |dir: &Path| choose(dir, None, &[]).unwrap_err().to_string();
        assert!(
            told(&root).contains("boot/vmlinuz-... in"),
            "{}",
            told(&root)
        );
        let image = root.join("boot/vmlinuz-7.3.1");
        write(&image, "");
        let tree = root.join("usr/lib/modules/7.3.1");
        fs::create_dir_all(&tree).unwrap();
        let makes = format!(
            "\"depmod --basedir {} 7.3.1\" makes it",
            root.join("usr").display()
        );
        assert!(told(&root).ends_with(&makes), "{}", told(&root));
        write(&tree.join("modules.dep"), "");
        let kernel = choose(&root, None, &[]).unwrap();
        assert_eq!((kernel.image, kernel.modules), (image, Some(tree)));
        write(&root.join("boot/vmlinuz-7.2.1"), "");
        let several = "has several kernels: name one of vmlinuz-7.2.1, vmlinuz-7.3.1";
        assert!(told(&root).ends_with(several), "{}", told(&root));
    }

    #[test]
    fn an_image_comes_with_the_modules_that_mount_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (image, modules) = (dir.path().join("bzImage"), dir.path().join("m"));
        write(&image, "");
        assert_eq!(choose(&image, None, &[]).unwrap().modules, None);
        let error = choose(&image, Some(&modules), &[]).unwrap_err();
        assert!(error.to_string().contains("has no modules.dep"), "{error}");
        write(
            &modules.join("modules.dep"),
            "fs/fuse/fuse.ko:\nfs/fuse/virtiofs.ko.xz: fs/fuse/fuse.ko v.ko\nv.ko:\nx.ko: v.ko\n",
        );
        write(&modules.join("modules.builtin"), "kernel/y.ko\n");
        let kernel = choose(&image, Some(&modules), &["x", "y"]).unwrap();
        let names = kernel.early_modules.iter().map(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.into_owned()
        });
        let names: Vec<_> = names.collect();
        assert_eq!(names, ["fuse.ko", "v.ko", "virtiofs.ko.xz", "x.ko"]);
        let error = choose(&image, Some(&modules), &["z"]).unwrap_err();
        assert!(error.to_string().contains("no module z in"), "{error}");
    }

    #[test]
    fn a_lack_is_named_by_its_option() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        write(&tree.join("arch/x86/boot/bzImage"), "\x7fELF");
        let check = |purposes: &[&str]| {
            let error = choose(tree, None, &[]).unwrap().check(purposes);
            error.map_err(|error| error.to_string())
        };
        // Without a configuration, nothing is known.
        check(&["early"]).unwrap();
        write(&tree.join(".config"), &config(|_| Some("y")));
        check(&["early", "vm", "device"]).unwrap();

        let without = config(|name| (name != "CONFIG_VIRTIO_FS").then_some("y"));
        write(&tree.join(".config"), &without);
        let error = check(&["early"]).unwrap_err();
        assert!(
            error.contains("\n  CONFIG_VIRTIO_FS is not set: "),
            "{error}"
        );
        check(&["vm"]).unwrap();

        let module = |name: &str| Some(if name == "CONFIG_FUSE_FS" { "m" } else { "y" });
        write(&tree.join(".config"), &config(module));
        let error = check(&["early"]).unwrap_err();
        assert!(error.contains("\n  CONFIG_FUSE_FS=m, but "), "{error}");

        write(&tree.join("lib/modules/7/modules.dep"), "fuse.ko:\n");
        check(&["early"]).unwrap();
        let error = check(&["device"]).unwrap_err();
        assert!(error.contains("have no virtio_rdma"), "{error}");
    }

    #[test]
    fn files_of_another_kind_are_told_before_a_boot() {
        let dir = tempfile::tempdir().unwrap();
        let [image, driver] = ["image", "driver.ko"].map(|name| dir.path().join(name));
        let check = |content: &str, of_driver: &str| {
            write(&image, content);
            write(&driver, of_driver);
            let options = KernelOptions {
                kernel: Some(image.clone()),
                driver: Some(driver.clone()),
                ..KernelOptions::default()
            };
            let kernel = options.chosen().unwrap().unwrap();
            kernel.check(&[]).map_err(|error| error.to_string())
        };
        let bz_image = format!("{:514}HdrS...", "");
        check(&bz_image, "\x7fELF").unwrap();
        check("\x7fELF", "\x7fELF").unwrap();
        for other in ["", "text", &bz_image[1..]] {
            let error = check(other, "\x7fELF").unwrap_err();
            assert!(
                error.contains("image is not the image of a kernel"),
                "{error}"
            );
        }
        let error = check(&bz_image, "text").unwrap_err();
        assert!(
            error.contains("driver.ko is not a kernel module"),
            "{error}"
        );
    }

    #[test]
    fn gdb_reads_the_symbols_of_the_build_tree() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("arch/x86/boot/bzImage");
        let all = |image: &Path| Kernel::gdb(image, 1234, 2).collect::<Vec<_>>();
        assert_eq!(all(&image)[0], "gdb vmlinux -ex 'target remote :1234'");
        write(&dir.path().join("vmlinux"), "");
        let vmlinux = dir.path().join("vmlinux");
        let second = format!("gdb {} -ex 'target remote :1235'", vmlinux.display());
        assert_eq!(all(&image)[1], second);
    }
}
