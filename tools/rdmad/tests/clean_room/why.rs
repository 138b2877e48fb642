// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QP that hangs, as the command `ctl qp` tells it.

use crate::ctl::{done, refused};
use crate::daemon_with;
use crate::driver::EVENT;
use crate::endpoint::PLAIN;
use crate::endpoint::{completion_queue, Endpoint};
use crate::only;
use crate::pattern;
use crate::wire::*;

#[test]
fn a_qp_that_hangs_is_explained() {
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let socket = dir.join("ctl").display().to_string();
        let _daemon = daemon_with(dir, path, &["--ctl", &socket]);
        let mut a = Endpoint::new(&dir.join("a"), PLAIN);
        let mut b = Endpoint::new(&dir.join("b"), PLAIN);
        b.connect(a.peer(), 1, 2);
        a.connect(b.peer(), 2, 1);
        assert_eq!(done(dir, &["qp", "a", "--why", "0"]), "");

        // No receive is posted, and the requester tries again for ever.
        a.region.write(0, &pattern(100));
        let from = [a.region.sge(0, 100)];
        a.post_send(&Send::new(opcode::SEND, 1).with(&from));
        let qpn = a.qpn().to_string();
        let line = loop {
            let lines = done(dir, &["qp", "a", "--why", "50"]);
            // Between a try and its refusal, the QP waits for an acknowledgement.
            if lines.contains("(RNR)") {
                break lines;
            }
        };
        let begin = format!("QP {qpn} RC RTS, peer {} ({path}): ", b.qpn());
        assert!(line.starts_with(&begin), "{line}");
        assert!(line.contains("no receive posted (RNR)"), "{line}");
        assert!(line.ends_with("retries left: without limit\n"), "{line}");

        let all = done(dir, &["qp", "a", &qpn]);
        for value in [
            "send.posted",
            "send.state.queue.done",
            "recv.state.machine.rc.expected",
        ] {
            assert!(all.contains(&format!("\n  {value} ")), "{all}");
        }
        let json = done(dir, &["--json", "qp", "a", &qpn]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let sent = &json["qps"][0]["send"];
        assert_eq!(sent["state"]["queue"]["done"], 0, "{json}");
        assert_eq!(sent["state"]["queue"]["next"], 1, "{json}");

        let into = [b.region.sge(0, 100)];
        b.post_receive(&receive(2, &into));
        assert_eq!(only(&mut a.send_cq).wr_id, 1);
        assert_eq!(done(dir, &["qp", "a", "--why", "0"]), "");

        let json = done(dir, &["--json", "workers"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let workers = json["workers"].as_array().unwrap();
        let longest = |worker: &serde_json::Value| worker["longest_turn"].as_u64();
        assert!(
            workers.iter().any(|worker| longest(worker) > Some(0)),
            "{json}"
        );

        let cqs = done(dir, &["cq", "a"]);
        assert!(cqs.contains("completions 1, "), "{cqs}");
        assert!(cqs.lines().all(|line| line.starts_with("cqn ")), "{cqs}");
        assert!(cqs.contains(", live, "), "{cqs}");
        let mrs = done(dir, &["mr", "b"]);
        assert!(mrs.contains(", access LOCAL_WRITE"), "{mrs}");
        assert_eq!(done(dir, &["srq", "a"]), "");
        let error = refused(dir, &["mr", "b", "0xfffffe00"]);
        assert!(
            error.contains("port b has no MR with key 4294966784"),
            "{error}"
        );

        let error = refused(dir, &["qp", "a", "16000000"]);
        assert!(error.contains("port a has no QP 16000000"), "{error}");
        let error = refused(dir, &["qp", "c"]);
        assert!(error.contains("there is no port \"c\""), "{error}");

        // An event queue whose buffers are too short for an event.
        a.driver.initialize_with(EVENT - 1);
        completion_queue(&mut a.driver, 0, 7).demand(&mut a.driver);
        a.driver.await_failure();
        let events = done(dir, &["events", "a"]);
        let (_, why) = events.split_once("port failed: ").expect(&events);
        let why = why.trim_end();
        let ports = done(dir, &["ports"]);
        assert!(ports.contains(" failed "), "{ports}");
        assert!(ports.contains(&format!("failed: {why}\n")), "{ports}");
    }
}
