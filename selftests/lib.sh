# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# Functions that the tests have in common. They run on VM 1 of a test bed and reach VM 2 with `on 2
# COMMAND`. A test is a shell function; run_tests reports each as KTAP:
#
#	test_name() { commands, of which each must succeed; }
#	run_tests test_name ...
#
# RDMA_DEVICE names another device than the one of virtio_rdma, for tests that make sense there.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
verbs=$top/build/target/release/verbs-test
# shellcheck disable=SC2034 # for the scripts that include this one
module=${TESTBED_MODULES:-$top/build}/module/virtio_rdma.ko
# shellcheck disable=SC2034
driver=/sys/bus/virtio/drivers/virtio_rdma
export LC_ALL=C

# Lines of the kernel's log that mean a defect, whatever the test was after.
complaint='WARNING: |BUG: |BUG kmalloc|kernel BUG at|Oops: |general protection fault'
complaint+='|unable to handle|soft lockup|hard LOCKUP|detected stalls|self-detected stall|blocked for more than'
complaint+='|refcount_t: |list_(add|del) corruption|UBSAN: |circular locking|inconsistent lock'
complaint+='|suspicious RCU|scheduling while atomic|nobody cared'

# The part of it that a script expects: a pattern.
accepted=

# The VMs that a script has.
machines=(1 2)

fail() {
	printf '%s\n' "$*"
	exit 1
}

# Ends a test that makes no sense here.
skip() {
	printf '%s\n' "$*"
	exit 4
}

# Runs a command again until it succeeds; the first argument says for how many seconds at most.
until_ok() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < end)) || fail "still fails: $*"
		sleep 0.2
	done
}

# Runs a command on a VM, which may be this one. It has no standard input, so that a loop over lines
# keeps them.
at() {
	local vm=$1
	shift
	if ((vm == 1)); then
		"$@" </dev/null
	else
		on -n "$vm" "$@"
	fi
}

# The same with one of the functions find_..., in a shell there. To start a program takes long on an
# emulated processor, and to have one started on another VM takes a multiple: what is often asked
# for is found by one such call.
there() {
	local vm=$1
	shift
	if ((vm == 1)); then
		("$@")
	else
		on -n "$vm" bash -c "$(declare -f find_{device,virtio_device,netdev,gid,endpoint,server,waiting,losses}); RDMA_DEVICE=${RDMA_DEVICE:-}; \"\$@\"" \
			bash "$@"
	fi
}

# The RDMA device of a VM: ours, else whatever there is.
device() { there "$1" find_device; }

find_device() {
	local device driver first=${RDMA_DEVICE:-}
	if [[ -z $first ]]; then
		shopt -s nullglob
		for device in /sys/class/infiniband/*; do
			# The parent is the PCI function of the virtio device, on another transport
			# this itself.
			for driver in "$device"/device/{,virtio*/}driver; do
				if [[ $driver -ef /sys/bus/virtio/drivers/virtio_rdma ]]; then
					echo "${device##*/}"
					return
				fi
			done
			first=${first:-${device##*/}}
		done
	fi
	[[ -z $first ]] || echo "$first"
}

# The virtio device behind it.
virtio_device() { there "$1" find_virtio_device; }

find_virtio_device() {
	local device id
	for device in /sys/bus/virtio/devices/*; do
		read -r id <"$device/device"
		((id != 42)) || echo "${device##*/}"
	done
}

# Whether a feature bit was negotiated on VM 1.
has_feature() {
	local features
	read -r features <"/sys/bus/virtio/devices/$(virtio_device 1)/features"
	[[ ${features:$1:1} == 1 ]]
}

# Whether queues are virtqueues of the transport: own rings were not negotiated.
in_rfc_mode() {
	! has_feature 0
}

# The network device of a VM that the link is bound to.
netdev() { there "$1" find_netdev; }

find_netdev() {
	[[ ! $(rdma link show "$(find_device)/1") =~ \ netdev\ ([^\ ]+) ]] || echo "${BASH_REMATCH[1]}"
}

