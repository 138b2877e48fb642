#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# VMs with a daemon each; the daemons are joined by Unix sockets, UDP, or tap interfaces on a
# bridge.
# more: --joined unix
# more: --joined unix --pcap build/unix.pcap
# more: --joined udp --pcap build/udp.pcap
# more: --joined tap --pcap build/tap.pcap
exec "$(dirname "$0")/data.sh" data_send data_write data_read sge_ queue_both_directions \
	queue_many_pairs error_remote
