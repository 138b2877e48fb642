// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! RDMA's user space in a root file system.

use std::path::Path;

use crate::path_in_root::resolve;
use crate::untrusted::beginning;

/// Directories of libraries, relative to the root.
const LIBRARIES: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "lib",
];
/// Number of bytes that are read of a file of the root, more than any library has.
const MAX_LIBRARY: u64 = 64 << 20;
/// The text in libibverbs before the number of its private ABI for providers.
const SUFFIX: &[u8] = b"-rdmav";
/// The text in glibc before its version. Other C libraries that have a file of its name lack it.
const RELEASE: &[u8] = b"release version ";
/// The oldest glibc with which the provider loads. tools/dev/hardening checks the provider.
const OLDEST_GLIBC: (u32, u32) = (2, 31);

/// A root file system.
#[derive(Debug, PartialEq, Eq)]
pub struct Root {
    /// The numbers of its libibverbs' private ABIs for providers. `None` without libibverbs.
    pub verbs: Option<Vec<u32>>,
    /// The version of glibc, for which the provider is built. `None` with another C library.
    pub glibc: Option<(u32, u32)>,
    /// The command that installs the RDMA packages.
    install: &'static str,
}

impl Root {
    /// Examines the root file system in `dir`.
    pub fn look(dir: &Path) -> Self {
        Self::look_into(dir, MAX_LIBRARY)
    }

    /// Reads `max` bytes of each file at most.
    fn look_into(dir: &Path, max: u64) -> Self {
        let within = |path: &Path| resolve(dir, path).filter(|file| file.is_file());
        let read = |name: &str| {
            let mut places = LIBRARIES.iter().map(|place| Path::new(place).join(name));
            beginning(&places.find_map(|place| within(&place))?, max).ok()
        };
        let os_release = within(Path::new("etc/os-release"));
        let os_release = os_release.and_then(|file| beginning(&file, max).ok());
        let os_release = String::from_utf8_lossy(&os_release.unwrap_or_default()).into_owned();
        Self {
            verbs: read("libibverbs.so.1").map(|library| numbers(&library)),
            glibc: read("libc.so.6").and_then(|library| glibc(&library)),
            install: install(&os_release),
        }
    }

    /// The reason why programs of the root can't use the device with the providers in a directory,
    /// and what to do. `None` if they can.
    pub fn lacks(&self, providers: &Path) -> Option<String> {
        let Some((major, minor)) = self.glibc else {
            return Some(
                "its C library is not glibc, for which the provider is made: --tools brings RDMA \
                 programs with a library of their own"
                    .into(),
            );
        };
        if (major, minor) < OLDEST_GLIBC {
            return Some(format!(
                "its glibc {major}.{minor} is older than {}.{}, which the provider needs: --tools \
                 brings RDMA programs with a library of their own",
                OLDEST_GLIBC.0, OLDEST_GLIBC.1
            ));
        }
        let Some(numbers) = &self.verbs else {
            let install = self.install;
            return Some(format!(
                "it has no libibverbs: run `{install}` there, or use --tools, which brings RDMA \
                 programs with a library of their own"
            ));
        };
        let fits = |number: &u32| {
            let file = format!("libvirtio_rdma-rdmav{number}.so");
            providers.join(file).is_file()
        };
        if numbers.iter().any(fits) {
            return None;
        }
        let numbers: Vec<_> = numbers
            .iter()
            .map(|number| format!("rdmav{number}"))
            .collect();
        Some(format!(
            "its libibverbs needs a provider for {}, and there is none: --tools brings RDMA \
             programs with a library of their own",
            numbers.join(", ")
        ))
    }
}

/// The numbers after each [`SUFFIX`] in a library.
fn numbers(library: &[u8]) -> Vec<u32> {
    let mut numbers: Vec<_> = after(library, SUFFIX)
        .filter_map(|rest| Some(number(rest)?.0))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The version of glibc in a C library.
fn glibc(library: &[u8]) -> Option<(u32, u32)> {
    after(library, RELEASE).find_map(|rest| {
        let (major, rest) = number(rest)?;
        let (minor, _) = number(rest.strip_prefix(b".")?)?;
        Some((major, minor))
    })
}

/// The bytes after each occurrence of a text.
fn after<'a>(bytes: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let windows = bytes.windows(text.len()).enumerate();
    windows
        .filter(move |(_, window)| *window == text)
        .map(move |(at, _)| &bytes[at + text.len()..])
}

/// The decimal number at the beginning of a text, and the rest.
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((number, rest))
}

