#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The kernel's own clients of verbs, with VM 2 as the server: NFS, NVMe, iSCSI (iSER) and SCSI (SRP)
# over RDMA, and RDS. Each test checks that the kernel's connections use our device, and compares
# the data.
# more: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=ulp-lib.sh
. "$(dirname "$0")/ulp-lib.sh"

# Prints the checksums of the files in a directory.
sums() {
	(cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

# Checks the file system at /mnt: a tree and a large file can be read back unchanged, also after a
# second mount. The arguments are the mount command.
holds_data() {
	dd if=/dev/urandom of="$work/file" bs=1M count=16 status=none
	cp -r "$top/rust" /mnt/tree
	cp "$work/file" /mnt/file
	umount /mnt
	echo 3 >/proc/sys/vm/drop_caches
	"$@"
	cmp "$work/file" /mnt/file
	diff <(sums "$top/rust") <(sums /mnt/tree)
}

# Checks a disk: makes a file system, checks its data, and runs fsck.
disk_holds_data() {
	mkfs.ext4 -q "$1"
	mount "$1" /mnt
	holds_data mount "$1" /mnt
	umount /mnt
	fsck.ext4 -fn "$1"
}

test_nfs() {
	connect_nfs
	holds_data mount_nfs
	diff <(sums "$top/rust") <(on 2 bash -c "$(declare -f sums); sums /srv/tree")
	umount /mnt
}

test_nvme() {
	connect_nvme
	disk_holds_data /dev/nvme0n1
}

test_iser() {
	connect_iser
	disk_holds_data "$(disk)"
	iscsiadm -m node -T "$iqn" -p "$peer:3260" --logout
}

# Prints the first GID of a VM, without colons.
first_gid() { at "$1" cat "/sys/class/infiniband/$(device "$1")/ports/1/gids/0" | tr -d :; }

# The name of the target port is the GID of VM 2. The name of the admitted initiator consists of
# zeroes and the second half of the GID of VM 1.
test_srp() {
	local guid port initiator
	port=0x$(first_gid 2)
	initiator=$(first_gid 1)
	initiator=0x0000000000000000${initiator:16}
	start_target ib_srpt srpt "$port" ram
	on 2 bash -eu -c "
		cd $target/srpt/$port/ram
		mkdir -p acls/$initiator/lun_0
		ln -s $target/srpt/$port/ram/lun/lun_0 acls/$initiator/lun_0/ram
		echo 5555 >$target/srpt/discovery_auth/rdma_cm_port
		echo 1 >enable"
	guid=$(on 2 cat /sys/module/ib_srpt/parameters/srpt_service_guid)
	modprobe -a ib_srp sd_mod
	echo "id_ext=${guid#0x},ioc_guid=${guid#0x},dest=$peer:5555" \
		>"/sys/class/infiniband_srp/srp-$(device 1)-1/add_target"
	until_ok 20 disk
	connected ib_srp
	disk_holds_data "$(disk)"
}

# Reliable datagrams between RDS sockets, over a connection that the kernel makes.
test_rds() {
	local vm
	for vm in 1 2; do
		at "$vm" modprobe rds_rdma
	done
	cat >"$work/rds.py" <<'PYTHON'
import hashlib, random, socket, sys
here, there = sys.argv[1:3]
rds = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
rds.settimeout(60)
rds.bind((here, 4000))
if len(sys.argv) > 3:
    # A message has to fit into half of the send buffer.
    for size in [1, 100, 4096, 65536, 100000] * 5:
        data = random.Random(size).randbytes(size)
        rds.sendto(data, (there, 4000))
        assert rds.recv(100) == hashlib.sha256(data).digest(), size
    rds.sendto(b"", (there, 4000))
else:
    print("bound", flush=True)
    while data := rds.recv(1 << 17):
        rds.sendto(hashlib.sha256(data).digest(), (there, 4000))
PYTHON
	: >"$work/passive"
	on 2 timeout 120 python3 -c "$(cat "$work/rds.py")" "$peer" "$own" >"$work/passive" 2>&1 &
	until_ok 60 grep -q bound "$work/passive"
	timeout 120 python3 "$work/rds.py" "$own" "$peer" ask
	wait $!
	connected rds_rdma
}

run_tests test_nvme test_nfs test_iser test_srp test_rds
