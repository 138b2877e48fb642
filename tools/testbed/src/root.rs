// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! RDMA's user space in a root file system.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories of libraries, relative to the root.
const LIBRARIES: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "lib",
];
/// The text in libibverbs before the number of its private ABI for providers.
const SUFFIX: &[u8] = b"-rdmav";

/// A root file system.
#[derive(Debug, PartialEq, Eq)]
pub struct Root {
    /// The numbers of its libibverbs' private ABIs for providers. `None` without libibverbs.
    pub verbs: Option<Vec<u32>>,
    /// Whether the C library is glibc, for which the provider is built.
    pub has_glibc: bool,
    /// The command that installs the RDMA packages.
    install: &'static str,
}

impl Root {
    /// Examines the root file system in `dir`.
    pub fn look(dir: &Path) -> Self {
        let found = |name: &str| {
            let files = LIBRARIES.iter().map(|place| dir.join(place).join(name));
            files.into_iter().find(|file| file.is_file())
        };
        let read = |file: PathBuf| fs::read(file).map(|library| numbers(&library)).ok();
        Self {
            verbs: found("libibverbs.so.1").and_then(read),
            has_glibc: found("libc.so.6").is_some(),
            install: install(&fs::read_to_string(dir.join("etc/os-release")).unwrap_or_default()),
        }
    }

    /// The reason why programs of the root can't use the device with the providers in a directory,
    /// and what to do. `None` if they can.
    pub fn lacks(&self, providers: &Path) -> Option<String> {
        if !self.has_glibc {
            return Some(
                "its C library is not glibc, for which the provider is made: --tools brings RDMA \
                 programs with a library of their own"
                    .into(),
            );
        }
        let Some(numbers) = &self.verbs else {
            let install = self.install;
            return Some(format!(
                "it has no libibverbs: `{install}` there, or --tools for RDMA programs of ours"
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
            "its libibverbs takes providers of {}, and there is none of that here: --tools brings \
             RDMA programs of ours",
            numbers.join(", ")
        ))
    }
}

/// The numbers after each [`SUFFIX`] in a library.
fn numbers(library: &[u8]) -> Vec<u32> {
    let mut numbers: Vec<_> = library
        .windows(SUFFIX.len())
        .enumerate()
        .filter(|(_, window)| *window == SUFFIX)
        .filter_map(|(at, _)| {
            let digits = library[at + SUFFIX.len()..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit());
            let digits: String = digits.map(|byte| char::from(*byte)).collect();
            digits.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
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

    #[test]
    fn numbers_stand_in_the_library() {
        assert_eq!(numbers(b"x\0lib%s-rdmav34.so\0%s-rdmav34.so\0-rdmav"), [34]);
        assert_eq!(numbers(b"-rdmav57.so\0-rdmav34"), [34, 57]);
        assert!(numbers(b"nothing").is_empty());
    }

    #[test]
    fn what_is_lacking_is_named() {
        let providers = std::env::temp_dir().join(format!("providers.{}", std::process::id()));
        fs::create_dir_all(&providers).unwrap();
        fs::write(providers.join("libvirtio_rdma-rdmav34.so"), "").unwrap();
        let root = |verbs: Option<Vec<u32>>, has_glibc| Root {
            verbs,
            has_glibc,
            install: install("NAME=x\nID=debian\n"),
        };
        assert_eq!(root(Some(vec![34]), true).lacks(&providers), None);
        let old = root(Some(vec![33]), true).lacks(&providers).unwrap();
        assert!(old.contains("rdmav33"));
        let bare = root(None, true).lacks(&providers).unwrap();
        assert!(bare.contains("apt-get install ibverbs-utils perftest"));
        let musl = root(None, false).lacks(&providers).unwrap();
        assert!(musl.contains("glibc") && musl.contains("--tools"));
        fs::remove_dir_all(&providers).unwrap();
    }

    #[test]
    fn distributions_have_their_commands() {
        assert!(install("ID=ubuntu\nID_LIKE=debian\n").starts_with("apt-get"));
        assert!(install("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n").starts_with("dnf"));
        assert!(install("").starts_with("install"));
    }
}
