// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The description of a guest: the host puts it beside the first program, as JSON.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The tag of the share that is the root.
pub const ROOT: &str = "root";

/// A guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Setup {
    /// Its number, from 1.
    pub number: usize,
    /// How many guests there are.
    pub vms: usize,
    /// The host's directories that it has. One is the root.
    pub shares: Vec<Share>,
    /// Whether it has a disk that keeps what it changes in the root. Else that is in memory.
    pub disk: bool,
    /// Directories that begin empty and are in memory.
    pub empty: Vec<PathBuf>,
    /// The directory with modules.dep of its kernel.
    pub modules: Place,
    /// Our module.
    pub module: Place,
    /// The directory with our providers.
    pub provider: Place,
    /// The directory with RDMA programs of ours, if they are wanted.
    pub tools: Option<Place>,
    /// Its RDMA device.
    pub rdma: Rdma,
    /// Its network interfaces, each with such a device.
    pub ports: usize,
    /// Whether rxe is on a second network interface too.
    pub beside: bool,
    /// Variables of every command.
    pub env: Vec<(String, String)>,
}

impl Setup {
    /// A place as commands see it.
    pub fn path(&self, place: &Place) -> PathBuf {
        let share = self.shares.iter().find(|share| share.tag == place.share);
        share.map_or_else(PathBuf::new, |share| share.at.join(relative(&place.path)))
    }
}

/// A directory of the host over virtiofs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// The name of its device.
    pub tag: String,
    /// Where commands see it.
    pub at: PathBuf,
    /// Whether the guest may write to it.
    pub writable: bool,
}

/// A file or directory in a share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// The share's tag.
    pub share: String,
    /// Its path from there.
    pub path: PathBuf,
}

impl Place {
    /// The place of `path` in the share of a tag.
    pub fn new(share: &str, path: impl Into<PathBuf>) -> Self {
        Self {
            share: share.to_owned(),
            path: path.into(),
        }
    }
}

/// A path without the sign of the root in front.
pub fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// A guest's RDMA device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rdma {
    /// None.
    #[default]
    None,
    /// Ours.
    Virtio,
    /// Stock Linux's software device over the network interface.
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
