// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Generates the bindings of libibverbs' provider interface from an rdma-core source tree, and
//! checks that interface against the layouts that the provider knows.
//!
//! `infiniband/driver.h` is private to rdma-core and in no package, so a source tree is needed:
//! `RDMA_CORE_SRC`, or `build/rdma-core-src` of this workspace. Any release that the provider knows
//! fits, since the release of the loaded libibverbs may differ. `BINDGEN` names another bindgen
//! program.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

mod headers;
#[allow(dead_code, reason = "the rest is the provider's")]
#[path = "src/layouts.rs"]
mod layouts;

fn main() {
    for variable in ["RDMA_CORE_SRC", "BINDGEN"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    for file in [
        "wrapper.h",
        "include/infiniband/virtio_rdma_dv.h",
        "build.rs",
        "headers.rs",
        "src/layouts.rs",
    ] {
        println!("cargo:rerun-if-changed={file}");
    }
    if let Err(error) = generate() {
        eprintln!("virtio-rdma-provider: {error}");
        std::process::exit(1);
    }
    // The soname that programs are linked with. Its number is the major version of the header.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvirtio_rdma.so.1");
    // The symbols have the soname as their version, since rustc passes its own version script, and
    // the linker accepts only one.
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
    let bindings = out.join("bindings.rs");
    let cmake = source.join("CMakeLists.txt");
    let abi = setting(&cmake, "IBVERBS_PABI_VERSION")?;
    let release = setting(&cmake, "PACKAGE_VERSION")?;
    stage_headers(&source, &include, abi)?;

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
        .arg("-o")
        .arg(&bindings)
        .arg("--")
        .arg("-I")
        .arg(&include))?;
    let text = fs::read_to_string(&bindings).map_err(|error| format!("bindings.rs: {error}"))?;
    let more = headers::check(&text, release, abi)
        .map_err(|misfit| format!("{}: {misfit}", source.display()))?;
    fs::write(&bindings, text + &more).map_err(|error| format!("bindings.rs: {error}"))?;
    link(&out)
}

/// Generates stub libraries to link with. Their symbols have no version or an old version, so the
/// provider loads with each libibverbs of a known layout, and with glibc 2.31 and later.
fn link(out: &Path) -> Result<(), String> {
    let folder = out.join("link");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let of_libibverbs: Vec<_> = layouts::functions().map(|(name, _)| name).collect();
    // Functions that were in separate libraries before glibc 2.34.
    let threads = [
        "pthread_key_create",
        "pthread_key_delete",
        "pthread_setspecific",
    ];
    for (library, soname, version, functions) in [
        ("ibverbs", "libibverbs.so.1", "", &of_libibverbs[..]),
        ("pthread", "libpthread.so.0", "GLIBC_2.2.5", &threads),
        ("dl", "libdl.so.2", "GLIBC_2.2.5", &["dlsym"]),
    ] {
        let source = folder.join(format!("{library}.s"));
        let map = folder.join(format!("{library}.map"));
        let define = |name: &&str| format!(".globl {name}\n.type {name}, @function\n{name}:\n");
        let text: String = functions.iter().map(define).collect();
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        write(&source, &format!("{text}.section .note.GNU-stack\n"))?;
        write(&map, &format!("{version} {{ global: *; }};\n"))?;
        run(Command::new("cc")
            .args(["-shared", "-nostdlib", "-o"])
            .arg(folder.join(format!("lib{library}.so")))
            .arg(format!("-Wl,-soname,{soname}"))
            .arg(format!("-Wl,--version-script,{}", map.display()))
            .arg(&source))?;
    }
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=ibverbs");
    Ok(())
}

/// A number that rdma-core's `CMakeLists.txt` sets, cut off at its first dot.
fn setting(cmake: &Path, name: &str) -> Result<u32, String> {
    let text =
        fs::read_to_string(cmake).map_err(|error| format!("{}: {error}", cmake.display()))?;
    text.lines()
        .find_map(|line| {
            let value = line.strip_prefix("set(")?.strip_prefix(name)?;
            let value = value.strip_prefix(" \"")?.strip_suffix("\")")?;
            value.split('.').next()?.parse().ok()
        })
        .ok_or_else(|| format!("{}: no {name}", cmake.display()))
}

/// Lays the headers out as rdma-core's own build does.
fn stage_headers(source: &Path, include: &Path, abi: u32) -> Result<(), String> {
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
    let config = format!("#define IBVERBS_PABI_VERSION {abi}\n#define HAVE_TYPEOF 1\n");
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
