# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# Common functions of the tests. The tests run on VM 1 of a test bed and reach VM 2 with `on 2
# COMMAND`. A test is a shell function; run_tests reports each test in KTAP:
#
#	test_name() { commands, of which each must succeed; }
#	run_tests test_name ...
#
# RDMA_DEVICE sets another device than virtio_rdma's, for tests that also work on other devices.
#
# Without a test bed, variables name the peer, as for the kernel's tests of network devices:
#
#	REMOTE_TYPE=ssh REMOTE_ARGS=root@HOST   how to run commands there
#	LOCAL_V4, REMOTE_V4, LOCAL_V6, REMOTE_V6  addresses of this machine and of the peer
#
# The peer has the same programs at the same paths. A script ends with status 4 if there is no
# device or no peer.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
programs=${TESTBED_PROGRAMS:-$top/build/target/release}
verbs=$programs/verbs-test
# The directory of the kernel modules, which are built for the VM's kernel.
modules=${TESTBED_MODULES:-$top/build}
# shellcheck disable=SC2034 # for the scripts that include this one
module=$modules/module/virtio_rdma.ko
kverbs=$modules/kverbs/kverbs.ko
# shellcheck disable=SC2034
driver=/sys/bus/virtio/drivers/virtio_rdma
export LC_ALL=C

# Pattern of lines in the kernel's log that report a defect. Such a line fails any test.
complaint='WARNING: |BUG: |BUG kmalloc|kernel BUG at|Oops: |general protection fault'
complaint+='|unable to handle|soft lockup|hard LOCKUP|detected stalls|self-detected stall|blocked for more than'
complaint+='|refcount_t: |list_(add|del) corruption|UBSAN: |circular locking|inconsistent lock'
complaint+='|suspicious RCU|scheduling while atomic|nobody cared'

# Pattern of complaints that the script expects. They do not fail its tests.
accepted=

# The numbers of the VMs of a script, which may set another list before it includes this file.
[[ -v machines ]] || machines=(1 2)

# Addresses of VM 1 and VM 2.
own=${LOCAL_V4:-10.9.0.1}
peer=${REMOTE_V4:-10.9.0.2}
# shellcheck disable=SC2034
own_v6=${LOCAL_V6:-fd09::1}
# shellcheck disable=SC2034
peer_v6=${REMOTE_V6:-fd09::2}

fail() {
	printf '%s\n' "$*"
	exit 1
}

# Skips a test, with a reason.
skip() {
	printf '%s\n' "$*"
	exit 4
}

# Prints the IPv4 address of VM 1 or VM 2.
address() { if (($1 == 1)); then echo "$own"; else echo "$peer"; fi; }

# Runs a command repeatedly until it succeeds; the first argument is the time limit in seconds.
until_ok() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < end)) || fail "still fails: $*"
		sleep 0.2
	done
}

# Runs a command on a VM, which may be this VM. The command has no standard input, so that it does
# not read the lines of a surrounding loop.
at() {
	local vm=$1
	shift
	if ((vm == 1)); then
		"$@" </dev/null
	else
		on -n "$vm" "$@"
	fi
}

# Runs one of the functions find_... in a shell on a VM. On an emulated processor, starting a
# program takes long, and starting it on another VM takes several times as long. Therefore each
# function finds its result in one such call.
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

# Prints the name of a VM's RDMA device: the virtio_rdma device if there is one, else any other.
device() { there "$1" find_device; }

find_device() {
	local device driver first=${RDMA_DEVICE:-}
	if [[ -z $first ]]; then
		shopt -s nullglob
		for device in /sys/class/infiniband/*; do
			# The parent is the PCI function of the virtio device or, on other
			# transports, the virtio device itself.
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

# Prints the virtio device of a VM's RDMA device.
virtio_device() { there "$1" find_virtio_device; }

find_virtio_device() {
	local device id
	for device in /sys/bus/virtio/devices/*; do
		read -r id <"$device/device"
		((id != 42)) || echo "${device##*/}"
	done
}

# Prints the number of the interrupt of VM 1's control queue.
control_irq() {
	sed -n "s/^ *\([0-9]*\):.*[ -]$(virtio_device 1)-control\$/\1/p" /proc/interrupts
}

# Prints the PCI function of a virtio device of VM 1.
function_of() { dirname "$(readlink -f "/sys/bus/virtio/devices/$1")"; }

# Whether a feature bit was negotiated on VM 1.
has_feature() {
	local features
	read -r features <"/sys/bus/virtio/devices/$(virtio_device 1)/features"
	[[ ${features:$1:1} == 1 ]]
}

