#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Runs the tests of the program verbs-test, which prints the report: every verb between two VMs with
# data compared byte for byte, and every error with its status. On the wire path, the distance of
# doorbell pages is 64 KiB, as for guests with pages of 64 KiB.
# testbed: --path direct
# testbed: --path wire --doorbell-stride 64K
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
work=$(mktemp -d)
trap 'end_children; rm -rf "$work"' EXIT
mark=$$.data
mark_logs "$mark"
start_server
# Tests of features that virtqueue mode lacks by design.
lacking=()
if in_virtqueue_mode; then
	lacking+=(
		--skip "data_inline=uverbs does not copy the payload of inline data"
		--skip "sge_inline_unasked=uverbs does not copy the payload of inline data"
		--skip "datagram_messages=uverbs does not copy the payload of inline data"
		--skip "datagram_forged=address vectors are not memory of processes"
		--skip "error_invalidate_user_key=SEND_WITH_INV goes with fast registration"
		--skip "event_of_violation=there are no asynchronous events"
		--skip "group_members=the machines withhold groups too"
		--skip "group_without_echo=the machines withhold groups too"
		--skip "dmabuf_udmabuf=the machines withhold peer memory too"
		--skip "datagram_too_long=the device is not told the MTU of the network device"
	)
	for name in receives attributes sizes beyond_region; do
		lacking+=(--skip "shared_$name=SRQs are own rings")
	done
	lacking+=(--skip "queue_resize=virtqueues have the length that they have")
	for name in reliable unreliable reliable_sends unreliable_sends datagram_sends inline control \
		destination parent_domain refusals; do
		lacking+=(--skip "extended_$name=uverbs has the ordinary calls alone")
	done
	for name in $("$verbs" -d "$(device 1)" list | grep -E '^(window|atomic_write|flush)_'); do
		lacking+=(--skip "$name=uverbs has no work request for it")
	done
fi
has_feature 7 || lacking+=(--skip "rate_limit_refusals=the machines withhold rate limits")
status=0
# With --lossy, also checks that packets were lost: without losses, the run would test nothing new.
lossy=false
[[ ${1:-} != --lossy ]] || lossy=true
! $lossy || losses_begin 2
client client "${lacking[@]}" "$peer" "$@" || status=$?
found=$(complaints_since "$mark" "$mark.end")
if $lossy && ! losses_seen 2; then
	status=1
fi
if [[ -n $found ]]; then
	echo "# ${found//$'\n'/$'\n'# }"
	status=1
fi
exit "$status"
