// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Generates the bindings of libibverbs' provider interface from an rdma-core source tree.
//!
//! `infiniband/driver.h` is private to rdma-core and in no package, so a source tree of the
//! installed version is needed: `RDMA_CORE_SRC`, or `build/rdma-core-src` of this workspace.
//! `BINDGEN` names another bindgen program.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    for variable in ["RDMA_CORE_SRC", "BINDGEN"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    for file in [
        "wrapper.h",
        "include/infiniband/virtio_rdma_dv.h",
        "build.rs",
    ] {
        println!("cargo:rerun-if-changed={file}");
    }
    if let Err(error) = generate() {
        eprintln!("virtio-rdma-provider: {error}");
        std::process::exit(1);
    }
    println!("cargo:rustc-link-lib=ibverbs");
    // The soname that programs are linked with: the major version of the header.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvirtio_rdma.so.1");
    // The soname is the symbol version: rustc passes a version script of its own, and the linker
    // takes only one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    // libibverbs keeps a pointer to the registration table, so dlclose() must not unload the
    // library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

fn generate() -> Result<(), String> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("no CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let source = env::var_os("RDMA_CORE_SRC")
        .map(PathBuf::from)
        .unwrap_or_else(|| manifest.join("../../build/rdma-core-src"));
    let driver_h = source.join("libibverbs/driver.h");
    if !driver_h.is_file() {
        return Err(format!(
            "no rdma-core source in {}: run \"make setup\", or set RDMA_CORE_SRC",
            source.display()
        ));
    }
    println!("cargo:rerun-if-changed={}", driver_h.display());

    let include = out.join("include");
    let version = private_abi(&source.join("CMakeLists.txt"))?;
    stage_headers(&source, &include, &version)?;

    let bindgen = env::var_os("BINDGEN").unwrap_or_else(|| "bindgen".into());
    run(Command::new(bindgen)
        .arg(manifest.join("wrapper.h"))
        .args([
            "--rust-target",
            "1.85",
            "--no-doc-comments",
            "--no-prepend-enum-name",
        ])
        .args([
            "--allowlist-type",
            "verbs_.*|ibv_.*|ib_uverbs_.*|virtio_rdma_dv_.*",
        ])
        .args(["--allowlist-function", "verbs_.*|_verbs_.*|ibv_cmd_.*"])
        .args(["--allowlist-type", "rdma_driver_id"])
        .args(["--allowlist-var", "VERBS_.*|IBV_.*|VIRTIO_RDMA_DV_.*"])
        .arg("--raw-line")
        .arg(format!(
            "pub use self::verbs_register_driver_{version} as verbs_register_driver;"
        ))
        .arg("-o")
        .arg(out.join("bindings.rs"))
        .arg("--")
        .arg("-I")
        .arg(&include))
}

/// The number in the names of provider libraries, symbols and the registration function.
fn private_abi(cmake: &Path) -> Result<String, String> {
    let text =
        fs::read_to_string(cmake).map_err(|error| format!("{}: {error}", cmake.display()))?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("set(IBVERBS_PABI_VERSION \"")?
                .strip_suffix("\")")
        })
        .map(str::to_owned)
        .ok_or_else(|| format!("{}: no IBVERBS_PABI_VERSION", cmake.display()))
}

/// Lays the headers out as rdma-core's own build does.
fn stage_headers(source: &Path, include: &Path, version: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", include.display());
    match fs::remove_dir_all(include) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => (),
    }
    fs::create_dir_all(include.join("kernel-abi")).map_err(failed)?;
    for (link, target) in [
        ("ccan", "ccan"),
        ("util", "util"),
        ("rdma", "kernel-headers/rdma"),
    ] {
        symlink(source.join(target), include.join(link)).map_err(failed)?;
    }
    fs::create_dir(include.join("infiniband")).map_err(failed)?;
    for header in [
        "cmd_ioctl.h",
        "driver.h",
        "kern-abi.h",
        "verbs.h",
        "verbs_api.h",
    ] {
        let target = source.join("libibverbs").join(header);
        symlink(target, include.join("infiniband").join(header)).map_err(failed)?;
    }
    symlink(
        source.join("kernel-headers/rdma/ib_user_ioctl_verbs.h"),
        include.join("infiniband/ib_user_ioctl_verbs.h"),
    )
    .map_err(failed)?;
    let config = format!("#define IBVERBS_PABI_VERSION {version}\n#define HAVE_TYPEOF 1\n");
    fs::write(include.join("config.h"), config).map_err(failed)?;
    run(Command::new("python3")
        .arg(source.join("buildlib/make_abi_structs.py"))
        .arg(source.join("kernel-headers/rdma/ib_user_verbs.h"))
        .arg(include.join("kernel-abi/ib_user_verbs.h")))
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(error) => Err(format!("{program}: {error}")),
    }
}
