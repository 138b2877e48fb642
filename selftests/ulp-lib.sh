# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The kernel's own clients of verbs, for the scripts that test them: servers on VM 2, and
# connections of VM 1 to them. Sourced after lib.sh.
# shellcheck shell=bash disable=SC2154 # peer is of lib.sh
target=/sys/kernel/config/target
nvmet=/sys/kernel/config/nvmet
nqn=nqn.2026-01.test:ram
iqn=iqn.2026-01.test:ram

cleanup() {
	mountpoint -q /mnt && umount -l /mnt
	for delete in /sys/class/nvme/nvme*/delete_controller /sys/class/srp_remote_ports/*/delete; do
		[[ -e $delete ]] && echo 1 >"$delete"
	done
	if pgrep -x iscsid; then
		iscsiadm -m node --logout
		pkill -x iscsid
	fi
	on 2 bash -c "
		rpc.nfsd 0
		pkill -x rpc.mountd
		exportfs -ua
		mountpoint -q /srv && umount /srv
		if [[ -d $nvmet/ports/1 ]]; then
			rm -f $nvmet/ports/1/subsystems/$nqn
			rmdir $nvmet/ports/1 $nvmet/subsystems/$nqn/namespaces/1 $nvmet/subsystems/$nqn
		fi
		if [[ -d $target ]]; then
			cd $target
			for lun in {iscsi,srpt}/*/*/lun; do
				group=\${lun%/lun}
				echo 0 >\$group/enable
				rm -f \$group/acls/*/lun_0/ram
				rmdir \$group/acls/*/lun_0 \$group/acls/*
				rm -f \$group/lun/lun_0/ram
				rmdir \$group/lun/lun_0 \$group/np/* \$group \${group%/*}
			done
			echo 0 >srpt/discovery_auth/rdma_cm_port
			rmdir core/rd_mcp_0/ram core/rd_mcp_0
		fi"
} >/dev/null 2>&1

# Checks that a kernel module has a connection over our device.
connected() {
	rdma res show cm_id link "$(device 1)/1" | grep "qp-type RC state CONNECT .*comm \[$1\]" ||
		fail "no connection of $1: $(rdma res show cm_id)"
}

# Starts a server for NFS version 4 only, which needs no portmapper. The server keeps no record of
# its clients for a restart.
start_nfs() {
	on 2 bash -eu -c "
		modprobe -a nfsd rpcrdma
		mountpoint -q /srv || mount -t tmpfs tmpfs /srv
		mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
		exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0 '*:/srv'
		rpc.mountd --no-nfs-version 3
		cd /proc/fs/nfsd
		echo '-3 +4 +4.1 +4.2' >versions
		echo 10 >nfsv4leasetime
		echo 10 >nfsv4gracetime
		echo 'rdma 20049' >portlist
		echo 4 >threads"
}

# Mounts a directory of VM 2 at /mnt.
mount_nfs() { mount -t nfs -o vers=4.2,proto=rdma,port=20049,soft,timeo=600 "$peer:/" /mnt; }

connect_nfs() {
	start_nfs
	modprobe rpcrdma
	mount_nfs
	grep -q 'proto=rdma' /proc/mounts
	connected rpcrdma
}

# Connects /dev/nvme0n1, 64 MiB of VM 2, over NVMe.
connect_nvme() {
	local id=12345678-1234-1234-1234-123456789abc
	on 2 bash -eu -c "
		modprobe -a nvmet nvmet-rdma
		modprobe brd rd_nr=1 rd_size=65536
		mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
		cd $nvmet
		mkdir subsystems/$nqn
		echo 1 >subsystems/$nqn/attr_allow_any_host
		mkdir subsystems/$nqn/namespaces/1
		echo -n /dev/ram0 >subsystems/$nqn/namespaces/1/device_path
		echo 1 >subsystems/$nqn/namespaces/1/enable
		mkdir ports/1
		echo rdma >ports/1/addr_trtype
		echo ipv4 >ports/1/addr_adrfam
		echo $peer >ports/1/addr_traddr
		echo 4420 >ports/1/addr_trsvcid
		ln -s $nvmet/subsystems/$nqn ports/1/subsystems/"
	modprobe nvme-rdma
	echo "transport=rdma,traddr=$peer,trsvcid=4420,nqn=$nqn,hostid=$id,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id" \
		>/dev/nvme-fabrics
	until_ok 20 test -b /dev/nvme0n1
	connected nvme_rdma
}

# Makes VM 2 offer 64 MiB as a SCSI disk by the kernel's target: start_target MODULE FABRIC TARGET
# GROUP
start_target() {
	on 2 bash -eu -c "
		modprobe -a target_core_mod $1
		mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
		cd $target
		mkdir -p core/rd_mcp_0/ram
		echo rd_pages=16384 >core/rd_mcp_0/ram/control
		echo 1 >core/rd_mcp_0/ram/enable
		mkdir -p $2/$3/$4/lun/lun_0
		ln -s $target/core/rd_mcp_0/ram $2/$3/$4/lun/lun_0/ram"
}

# Prints the SCSI disk of the target.
disk() {
	local model
	for model in /sys/block/sd*/device/model; do
		[[ -e $model && $(cat "$model") == RAMDISK* ]] || continue
		model=${model#/sys/block/}
		echo "/dev/${model%%/*}"
		return 0
	done
	return 1
}

# Connects the disk of VM 2 over iSER.
connect_iser() {
	start_target "iscsi_target_mod ib_isert" iscsi "$iqn" tpgt_1
	on 2 bash -eu -c "
		cd $target/iscsi/$iqn/tpgt_1
		mkdir np/$peer:3260
		echo 1 >np/$peer:3260/iser
		echo 0 >attrib/authentication
		echo 1 >attrib/generate_node_acls
		echo 1 >attrib/cache_dynamic_acls
		echo 0 >attrib/demo_mode_write_protect
		echo 1 >enable"
	modprobe -a ib_iser sd_mod
	echo "InitiatorName=iqn.2026-01.test:vm1" >/etc/iscsi/initiatorname.iscsi
	mkdir -p /run/lock
	iscsid
	iscsiadm -m node -o new -T "$iqn" -p "$peer:3260" -I iser
	iscsiadm -m node -T "$iqn" -p "$peer:3260" --login
	until_ok 20 disk
	connected ib_iser
}

# Print the file or disk to which the connection leads: file_of_CLIENT
file_of_nfs() {
	: >/mnt/file
	echo /mnt/file
}
file_of_nvme() { echo /dev/nvme0n1; }
file_of_iser() { disk; }