# Whether the device is in virtqueue mode: its queues are virtqueues, without own rings.
in_virtqueue_mode() {
	! has_feature 0
}

# Prints the network device of a VM's RDMA link.
netdev() { there "$1" find_netdev; }

find_netdev() {
	[[ ! $(rdma link show "$(find_device)/1") =~ \ netdev\ ([^\ ]+) ]] || echo "${BASH_REMATCH[1]}"
}

# Whether a device of VM 1 has a node in /dev. Here and below the status of `return` is explicit: in
# after_failure, which a trap calls, `return` alone means the status of the failed test.
has_node() {
	local node name
	for node in /sys/class/infiniband_verbs/uverbs*; do
		read -r name <"$node/ibdev" && [[ $name == "$1" && -c /dev/infiniband/${node##*/} ]] &&
			return 0
	done
	return 1
}

# Whether programs can use the device of VM 1: its port is active and it has a node in /dev.
device_up() {
	local name
	name=$(device 1)
	[[ -n $name ]] && link_is 1 ACTIVE && has_node "$name"
}

# Whether a VM's port is in a state.
link_is() {
	[[ $(at "$1" rdma link show) == *"$(device "$1")/1 state $2 "* ]]
}

# Starts the server of the verbs tests on VM 2; $1 is the TCP port, 18515 by default. The server is
# killed at the end of the test, or when another server is started at the same port.
start_server() {
	local port=${1:-18515}
	: >"$work/server.$port"
	there 2 find_server "$verbs" "$port" >"$work/server.$port" 2>&1 &
	until_ok 60 grep -q listening "$work/server.$port"
}

find_server() {
	# Kill earlier servers until the port is free.
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

# Sends ten messages from one VM to a group that another VM has joined. The receiver ends when it
# has all of them. The network device must join the group too, since switches forward multicast by
# membership reports. Arguments: the sending VM, the receiving VM, and the maximum number of times
# that the ten messages are sent, 1 by default. mckey destroys its QP right after the last post, so
# some devices lose messages and need several attempts.
mckey_from_to() {
	local sender=$1 receiver=$2 times=${3:-1} status=0 pid
	: >"$work/receiver"
	at "$receiver" timeout 120 stdbuf -oL mckey -m 239.9.18.1 -b "$(address "$receiver")" -C 10 \
		>"$work/receiver" 2>&1 &
	pid=$!
	# mckey prints this line after the receiver's network device has joined the group and its
	# QP is attached.
	until_ok 60 grep -q 'joined dgid' "$work/receiver"
	is_member "$receiver" 239.9.18.1
	while ((times-- > 0)) && kill -0 $pid; do
		at "$sender" timeout 120 mckey -s -m 239.9.18.1 -b "$(address "$sender")" -C 10 || status=$?
	done
	wait $pid || status=$?
	cat "$work/receiver"
	((status == 0)) && grep -q 'data transfers complete' "$work/receiver" &&
		! is_member "$receiver" 239.9.18.1
}

# Prints the index of a VM's RoCE v2 GID for its IPv4 address.
gid_index() { gid_of "$1" '' '*:ffff:*'; }

# Prints the index of a RoCE v2 GID: gid_of VM NETDEV PATTERN. NETDEV may be empty; PATTERN is for
# the GID's text. Fails if there is no such GID.
gid_of() { there "$1" find_gid "$2" "$3"; }

find_gid() {
	local index kind netdev gid
	cd "/sys/class/infiniband/$(find_device)/ports/1" || return
	for index in {0..63}; do
		# Reading an unused entry fails.
		{ read -r kind <"gid_attrs/types/$index"; } 2>/dev/null || continue
		{ read -r netdev <"gid_attrs/ndevs/$index" &&
			read -r gid <"gids/$index"; } 2>/dev/null || continue
		# shellcheck disable=SC2053 # a pattern
		[[ $kind == "RoCE v2" && $netdev == "${1:-$netdev}" && $gid == $2 ]] && echo "$index" && return 0
	done
	return 1
}

# Prints a VM's device and GID index as options of a program. The second argument is the program's
# option for the index.
endpoint() { there "$1" find_endpoint "$2"; }

find_endpoint() { printf -- '-d %s %s %d\n' "$(find_device)" "$1" "$(find_gid '' '*:ffff:*')"; }

# Whether a program on VM 2 waits for its peer: with the connection manager, or at a TCP port. A CM
# id gets into state LISTEN shortly before it accepts requests, so the program must also sleep.
waits() { there 2 find_waiting "$1"; }

find_waiting() {
	local file address state
	for file in /proc/net/tcp{,6}; do
		while read -r _ address _ state _; do
			# TCP ports 18515 and 7471, LISTEN.
			[[ $address == *:@(4853|1D2F) && $state == 0A ]] && return 0
		done <"$file"
	done
	[[ $(rdma res show cm_id) == *"state LISTEN "*"comm $1 "* && $(ps -C "$1" -o state=) == *S* ]]
}

# Runs a program as server on VM 2 and as client on VM 1: meet PROGRAM SERVER-ARGUMENTS
# CLIENT-ARGUMENTS. $patience is the time limit in seconds, 120 by default. perftest prints no
# report if its calibration of the clock fails on a busy host; in this case, the program is run
# again.
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

# Runs a program of rdma-core or perftest with a device and a GID index as server and client. The
# first argument is the program's option for the index.
pair() {
	local index_option=$1 program=$2
	shift 2
	meet "$program" "$* $(endpoint 2 "$index_option")" "$* $(endpoint 1 "$index_option") $peer"
}

# Whether UCX's io_demo on VM 2 takes connections.
io_demo_listens() { [[ $(on 2 rdma res show cm_id) == *"state LISTEN "*" comm io_demo "* ]]; }

# Checks the link: one round of verified traffic.
traffic() {
	start_server 18600
	client -p 18600 client "$peer" queue_one_cq >"$work/traffic" 2>&1 || {
		cat "$work/traffic"
		return 1
	}
}

# Starts traffic that continues until the file "$work/stop" exists, and waits for its first round.
# $soak_test is its test, "soak" if it is not set, and $netns its network namespace, if it is set.
start_soak() {
	start_server 18700
	rm -f "$work/stop"
	: >"$work/soak"
	# Started without the function `client`: $soak must be the number of the program's process,
	# not of a subshell, since tests kill this process.
	local name
	name=$(device 1)
	${netns:+ip netns exec "$netns"} "$verbs" -d "$name" -p 18700 client --until "$work/stop" \
		"$peer" "${soak_test:-soak}" >"$work/soak" 2>&1 &
	soak=$!
	until_ok 60 grep -q 'soak: round' "$work/soak"
}

# Ends the traffic, which must have succeeded.
stop_soak() {
	local status=0
	touch "$work/stop"
	wait "$soak" || status=$?
	((status == 0)) || fail "$(<"$work/soak")"
	soak=
}

# Checks that the traffic soon ends with an error after its device has gone.
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

# Waits until ibv_asyncwatch has reported the loss of its device, then kills ibv_asyncwatch.
watch_is_told() {
	until_ok 20 grep -q IBV_EVENT_DEVICE_FATAL "$work/watch"
	kill "$watch" 2>/dev/null || true
	wait "$watch" || true
}

# Prints the CPU time of the kernel threads of workqueues and softirqs, in clock ticks.
worker_ticks() {
	local file line fields sum=0
	for file in /proc/[0-9]*/stat; do
		{ read -r line <"$file"; } 2>/dev/null || continue
		[[ $line == *'('@(kworker|ksoftirqd)/* ]] || continue
		# The 12th and 13th fields after the name are the times in user and kernel mode.
		read -r -a fields <<<"${line##*) }"
		sum=$((sum + fields[11] + fields[12]))
	done
	echo "$sum"
}

# Whether the kernel threads of workqueues and softirqs are idle. A work item that re-queues itself
# at once takes nearly a whole processor. The limit is a fifth of a processor, which does not depend
# on the machine's speed.
workers_are_idle() {
	local before after
	# Several attempts, since the cleanup of a test's programs may take some time.
	for _ in {1..3}; do
		before=$(worker_ticks)
		sleep 5
		after=$(worker_ticks)
		echo "ticks in 5 s: $((after - before))"
		((after - before >= $(getconf CLK_TCK))) || return 0
	done
	return 1
}

# Prints the counters of a VM's device for lost, duplicated, reordered and corrupt packets, one per
# line.
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

# Stores the loss counters of VM $1's device in $losses.
losses_begin() {
	losses=$(loss_counters "$1")
}

# Whether each loss counter of VM $1's device has grown since losses_begin. If not, no faults were
# injected, and a lossy test has tested nothing.
losses_seen() {
	local now same
	now=$(loss_counters "$1")
	printf '# VM %s: %s\n' "$1" "${now//$'\n'/, }"
	same=$(grep -xFf <(printf '%s\n' "$losses") <<<"$now") || return 0
	printf '# no faults: %s\n' "${same//$'\n'/, }"
	return 1
}

# Writes a mark to VM 1's kernel log, from which log_since begins.
mark_log() {
	mark=selftests.$$.$RANDOM
	echo "$mark" >/dev/kmsg
}

# Prints the lines of VM 1's kernel log since mark_log that have a text. Fails if there are none.
log_since() { dmesg | sed "1,/$mark\$/d" | grep -F -- "$1"; }

# Whether VM 1's driver has recovered the device since mark_log, and the device works.
recovers() { log_since 'the device is reset and probed again' && device_up; }

# Kills the engine of VM 1's daemon, which may serve VM 2 too. Waits for VM 1's device.
crash() {
	mark_log
	on 0 daemon crash 1
	until_ok 120 recovers
}

# Loads the module of the kernel clients' tests on VM 1's device, which runs the tests.
insmod_kverbs() { insmod "$kverbs" device="$(device 1)" gid_index="$(gid_index 1)" "$@"; }

# Prints what the module has said since mark_log. If the argument, the status of insmod_kverbs, is a
# failure, it is one of the test, and the last lines tell which tests have not passed and why.
kverbs_said() {
	log_since kverbs: || true
	(($1 == 0)) || fail "not passed:
$(log_since kverbs: | grep -v 'kverbs: ok ')"
}

# Marks the log, loads the module, and prints what it says.
load_kverbs() {
	local status=0
	mark_log
	insmod_kverbs "$@" || status=$?
	kverbs_said "$status"
}

# Writes a mark to each VM's kernel log.
mark_logs() {
	local vm
	for vm in "${machines[@]}"; do
		at "$vm" bash -c 'echo "selftests: $1" >/dev/kmsg' bash "$1"
	done
}

# Prints the kernels' complaints since a mark, except those that the script accepts, and writes the
# next mark.
complaints_since() {
	local vm
	for vm in "${machines[@]}"; do
		at "$vm" bash -c 'dmesg; echo "selftests: $1" >/dev/kmsg' bash "$2" |
			sed "1,/selftests: $1\$/d" |
			grep -E "$complaint" | grep -vE "${accepted:-^$}" | sed "s/^/VM $vm: /"
	done
}

# Prints leaks of our modules, if the kernel has kmemleak. kmemleak reports only objects that are
# some seconds old; a leak counts if two scans find it.
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

# Kills the processes that a test has left running.
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

# A script may redefine these functions: cleanup after each test, and after_failure after a failed
# test.
cleanup() { :; }
after_failure() { :; }

run_one() (
	work=$(mktemp -d)
	trap 'status=$?; set +e; ((status == 0 || status == 4)) || after_failure
		cleanup; end_children; rm -rf "$work"' EXIT
	set -eu
	"$1"
)

# Runs test functions, or only those in TESTS, and reports them. A script calls this function last,
# so the function's status is the exit status of the script.
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
		# In the background, since errexit has no effect in a condition.
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

# Like run_tests, for tests that put the output of foreign programs into "$work/said" and lines
# about them into the file $outcomes: these lines end the report.
run_telling() {
	local status=0
	outcomes=$(mktemp)
	after_failure() { cat "$work/said"; }
	run_tests "$@" || status=$?
	sed 's/^/# /' "$outcomes"
	rm "$outcomes"
	return "$status"
}

# Ends a script that this machine can't run.
skip_script() {
	printf 'KTAP version 1\n1..0 # SKIP %s\n' "$*"
	exit 4
}

# A test bed has a program `on`, which reaches its other VMs. Elsewhere ssh reaches the peer, as
# VM 2.
if [[ ${REMOTE_TYPE:-} == ssh || ! -x $(type -P on) ]]; then
	on() {
		local options=()
		if [[ $1 == -n ]]; then
			options=(-n)
			shift
		fi
		(($1 == 2)) || skip "only a test bed has a VM $1"
		shift
		# shellcheck disable=SC2029,SC2086 # words; they are quoted for the peer's shell
		ssh "${options[@]}" $REMOTE_ARGS "$(printf '%q ' "$@")"
	}
	if ((${#machines[@]} > 1)); then
		[[ -n $(find_device) ]] || skip_script "this machine has no RDMA device"
		[[ ${REMOTE_TYPE:-} == ssh ]] || skip_script \
			"REMOTE_TYPE=ssh, REMOTE_ARGS, LOCAL_V4 and REMOTE_V4 do not name a peer"
		for name in REMOTE_ARGS LOCAL_V4 REMOTE_V4; do
			[[ -n ${!name:-} ]] || skip_script "$name is not set"
		done
	fi
fi
