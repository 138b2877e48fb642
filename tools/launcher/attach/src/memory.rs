// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QEMU's arguments for memory that the daemon can map: shared, and in a memfd, tmpfs or hugetlbfs.

use crate::{argument, value, Argument};

/// The files that hold a VM's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    Memfd,
    /// A memfd of huge pages of 2 MiB.
    HugePages,
    /// Files in a directory of tmpfs or hugetlbfs.
    Directory(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmMemory {
    /// Size in MiB.
    pub mib: u64,
    /// Kind of file that holds the memory.
    pub backend: Backend,
}

impl VmMemory {
    /// QEMU's options for the size, and for a backend named `mem`. The option `-machine` must have
    /// `memory-backend=mem`.
    pub fn arguments(&self) -> [Argument; 2] {
        let size = format!("{}M", self.mib);
        let (kind, more) = match &self.backend {
            Backend::Memfd => ("memory-backend-memfd", String::new()),
            Backend::HugePages => (
                "memory-backend-memfd",
                ",hugetlb=on,hugetlbsize=2M".to_owned(),
            ),
            Backend::Directory(path) => {
                ("memory-backend-file", format!(",mem-path={}", value(path)))
            }
        };
        let object = format!("{kind},id=mem,size={size},share=on{more}");
        [argument("-m", size), argument("-object", object)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_memory_is_shared() {
        for (backend, object) in [
            (
                Backend::Memfd,
                "memory-backend-memfd,id=mem,size=512M,share=on",
            ),
            (
                Backend::HugePages,
                "memory-backend-memfd,id=mem,size=512M,share=on,hugetlb=on,hugetlbsize=2M",
            ),
            (
                Backend::Directory("/dev/shm".into()),
                "memory-backend-file,id=mem,size=512M,share=on,mem-path=/dev/shm",
            ),
        ] {
            let memory = VmMemory { mib: 512, backend };
            assert_eq!(
                memory.arguments().concat(),
                ["-m", "512M", "-object", object]
            );
        }
    }
}
