// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Generates the bindings of libibverbs from its installed header. `BINDGEN` names another bindgen
//! program.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const FUNCTIONS: &str = "ibv_(get_device_list|free_device_list|get_device_name|open_device|close_device|query_device\
    |query_port|alloc_pd|dealloc_pd|reg_mr|rereg_mr|dereg_mr|create_comp_channel|destroy_comp_channel|create_cq|destroy_cq\
    |get_cq_event|ack_cq_events|create_qp|modify_qp|query_qp|destroy_qp|get_async_event|ack_async_event\
    |create_ah|destroy_ah|create_ah_from_wc|qp_to_qp_ex|create_srq|modify_srq|query_srq|destroy_srq|resize_cq\
    |attach_mcast|detach_mcast|reg_dmabuf_mr)";

fn main() {
    println!("cargo:rerun-if-env-changed=BINDGEN");
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-lib=ibverbs");
    let out =
        PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR")).join("bindings.rs");
    let bindgen = env::var_os("BINDGEN").unwrap_or_else(|| "bindgen".into());
    let status = Command::new(&bindgen)
        .args([
            "wrapper.h",
            "--rust-target",
            "1.85",
            "--no-doc-comments",
            "--no-prepend-enum-name",
        ])
        .args([
            "--allowlist-function",
            FUNCTIONS,
            "--allowlist-type",
            "ibv_.*|verbs_context",
            "--allowlist-var",
            "IBV_.*",
        ])
        .arg("-o")
        .arg(out)
        .status();
    match status {
        Ok(status) if status.success() => (),
        Ok(status) => panic!("{}: {status}", bindgen.to_string_lossy()),
        Err(error) => panic!("{}: {error}", bindgen.to_string_lossy()),
    }
}
