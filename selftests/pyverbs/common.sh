# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# pyverbs_tests [MODULE...] runs the tests in rdma-core's source on the device of this machine and
# reports them in KTAP. On a machine without a virtio-rdma device, it creates an rxe device over the
# network device.

pyverbs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR/.. source=lib.sh
. "$pyverbs/../lib.sh"

pyverbs_tests() {
	local column=virtio_rdma status=0 found
	if [[ -z $(device 1) ]]; then
		column=rxe
		RDMA_DEVICE=rxe0
		modprobe -a ib_uverbs rdma_ucm ib_umad rdma_rxe
		rdma link add "$RDMA_DEVICE" type rxe netdev eth0
	fi
	until_ok 20 has_node "$(device 1)"
	python3 "$pyverbs/run.py" --tests "$top/build/rdma-core-src/tests" --dev "$(device 1)" \
		--gid "$(gid_index 1)" \
		--expected "$pyverbs/expected" --column "$column" "$@" || status=$?
	found=$(dmesg | grep -E "$complaint")
	if [[ -n $found ]]; then
		echo "# ${found//$'\n'/$'\n'# }"
		status=1
	fi
	return "$status"
}
