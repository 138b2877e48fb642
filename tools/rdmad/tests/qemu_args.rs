// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the command `qemu-args`. The test bed starts its VMs with the same arguments.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PORT: &str = "a,vfio=a.vfio,net=a.net,mac=52:54:00:09:00:01";

fn ask(port: &str, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["qemu-args", "--port", port])
        .args(options)
        .output()
        .unwrap()
}

/// The QEMU arguments that the command prints.
fn words(port: &str, options: &[&str]) -> Vec<String> {
    let output = ask(port, &[&["--json"], options].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(port: &str, options: &[&str]) -> String {
    let output = ask(port, options);
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Writes a program to `path` that prints `says`, whatever its arguments are.
fn program(path: &Path, says: &str) {
    fs::write(path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn qemu_takes_the_arguments() {
    // QEMU lists the properties of a known device, and fails for an unknown device.
    let words = words(PORT, &["--mem", "64M"]);
    let device = words
        .iter()
        .rev()
        .find(|word| word.contains("vfio-user-pci"));
    let device: serde_json::Value = serde_json::from_str(device.unwrap()).unwrap();
    let output = Command::new("qemu-system-x86_64")
        .args(["-machine", "none", "-device", "vfio-user-pci,help"])
        .output()
        .unwrap();
    let known = String::from_utf8(output.stdout).unwrap();
    for property in device.as_object().unwrap().keys() {
        let is_general = ["driver", "bus"].contains(&property.as_str());
        assert!(
            is_general || known.contains(property),
            "{property}: {known}"
        );
    }
    // QEMU must start with all arguments except those of the device, which needs a daemon.
    let others: Vec<_> = words
        .chunks(2)
        .filter(|pair| !pair[1].contains("vfio"))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let mut qemu = Command::new("qemu-system-x86_64")
        .args(others.concat())
        .args(["-accel", "tcg", "-display", "none", "-serial", "none"])
        .args(["-nodefaults", "-S", "-monitor", "stdio"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    qemu.stdin.take().unwrap().write_all(b"quit\n").unwrap();
    assert!(qemu.wait().unwrap().success());
}

#[test]
fn the_forms_say_the_same() {
    let words = words(PORT, &["--no-check"]);
    let shell = ask(PORT, &["--no-check"]);
    let script = String::from_utf8(shell.stdout).unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("printf '%s\\n' {script}")])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .collect::<Vec<_>>(),
        words
    );
    let xml = ask(PORT, &["--no-check", "--libvirt"]);
    let xml = String::from_utf8(xml.stdout).unwrap();
    assert_eq!(xml.matches("<qemu:arg ").count(), 6, "{xml}");
    assert!(xml.contains("addr.path=/"), "absolute paths: {xml}");
}

#[test]
fn a_qemu_without_vfio_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let qemu = dir.path().join("qemu");
    let with = ["--qemu", qemu.to_str().unwrap()];
    program(&qemu, "QEMU emulator version 10.0.9 (old)");
    let told = refused(PORT, &with);
    assert!(
        told.contains("QEMU 10.0") && told.contains("10.1"),
        "{told}"
    );
    program(&qemu, "QEMU emulator version 10.1.0 (small)");
    let told = refused(PORT, &with);
    assert!(told.contains("without vfio-user-pci"), "{told}");
    program(&qemu, "something else");
    assert!(refused(PORT, &with).contains("is no QEMU"));
    assert!(refused(PORT, &["--qemu", "/nonexistent"]).contains("--no-check"));
}

#[test]
fn memory_that_can_not_be_mapped_is_refused() {
    let told = refused(PORT, &["--backend", "/proc"]);
    assert!(told.contains("neither on tmpfs nor on hugetlbfs"), "{told}");
    assert!(refused(PORT, &["--backend", "swap"]).contains("\"swap\""));
    assert!(refused(PORT, &["--mem", "1025K"]).contains("whole number of MiB"));
    assert!(refused(PORT, &["--slot", "1f"]).contains("1 to 1e"));
    assert!(refused("a,vfio=x", &[]).contains("mac=MAC is missing"));
}
