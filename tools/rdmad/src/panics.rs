// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A panic that is not contained in the work for a port ends the process, whichever thread panics.

use std::env;
use std::process::Command;
use std::thread;

use sockets::Access;

use crate::status;
use crate::status::Form;

/// Runs the ignored test `name` of this module in a process of its own, which must end by the panic.
fn ends(name: &str) {
    let output = Command::new(env::current_exe().unwrap())
        .args([
            &format!("panics::{name}"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(101), "{name}: {told}");
    assert!(told.contains("planted"), "{name}: {told}");
    assert!(told.contains("the process ends"), "{name}: {told}");
}

#[test]
fn a_panic_for_all_ports_ends_the_process() {
    ends("of_the_status_thread");
    ends("of_any_thread");
}

#[test]
#[ignore = "ends its process"]
fn of_the_status_thread() {
    contain::end_process_on_panic();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("status");
    let _server = status::Server::start(&socket, &Access::default(), || panic!("planted")).unwrap();
    // The process ends before the thread closes its end.
    let _ = status::show(&socket, Form::Text, &mut Vec::new());
}

#[test]
#[ignore = "ends its process"]
fn of_any_thread() {
    contain::end_process_on_panic();
    let contained = thread::spawn(|| contain::contain::<()>(|| panic!("in the work of a port")));
    assert!(matches!(contained.join(), Ok(Err(_))));
    let _ = thread::spawn(|| panic!("planted")).join();
}
