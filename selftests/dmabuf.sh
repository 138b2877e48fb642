#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# An exporter of DMA buffers revokes its memory, but the device does not confirm that it has
# released the memory. The exporter can then still call functions of our module, so the module must
# stay loaded. The last test kills the daemon.
# more: --joined unix --allow-warnings
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# The virtio core warns that it can't reset a device that is gone.
# shellcheck disable=SC2034
accepted='WARNING: drivers/virtio/virtio\.c:[0-9]+ at virtio_dev_remove'

# Starts a process that registers the exporter's memory.
start_holder() {
	[[ -c /dev/test_exporter ]] || insmod "$modules/kverbs/exporter.ko"
	mkfifo "$work/commands"
	"$top/selftests/dmabuf/holder.py" "$(device 1)" <"$work/commands" >"$work/holder" 2>&1 &
	holder=$!
	exec {commands}>"$work/commands"
	registered() { grep -q registered "$work/holder"; }
	until_ok 120 registered || {
		cat "$work/holder"
		return 1
	}
}

# Sends the holder a command, and waits until it is done.
tell_holder() {
	local before
	count() { grep -c '^done' "$work/holder" || true; }
	before=$(count)
	echo "$1" >&"$commands"
	is_done() { (($(count) > before)); }
	until_ok 120 is_done
}

stays_loaded() {
	if rmmod virtio_rdma 2>"$work/rmmod"; then
		fail "the module is gone"
	fi
	cat "$work/rmmod"
	grep -q 'in use' "$work/rmmod"
}

log_has() { dmesg | grep -q "$1"; }

# If the device fails, the exporter waits for its reset. Afterwards the device does not use the
# memory any more.
# abi: R-115, R-373
test_taken_back_after_reset() {
	start_holder
	load_kverbs slow_reset=1
	until_ok 60 link_is 1 DOWN
	tell_holder end
	stays_loaded
	echo die >&"$commands"
	waits() { [[ $(ps -o state= -p "$holder") == D* ]]; }
	until_ok 60 waits
	rmmod kverbs
	until_ok 60 log_since \
		'the device was reset, because it did not revoke the access to a DMA buffer'
	until_ok 60 recovers
	timeout 60 rmmod virtio_rdma
	insmod "$module"
	until_ok 60 device_up
}

# If the reset is not confirmed, the module can never be removed.
# abi: R-115
test_taken_back_after_death() {
	start_holder
	on 0 daemon kill 1
	tell_holder end
	stays_loaded
	virtio_device 1 >"$driver/unbind"
	[[ -z $(device 1) ]]
	stays_loaded
	tell_holder die
	log_has 'and may still use it'
}

run_tests test_taken_back_after_reset test_taken_back_after_death
