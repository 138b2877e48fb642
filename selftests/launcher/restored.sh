#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma`: VMs that are restored from a saved one, which an emulated VM's first run makes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Runs a command, and tells whether its VMs were restored. Skips the test with KVM.
restored() {
	export XDG_CACHE_HOME=$work/dir/cache
	virtio_rdma run --json "$work/dir/run.json" "$@" </dev/null >"$work/out" 2>"$work/err"
	! grep -q 'under KVM' "$work/err" || skip 'VMs boot with KVM'
	grep -q '"name": "restored"' "$work/dir/run.json"
}

# Each VM has numbers, identities and addresses of its own, and the host's time.
test_vms_differ() {
	local before after time
	before=$(date +%s)
	# shellcheck disable=SC2016 # of the VM's shell
	restored --tools -- sh -c '
		for vm in 1 2; do
			on $vm sh -c "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id
				hostname; date +%s; cat /sys/class/net/eth0/address
				cat /sys/class/infiniband/*/node_guid /sys/class/infiniband/*/ports/1/state"
		done'
	after=$(date +%s)
	[[ $(grep -c ACTIVE "$work/out") == 2 ]]
	[[ $(wc -l <"$work/out") == 14 ]]
	# The times are in lines 4 and 11, and may be equal. All else but the state differs.
	[[ $(sed '4d;11d;/ACTIVE/d' "$work/out" | sort -u | wc -l) == 10 ]]
	while read -r time; do
		((time >= before - 2 && time <= after + 2))
	done < <(sed -n '4p;11p' "$work/out")
	cp "$work/out" "$work/first"
	restored --vms 1 -- sh -c 'cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id'
	if grep -qF -f "$work/out" "$work/first"; then
		fail 'a number of an earlier run'
	fi
	nothing_left
}

# A saved VM that can't be restored is removed, and the VMs boot.
test_bad_file() {
	local file
	restored --vms 1 -- true
	for file in "$XDG_CACHE_HOME"/virtio-rdma/guests/*; do
		truncate -s 4096 "$file"
	done
	if restored --vms 1 -- cat /proc/uptime; then
		fail 'restored from a file that was cut off'
	fi
	grep -q '^virtio-rdma: once more, since VM 1 could not be restored' "$work/err"
	[[ -s $work/out ]]
	[[ -z $(ls "$XDG_CACHE_HOME/virtio-rdma/guests") ]]
	restored --vms 1 -- true
	nothing_left
}

# A VM that a saved one does not fit boots, and so does one where none can be kept.
test_other_vms_boot() {
	if restored --vms 1 --append quiet -- true; then
		fail 'restored with another command line'
	fi
	restored --vms 1 --smp 1 --mem 512 -- nproc
	[[ $(<"$work/out") == 1 ]]
	XDG_CACHE_HOME=/proc virtio_rdma run --vms 1 --tools -- true \
		</dev/null >"$work/out" 2>"$work/err"
	if grep -v ' up after ' "$work/err"; then
		fail 'a message about a cache that takes no files'
	fi
}

run_tests test_vms_differ test_bad_file test_other_vms_boot