/// The command that installs the RDMA packages, given the content of /etc/os-release.
fn install(os_release: &str) -> &'static str {
    let like = |name: &str| {
        os_release
            .lines()
            .filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="))
            .any(|line| line.contains(name))
    };
    if like("debian") {
        "apt-get install ibverbs-utils perftest"
    } else if like("fedora") || like("rhel") {
        "dnf install libibverbs-utils perftest"
    } else if like("suse") {
        "zypper install libibverbs-utils perftest"
    } else if like("arch") {
        "pacman -S rdma-core perftest"
    } else {
        "install rdma-core and perftest"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn numbers_stand_in_the_library() {
        assert_eq!(numbers(b"x\0lib%s-rdmav34.so\0%s-rdmav34.so\0-rdmav"), [34]);
        assert_eq!(numbers(b"-rdmav57.so\0-rdmav34"), [34, 57]);
        assert!(numbers(b"nothing").is_empty());
    }

    #[test]
    fn only_glibc_has_a_version() {
        let library = b"\0GNU C Library (Debian GLIBC 2.31-13) stable release version 2.31.\nCopy";
        assert_eq!(glibc(library), Some((2, 31)));
        assert_eq!(
            glibc(b"development release version 2.42.9000."),
            Some((2, 42))
        );
        assert_eq!(glibc(b"a release version of\0release version 3"), None);
        assert_eq!(glibc(b"musl libc (x86_64)\nVersion 1.2.5\n"), None);
    }

    #[test]
    fn what_is_lacking_is_named() {
        let providers = std::env::temp_dir().join(format!("providers.{}", std::process::id()));
        fs::create_dir_all(&providers).unwrap();
        fs::write(providers.join("libvirtio_rdma-rdmav34.so"), "").unwrap();
        let root = |verbs: Option<Vec<u32>>, glibc| Root {
            verbs,
            glibc,
            install: install("NAME=x\nID=debian\n"),
        };
        assert_eq!(root(Some(vec![34]), Some((2, 31))).lacks(&providers), None);
        let old = root(Some(vec![33]), Some((2, 41)))
            .lacks(&providers)
            .unwrap();
        assert!(old.contains("rdmav33"));
        let bare = root(None, Some((2, 41))).lacks(&providers).unwrap();
        assert!(bare.contains("apt-get install ibverbs-utils perftest"));
        let musl = root(Some(vec![34]), None).lacks(&providers).unwrap();
        assert!(musl.contains("glibc") && musl.contains("--tools"));
        let glibc = root(Some(vec![34]), Some((2, 28)));
        let glibc = glibc.lacks(&providers).unwrap();
        assert!(glibc.contains("glibc 2.28 is older than 2.31") && glibc.contains("--tools"));
        fs::remove_dir_all(&providers).unwrap();
    }

    /// Container images have absolute links: usr-merged ones link `/lib`, others single libraries.
    #[test]
    fn absolute_links_lead_to_places_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "-rdmav33.so").unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("image/lib")).unwrap();
        symlink("/image/lib", root.join("lib64")).unwrap();
        fs::write(root.join("image/verbs"), "-rdmav34.so").unwrap();
        symlink("/image/verbs", root.join("image/lib/libibverbs.so.1")).unwrap();
        fs::write(root.join("image/lib/libc.so.6"), "release version 2.36").unwrap();
        fs::write(root.join("image/os-release"), "ID=fedora\n").unwrap();
        symlink("/image/os-release", root.join("etc/os-release")).unwrap();
        let seen = Root::look(&root);
        assert_eq!((seen.verbs, seen.glibc), (Some(vec![34]), Some((2, 36))));
        assert!(seen.install.starts_with("dnf"));

        // This file exists, but not within the root.
        let library = root.join("image/lib/libibverbs.so.1");
        fs::remove_file(&library).unwrap();
        symlink(&outside, &library).unwrap();
        assert_eq!(Root::look(&root).verbs, None);
    }

    /// A sparse file of any size costs nothing.
    #[test]
    fn huge_libraries_are_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lib")).unwrap();
        for name in ["libc.so.6", "libibverbs.so.1"] {
            let file = fs::File::create(dir.path().join("lib").join(name)).unwrap();
            file.set_len(1 << 42).unwrap();
        }
        let seen = Root::look_into(dir.path(), 1 << 16);
        assert_eq!((seen.verbs, seen.glibc), (Some(Vec::new()), None));
    }

    #[test]
    fn distributions_have_their_commands() {
        assert!(install("ID=ubuntu\nID_LIKE=debian\n").starts_with("apt-get"));
        assert!(install("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n").starts_with("dnf"));
        assert!(install("").starts_with("install"));
    }
}