# Whether programs find a device of VM 1 in /dev.
has_node() {
	local node name
	for node in /sys/class/infiniband_verbs/uverbs*; do
		read -r name <"$node/ibdev" && [[ $name == "$1" && -c /dev/infiniband/${node##*/} ]] &&
			return
	done
	return 1
}

# Whether programs can use the device of VM 1: its port is up and it has its place in /dev.
device_up() {
	local name
	name=$(device 1)
	[[ -n $name ]] && link_is 1 ACTIVE && has_node "$name"
}

# Whether a VM's port is in a state.
link_is() {
	[[ $(at "$1" rdma link show) == *"$(device "$1")/1 state $2 "* ]]
}

# Starts the passive side of the verbs tests on VM 2, at a port if one is given; it ends with the
# test, or when another one is started there: it may be waiting for a peer that has gone.
start_server() {
	local port=${1:-18515}
	: >"$work/server.$port"
	there 2 find_server "$verbs" "$port" >"$work/server.$port" 2>&1 &
	until_ok 60 grep -q listening "$work/server.$port"
}

find_server() {
	# Until its port is free.
	while pkill -f "verbs-test .*-p $2 server"; do
		sleep 0.1
	done
	exec "$1" -d "$(find_device)" -p "$2" server
}

# Runs verbs tests with VM 2.
client() {
	"$verbs" -d "$(device 1)" "$@"
}

# Whether the network stack of a VM is a member of a group.
is_member() { at "$1" ip -4 maddress show dev "$(netdev "$1")" | grep -q " $2\$"; }

# Ten messages from one VM to a group that the other one has joined: the receiver ends when it has
# them all. That the network device joins is what switches go by, which look for its membership
# reports. The arguments are the sending VM, the receiving one, and how often the messages are sent
# at most: once, but by a device that may lose what was posted right before its QP was destroyed, as
# mckey destroys it.
mckey_from_to() {
	local sender=$1 receiver=$2 times=${3:-1} status=0 pid
	: >"$work/receiver"
	at "$receiver" timeout 120 stdbuf -oL mckey -m 239.9.18.1 -b "10.9.0.$receiver" -C 10 \
		>"$work/receiver" 2>&1 &
	pid=$!
	# Its host is a member before its QP is.
	until_ok 60 grep -q 'joined dgid' "$work/receiver"
	is_member "$receiver" 239.9.18.1
	while ((times-- > 0)) && kill -0 $pid; do
		at "$sender" timeout 120 mckey -s -m 239.9.18.1 -b "10.9.0.$sender" -C 10 || status=$?
	done
	wait $pid || status=$?
	cat "$work/receiver"
	((status == 0)) && grep -q 'data transfers complete' "$work/receiver" &&
		! is_member "$receiver" 239.9.18.1
}

# Index of the RoCE v2 GID of the IPv4 address.
gid_index() { gid_of "$1" '' '*:ffff:*'; }

# The index of a VM's RoCE v2 GID for a network device, if one is named, and an address, a pattern
# for what GIDs are written as; fails if there is none.
gid_of() { there "$1" find_gid "$2" "$3"; }

find_gid() {
	local index kind netdev gid
	cd "/sys/class/infiniband/$(find_device)/ports/1" || return
	for index in {0..63}; do
		# Entries that are not in use can't be read.
		{ read -r kind <"gid_attrs/types/$index"; } 2>/dev/null || continue
		{ read -r netdev <"gid_attrs/ndevs/$index" &&
			read -r gid <"gids/$index"; } 2>/dev/null || continue
		# shellcheck disable=SC2053 # a pattern
		[[ $kind == "RoCE v2" && $netdev == "${1:-$netdev}" && $gid == $2 ]] && echo "$index" && return
	done
	return 1
}

# The device of a VM and its gid_index, as options of a program; that for the index is the second
# argument.
endpoint() { there "$1" find_endpoint "$2"; }

find_endpoint() { printf -- '-d %s %s %d\n' "$(find_device)" "$1" "$(find_gid '' '*:ffff:*')"; }

# Whether a program on VM 2 waits for its peer: with the connection manager, or at a TCP port where
# such programs meet. An identifier of the connection manager is in state LISTEN before requests
# find it: its program sleeps once they do.
waits() { there 2 find_waiting "$1"; }

find_waiting() {
	local file address state
	for file in /proc/net/tcp{,6}; do
		while read -r _ address _ state _; do
			# TCP ports 18515 and 7471, LISTEN.
			[[ $address == *:@(4853|1D2F) && $state == 0A ]] && return
		done <"$file"
	done
	[[ $(rdma res show cm_id) == *"state LISTEN "*"comm $1 "* && $(ps -C "$1" -o state=) == *S* ]]
}

# Runs a program as server on VM 2 and as client here: PROGRAM, the server's arguments, the
# client's. $patience says for how many seconds at most, if not for 120. perftest, which has no
# report where its calibration of the clock met a busy host, is tried again.
meet() {
	local attempts=3 status
	while
		status=0
		meet_once "$@" || status=$?
		((status != 0 && --attempts > 0)) &&
			grep -q "Can't produce a report" "$work/active" "$work/passive"
	do
		:
	done
	cat "$work/active"
	((status == 0)) || cat "$work/passive"
	return "$status"
}

meet_once() {
	local program=$1 status=0
	# shellcheck disable=SC2086
	on 2 timeout "${patience:-120}" "$program" $2 >"$work/passive" 2>&1 &
	until_ok 60 waits "$program"
	# shellcheck disable=SC2086
	timeout "${patience:-120}" "$program" $3 >"$work/active" 2>&1 || {
		status=$?
		on 2 pkill -x "$program" || true
	}
	wait $! || status=$?
	return "$status"
}

# The same for one of rdma-core's or perftest's that takes a device and a GID index; the first
# argument is its option for the index.
pair() {
	local index_option=$1 program=$2
	shift 2
	meet "$program" "$* $(endpoint 2 "$index_option")" "$* $(endpoint 1 "$index_option") vm2"
}

# One round of verified traffic: the link works.
traffic() {
	start_server 18600
	client -p 18600 client vm2 queue_one_cq >"$work/traffic" 2>&1 || {
		cat "$work/traffic"
		return 1
	}
}

# Starts traffic that goes on until the file "$work/stop" exists, and waits for its first round.
# $netns names the namespace in which it runs, if that is another.
start_soak() {
	start_server 18700
	rm -f "$work/stop"
	: >"$work/soak"
	# Not by `client`: the process itself is what a test may kill.
	local name
	name=$(device 1)
	${netns:+ip netns exec "$netns"} "$verbs" -d "$name" -p 18700 client --until "$work/stop" vm2 \
		soak >"$work/soak" 2>&1 &
	soak=$!
	until_ok 60 grep -q 'soak: round' "$work/soak"
}

# That traffic must end with an error, soon, and not hang, once its device has gone.
soak_ends() {
	local status=0
	timeout 150 tail --pid="$soak" -f /dev/null || fail "the process still runs"
	wait "$soak" || status=$?
	((status != 0)) || fail "traffic over a device that has gone"
}

# Opens the device and writes its asynchronous events to "$work/watch".
start_watch() {
	: >"$work/watch"
	stdbuf -oL ibv_asyncwatch -d "$(device 1)" >"$work/watch" 2>&1 &
	watch=$!
	until_ok 30 grep -q 'async event' "$work/watch"
}

# Waits until it was told that its device has gone, and ends it.
watch_is_told() {
	until_ok 20 grep -q IBV_EVENT_DEVICE_FATAL "$work/watch"
	kill "$watch" 2>/dev/null || true
	wait "$watch" || true
}

# Clock ticks that kernel threads of workqueues and softirqs have run for.
worker_ticks() {
	local file line fields sum=0
	for file in /proc/[0-9]*/stat; do
		{ read -r line <"$file"; } 2>/dev/null || continue
		[[ $line == *'('@(kworker|ksoftirqd)/* ]] || continue
		# After the name: the 12th and 13th are times in user and kernel mode.
		read -r -a fields <<<"${line##*) }"
		sum=$((sum + fields[11] + fields[12]))
	done
	echo "$sum"
}

# Whether those are idle. A work item that queues itself again takes nearly all of a processor, of
# which this allows a fifth: it does not depend on how fast the machine is.
workers_are_idle() {
	local before after
	# The end of a test's programs may take some time.
	for _ in {1..3}; do
		before=$(worker_ticks)
		sleep 5
		after=$(worker_ticks)
		echo "ticks in 5 s: $((after - before))"
		((after - before >= $(getconf CLK_TCK))) || return 0
	done
	return 1
}

# Counters of a VM's device for packets that were lost, doubled, reordered and damaged, one a line.
loss_counters() {
	there "$1" find_losses
}

find_losses() {
	local name directory
	directory=/sys/class/infiniband/$(find_device)/ports/1/hw_counters
	for name in retransmitted_packets duplicates out_of_sequence bad_packets; do
		printf '%s %s\n' "$name" "$(<"$directory/$name")"
	done
}

# Remembers them in $losses.
losses_begin() {
	losses=$(loss_counters "$1")
}

# Whether each of them has grown since: faults that are not injected test nothing.
losses_seen() {
	local now same
	now=$(loss_counters "$1")
	printf '# VM %s: %s\n' "$1" "${now//$'\n'/, }"
	same=$(grep -xFf <(printf '%s\n' "$losses") <<<"$now") || return 0
	printf '# no faults: %s\n' "${same//$'\n'/, }"
	return 1
}

# Writes a mark into the log of each VM's kernel.
mark_logs() {
	local vm
	for vm in "${machines[@]}"; do
		at "$vm" bash -c 'echo "selftests: $1" >/dev/kmsg' bash "$1"
	done
}

# Prints what the kernels have complained of since a mark, but for what a script accepts, and writes
# the next mark.
complaints_since() {
	local vm
	for vm in "${machines[@]}"; do
		at "$vm" bash -c 'dmesg; echo "selftests: $1" >/dev/kmsg' bash "$2" |
			sed "1,/selftests: $1\$/d" |
			grep -E "$complaint" | grep -vE "${accepted:-^$}" | sed "s/^/VM $vm: /"
	done
}

# Prints what of ours has no reference any more, where the kernel looks for such memory (kmemleak).
# It takes what is some seconds old, and is sure of what it finds twice.
leaks() {
	local vm
	for vm in "${machines[@]}"; do
		at "$vm" bash -c 'cd /sys/kernel/debug && [[ -e kmemleak ]] || exit 0
			if grep -qw kmemleak=off /proc/cmdline; then exit 0; fi
			for i in 1 2; do sleep 5; echo scan >kmemleak; done
			cat kmemleak; echo clear >kmemleak' |
			awk -v RS='unreferenced object' \
				'/\[(virtio_rdma|kverbs)\]/ { print "unreferenced object" $0 }' |
			sed "s/^/VM $vm: /"
	done
}

# Ends what a test has left running.
end_children() {
	local child
	for child in $(jobs -p); do
		kill "$child" 2>/dev/null
	done
	if compgen -G "$work/server.*" >"$work/servers"; then
		on 2 pkill -x verbs-test
	fi
	wait
} 2>/dev/null

# A script may define this to put right what its tests leave wrong, and what they do only when they
# fail.
cleanup() { :; }
after_failure() { :; }

run_one() (
	work=$(mktemp -d)
	trap 'status=$?; set +e; ((status == 0 || status == 4)) || after_failure
		cleanup; end_children; rm -rf "$work"' EXIT
	set -eu
	"$1"
)

# Runs test functions, or those of them that TESTS names, and reports them. Its status is that of
# the script.
run_tests() {
	if [[ -n ${TESTS:-} ]]; then
		# shellcheck disable=SC2086
		set -- $TESTS
	fi
	local name status log number=0 failed=0 found began
	log=$(mktemp)
	printf 'KTAP version 1\n1..%d\n' $#
	mark_logs $$.0
	for name; do
		number=$((number + 1))
		status=0
		began=$SECONDS
		# In the background, as errexit has no effect in a condition.
		run_one "$name" >"$log" 2>&1 &
		wait $! || status=$?
		found=$(complaints_since $$.$((number - 1)) "$$.$number")
		if [[ -n $found ]]; then
			printf '%s\n' "$found" >>"$log"
			status=1
		fi
		case $status in
		0) printf 'ok %d %s # %d s\n' "$number" "${name#test_}" $((SECONDS - began)) ;;
		4) printf 'ok %d %s # SKIP %s\n' "$number" "${name#test_}" "$(tail -n 1 "$log")" ;;
		*)
			failed=$((failed + 1))
			sed 's/^/# /' "$log"
			printf 'not ok %d %s # %d s\n' "$number" "${name#test_}" $((SECONDS - began))
			;;
		esac
	done
	rm -f "$log"
	found=$(leaks)
	if [[ -n $found ]]; then
		failed=$((failed + 1))
		printf '%s\n' "$found" | sed 's/^/# /'
	fi
	((failed == 0))
}
