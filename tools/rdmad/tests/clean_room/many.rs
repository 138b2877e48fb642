// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A port with thousands of QPs: the daemon describes each of them, in the status as in `ctl qp`.

use std::collections::HashMap;

use serde_json::Value;

use testkit::wait_until;

use crate::ctl::{ctl, done, status};
use crate::daemon_with;
use crate::endpoint::Endpoint;
use crate::endpoint::PLAIN;
use crate::engines::{exchange, send};
use crate::wire::*;

const QPS: usize = 4000;

/// The descriptions of QPs, by number.
fn by_number(qps: &Value) -> HashMap<u64, &Value> {
    let qps = qps.as_array().unwrap().iter();
    qps.map(|qp| (qp["qpn"].as_u64().unwrap(), qp)).collect()
}

/// Creates QPs without queues, so that they need no memory of the VM.
fn create_qps(side: &mut Endpoint, count: usize) {
    let request = Fields::default()
        .le32(side.pd)
        .u8(RC)
        .u8(1) // REQUESTED
        .le32(0)
        .le32(0)
        .le32(side.send_cq.number)
        .le32(0)
        .le32(0)
        .le32(side.recv_cq.number)
        .zeroes(114)
        .le32(0)
        .le64(0);
    for _ in 0..count {
        let created = side.driver.command(command::CREATE_QP, &request.0, 4);
        created.expect("a QP");
    }
}

#[test]
fn the_status_describes_each_of_many_qps() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |name: &str| dir.join(name).display().to_string();
    let more = ["--ctl", &at("ctl"), "--status", &at("status")];
    let _daemon = daemon_with(dir, "direct", &more);
    let mut a = Endpoint::new(&dir.join("a"), PLAIN);
    create_qps(&mut a, QPS);
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

#[test]
fn many_objects_outlive_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |name: &str| dir.join(name).display().to_string();
    let daemon = daemon_with(dir, "direct", &["--ctl", &at("ctl")]);
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.join(name), PLAIN));
    exchange(&mut a, &mut b);
    create_qps(&mut a, 1000);
    let list = a.region.extent.list(0);
    // abi: R-271
    let request = Fields::default()
        .le32(a.pd)
        .le32(LOCAL_WRITE)
        .le64(0)
        .le64(4096)
        .le64(0)
        .le64(list.address())
        .le32(1);
    let register = |side: &mut Endpoint| {
        let created = side.driver.command(command::REG_USER_MR, &request.0, 12);
        le32(&created.expect("an MR"), 0)
    };
    let regions: Vec<_> = (0..10_000).map(|_| register(&mut a)).collect();
    let qps = || {
        let listed: Value = serde_json::from_str(&done(dir, &["--json", "qp", "a"])).unwrap();
        let qps = listed["qps"].as_array().unwrap().iter();
        qps.map(|qp| (qp["qpn"].clone(), qp["state"].clone(), qp["peer"].clone()))
            .collect::<Vec<_>>()
    };
    let before = qps();
    for _ in 0..3 {
        daemon.upgrade();
        wait_until("the control socket is served", || {
            ctl(dir, &["ports"]).status.success()
        });
        assert!(qps() == before);
        send(&mut a, &mut b);
    }
    for region in regions {
        assert_eq!(a.destroy(command::DEREG_MR, region), Ok(()));
    }
}
