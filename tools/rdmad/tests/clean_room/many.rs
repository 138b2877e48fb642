// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A port with thousands of QPs: the daemon describes each of them, in the status as in `ctl qp`.

use std::collections::HashMap;

use serde_json::Value;

use crate::ctl::{done, status};
use crate::daemon_with;
use crate::endpoint::Endpoint;
use crate::endpoint::PLAIN;
use crate::wire::*;

const QPS: usize = 4000;

/// The descriptions of QPs, by number.
fn by_number(qps: &Value) -> HashMap<u64, &Value> {
    let qps = qps.as_array().unwrap().iter();
    qps.map(|qp| (qp["qpn"].as_u64().unwrap(), qp)).collect()
}

#[test]
fn the_status_describes_each_of_many_qps() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |name: &str| dir.join(name).display().to_string();
    let more = ["--ctl", &at("ctl"), "--status", &at("status")];
    let _daemon = daemon_with(dir, "direct", &more);
    let mut a = Endpoint::new(&dir.join("a"), PLAIN);
    // Without queues, so that they need no memory of the VM.
    let request = Fields::default()
        .le32(a.pd)
        .u8(RC)
        .u8(1) // REQUESTED
        .le32(0)
        .le32(0)
        .le32(a.send_cq.number)
        .le32(0)
        .le32(0)
        .le32(a.recv_cq.number)
        .zeroes(114)
        .le32(0)
        .le64(0);
    for _ in 0..QPS {
        let created = a.driver.command(command::CREATE_QP, &request.0, 4);
        created.expect("a QP");
    }
    let listed = done(dir, &["--json", "qp", "a"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let listed = by_number(&listed["qps"]);
    assert_eq!(listed.len(), 1 + QPS);
    assert!(listed.contains_key(&a.qpn().into()));

    let told = status(dir, &["--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["ports"][1]["qps"], serde_json::json!([]));
    assert_eq!(told["ports"][1]["name"], "b");
    assert!(told["switch"].is_array());
    // None of the QPs works, so no value changes.
    assert_eq!(by_number(&told["ports"][0]["qps"]), listed);
    assert_eq!(done(dir, &["qp", "a"]).lines().count(), 1 + QPS);
}
