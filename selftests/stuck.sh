#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A device that seems not to answer commands for a while. Other commands are sent nevertheless, and
# nothing else in the guest waits for the device.
# more: --path direct --withhold ring-addr
# more: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# From now on, no answer arrives; see `release`.
withhold() { insmod "$modules/kverbs/withhold.ko" irq="$(control_irq)"; }
release() { rmmod withhold; }

# Whether a command of the control queue waits for its answer. The driver's tasks have no other
# reason to sleep there.
is_waiting() { grep -qs virtio_rdma "$@"; }

after_failure() {
	[[ ! -d /sys/module/withhold ]] || rmmod withhold
	end_children
	delete_addresses
}

# The addresses that test_network_configuration adds.
delete_addresses() {
	local host
	for host in {71..78}; do
		ip address del "10.9.0.$host/24" dev eth0 2>/dev/null || true
	done
}

# Starts the program that runs verbs, see `begin`.
start_verbs() {
	[[ -c /dev/test_exporter ]] || insmod "$modules/kverbs/exporter.ko"
	mkfifo "$work/commands" "$work/uses"
	"$top/selftests/stuck/commands.py" "$(device 1)" "$work/uses" <"$work/commands" \
		>>"$work/verbs" 2>&1 &
	program=$!
	exec {commands}>"$work/commands" {uses}<>"$work/uses"
	until_ok 120 grep -qs ready "$work/verbs" || {
		cat "$work/verbs"
		return 1
	}
}

# Begins a verb; `has_ended` tells whether it has ended.
begin() { echo "$1" >&"$commands"; }
has_ended() { grep -q "$1 done" "$work/verbs"; }

still_waits() {
	if has_ended "$1"; then
		fail "$1 has not waited for the device"
	fi
}

# Begins a verb that waits for its answer.
begin_waiting() {
	begin "$1"
	waits_for_answer() { is_waiting /proc/"$program"/task/*/stack; }
	until_ok 60 waits_for_answer
}

# Ends the program. All verbs end.
end_verbs() {
	exec {commands}>&- {uses}>&-
	wait "$program"
	rmmod exporter
}

# Destructions by kernel clients do not wait for each other. A new object waits for the end of an
# object that had its number.
test_destructions() {
	load_kverbs withheld="$(control_irq)"
	rmmod kverbs
}

# The core adds GIDs with the RTNL held. Network configuration waits for the device no longer than
# the driver allows: one addition for a second, and the next ones, which find the device stuck, not
# at all. The driver's log says how long it has waited. The late answers are not lost.
test_network_configuration() {
	local host
	mark_log
	withhold
	for host in {71..78}; do
		ip address add "10.9.0.$host/24" dev eth0
	done
	insmod_kverbs rescan=1 &
	for _ in {1..20}; do
		timeout 20 ip link set lo mtu 65535
		timeout 20 ip link set lo mtu 65536
	done
	late() { log_since 'has not added GID' | sed -n 's/.* within \([0-9]*\) ms: .*/\1/p'; }
	all_late() { (($(late | wc -l) >= 8)); }
	until_ok 60 all_late
	late
	[[ $(late | sort | uniq -c | xargs) == "7 0 1 1000" ]]
	release
	wait $!
	rmmod kverbs
	has_gids() { (($(grep -l '0a09:00\(4[7-9a-e]\)' "$gids"/* | wc -l) == 8)); }
	gids=/sys/class/infiniband/$(device 1)/ports/1/gids
	until_ok 20 has_gids
	delete_addresses
	has_no_gids() { ! grep -q '0a09:00\(4[7-9a-e]\)' "$gids"/*; }
	until_ok 20 has_no_gids
	traffic
}

# Administrators see the MRs while one of them changes.
test_resources_are_shown() {
	start_verbs
	withhold
	begin_waiting rereg
	timeout 20 rdma -dd resource show mr
	still_waits rereg
	release
	until_ok 60 has_ended rereg
	end_verbs
}

# Other users of a DMA buffer do not wait for commands of the device.
# abi: R-115
test_users_of_a_buffer() {
	has_feature 12 || skip "withheld"
	local verb
	start_verbs
	for verb in register dereg; do
		withhold
		begin_waiting "$verb"
		: >"$work/verbs"
		echo use >&"$uses"
		until_ok 20 has_ended use
		still_waits "$verb"
		release
		until_ok 60 has_ended "$verb"
	done
	end_verbs
}

run_tests test_destructions test_network_configuration test_resources_are_shown \
	test_users_of_a_buffer
