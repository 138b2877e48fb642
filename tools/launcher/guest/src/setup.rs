// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The description of a guest: JSON that the host adds to the initramfs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The virtiofs tag of the share with the guest's root.
pub const ROOT: &str = "root";

/// The description of a guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Setup {
    /// The number of the guest, from 1.
    pub number: usize,
    /// The number of guests.
    pub vms: usize,
    /// The host's directories that the guest sees. One of them is the root.
    pub shares: Vec<Share>,
    /// Whether a disk keeps the guest's changes of the root. Otherwise they are in memory.
    pub disk: bool,
    /// Directories of the root that are empty at the start, each a tmpfs.
    pub empty: Vec<PathBuf>,
    /// The names of the modules in the initramfs, in the order in which they are loaded.
    pub early_modules: Vec<String>,
    /// The directory with modules.dep of the guest's kernel; `None` if all is part of its image.
    pub modules: Option<Place>,
    /// The virtio-rdma module; `None` if it is one of these modules or part of the image.
    pub driver: Option<Place>,
    /// The directory with the virtio-rdma providers.
    pub provider: Place,
    /// The directory with the RDMA programs of `--tools`, if requested.
    pub tools: Option<Place>,
    /// The kind of the guest's RDMA device.
    pub rdma: Rdma,
    /// The number of network interfaces that have an RDMA device each.
    pub ports: usize,
    /// Whether the guest has an rxe device in addition to `rdma`, on another network interface.
    pub beside: bool,
    /// Variables in the environment of every command.
    pub env: Vec<(String, String)>,
}

/// The message to a restored guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Resumption {
    /// Its description.
    pub setup: Setup,
    /// The time since the epoch.
    pub time: Duration,
}

impl Setup {
    /// The path of a place, as the guest's commands see it.
    pub fn path(&self, place: &Place) -> PathBuf {
        let share = self.shares.iter().find(|share| share.tag == place.share);
        share.map_or_else(PathBuf::new, |share| share.at.join(relative(&place.path)))
    }
}

/// A directory of the host that a guest sees through virtiofs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// The virtiofs tag.
    pub tag: String,
    /// The mount point.
    pub at: PathBuf,
    /// Whether the guest may write to the directory.
    pub writable: bool,
}

/// A file or directory in a share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// The tag of the share.
    pub share: String,
    /// The path within the share.
    pub path: PathBuf,
}

impl Place {
    /// The place `path` in the share with the tag `share`.
    pub fn new(share: &str, path: impl Into<PathBuf>) -> Self {
        Self {
            share: share.to_owned(),
            path: path.into(),
        }
    }
}

/// A path without its leading slash.
pub fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// The kind of a guest's RDMA device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rdma {
    /// No RDMA device.
    #[default]
    None,
    /// virtio-rdma.
    Virtio,
    /// rxe, Linux's software device, over the network interface.
    Rxe,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_below_their_share() {
        let share = |tag: &str, at: &str| Share {
            tag: tag.into(),
            at: at.into(),
            writable: false,
        };
        let setup = Setup {
            shares: vec![share(ROOT, "/"), share("b", "/run/b")],
            ..Setup::default()
        };
        let path = |share, path: &str| setup.path(&Place::new(share, path));
        assert_eq!(path(ROOT, "/usr/lib"), Path::new("/usr/lib"));
        assert_eq!(path("b", "lib/modules"), Path::new("/run/b/lib/modules"));
    }
}
