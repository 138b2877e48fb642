// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests. Each function runs on both sides; the session has the role of the side.

mod atomics;
mod changes;
mod data;
mod datagrams;
mod dmabufs;
mod errors;
mod events;
mod extended;
mod groups;
mod handles;
mod hostile;
mod limits;
mod memory;
mod pacing;
mod placement;
mod ports;
mod queues;
mod scattered;
mod sges;
mod shared;
mod soak;
mod states;
mod windows;

use anyhow::Result;

use crate::session::Session;

pub struct Test {
    /// Name of the test, the same on both sides.
    pub name: &'static str,
    /// Runs one side of the test.
    pub run: fn(&mut Session) -> Result<()>,
    /// Whether the test runs only if it is requested by name.
    pub special: bool,
}

const fn test(name: &'static str, run: fn(&mut Session) -> Result<()>) -> Test {
    Test {
        name,
        run,
        special: false,
    }
}

const fn special(name: &'static str, run: fn(&mut Session) -> Result<()>) -> Test {
    Test {
        name,
        run,
        special: true,
    }
}

/// All tests, in the order in which they run.
pub const ALL: &[Test] = &[
    test("data_send", data::send),
    test("data_send_imm", data::send_imm),
    test("data_write", data::write),
    test("data_write_imm", data::write_imm),
    test("data_read", data::read),
    test("data_inline", data::inline),
    test("data_path_mtu", data::path_mtu),
    test("data_unreliable_send", data::unreliable_send),
    test("data_unreliable_write", data::unreliable_write),
    test("sge_send", sges::send),
    test("sge_write", sges::write),
    test("sge_read", sges::read),
    test("sge_none", sges::none),
    test("sge_none_inline", sges::none_inline),
    test("sge_inline_unasked", sges::inline_unasked),
    test("datagram_messages", datagrams::messages),
    test("datagram_too_long", datagrams::too_long),
    test("datagram_wrong_qkey", datagrams::wrong_qkey),
    test("datagram_no_such_qp", datagrams::no_such_qp),
    test("datagram_no_receive", datagrams::no_receive),
    test("datagram_controlled_qkey", datagrams::controlled_qkey),
    test("datagram_forged", datagrams::forged),
    test("group_members", groups::members),
    test("group_without_echo", groups::without_echo),
    test("group_refusals", groups::refusals),
    test("atomic_values", atomics::values),
    test("atomic_beside_the_processor", atomics::beside_the_processor),
    test("atomic_misaligned", atomics::misaligned),
    test("atomic_out_of_range", atomics::out_of_range),
    test(
        "atomic_region_without_remote_atomic",
        atomics::region_without_remote_atomic,
    ),
    test("extended_reliable", extended::reliable),
    test("extended_unreliable", extended::unreliable),
    test("extended_reliable_sends", extended::reliable_sends),
    test("extended_unreliable_sends", extended::unreliable_sends),
    test("extended_datagram_sends", extended::datagram_sends),
    test("extended_inline", extended::inline),
    test("extended_control", extended::control),
    test("extended_destination", extended::destination),
    test("extended_parent_domain", extended::parent_domain),
    test("extended_refusals", extended::refusals),
    test("memory_unaligned", memory::unaligned),
    test("memory_large", memory::large),
    test("memory_read_only", memory::read_only),
    test("memory_several_access_flags", memory::several_access_flags),
    test("memory_many_regions", memory::many_regions),
    test("memory_register_under_traffic", memory::churn),
    test("dmabuf_udmabuf", dmabufs::udmabuf),
    test("memory_changed", changes::changed),
    test("memory_change_refused", changes::refusals),
    test("memory_changed_under_traffic", changes::under_traffic),
    test("window_capabilities", windows::capabilities),
    test("window_type_1", windows::type_1),
    test("window_type_2", windows::type_2),
    test("window_remote_invalidation", windows::remote_invalidation),
    test("window_unreliable", windows::unreliable),
    test("window_datagram", windows::datagram),
    test("window_access_flags", windows::access_flags),
    test("window_failed_binding", windows::failed_binding),
    test("window_of_another_qp", windows::of_another_qp),
    test("window_zero_based", windows::zero_based),
    test("window_keeps_region", windows::keeps_region),
    test("window_keeps_memory", windows::keeps_memory),
    test("window_deallocated", windows::deallocated),
    test("window_revoked", windows::revoked),
    test("atomic_write_values", placement::values),
    test("atomic_write_refusals", placement::refusals),
    test("flush_range_and_region", placement::range_and_region),
    test("flush_refusals", placement::flush_refusals),
    test("flush_of_persistent_memory", placement::persistent),
    test("handle_address", handles::address),
    test("queue_wraps", queues::wraps),
    test("queue_full", queues::full),
    test("queue_one_way", queues::one_way),
    test("queue_list_with_bad_request", queues::bad_request),
    test("queue_many_pairs", queues::many_pairs),
    test("queue_reused", queues::reused),
    test("queue_both_directions", queues::both_directions),
    test("queue_one_cq", queues::one_cq),
    test("queue_destroyed_with_work", queues::destroyed_with_work),
    test("queue_fence", queues::fence),
    test("shared_receives", shared::receives),
    test("shared_beyond_region", shared::beyond_region),
    test("shared_attributes", shared::attributes),
    test("shared_sizes", shared::sizes),
    test("queue_resize", shared::resize),
    test("queue_full_cq", shared::full_cq),
    test("state_query", states::query),
    test("state_bad_transitions", states::bad_transitions),
    test("state_sizes", states::sizes),
    test("state_unreliable_types", states::unreliable_types),
    test("state_flush", states::flush),
    test("state_reset_and_again", states::reset_and_again),
    test("rate_limit", pacing::flows),
    test("rate_limit_refusals", pacing::refusals),
    test("event_next", events::next),
    test("event_solicited", events::solicited),
    test("event_of_error", events::of_error),
    test("event_none_lost", events::none_lost),
    test("event_moderated", events::moderated),
    test("event_of_violation", events::of_violation),
    test("error_send_bad_lkey", errors::local::send_bad_lkey),
    test("error_recv_bad_lkey", errors::local::recv_bad_lkey),
    test("error_write_bad_rkey", errors::remote::write_bad_rkey),
    test("error_read_bad_rkey", errors::remote::read_bad_rkey),
    test("error_local_other_pd", errors::local::local_other_pd),
    test("error_remote_other_pd", errors::remote::remote_other_pd),
    test(
        "error_local_out_of_range",
        errors::local::local_out_of_range,
    ),
    test(
        "error_remote_out_of_range",
        errors::remote::remote_out_of_range,
    ),
    test(
        "error_region_without_remote_write",
        errors::remote::region_without_remote_write,
    ),
    test(
        "error_region_without_remote_read",
        errors::remote::region_without_remote_read,
    ),
    test(
        "error_recv_without_local_write",
        errors::local::recv_without_local_write,
    ),
    test(
        "error_read_without_local_write",
        errors::local::read_without_local_write,
    ),
    test(
        "error_qp_without_remote_write",
        errors::remote::qp_without_remote_write,
    ),
    test(
        "error_qp_without_remote_read",
        errors::remote::qp_without_remote_read,
    ),
    test("error_recv_too_short", errors::local::recv_too_short),
    test(
        "error_recv_beyond_region",
        errors::local::recv_beyond_region,
    ),
    test("error_region_gone_local", errors::local::region_gone_local),
    test(
        "error_region_gone_remote",
        errors::remote::region_gone_remote,
    ),
    test(
        "error_invalidate_user_key",
        errors::remote::invalidate_user_key,
    ),
    test(
        "error_receiver_not_ready",
        errors::transport::receiver_not_ready,
    ),
    test(
        "error_receiver_ready_later",
        errors::transport::receiver_ready_later,
    ),
    test("error_peer_gone", errors::transport::peer_gone),
    test("error_reasons", errors::reasons::told),
    special("memory_gigabytes", memory::gigabytes),
    special("dmabuf_moves", dmabufs::moves),
    special("limits", limits::limits),
    special("port_down", ports::down),
    special("scattered_rings", scattered::rings),
    special("soak", soak::soak),
    special("counted", soak::counted),
    special("quiet", soak::quiet),
    special("hostile_rings", hostile::rings),
    special("hostile_unmapped", hostile::unmapped),
    special("hostile_doorbell", hostile::doorbell),
    special("hostile_mappings", hostile::mappings),
    special("hostile_registration", hostile::registration),
];
