#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# UCX, a communication library, between two VMs, with its own transports over verbs: RC with SRQs,
# whose connections are made over UD; UD alone; and connections of the connection manager, with data
# compared.
# more: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

cleanup() {
	pkill -x 'ucx_perftest|io_demo'
	on 2 pkill -x 'ucx_perftest|io_demo'
}

# Prints variables that restrict UCX to our device on VM $1 and to transport $2. UCX selects the GID
# of the IPv4 address, unless $gid is the pattern of another GID.
environment() {
	printf 'UCX_NET_DEVICES=%s:1 UCX_TLS=%s,self' "$(device "$1")" "$2"
	[[ -z ${gid:-} ]] || printf ' UCX_IB_GID_INDEX=%s' "$(gid_of "$1" '' "$gid")"
}

# Runs tests of ucx_perftest with VM 2: perftest TRANSPORT "NAME OPTIONS"... The exit status of
# ucx_perftest does not tell whether a test has run.
perftest() {
	local transport=$1 vm lines patience=300
	shift
	lines=$(printf '%s\n' "$@")
	for vm in 1 2; do
		at "$vm" sh -c "echo '$lines' >/run/ucx"
	done
	meet env "$(environment 2 "$transport") ucx_perftest -P 0 -p 18515 -b /run/ucx" \
		"$(environment 1 "$transport") ucx_perftest $peer -P 0 -p 18515 -b /run/ucx" || true
	(($(grep -c ^Final: "$work/active") == $#))
}

# Runs io_demo: blocks of random sizes are written to the server, read from it, and compared on both
# sides. The first argument is the TCP port: io_demo can't reuse a port whose connections were
# closed just before.
compared() {
	local port=$1
	shift
	# shellcheck disable=SC2046
	on 2 env $(environment 2 rc_v) io_demo -q -p "$port" -d 1:1000000 "$@" >"$work/passive" 2>&1 &
	until_ok 60 io_demo_listens
	# shellcheck disable=SC2046
	env $(environment 1 rc_v) timeout 200 io_demo -q -p "$port" -c 10 -i 200 -d 1:1000000 \
		-o read,write "$@" "$peer" || {
		cat "$work/passive"
		return 1
	}
}

# UCX offers its RC transport only if the device has SRQs.
test_transports() {
	env "UCX_NET_DEVICES=$(device 1):1" ucx_info -d >"$work/info"
	cat "$work/info"
	grep -q 'Transport: rc_verbs' "$work/info"
	grep -q 'Transport: ud_verbs' "$work/info"
}

test_messages() {
	perftest rc_v 'small -t tag_lat -w 10 -n 300 -s 8' 'large -t tag_bw -w 10 -n 100 -s 262144' \
		'active -t ucp_am_bw -w 10 -n 100 -s 4096'
}

test_one_sided() {
	perftest rc_v 'put -t ucp_put_bw -w 10 -n 100 -s 65536' 'get -t ucp_get -w 10 -n 100 -s 65536' \
		'atomics -t ucp_fadd -w 10 -n 300 -s 8'
}

test_datagrams() {
	perftest ud_v 'small -t tag_lat -w 10 -n 300 -s 8' 'large -t tag_bw -w 10 -n 100 -s 65536'
}

test_datagrams_ipv6() {
	local gid="${own_v6%%:*}:*"
	perftest ud_v 'small -t tag_lat -w 10 -n 300 -s 8'
}

# UCX polls until the CQ is empty, arms it, and sleeps. It does not poll again after arming, so
# completions in between must cause an event.
test_sleeping() {
	perftest rc_v 'small -t tag_lat -w 10 -n 300 -s 8 -E sleep' \
		'large -t tag_bw -w 10 -n 100 -s 65536 -E sleep'
}

test_compared() { compared 18516; }
test_compared_active_messages() { compared 18517 -A; }

run_tests test_transports test_messages test_one_sided test_datagrams test_datagrams_ipv6 \
	test_sleeping test_compared test_compared_active_messages
