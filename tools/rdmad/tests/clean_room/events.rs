// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events of a QP, as the commands `ctl events` and `ctl trace` tell it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::ctl::{done, refused, status};
use crate::daemon_with;
use crate::endpoint::{Endpoint, PLAIN};
use crate::only;
use crate::process::Daemon;
use crate::wire::*;

#[test]
fn the_failure_of_a_qp_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let socket = dir.join("ctl").display().to_string();
    let _daemon = daemon_with(dir, "wire", &["--ctl", &socket]);
    let mut a = Endpoint::new(&dir.join("a"), PLAIN);
    let mut b = Endpoint::new(&dir.join("b"), PLAIN);
    b.connect(a.peer(), 1, 2);
    a.connect(b.peer(), 2, 1);

    // A program that follows is told of what comes.
    let follower = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args([
            "ctl", "--socket", &socket, "--json", "events", "a", "--follow",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut follower = Daemon(follower);
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let mut follow = |event: &str| loop {
        let line = lines.next().expect("it goes on").unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        if told["event"] == event {
            return told;
        }
    };
    assert_eq!(follow("created")["qpn"], a.qpn());

    // A WRITE with a key that does not exist.
    let from = [a.region.sge(0, 8)];
    a.post_send(
        &Send::new(opcode::RDMA_WRITE, 0x51)
            .to(0x1000, 0xbad)
            .with(&from),
    );
    assert_eq!(only(&mut a.send_cq).wr_id, 0x51);
    let told = follow("NAK received");
    assert_eq!(told["values"]["code"], "remote access error");
    let told = follow("send work request failed");
    assert_eq!(told["values"]["status"], "REM_ACCESS_ERR");
    assert_eq!(told["values"]["wr_id"], "0x51");
    drop(follower);

    let qpn = a.qpn().to_string();
    let text = done(dir, &["events", "a", "--qp", &qpn]);
    let last: Vec<_> = text.lines().rev().take(2).collect();
    assert!(
        last[0].ends_with(&format!("QP {qpn}: failed, to ERR")),
        "{text}"
    );
    assert!(
        last[1].contains("status REM_ACCESS_ERR, wr id 0x51"),
        "{text}"
    );
    assert!(
        text.lines()
            .all(|line| line.contains(&format!("QP {qpn}: "))),
        "{text}"
    );

    let theirs = done(
        dir,
        &["--json", "events", "b", "--qp", &b.qpn().to_string()],
    );
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    let refused_key = theirs["events"]["events"].as_array().unwrap().iter();
    let refused_key: Vec<_> = refused_key
        .filter(|each| each["event"] == "R_Key refused")
        .collect();
    assert_eq!(refused_key[0]["values"]["rkey"], "0xbad", "{theirs}");
    assert_eq!(refused_key[0]["values"]["address"], "0x1000", "{theirs}");

    let error = refused(dir, &["events", "c"]);
    assert!(error.contains("there is no port \"c\""), "{error}");
    for args in [
        &["trace", "a", &qpn][..],
        &["trace", "a"],
        &["trace", "a", "--off"],
    ] {
        assert_eq!(done(dir, args), "");
    }
}

#[test]
fn the_last_refused_command_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |name: &str| dir.join(name).display().to_string();
    let (control, socket) = (at("ctl"), at("status"));
    let _daemon = daemon_with(dir, "direct", &["--ctl", &control, "--status", &socket]);
    let status = |more: &[&str]| status(dir, more);
    assert!(!status(&[]).contains("last refusal"));

    let mut a = Endpoint::new(&dir.join("a"), PLAIN);
    let qpn = a.qpn();
    // A QP in RESET can't go to RTS.
    assert_eq!(a.modify(state::RTS, 0, &[0; 129]), Err(22));
    let text = format!(
        "QP {qpn}: command MODIFY_QP refused (EINVAL): \
         qp_state: there is no transition from RESET to RTS for this QP"
    );
    let line = done(dir, &["events", "a"]);
    assert!(line.lines().any(|line| line.ends_with(&text)), "{line}");
    let told = status(&[]);
    let last = told.lines().find(|line| line.contains("last refusal: "));
    assert!(last.unwrap().ends_with(&text), "{told}");
    let json: Value = serde_json::from_str(&status(&["--json"])).unwrap();
    let refusal = &json["ports"][0]["last_refusal"];
    assert_eq!(refusal["command"], "MODIFY_QP", "{json}");
    assert_eq!(refusal["errno"], "EINVAL");
    assert_eq!(refusal["qpn"], qpn);
    assert_eq!(refusal["text"], text);
    assert!(refusal["time_us"].as_u64() > Some(0));
    assert_eq!(json["ports"][1]["last_refusal"], Value::Null);
}
