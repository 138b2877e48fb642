// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The selftests for each part of the kernel module.

/// Files of the module and their selftests.
pub struct Area {
    prefix: &'static str,
    /// The part of the report in which the files are counted.
    pub part: &'static str,
    /// Names of scripts in `selftests`, the quickest first. Empty for crates whose tests run on the
    /// host.
    pub scripts: &'static str,
}

const fn area(prefix: &'static str, part: &'static str, scripts: &'static str) -> Area {
    Area {
        prefix,
        part,
        scripts,
    }
}

/// The driver's directory. The prefixes of `DRIVER` are relative to it.
const ROOT: &str = "drivers/infiniband/hw/virtio_rdma/";

/// Areas of the driver. The first prefix that fits a file counts.
const DRIVER: &[Area] = &[
    area("netdev.rs", "driver: device", "netdev"),
    area("verbs/client_queues/", "driver: client queues", "kernel"),
    area("verbs/counters.rs", "driver: verbs", "statistic"),
    area("verbs/details.rs", "driver: verbs", "link"),
    area("verbs/device.rs", "driver: verbs", "link"),
    area("verbs/gid.rs", "driver: verbs", "link data"),
    area("verbs/peer_memory.rs", "driver: verbs", "peer_memory"),
    area("verbs/port.rs", "driver: verbs", "link"),
    area("verbs/port_state.rs", "driver: verbs", "netdev"),
    area("verbs/rate_limit.rs", "driver: verbs", "link data"),
    area("verbs/resource_limit.rs", "driver: verbs", "link"),
    area("verbs/ucontext.rs", "driver: verbs", "uverbs"),
    area("verbs/user_ring.rs", "driver: verbs", "uverbs"),
    area("verbs/", "driver: verbs", "kernel data"),
    area("", "driver: device", "kernel failing module"),
];

/// Areas of the other files of the module. The first prefix that fits a file counts.
const ABSTRACTIONS: &[Area] = &[
    area("rust/kernel/rdma/attributes.rs", "rust/kernel/rdma", "link"),
    area(
        "rust/kernel/rdma/counter.rs",
        "rust/kernel/rdma",
        "statistic",
    ),
    area(
        "rust/kernel/rdma/device.rs",
        "rust/kernel/rdma",
        "link module",
    ),
    area("rust/kernel/rdma/gid.rs", "rust/kernel/rdma", "link data"),
    area(
        "rust/kernel/rdma/mmap.rs",
        "rust/kernel/rdma",
        "abstractions uverbs",
    ),
    area("rust/kernel/rdma/port.rs", "rust/kernel/rdma", "link"),
    area(
        "rust/kernel/rdma/queue_memory.rs",
        "rust/kernel/rdma",
        "abstractions uverbs",
    ),
    area("rust/kernel/rdma/restrack.rs", "rust/kernel/rdma", "link"),
    area("rust/kernel/rdma/stats.rs", "rust/kernel/rdma", "statistic"),
    area(
        "rust/kernel/rdma/ucontext.rs",
        "rust/kernel/rdma",
        "abstractions uverbs",
    ),
    area(
        "rust/kernel/rdma/udata.rs",
        "rust/kernel/rdma",
        "abstractions uverbs",
    ),
    area(
        "rust/kernel/rdma/user_",
        "rust/kernel/rdma",
        "abstractions uverbs",
    ),
    area(
        "rust/kernel/rdma/",
        "rust/kernel/rdma",
        "abstractions kernel data",
    ),
    area(
        "rust/kernel/virtio/",
        "rust/kernel/virtio",
        "abstractions kernel rng failing",
    ),
    area("rust/kernel/hw_random/", "rust: others", "abstractions rng"),
    area("rust/kernel/net/", "rust: others", "netdev"),
    area("rust/kernel/peer_memory", "rust: others", "peer_memory"),
    area("rust/kernel/dma_buf/", "rust: others", "peer_memory"),
    area(
        "rust/kernel/sync/",
        "rust: others",
        "abstractions kernel failing",
    ),
    area("rust/kernel/trace_event/", "rust: others", "debugging"),
    area("rust/", "rust/shared", ""),
];

/// Scripts for changes that the scripts of their area have not noticed. The most disruptive ones
/// are last.
pub const ALL: &str =
    "abstractions rng link statistic kernel cm uverbs data debugging tools syscalls peer_memory \
                       netdev hostile failing module";

pub fn of(file: &str) -> &'static Area {
    let (name, areas) = match file.strip_prefix(ROOT) {
        Some(name) => (name, DRIVER),
        None => (file, ABSTRACTIONS),
    };
    areas
        .iter()
        .find(|area| name.starts_with(area.prefix))
        .unwrap_or(&ABSTRACTIONS[ABSTRACTIONS.len() - 1])
}

/// The scripts of `ALL` that are not in `scripts`.
pub fn others(scripts: &str) -> String {
    let all = ALL.split_whitespace();
    all.filter(|name| !scripts.split_whitespace().any(|script| script == *name))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_scripts_of_all_areas_exist() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        for area in DRIVER.iter().chain(ABSTRACTIONS) {
            for script in area.scripts.split_whitespace() {
                assert!(ALL.split_whitespace().any(|name| name == script));
            }
        }
        for script in ALL.split_whitespace() {
            assert!(top.join(format!("selftests/{script}.sh")).is_file());
        }
    }

    #[test]
    fn the_prefixes_of_all_areas_fit_a_file() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let fits = |area: &Area, root: &str| {
            let path = top.join(root).join(area.prefix);
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            path.exists()
                || std::fs::read_dir(path.parent().unwrap())
                    .unwrap()
                    .any(|entry| {
                        entry
                            .unwrap()
                            .file_name()
                            .to_string_lossy()
                            .starts_with(&file)
                    })
        };
        assert!(DRIVER.iter().all(|area| fits(area, ROOT)));
        assert!(ABSTRACTIONS.iter().all(|area| fits(area, "")));
    }

    #[test]
    fn the_first_prefix_counts() {
        assert_eq!(of(&format!("{ROOT}verbs/port.rs")).scripts, "link");
        assert_eq!(of(&format!("{ROOT}verbs/port_state.rs")).scripts, "netdev");
        assert_eq!(of(&format!("{ROOT}ctrl.rs")).part, "driver: device");
        assert_eq!(of("rust/shared/abi/wqe.rs").part, "rust/shared");
        assert!(!others("kernel data")
            .split_whitespace()
            .any(|s| s == "data"));
    }
}
