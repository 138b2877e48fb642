#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Linux's rdma_rxe on a bridge of its machine, as on a host of virtual machines.
# more: --rxe 1 --pcap build/rxe-bridge.pcap
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

on 2 bash -ec '
	rdma link delete rxe0
	ip link add br0 address "$(cat /sys/class/net/eth0/address)" type bridge
	ip address flush dev eth0
	ip link set eth0 master br0
	ip link set br0 up
	ip address add 10.9.0.2/24 dev br0
	ip address add fd09::2/64 dev br0 nodad
	rdma link add rxe0 type rxe netdev br0' || exit
[[ $(netdev 2) == br0 ]] || exit
exec "$(dirname "$0")/rxe.sh" data_ sge_ datagram_ atomic_values queue_many_pairs error_remote \
	error_peer_gone
