# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The work of software that was not written for this device, between VM 1 and VM 2, with data that
# is compared. Sourced after ../lib.sh.
# shellcheck shell=bash disable=SC2154 # peer, own, work and top are of lib.sh

# Seconds after which a program counts as one that hangs.
limit=45

# The reaction of a program, by its status.
outcome() {
	case $1 in
	0) echo "works" ;;
	124 | 137) echo "hangs" ;;
	134 | 135 | 136 | 139) echo "crashes by signal $(($1 - 128))" ;;
	*) echo "ends with $1: $(grep -iE 'error|fail|status' "$work/said" | head -n 1)" ;;
	esac
}

end_programs() {
	pkill -x 'io_demo|fi_pingpong|prted|mpirun|python3'
	on 2 pkill -x 'io_demo|fi_pingpong|prted|python3'
	true
} >/dev/null 2>&1

# Blocks are written to the server, read from it, and compared on both sides.
exchange_ucx() {
	# The port of the last run may not be free yet.
	local tcp_port=$((19000 + RANDOM % 1000))
	on 2 env "UCX_NET_DEVICES=$(device 2):1" UCX_TLS=rc_v,self timeout "$limit" io_demo -q \
		-p "$tcp_port" -d 1:100000 &
	until_ok 20 io_demo_listens
	env "UCX_NET_DEVICES=$(device 1):1" UCX_TLS=rc_v,self timeout "$limit" io_demo -q \
		-p "$tcp_port" -c 1 -i 100 -d 1:100000 -o read,write "$peer"
}

exchange_libfabric() {
	# shellcheck disable=SC2034 # of meet
	local patience=$limit
	local command="fi_pingpong -p verbs;ofi_rxm -e rdm -I 20 -c"
	meet env "$command -B 18515" "$command -P 18515 $peer"
}

exchange_mpi() {
	timeout "$limit" mpirun --allow-run-as-root --prtemca plm_ssh_agent \
		"$top/selftests/mpi/agent" --host "$(uname -n),$(on -n 2 uname -n)" --map-by node -np 2 \
		--mca pml ucx python3 -m mpi4py "$top/selftests/mpi/exchange.py" messages </dev/null
}

# The transfer engine of Mooncake. A pip of the distribution has installed it, without the Python
# environment in which it belongs.
mooncake=$top/build/tools/mooncake
mooncake_engine=(env "PYTHONPATH=$mooncake" MC_LOG_LEVEL=WARNING python3
	"$top/selftests/stacks/mooncake")

need_mooncake() { [[ -d $mooncake ]] || skip "\"tools/dev/extra mooncake\" gets it"; }

exchange_mooncake() {
	local status=0
	: >"$work/session"
	on 2 "${mooncake_engine[@]}" "$(device 2)" "$peer" >"$work/session" &
	until_ok 30 test -s "$work/session"
	timeout "$limit" "${mooncake_engine[@]}" "$(device 1)" "$own" "$(<"$work/session")" ||
		status=$?
	on 2 pkill -x python3
	return "$status"
}

# sideway, a Rust crate for verbs: tests of its package, with two QPs of VM 1.
sideway=$top/build/debian/crates/opt/sideway/target/debug/deps

exchange_sideway() {
	local test
	for _ in {1..20}; do
		for test in "$sideway"/test_{post_send,atomic}-????????????????; do
			timeout "$limit" "$test" >"$work/round" 2>&1 || {
				local status=$?
				cat "$work/round"
				return "$status"
			}
		done
	done
}
