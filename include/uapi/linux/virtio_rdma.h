/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/*
 * Virtio RDMA device: configuration, commands, queue elements and events. Structures have no
 * padding, integers are little-endian.
 *
 * Generated from rust/shared/abi by tools/dev/headers.
 */

#ifndef _UAPI_LINUX_VIRTIO_RDMA_H
#define _UAPI_LINUX_VIRTIO_RDMA_H

#include <linux/types.h>

/* QPN of the GSI QP (IBTA 3.9.2: general service interface). */
#define VIRTIO_RDMA_GSI_QPN 1

/* Destination QPN of multicast datagrams (IBTA 10.5.2). No QP has this number. */
#define VIRTIO_RDMA_MULTICAST_QPN 0xffffff

/* Mask of 24 bits, for QPNs, PSNs and MSNs. */
#define VIRTIO_RDMA_MASK_24 0xffffff

/* Number of the only port. */
#define VIRTIO_RDMA_PORT 1

/* Value of a VLAN id field for untagged packets. */
#define VIRTIO_RDMA_NO_VLAN 0xffff

/* Largest VLAN id (IEEE 802.1Q: 4095 is reserved). */
#define VIRTIO_RDMA_MAX_VLAN 4094

/* Bytes of the GRH at the start of a datagram's receive buffer. */
#define VIRTIO_RDMA_GRH_SIZE 40

/* Largest service level. */
#define VIRTIO_RDMA_MAX_SL 15

/* P_Key of the default partition, with full membership. */
#define VIRTIO_RDMA_DEFAULT_PKEY 0xffff

/*
 * enum ib_port_state (__u8).
 */
/* No state change. */
#define VIRTIO_RDMA_PORT_STATE_NOP 0
/* Down. */
#define VIRTIO_RDMA_PORT_STATE_DOWN 1
/* Physical link up, not yet configured. */
#define VIRTIO_RDMA_PORT_STATE_INIT 2
/* Configured, not yet forwarding. */
#define VIRTIO_RDMA_PORT_STATE_ARMED 3
/* In use. */
#define VIRTIO_RDMA_PORT_STATE_ACTIVE 4
/* Active, with link errors. */
#define VIRTIO_RDMA_PORT_STATE_ACTIVE_DEFER 5

/*
 * enum ib_port_phys_state (__u8).
 */
/* Sleep. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_SLEEP 1
/* Polling. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_POLLING 2
/* Disabled. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_DISABLED 3
/* Configuration training. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_TRAINING 4
/* Link up. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_LINK_UP 5
/* Link error recovery. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_ERROR_RECOVERY 6
/* Physical test. */
#define VIRTIO_RDMA_PORT_PHYS_STATE_TEST 7

/*
 * enum ib_mtu (__u8).
 */
/* 256 bytes. */
#define VIRTIO_RDMA_MTU_MTU256 1
/* 512 bytes. */
#define VIRTIO_RDMA_MTU_MTU512 2
/* 1024 bytes. */
#define VIRTIO_RDMA_MTU_MTU1024 3
/* 2048 bytes. */
#define VIRTIO_RDMA_MTU_MTU2048 4
/* 4096 bytes. */
#define VIRTIO_RDMA_MTU_MTU4096 5

/*
 * enum ib_port_speed: the signalling rate of one lane (__le16).
 */
/* 2.5 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_SDR 1
/* 5 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_DDR 2
/* 10 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_QDR 4
/* 10.3 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_FDR10 8
/* 14 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_FDR 16
/* 25.8 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_EDR 32
/* 53 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_HDR 64
/* 106 Gb/s. */
#define VIRTIO_RDMA_PORT_SPEED_NDR 128

/*
 * enum ib_port_width: number of lanes (__u8).
 */
/* One lane. */
#define VIRTIO_RDMA_PORT_WIDTH_X1 1
/* Four lanes. */
#define VIRTIO_RDMA_PORT_WIDTH_X4 2
/* Eight lanes. */
#define VIRTIO_RDMA_PORT_WIDTH_X8 4
/* Twelve lanes. */
#define VIRTIO_RDMA_PORT_WIDTH_X12 8
/* Two lanes. */
#define VIRTIO_RDMA_PORT_WIDTH_X2 16

/*
 * enum ib_port_capability_mask_bits (__le32).
 */
/* Connection management is supported on this port. */
#define VIRTIO_RDMA_PORT_CAPS_CM_SUP (1U << 16)

/*
 * enum ib_access_flags (__le32).
 */
/* Local work requests may write. */
#define VIRTIO_RDMA_ACCESS_FLAGS_LOCAL_WRITE (1U << 0)
/* Peers may write. */
#define VIRTIO_RDMA_ACCESS_FLAGS_REMOTE_WRITE (1U << 1)
/* Peers may read. */
#define VIRTIO_RDMA_ACCESS_FLAGS_REMOTE_READ (1U << 2)
/* Peers may execute atomic operations. */
#define VIRTIO_RDMA_ACCESS_FLAGS_REMOTE_ATOMIC (1U << 3)
/* Memory windows may be bound. */
#define VIRTIO_RDMA_ACCESS_FLAGS_MW_BIND (1U << 4)
/* Addresses in work requests start at 0. */
#define VIRTIO_RDMA_ACCESS_FLAGS_ZERO_BASED (1U << 5)
/* On-demand paging. */
#define VIRTIO_RDMA_ACCESS_FLAGS_ON_DEMAND (1U << 6)
/* The memory consists of huge pages. */
#define VIRTIO_RDMA_ACCESS_FLAGS_HUGETLB (1U << 7)
/* Peers may make data globally visible (FLUSH). */
#define VIRTIO_RDMA_ACCESS_FLAGS_FLUSH_GLOBAL (1U << 8)
/* Peers may make data persistent (FLUSH). */
#define VIRTIO_RDMA_ACCESS_FLAGS_FLUSH_PERSISTENT (1U << 9)
/* Relaxed ordering. */
#define VIRTIO_RDMA_ACCESS_FLAGS_RELAXED_ORDERING (1U << 20)

/*
 * Type of a memory window (__u8).
 */
/* Type 1: any QP of its PD can bind it, repeatedly, and use it. */
#define VIRTIO_RDMA_MW_TYPE_ONE 1
/* Type 2: must be invalidated before it is bound again. */
#define VIRTIO_RDMA_MW_TYPE_TWO 2

/*
 * enum ib_qp_type (__u8).
 */
/* Subnet management interface. */
#define VIRTIO_RDMA_QP_TYPE_SMI 0
/* General services interface. */
#define VIRTIO_RDMA_QP_TYPE_GSI 1
/* Reliable connection. */
#define VIRTIO_RDMA_QP_TYPE_RC 2
/* Unreliable connection. */
#define VIRTIO_RDMA_QP_TYPE_UC 3
/* Unreliable datagram. */
#define VIRTIO_RDMA_QP_TYPE_UD 4

/*
 * enum ib_sig_type (__u8).
 */
/* Every send work request generates a CQE. */
#define VIRTIO_RDMA_SIG_TYPE_ALL 0
/* Only send work requests with SIGNALED generate a CQE. */
#define VIRTIO_RDMA_SIG_TYPE_REQUESTED 1

/*
 * enum ib_qp_state (IBTA 10.3.1) (__u8).
 */
/* Reset. */
#define VIRTIO_RDMA_QP_STATE_RESET 0
/* Initialized. */
#define VIRTIO_RDMA_QP_STATE_INIT 1
/* Ready to receive. */
#define VIRTIO_RDMA_QP_STATE_RTR 2
/* Ready to send. */
#define VIRTIO_RDMA_QP_STATE_RTS 3
/* Send queue drain. */
#define VIRTIO_RDMA_QP_STATE_SQD 4
/* Send queue error. */
#define VIRTIO_RDMA_QP_STATE_SQE 5
/* Error. */
#define VIRTIO_RDMA_QP_STATE_ERR 6

/*
 * enum ib_mig_state (__u8).
 */
/* Migrated. */
#define VIRTIO_RDMA_MIG_STATE_MIGRATED 0
/* Rearm. */
#define VIRTIO_RDMA_MIG_STATE_REARM 1
/* Armed. */
#define VIRTIO_RDMA_MIG_STATE_ARMED 2

/*
 * gid_type of ADD_GID (__le32).
 */
/* RoCE v1, which the device does not support. */
#define VIRTIO_RDMA_GID_TYPE_ROCE_V1 1
/* RoCE v2: UDP over IPv4 or IPv6. */
#define VIRTIO_RDMA_GID_TYPE_ROCE_V2 2

/*
 * enum ib_ah_flags (__u8).
 */
/* The global route is valid. */
#define VIRTIO_RDMA_AH_FLAGS_GRH (1U << 0)

/*
 * enum ib_qp_attr_mask (__le32).
 */
/* qp_state. */
#define VIRTIO_RDMA_QP_ATTR_MASK_STATE (1U << 0)
/* cur_qp_state. */
#define VIRTIO_RDMA_QP_ATTR_MASK_CUR_STATE (1U << 1)
/* en_sqd_async_notify. */
#define VIRTIO_RDMA_QP_ATTR_MASK_EN_SQD_ASYNC_NOTIFY (1U << 2)
/* qp_access_flags. */
#define VIRTIO_RDMA_QP_ATTR_MASK_ACCESS_FLAGS (1U << 3)
/* pkey_index. */
#define VIRTIO_RDMA_QP_ATTR_MASK_PKEY_INDEX (1U << 4)
/* port_num. */
#define VIRTIO_RDMA_QP_ATTR_MASK_PORT (1U << 5)
/* qkey. */
#define VIRTIO_RDMA_QP_ATTR_MASK_QKEY (1U << 6)
/* ah_attr. */
#define VIRTIO_RDMA_QP_ATTR_MASK_AV (1U << 7)
/* path_mtu. */
#define VIRTIO_RDMA_QP_ATTR_MASK_PATH_MTU (1U << 8)
/* timeout. */
#define VIRTIO_RDMA_QP_ATTR_MASK_TIMEOUT (1U << 9)
/* retry_cnt. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RETRY_CNT (1U << 10)
/* rnr_retry. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RNR_RETRY (1U << 11)
/* rq_psn. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RQ_PSN (1U << 12)
/* max_rd_atomic. */
#define VIRTIO_RDMA_QP_ATTR_MASK_MAX_QP_RD_ATOMIC (1U << 13)
/* alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout. */
#define VIRTIO_RDMA_QP_ATTR_MASK_ALT_PATH (1U << 14)
/* min_rnr_timer. */
#define VIRTIO_RDMA_QP_ATTR_MASK_MIN_RNR_TIMER (1U << 15)
/* sq_psn. */
#define VIRTIO_RDMA_QP_ATTR_MASK_SQ_PSN (1U << 16)
/* max_dest_rd_atomic. */
#define VIRTIO_RDMA_QP_ATTR_MASK_MAX_DEST_RD_ATOMIC (1U << 17)
/* path_mig_state. */
#define VIRTIO_RDMA_QP_ATTR_MASK_PATH_MIG_STATE (1U << 18)
/* cap. */
#define VIRTIO_RDMA_QP_ATTR_MASK_CAP (1U << 19)
/* dest_qp_num. */
#define VIRTIO_RDMA_QP_ATTR_MASK_DEST_QPN (1U << 20)
/* Reserved. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RESERVED1 (1U << 21)
/* Reserved. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RESERVED2 (1U << 22)
/* Reserved. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RESERVED3 (1U << 23)
/* Reserved. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RESERVED4 (1U << 24)
/* rate_limit. */
#define VIRTIO_RDMA_QP_ATTR_MASK_RATE_LIMIT (1U << 25)

/*
 * enum ib_wr_opcode (__le32).
 */
/* RDMA WRITE. */
#define VIRTIO_RDMA_WR_OPCODE_RDMA_WRITE 0
/* RDMA WRITE with immediate data. */
#define VIRTIO_RDMA_WR_OPCODE_RDMA_WRITE_WITH_IMM 1
/* SEND. */
#define VIRTIO_RDMA_WR_OPCODE_SEND 2
/* SEND with immediate data. */
#define VIRTIO_RDMA_WR_OPCODE_SEND_WITH_IMM 3
/* RDMA READ. */
#define VIRTIO_RDMA_WR_OPCODE_RDMA_READ 4
/* Atomic compare and swap. */
#define VIRTIO_RDMA_WR_OPCODE_ATOMIC_CMP_AND_SWP 5
/* Atomic fetch and add. */
#define VIRTIO_RDMA_WR_OPCODE_ATOMIC_FETCH_AND_ADD 6
/* Invalidate a local key. */
#define VIRTIO_RDMA_WR_OPCODE_LOCAL_INV 7
/* Bind a memory window. */
#define VIRTIO_RDMA_WR_OPCODE_BIND_MW 8
/* SEND that invalidates an R_Key of the peer. */
#define VIRTIO_RDMA_WR_OPCODE_SEND_WITH_INV 9
/* RDMA READ that invalidates the local key of its destination. */
#define VIRTIO_RDMA_WR_OPCODE_RDMA_READ_WITH_INV 11
/* FLUSH. */
#define VIRTIO_RDMA_WR_OPCODE_FLUSH 14
/* Atomic WRITE. */
#define VIRTIO_RDMA_WR_OPCODE_ATOMIC_WRITE 15
/* Fast registration; kernel clients only. */
#define VIRTIO_RDMA_WR_OPCODE_REG_MR 32

/*
 * Actions of a FLUSH, encoded as in its packet (IBTA A19.4.1) (__u8).
 */
/* Make data globally visible. */
#define VIRTIO_RDMA_FLUSH_TYPES_GLOBAL (1U << 0)
/* Make data persistent. */
#define VIRTIO_RDMA_FLUSH_TYPES_PERSISTENT (1U << 1)

/*
 * The memory that a FLUSH applies to, encoded as in its packet (IBTA A19.4.1) (__u8).
 */
/* A range of addresses. */
#define VIRTIO_RDMA_FLUSH_LEVEL_RANGE 0
/* The whole MR or window. */
#define VIRTIO_RDMA_FLUSH_LEVEL_MR 1

/*
 * enum ib_send_flags (__le32).
 */
/* Wait until earlier READs and atomic operations are complete. */
#define VIRTIO_RDMA_SEND_FLAGS_FENCE (1U << 0)
/* Generate a CQE. */
#define VIRTIO_RDMA_SEND_FLAGS_SIGNALED (1U << 1)
/* Request a solicited event at the receiver. */
#define VIRTIO_RDMA_SEND_FLAGS_SOLICITED (1U << 2)
/* The payload is in the WQE. */
#define VIRTIO_RDMA_SEND_FLAGS_INLINE (1U << 3)
/* Checksum offload of raw packets. */
#define VIRTIO_RDMA_SEND_FLAGS_IP_CSUM (1U << 4)

/*
 * enum ib_wc_status (IBTA 11.6.2) (__u8).
 */
/* Success. */
#define VIRTIO_RDMA_WC_STATUS_SUCCESS 0
/* Local length error. */
#define VIRTIO_RDMA_WC_STATUS_LOC_LEN_ERR 1
/* Local QP operation error. */
#define VIRTIO_RDMA_WC_STATUS_LOC_QP_OP_ERR 2
/* Local EE context operation error. */
#define VIRTIO_RDMA_WC_STATUS_LOC_EEC_OP_ERR 3
/* Local protection error. */
#define VIRTIO_RDMA_WC_STATUS_LOC_PROT_ERR 4
/* Work request flushed. */
#define VIRTIO_RDMA_WC_STATUS_WR_FLUSH_ERR 5
/* Memory window bind error. */
#define VIRTIO_RDMA_WC_STATUS_MW_BIND_ERR 6
/* Bad response. */
#define VIRTIO_RDMA_WC_STATUS_BAD_RESP_ERR 7
/* Local access error. */
#define VIRTIO_RDMA_WC_STATUS_LOC_ACCESS_ERR 8
/* Remote invalid request. */
#define VIRTIO_RDMA_WC_STATUS_REM_INV_REQ_ERR 9
/* Remote access error. */
#define VIRTIO_RDMA_WC_STATUS_REM_ACCESS_ERR 10
/* Remote operation error. */
#define VIRTIO_RDMA_WC_STATUS_REM_OP_ERR 11
/* Transport retry counter exceeded. */
#define VIRTIO_RDMA_WC_STATUS_RETRY_EXC_ERR 12
/* RNR retry counter exceeded. */
#define VIRTIO_RDMA_WC_STATUS_RNR_RETRY_EXC_ERR 13
/* Local RDD violation. */
#define VIRTIO_RDMA_WC_STATUS_LOC_RDD_VIOL_ERR 14
/* Remote invalid RD request. */
#define VIRTIO_RDMA_WC_STATUS_REM_INV_RD_REQ_ERR 15
/* Remote aborted. */
#define VIRTIO_RDMA_WC_STATUS_REM_ABORT_ERR 16
/* Invalid EE context number. */
#define VIRTIO_RDMA_WC_STATUS_INV_EECN_ERR 17
/* Invalid EE context state. */
#define VIRTIO_RDMA_WC_STATUS_INV_EEC_STATE_ERR 18
/* Fatal error. */
#define VIRTIO_RDMA_WC_STATUS_FATAL_ERR 19
/* Response timeout. */
#define VIRTIO_RDMA_WC_STATUS_RESP_TIMEOUT_ERR 20
/* General error. */
#define VIRTIO_RDMA_WC_STATUS_GENERAL_ERR 21

/*
 * wc_flags of a CQE (__le32).
 */
/* The first 40 bytes of the receive buffer are a GRH. */
#define VIRTIO_RDMA_WC_FLAGS_GRH (1U << 0)
/* ex is immediate data. */
#define VIRTIO_RDMA_WC_FLAGS_WITH_IMM (1U << 1)
/* ex is an invalidated R_Key. */
#define VIRTIO_RDMA_WC_FLAGS_WITH_INVALIDATE (1U << 2)
/* The IP checksum was verified. */
#define VIRTIO_RDMA_WC_FLAGS_IP_CSUM_OK (1U << 3)
/* The source MAC address is valid. */
#define VIRTIO_RDMA_WC_FLAGS_WITH_SMAC (1U << 4)
/* The VLAN id is valid. */
#define VIRTIO_RDMA_WC_FLAGS_WITH_VLAN (1U << 5)
/* sl is the network header type. */
#define VIRTIO_RDMA_WC_FLAGS_WITH_NETWORK_HDR_TYPE (1U << 6)
/*
 * The completion is solicited: the sender requested a solicited event, or it is an error. Set
 * only in virtqueue mode.
 */
#define VIRTIO_RDMA_WC_FLAGS_SOLICITED (1U << 31)

/*
 * Asynchronous events (__u8).
 */
/* A CQ overflowed or could not be accessed. */
#define VIRTIO_RDMA_ASYNC_EVENT_CQ_ERR 0
/* A QP went to ERR by itself. */
#define VIRTIO_RDMA_ASYNC_EVENT_QP_FATAL 1
/* A responder received an invalid request. */
#define VIRTIO_RDMA_ASYNC_EVENT_QP_REQ_ERR 2
/* A responder detected an access violation. */
#define VIRTIO_RDMA_ASYNC_EVENT_QP_ACCESS_ERR 3
/* The first packet arrived at a QP in RTR. */
#define VIRTIO_RDMA_ASYNC_EVENT_COMM_EST 4
/* A send queue is drained. */
#define VIRTIO_RDMA_ASYNC_EVENT_SQ_DRAINED 5
/* Path migrated. */
#define VIRTIO_RDMA_ASYNC_EVENT_PATH_MIG 6
/* Path migration failed. */
#define VIRTIO_RDMA_ASYNC_EVENT_PATH_MIG_ERR 7
/* The device failed. */
#define VIRTIO_RDMA_ASYNC_EVENT_DEVICE_FATAL 8
/* The port became active. */
#define VIRTIO_RDMA_ASYNC_EVENT_PORT_ACTIVE 9
/* The port went down. */
#define VIRTIO_RDMA_ASYNC_EVENT_PORT_ERR 10
/* LID changed. */
#define VIRTIO_RDMA_ASYNC_EVENT_LID_CHANGE 11
/* P_Key table changed. */
#define VIRTIO_RDMA_ASYNC_EVENT_PKEY_CHANGE 12
/* Subnet manager changed. */
#define VIRTIO_RDMA_ASYNC_EVENT_SM_CHANGE 13
/* An SRQ failed. */
#define VIRTIO_RDMA_ASYNC_EVENT_SRQ_ERR 14
/* An SRQ fell below its limit. */
#define VIRTIO_RDMA_ASYNC_EVENT_SRQ_LIMIT_REACHED 15
/* A QP with an SRQ is in ERR and takes no more receives. */
#define VIRTIO_RDMA_ASYNC_EVENT_QP_LAST_WQE_REACHED 16
/* Clients must register again. */
#define VIRTIO_RDMA_ASYNC_EVENT_CLIENT_REREGISTER 17
/* The GID table changed. */
#define VIRTIO_RDMA_ASYNC_EVENT_GID_CHANGE 18

/* Length of the configuration space in bytes, reserved words included. */
#define VIRTIO_RDMA_CONFIG_SIZE 640

/*
 * Offset of struct virtio_rdma_own_rings_config, which is valid once struct
 * virtio_rdma_ring_addr is negotiated.
 */
#define VIRTIO_RDMA_OWN_RINGS_CONFIG_OFFSET 128

/* Offset of struct virtio_rdma_srq_config, which is valid once Srq is negotiated. */
#define VIRTIO_RDMA_SRQ_CONFIG_OFFSET 160

/*
 * Offset of struct virtio_rdma_rate_limit_config, which is valid once RateLimit is
 * negotiated.
 */
#define VIRTIO_RDMA_RATE_LIMIT_CONFIG_OFFSET 176

/*
 * Offset of struct virtio_rdma_cq_moderation_config, which is valid once CqModeration is
 * negotiated.
 */
#define VIRTIO_RDMA_CQ_MODERATION_CONFIG_OFFSET 192

/*
 * Offset of struct virtio_rdma_counter_set_config, which is valid once CounterSets is
 * negotiated.
 */
#define VIRTIO_RDMA_COUNTER_SET_CONFIG_OFFSET 208

/* Identifier of the shared memory region with the doorbell pages. */
#define VIRTIO_RDMA_DOORBELL_SHM_ID 1

/*
 * Smallest and largest valid max_cq and max_qp (RFC, device requirements of the configuration
 * layout).
 */
#define VIRTIO_RDMA_QUEUE_COUNT_RANGE_MIN 1
#define VIRTIO_RDMA_QUEUE_COUNT_RANGE_MAX 16384

/*
 * device_cap_flags (RFC, enum ib_device_cap_flags) (__le64).
 */
/* The device counts packets with bad P_Keys. */
#define VIRTIO_RDMA_DEVICE_CAPS_BAD_PKEY_CNTR (1ULL << 1)
/* The device counts Q_Key violations. */
#define VIRTIO_RDMA_DEVICE_CAPS_BAD_QKEY_CNTR (1ULL << 2)
/* The primary port of a QP can be changed. */
#define VIRTIO_RDMA_DEVICE_CAPS_CHANGE_PHY_PORT (1ULL << 5)
/* The port number of an address vector is enforced on UD QPs. */
#define VIRTIO_RDMA_DEVICE_CAPS_UD_AV_PORT_ENFORCE (1ULL << 6)
/* sys_image_guid is valid. */
#define VIRTIO_RDMA_DEVICE_CAPS_SYS_IMAGE_GUID (1ULL << 11)
/* RC QPs generate RNR NAKs. */
#define VIRTIO_RDMA_DEVICE_CAPS_RC_RNR_NAK_GEN (1ULL << 12)
/* Memory windows of type 1 are supported. */
#define VIRTIO_RDMA_DEVICE_CAPS_MEM_WINDOW (1ULL << 17)
/* Base memory management extensions are supported: REG_MR, LOCAL_INV, SEND_WITH_INV. */
#define VIRTIO_RDMA_DEVICE_CAPS_MEM_MGT_EXTENSIONS (1ULL << 21)
/* Multicast loopback can be blocked; with Multicast. */
#define VIRTIO_RDMA_DEVICE_CAPS_BLOCK_MULTICAST_LOOPBACK (1ULL << 22)
/* Memory windows of type 2A are supported: any QP of their PD can use them. */
#define VIRTIO_RDMA_DEVICE_CAPS_MEM_WINDOW_TYPE_2A (1ULL << 23)
/* Memory windows of type 2B are supported: only the QP that bound a window can use it. */
#define VIRTIO_RDMA_DEVICE_CAPS_MEM_WINDOW_TYPE_2B (1ULL << 24)
/* An MR can map arbitrary scatter lists. */
#define VIRTIO_RDMA_DEVICE_CAPS_SG_GAPS_REG (1ULL << 32)
/* FLUSH can make data globally visible. */
#define VIRTIO_RDMA_DEVICE_CAPS_FLUSH_GLOBAL (1ULL << 38)
/* FLUSH can make data persistent. */
#define VIRTIO_RDMA_DEVICE_CAPS_FLUSH_PERSISTENT (1ULL << 39)
/* Atomic WRITE is supported. */
#define VIRTIO_RDMA_DEVICE_CAPS_ATOMIC_WRITE (1ULL << 40)

/*
 * Scope within which atomic operations are atomic (atomic_cap) (__u8).
 */
/* No atomic operations. */
#define VIRTIO_RDMA_ATOMIC_CAP_NONE 0
/* Atomic between the QPs of this device. */
#define VIRTIO_RDMA_ATOMIC_CAP_HCA 1
/* Atomic between this device, the CPUs and other devices. */
#define VIRTIO_RDMA_ATOMIC_CAP_GLOBAL 2

/**
 * struct virtio_rdma_config - device configuration (RFC: struct virtio_rdma_config, up to its
 *	reserved words). Read-only for the driver
 * @phys_port_cnt: number of ports
 * @sys_image_guid: system image GUID: the modified EUI-64 of the port's MAC address, in
 *	network byte order
 * @vendor_id: vendor id, per IEEE
 * @vendor_part_id: part id given by the vendor
 * @hw_ver: hardware version
 * @max_mr_size: largest MR, in bytes
 * @page_size_cap: mask of supported page sizes: bit n stands for 2^n bytes
 * @max_qp: number of QPs, GSI included
 * @max_qp_wr: maximum number of outstanding work requests of a queue
 * @device_cap_flags: capabilities
 * @max_send_sge: maximum number of SGEs of a send work request other than RDMA READ
 * @max_recv_sge: maximum number of SGEs of a receive work request
 * @max_sge_rd: maximum number of SGEs of an RDMA READ
 * @max_cq: number of CQs
 * @max_cqe: maximum number of entries of a CQ
 * @max_mr: number of MRs
 * @max_pd: number of PDs
 * @max_qp_rd_atom: maximum number of RDMA READs and atomic operations outstanding at a QP as
 *	responder
 * @max_res_rd_atom: maximum number of RDMA READs and atomic operations outstanding at all QPs
 *	as responders
 * @max_qp_init_rd_atom: maximum number of RDMA READs and atomic operations outstanding at a
 *	QP as requester
 * @atomic_cap: scope of atomic operations, AtomicCap
 * @max_mw: number of memory windows
 * @max_mcast_grp: number of multicast groups
 * @max_mcast_qp_attach: maximum number of QPs attached to one multicast group
 * @max_total_mcast_qp_attach: maximum number of QPs attached to multicast groups in total
 * @max_ah: number of address handles
 * @max_fast_reg_page_list_len: maximum number of pages of a fast registration
 * @max_pi_fast_reg_page_list_len: maximum number of pages of a fast registration with
 *	protection information
 * @max_pkeys: number of partitions
 * @local_ca_ack_delay: local CA ACK delay: 4.096 us * 2^n (IBTA 9.7.5.1.3)
 */
struct virtio_rdma_config {
	__le32 phys_port_cnt;
	__u8 sys_image_guid[8];
	__le32 vendor_id;
	__le32 vendor_part_id;
	__le32 hw_ver;
	__le64 max_mr_size;
	__le64 page_size_cap;
	__le32 max_qp;
	__le32 max_qp_wr;
	__le64 device_cap_flags;
	__le32 max_send_sge;
	__le32 max_recv_sge;
	__le32 max_sge_rd;
	__le32 max_cq;
	__le32 max_cqe;
	__le32 max_mr;
	__le32 max_pd;
	__le32 max_qp_rd_atom;
	__le32 max_res_rd_atom;
	__le32 max_qp_init_rd_atom;
	__u8 atomic_cap;
	__le32 max_mw;
	__le32 max_mcast_grp;
	__le32 max_mcast_qp_attach;
	__le32 max_total_mcast_qp_attach;
	__le32 max_ah;
	__le32 max_fast_reg_page_list_len;
	__le32 max_pi_fast_reg_page_list_len;
	__le16 max_pkeys;
	__u8 local_ca_ack_delay;
} __attribute__((packed));

/**
 * struct virtio_rdma_own_rings_config - limits with own rings, at OWN_RINGS_CONFIG_OFFSET.
 *	They replace the fields of the same name in struct virtio_rdma_config
 * @num_event_queues: number of event queues: virtqueues 1 to n
 * @max_qp: number of QPs, GSI included
 * @max_qp_wr: maximum number of outstanding work requests of a queue
 * @max_cq: number of CQs
 * @max_cqe: maximum number of entries of a CQ
 * @max_inline_data: largest inline payload of a send work request, in bytes
 * @doorbell_pages: number of doorbell pages in shared memory region DOORBELL_SHM_ID,
 *	including page 0
 * @doorbell_shift: the distance between doorbell pages is 2^n bytes, with n in
 *	DOORBELL_SHIFT_RANGE
 * @reserved: reserved, zero
 */
struct virtio_rdma_own_rings_config {
	__le32 num_event_queues;
	__le32 max_qp;
	__le32 max_qp_wr;
	__le32 max_cq;
	__le32 max_cqe;
	__le32 max_inline_data;
	__le32 doorbell_pages;
	__u8 doorbell_shift;
	__u8 reserved[3];
} __attribute__((packed));

/**
 * struct virtio_rdma_srq_config - limits of shared receive queues, at SRQ_CONFIG_OFFSET
 * @max_srq: number of SRQs
 * @max_srq_wr: maximum number of outstanding work requests of an SRQ
 * @max_srq_sge: maximum number of SGEs of a receive work request of an SRQ
 */
struct virtio_rdma_srq_config {
	__le32 max_srq;
	__le32 max_srq_wr;
	__le32 max_srq_sge;
} __attribute__((packed));

/*
 * A set of QP types: bit n stands for type n (__le32).
 */
/* Reliable connection. */
#define VIRTIO_RDMA_QP_TYPES_RC (1U << 2)
/* Unreliable connection. */
#define VIRTIO_RDMA_QP_TYPES_UC (1U << 3)
/* Unreliable datagram. */
#define VIRTIO_RDMA_QP_TYPES_UD (1U << 4)

/**
 * struct virtio_rdma_rate_limit_config - ranges for rate limits, at RATE_LIMIT_CONFIG_OFFSET
 * @min_rate: smallest rate in kb/s, at least 1
 * @max_rate: largest rate in kb/s
 * @max_burst_size: largest burst in bytes
 * @qp_types: types of QPs that can have a rate limit
 */
struct virtio_rdma_rate_limit_config {
	__le32 min_rate;
	__le32 max_rate;
	__le32 max_burst_size;
	__le32 qp_types;
} __attribute__((packed));

/**
 * struct virtio_rdma_cq_moderation_config - limits of the moderation of CQs, at
 *	CQ_MODERATION_CONFIG_OFFSET
 * @max_count: largest count of struct virtio_rdma_cmd_modify_cq, at least 1
 * @max_period: largest period of struct virtio_rdma_cmd_modify_cq in microseconds, at least 1
 */
struct virtio_rdma_cq_moderation_config {
	__le32 max_count;
	__le32 max_period;
} __attribute__((packed));

/**
 * struct virtio_rdma_counter_set_config - limit of counter sets, at COUNTER_SET_CONFIG_OFFSET
 * @max_counter_sets: number of counter sets, at least 1
 */
struct virtio_rdma_counter_set_config {
	__le32 max_counter_sets;
} __attribute__((packed));

/*
 * A feature of the device type. The value is its bit number (__u8).
 */
/*
 * VIRTIO_RDMA_F_RING_ADDR: queues are rings at addresses that the driver chooses (own rings).
 */
#define VIRTIO_RDMA_F_RING_ADDR 0
/*
 * VIRTIO_RDMA_F_MR_PAGES: REG_USER_MR has a page size, and its page list may have two levels
 * (struct virtio_rdma_cmd_reg_user_mr_pages).
 */
#define VIRTIO_RDMA_F_MR_PAGES 1
/*
 * VIRTIO_RDMA_F_REG_PAGES: a REG_MR work request carries the page list (struct
 * virtio_rdma_reg_pages), which replaces MAP_MR_SG.
 */
#define VIRTIO_RDMA_F_REG_PAGES 2
/*
 * VIRTIO_RDMA_F_GID_VLAN: ADD_GID carries the VLAN of an address (struct
 * virtio_rdma_cmd_add_gid_vlan), and the CQE of a tagged datagram carries its VLAN (vlan).
 */
#define VIRTIO_RDMA_F_GID_VLAN 3
/*
 * VIRTIO_RDMA_F_MEM_WINDOWS: memory windows (struct virtio_rdma_cmd_alloc_mw), which BIND_MW
 * work requests bind (struct virtio_rdma_bind_mw).
 */
#define VIRTIO_RDMA_F_MEM_WINDOWS 4
/* VIRTIO_RDMA_F_SRQ: shared receive queues (struct virtio_rdma_cmd_create_srq). */
#define VIRTIO_RDMA_F_SRQ 5
/* VIRTIO_RDMA_F_RESIZE_CQ: a CQ can move to another ring (struct virtio_rdma_cmd_resize_cq). */
#define VIRTIO_RDMA_F_RESIZE_CQ 6
/*
 * VIRTIO_RDMA_F_RATE_LIMIT: a QP can have a rate limit (struct
 * virtio_rdma_cmd_set_rate_limit, RATE_LIMIT).
 */
#define VIRTIO_RDMA_F_RATE_LIMIT 7
/*
 * VIRTIO_RDMA_F_MULTICAST: UD QPs can send to multicast groups and attach to them (struct
 * virtio_rdma_cmd_attach_mcast).
 */
#define VIRTIO_RDMA_F_MULTICAST 8
/* VIRTIO_RDMA_F_COUNTERS: the port has counters (struct virtio_rdma_cmd_query_counters). */
#define VIRTIO_RDMA_F_COUNTERS 9
/* VIRTIO_RDMA_F_ATOMIC_WRITE: atomic WRITE (struct virtio_rdma_atomic_write). */
#define VIRTIO_RDMA_F_ATOMIC_WRITE 10
/* VIRTIO_RDMA_F_FLUSH: FLUSH (struct virtio_rdma_flush). */
#define VIRTIO_RDMA_F_FLUSH 11
/*
 * VIRTIO_RDMA_F_PEERS: the driver can revoke the device's access to the memory of an MR
 * (struct virtio_rdma_cmd_revoke_mr). MRs over DMA buffers of other drivers require this
 * feature.
 */
#define VIRTIO_RDMA_F_PEERS 12
/*
 * VIRTIO_RDMA_F_CQ_MODERATION: the device can delay the completion events of a CQ (struct
 * virtio_rdma_cmd_modify_cq).
 */
#define VIRTIO_RDMA_F_CQ_MODERATION 13
/*
 * VIRTIO_RDMA_F_COUNTER_SETS: a counter set counts the events of the QPs that are bound to it
 * (struct virtio_rdma_cmd_bind_counter_set).
 */
#define VIRTIO_RDMA_F_COUNTER_SETS 14
/*
 * VIRTIO_RDMA_F_PORT_STATE: the driver tells the device state and MTU of the port's network
 * device (struct virtio_rdma_cmd_set_port).
 */
#define VIRTIO_RDMA_F_PORT_STATE 15

/* Bytes of a cache line: the alignment of words and of order. */
#define VIRTIO_RDMA_CACHE_LINE 64

/* Smallest and largest number of slots of an SQ, RQ or SRQ. Only powers of two are valid. */
#define VIRTIO_RDMA_WORK_SLOTS_MIN 2
#define VIRTIO_RDMA_WORK_SLOTS_MAX 32768

/* Smallest and largest number of slots of a CQ. Only powers of two are valid. */
#define VIRTIO_RDMA_CQ_SLOTS_MIN 2
#define VIRTIO_RDMA_CQ_SLOTS_MAX 4194304

/*
 * Smallest and largest slot shift: slots have 64 to 4,096 bytes. No slot crosses a page
 * boundary.
 */
#define VIRTIO_RDMA_SLOT_SHIFT_RANGE_MIN 6
#define VIRTIO_RDMA_SLOT_SHIFT_RANGE_MAX 12

/* Smallest and largest page shift of a ring's page list: 4 KiB to 1 GiB. */
#define VIRTIO_RDMA_PAGE_SHIFT_RANGE_MIN 12
#define VIRTIO_RDMA_PAGE_SHIFT_RANGE_MAX 30

/* Smallest and largest distance of doorbell pages, as a shift: 4 KiB to 1 GiB. */
#define VIRTIO_RDMA_DOORBELL_SHIFT_RANGE_MIN 12
#define VIRTIO_RDMA_DOORBELL_SHIFT_RANGE_MAX 30

/* Doorbell page of the guest's kernel. */
#define VIRTIO_RDMA_KERNEL_DOORBELL_PAGE 0

/**
 * struct virtio_rdma_ring_addr - the memory of a ring, as described by commands that create
 *	and resize queues
 * @pages: DMA address of the page list, which holds the DMA address of each page of the ring
 * @npages: number of pages
 * @slots: number of slots; 0 for no ring
 * @page_shift: pages have 2^n bytes
 * @slot_shift: slots have 2^n bytes
 * @depth: format of the page list, PageListDepth
 * @reserved: reserved, zero
 */
struct virtio_rdma_ring_addr {
	__le64 pages;
	__le32 npages;
	__le32 slots;
	__u8 page_shift;
	__u8 slot_shift;
	__u8 depth;
	__u8 reserved[5];
} __attribute__((packed));

/*
 * The completions that an arm word covers (__u8).
 */
/* None: the CQ is not armed. */
#define VIRTIO_RDMA_ARM_KIND_NONE 0
/* The next completion. */
#define VIRTIO_RDMA_ARM_KIND_NEXT 1
/* The next solicited completion or error. */
#define VIRTIO_RDMA_ARM_KIND_SOLICITED 2

/*
 * Kind of queue that a doorbell rings (__u8).
 */
/* Send queue of a QP. */
#define VIRTIO_RDMA_DOORBELL_KIND_SQ 1
/* Receive queue of a QP. */
#define VIRTIO_RDMA_DOORBELL_KIND_RQ 2
/* Completion queue. */
#define VIRTIO_RDMA_DOORBELL_KIND_CQ 3
/* Shared receive queue. */
#define VIRTIO_RDMA_DOORBELL_KIND_SRQ 4

/* Virtqueue number of the first event queue, which carries asynchronous events. */
#define VIRTIO_RDMA_FIRST_EVENT_QUEUE 1

/* kind of a completion event. */
#define VIRTIO_RDMA_KIND_COMPLETION 0

/* kind of an asynchronous event: this value plus the AsyncEvent. */
#define VIRTIO_RDMA_KIND_ASYNC 256

/**
 * struct virtio_rdma_event - an event
 * @raw_kind: numeric kind, see kind
 * @reserved: reserved, zero
 * @cookie: cookie of the CQ, QP or SRQ. For an event of the port the port number, for an
 *	event of the device 0
 */
struct virtio_rdma_event {
	__le32 raw_kind;
	__le32 reserved;
	__le64 cookie;
} __attribute__((packed));

/* Virtqueue number of the control queue. */
#define VIRTIO_RDMA_CONTROL_QUEUE 0

/* Response byte of a successful command. */
#define VIRTIO_RDMA_RESPONSE_OK 0

/*
 * Length of the longest request in bytes: the command byte and the longest request structure.
 */
#define VIRTIO_RDMA_MAX_REQUEST 138

/*
 * Length of the longest response in bytes: the response byte and the longest response
 * structure.
 */
#define VIRTIO_RDMA_MAX_RESPONSE 225

/*
 * Command byte (__u8).
 */
/* Query the attributes of a port. */
#define VIRTIO_RDMA_CMD_QUERY_PORT 1
/* Create a CQ. */
#define VIRTIO_RDMA_CMD_CREATE_CQ 2
/* Destroy a CQ. */
#define VIRTIO_RDMA_CMD_DESTROY_CQ 3
/* Create a PD. */
#define VIRTIO_RDMA_CMD_CREATE_PD 4
/* Destroy a PD. */
#define VIRTIO_RDMA_CMD_DESTROY_PD 5
/* Create an MR over all memory. */
#define VIRTIO_RDMA_CMD_GET_DMA_MR 6
/* Create an MR for fast registration. */
#define VIRTIO_RDMA_CMD_CREATE_MR 7
/* Set the pages of an MR for fast registration. */
#define VIRTIO_RDMA_CMD_MAP_MR_SG 8
/* Create an MR with its pages. */
#define VIRTIO_RDMA_CMD_REG_USER_MR 9
/* Destroy an MR. */
#define VIRTIO_RDMA_CMD_DEREG_MR 10
/* Create a QP. */
#define VIRTIO_RDMA_CMD_CREATE_QP 11
/* Change attributes and state of a QP. */
#define VIRTIO_RDMA_CMD_MODIFY_QP 12
/* Query attributes and state of a QP. */
#define VIRTIO_RDMA_CMD_QUERY_QP 13
/* Destroy a QP. */
#define VIRTIO_RDMA_CMD_DESTROY_QP 14
/* Query an entry of the P_Key table. */
#define VIRTIO_RDMA_CMD_QUERY_PKEY 15
/* Set an entry of the GID table. */
#define VIRTIO_RDMA_CMD_ADD_GID 16
/* Clear an entry of the GID table. */
#define VIRTIO_RDMA_CMD_DEL_GID 17
/* Arm a CQ in virtqueue mode. */
#define VIRTIO_RDMA_CMD_REQ_NOTIFY_CQ 18
/* Create a memory window. */
#define VIRTIO_RDMA_CMD_ALLOC_MW 19
/* Destroy a memory window. */
#define VIRTIO_RDMA_CMD_DEALLOC_MW 20
/* Create an SRQ. */
#define VIRTIO_RDMA_CMD_CREATE_SRQ 21
/* Arm the limit event of an SRQ, or move the SRQ to a longer ring. */
#define VIRTIO_RDMA_CMD_MODIFY_SRQ 22
/* Query the attributes of an SRQ. */
#define VIRTIO_RDMA_CMD_QUERY_SRQ 23
/* Destroy an SRQ. */
#define VIRTIO_RDMA_CMD_DESTROY_SRQ 24
/* Move a CQ to another ring. */
#define VIRTIO_RDMA_CMD_RESIZE_CQ 25
/* Limit the rate at which a QP sends. */
#define VIRTIO_RDMA_CMD_SET_RATE_LIMIT 26
/* Attach a UD QP to a multicast group. */
#define VIRTIO_RDMA_CMD_ATTACH_MCAST 27
/* Detach a UD QP from a multicast group. */
#define VIRTIO_RDMA_CMD_DETACH_MCAST 28
/* Query the counters of a port. */
#define VIRTIO_RDMA_CMD_QUERY_COUNTERS 29
/* Change access flags, PD or memory of an MR that was created with its pages. */
#define VIRTIO_RDMA_CMD_REREG_MR 30
/* Revoke the device's access to the memory of an MR. */
#define VIRTIO_RDMA_CMD_REVOKE_MR 31
/* Set the moderation of a CQ. */
#define VIRTIO_RDMA_CMD_MODIFY_CQ 32
/* Create a counter set. */
#define VIRTIO_RDMA_CMD_CREATE_COUNTER_SET 33
/* Destroy a counter set. */
#define VIRTIO_RDMA_CMD_DESTROY_COUNTER_SET 34
/* Bind a QP to a counter set, or unbind it. */
#define VIRTIO_RDMA_CMD_BIND_COUNTER_SET 35
/* Query the counters of a counter set. */
#define VIRTIO_RDMA_CMD_QUERY_COUNTER_SET 36
/* Set state and MTU of a port's network device. */
#define VIRTIO_RDMA_CMD_SET_PORT 37

/*
 * Response byte of a failed command. The numbers are those of Linux on most architectures
 * (__u8).
 */
/* The operation is not permitted. */
#define VIRTIO_RDMA_ERRNO_EPERM 1
/* The device failed. Drivers must treat unknown numbers like this one. */
#define VIRTIO_RDMA_ERRNO_EIO 5
/* The device is busy: the same command may succeed later. */
#define VIRTIO_RDMA_ERRNO_EAGAIN 11
/* A limit is reached. */
#define VIRTIO_RDMA_ERRNO_ENOMEM 12
/* The device can't access the memory. */
#define VIRTIO_RDMA_ERRNO_EFAULT 14
/* Other objects use the object. */
#define VIRTIO_RDMA_ERRNO_EBUSY 16
/* The object exists already. */
#define VIRTIO_RDMA_ERRNO_EEXIST 17
/* The request is invalid. */
#define VIRTIO_RDMA_ERRNO_EINVAL 22
/* A table or list is full. */
#define VIRTIO_RDMA_ERRNO_ENOSPC 28
/* The device does not support the operation. */
#define VIRTIO_RDMA_ERRNO_EOPNOTSUPP 95
/* The address belongs to another port. */
#define VIRTIO_RDMA_ERRNO_EADDRINUSE 98
/* A part of the device or of the network did not answer in time. */
#define VIRTIO_RDMA_ERRNO_ETIMEDOUT 110

/**
 * struct virtio_rdma_cmd_query_port - request of QUERY_PORT (RFC: struct cmd_query_port)
 * @port: port
 */
struct virtio_rdma_cmd_query_port {
	__u8 port;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_query_port - response of QUERY_PORT (RFC: struct rsp_query_port)
 * @state: PortState
 * @max_mtu: largest Mtu
 * @active_mtu: current Mtu
 * @phys_mtu: MTU of the Ethernet link in bytes
 * @gid_tbl_len: entries of the GID table
 * @port_cap_flags: capabilities
 * @max_msg_sz: longest message in bytes
 * @bad_pkey_cntr: number of packets received with a wrong P_Key
 * @qkey_viol_cntr: number of packets received with a wrong Q_Key
 * @pkey_tbl_len: entries of the P_Key table
 * @active_width: PortWidth
 * @active_speed: PortSpeed
 * @phys_state: PortPhysState
 * @reserved: reserved, zero
 */
struct virtio_rdma_rsp_query_port {
	__u8 state;
	__u8 max_mtu;
	__u8 active_mtu;
	__le32 phys_mtu;
	__le32 gid_tbl_len;
	__le32 port_cap_flags;
	__le32 max_msg_sz;
	__le32 bad_pkey_cntr;
	__le32 qkey_viol_cntr;
	__le16 pkey_tbl_len;
	__u8 active_width;
	__le16 active_speed;
	__u8 phys_state;
	__u8 reserved[128];
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_set_port - request of SET_PORT. Needs PortState
 * @port: port
 * @state: state of the network device, Down or Active
 * @mtu: MTU of the network device in bytes
 */
struct virtio_rdma_cmd_set_port {
	__u8 port;
	__u8 state;
	__le32 mtu;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_query_pkey - request of QUERY_PKEY (RFC: struct cmd_query_pkey)
 * @port: port
 * @index: index into the P_Key table
 */
struct virtio_rdma_cmd_query_pkey {
	__le32 port;
	__le16 index;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_query_pkey - response of QUERY_PKEY (RFC: struct rsp_query_pkey)
 * @pkey: the P_Key
 */
struct virtio_rdma_rsp_query_pkey {
	__le16 pkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_add_gid - request of ADD_GID (RFC: struct cmd_add_gid)
 * @gid: GID, in network byte order
 * @gid_type: GidType
 * @index: index into the GID table
 * @port_num: port
 */
struct virtio_rdma_cmd_add_gid {
	__u8 gid[16];
	__le32 gid_type;
	__le16 index;
	__le32 port_num;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_add_gid_vlan - ADD_GID with GidVlan: packets from and to the address
 *	carry a VLAN tag
 * @base: the RFC's fields
 * @vlan: VLAN id, 0 to 4094, or NO_VLAN for untagged packets
 */
struct virtio_rdma_cmd_add_gid_vlan {
	struct virtio_rdma_cmd_add_gid base;
	__le16 vlan;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_del_gid - request of DEL_GID (RFC: struct cmd_del_gid)
 * @index: index into the GID table
 * @port: port
 */
struct virtio_rdma_cmd_del_gid {
	__le16 index;
	__le32 port;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_query_counters - request of QUERY_COUNTERS. Needs Counters
 * @port: port
 */
struct virtio_rdma_cmd_query_counters {
	__u8 port;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_query_counters - counters of a port since the device was created,
 *	modulo 2⁶⁴. Bytes of packets are the bytes of their Ethernet frames, without FCS
 * @tx_packets: packets sent
 * @tx_bytes: bytes of packets sent
 * @rx_packets: valid RoCE packets received
 * @rx_bytes: bytes of valid RoCE packets received
 * @direct_tx_messages: messages sent without packets (on the direct path), as requester
 * @direct_tx_bytes: bytes of messages sent without packets
 * @direct_rx_messages: messages received without packets, as responder
 * @direct_rx_bytes: bytes of messages received without packets
 * @retransmitted_packets: packets retransmitted
 * @timeouts: acknowledgements and responses that did not arrive in time
 * @naks_sent: NAKs sent, except RNR NAKs
 * @naks_received: NAKs received, except RNR NAKs
 * @rnr_naks_sent: RNR NAKs sent
 * @rnr_naks_received: RNR NAKs received
 * @out_of_sequence: requests received with a later PSN than expected
 * @duplicates: duplicate requests received
 * @bad_packets: invalid RoCE packets received
 * @pkey_violations: packets received with a wrong P_Key
 * @qkey_violations: packets received with a wrong Q_Key
 * @rkey_violations: R_Key violations: accesses of peers that the key does not permit
 * @lkey_violations: L_Key violations: accesses of own work requests that the key does not
 *	permit
 * @paced_bytes: bytes that rate limits of QPs counted, in packets and on the direct path
 * @doorbells: doorbells, and notifications of virtqueues other than the control queue
 * @completion_events: completion events. Each causes at most one interrupt
 * @marked_packets: RoCE packets received with a congestion mark (ECN CE), on reliable
 *	connections
 * @notifications_sent: congestion notifications sent
 * @notifications_received: congestion notifications received
 * @probes: probes: last packets sent again because no answer came for longer than usual
 */
struct virtio_rdma_rsp_query_counters {
	__le64 tx_packets;
	__le64 tx_bytes;
	__le64 rx_packets;
	__le64 rx_bytes;
	__le64 direct_tx_messages;
	__le64 direct_tx_bytes;
	__le64 direct_rx_messages;
	__le64 direct_rx_bytes;
	__le64 retransmitted_packets;
	__le64 timeouts;
	__le64 naks_sent;
	__le64 naks_received;
	__le64 rnr_naks_sent;
	__le64 rnr_naks_received;
	__le64 out_of_sequence;
	__le64 duplicates;
	__le64 bad_packets;
	__le64 pkey_violations;
	__le64 qkey_violations;
	__le64 rkey_violations;
	__le64 lkey_violations;
	__le64 paced_bytes;
	__le64 doorbells;
	__le64 completion_events;
	__le64 marked_packets;
	__le64 notifications_sent;
	__le64 notifications_received;
	__le64 probes;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_create_counter_set - request of CREATE_COUNTER_SET
 * @port: port whose QPs can be bound to the set
 */
struct virtio_rdma_cmd_create_counter_set {
	__u8 port;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_create_counter_set - response of CREATE_COUNTER_SET
 * @csn: handle, never 0
 */
struct virtio_rdma_rsp_create_counter_set {
	__le32 csn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_destroy_counter_set - request of DESTROY_COUNTER_SET
 * @csn: handle
 */
struct virtio_rdma_cmd_destroy_counter_set {
	__le32 csn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_bind_counter_set - request of BIND_COUNTER_SET
 * @qpn: QP
 * @csn: the QP's counter set from now on, or 0 for none
 */
struct virtio_rdma_cmd_bind_counter_set {
	__le32 qpn;
	__le32 csn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_query_counter_set - request of QUERY_COUNTER_SET
 * @csn: handle, or 0 for the events that no counter set counted
 */
struct virtio_rdma_cmd_query_counter_set {
	__le32 csn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_create_cq - request of CREATE_CQ (RFC: struct cmd_create_cq)
 * @cqe: number of entries
 */
struct virtio_rdma_cmd_create_cq {
	__le32 cqe;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_create_cq - response of CREATE_CQ (RFC: struct rsp_create_cq)
 * @cqn: handle
 */
struct virtio_rdma_rsp_create_cq {
	__le32 cqn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_create_cq_ring - CREATE_CQ with own rings: the RFC's structure and
 *	the ring
 * @base: the RFC's fields
 * @flags: flags
 * @ring: the CQ's ring
 * @doorbell_page: doorbell page from which the CQ may be rung
 * @event_queue: event queue for its completion events, from 1 to num_event_queues
 * @cookie: the driver's cookie, which the CQ's events carry
 * @reserved: reserved, zero
 */
struct virtio_rdma_cmd_create_cq_ring {
	struct virtio_rdma_cmd_create_cq base;
	__le32 flags;
	struct virtio_rdma_ring_addr ring;
	__le32 doorbell_page;
	__le32 event_queue;
	__le64 cookie;
	__u8 reserved[8];
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_destroy_cq - request of DESTROY_CQ (RFC: struct cmd_destroy_cq)
 * @cqn: handle
 */
struct virtio_rdma_cmd_destroy_cq {
	__le32 cqn;
} __attribute__((packed));

/*
 * Completions for which REQ_NOTIFY_CQ requests a notification (__le32).
 */
/* The next solicited completion. */
#define VIRTIO_RDMA_NOTIFY_FLAGS_SOLICITED (1U << 0)
/* The next completion. */
#define VIRTIO_RDMA_NOTIFY_FLAGS_NEXT_COMPLETION (1U << 1)

/**
 * struct virtio_rdma_cmd_req_notify - request of REQ_NOTIFY_CQ (RFC: struct cmd_req_notify)
 * @cqn: CQ
 * @flags: the completions for which a notification is requested
 */
struct virtio_rdma_cmd_req_notify {
	__le32 cqn;
	__le32 flags;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_resize_cq - request of RESIZE_CQ
 * @cqn: handle
 * @cqe: number of entries
 * @ring: the new ring
 */
struct virtio_rdma_cmd_resize_cq {
	__le32 cqn;
	__le32 cqe;
	struct virtio_rdma_ring_addr ring;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_resize_cq - response of RESIZE_CQ
 * @end: producer's position at which the old ring ends. Later completions are in the new ring
 */
struct virtio_rdma_rsp_resize_cq {
	__le32 end;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_modify_cq - MODIFY_CQ: sets the moderation of a CQ. The CQ's event
 *	is sent period microseconds after it is due, or as soon as count completions are published.
 *	If either is 0, or if count is 1, the event is sent at once
 * @cqn: handle
 * @count: number of completions, at most CqModerationConfig::max_count
 * @period: microseconds, at most CqModerationConfig::max_period
 */
struct virtio_rdma_cmd_modify_cq {
	__le32 cqn;
	__le32 count;
	__le32 period;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_create_pd - response of CREATE_PD (RFC: struct rsp_create_pd)
 * @pdn: handle
 */
struct virtio_rdma_rsp_create_pd {
	__le32 pdn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_destroy_pd - request of DESTROY_PD (RFC: struct cmd_destroy_pd)
 * @pdn: handle
 */
struct virtio_rdma_cmd_destroy_pd {
	__le32 pdn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_get_dma_mr - request of GET_DMA_MR (RFC: struct cmd_get_dma_mr)
 * @pdn: PD
 * @access_flags: access flags
 */
struct virtio_rdma_cmd_get_dma_mr {
	__le32 pdn;
	__le32 access_flags;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_mr - response of GET_DMA_MR, CREATE_MR and REG_USER_MR: a new MR
 *	(RFC: struct rsp_get_dma_mr, rsp_create_mr and rsp_reg_user_mr)
 * @mrn: handle
 * @lkey: local key
 * @rkey: remote key
 */
struct virtio_rdma_rsp_mr {
	__le32 mrn;
	__le32 lkey;
	__le32 rkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_create_mr - request of CREATE_MR (RFC: struct cmd_create_mr)
 * @pdn: PD
 * @access_flags: access flags
 * @max_num_sg: maximum number of pages that the MR may have
 */
struct virtio_rdma_cmd_create_mr {
	__le32 pdn;
	__le32 access_flags;
	__le32 max_num_sg;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_map_mr_sg - request of MAP_MR_SG (RFC: struct cmd_map_mr_sg)
 * @mrn: MR
 * @npages: number of pages
 * @start: address of the first byte in the MR, as used in work requests
 * @length: length in bytes
 * @pages: DMA address of the page list: npages le64
 */
struct virtio_rdma_cmd_map_mr_sg {
	__le32 mrn;
	__le32 npages;
	__le64 start;
	__le64 length;
	__le64 pages;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_map_mr_sg - response of MAP_MR_SG (RFC: struct rsp_map_mr_sg)
 * @npages: number of pages mapped
 */
struct virtio_rdma_rsp_map_mr_sg {
	__le32 npages;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_reg_user_mr - request of REG_USER_MR (RFC: struct cmd_reg_user_mr).
 *	The first byte is at offset start % 4096 of the first page
 * @pdn: PD
 * @access_flags: access flags
 * @start: address in the process's address space
 * @length: length in bytes
 * @virt_addr: address of the first byte, as used in work requests
 * @pages: DMA address of the page list: npages le64, each the DMA address of a 4 KiB page
 * @npages: number of pages
 */
struct virtio_rdma_cmd_reg_user_mr {
	__le32 pdn;
	__le32 access_flags;
	__le64 start;
	__le64 length;
	__le64 virt_addr;
	__le64 pages;
	__le32 npages;
} __attribute__((packed));

/*
 * Format of a page list (__u8).
 */
/* One level: pages is the address of the list, npages le64, each the DMA address of a page. */
#define VIRTIO_RDMA_PAGE_LIST_DEPTH_FLAT 0
/*
 * Two levels: pages is the address of a directory of le64. Each is the DMA address of a block
 * of PAGE_LIST_BLOCK bytes. The blocks hold the list; all but the last are full.
 */
#define VIRTIO_RDMA_PAGE_LIST_DEPTH_TWO_LEVELS 1

/* Size and alignment of a block of a two-level page list, in bytes. */
#define VIRTIO_RDMA_PAGE_LIST_BLOCK 4096

/**
 * struct virtio_rdma_cmd_reg_user_mr_pages - REG_USER_MR with MrPages: the RFC's structure,
 *	page size and list format. npages counts pages of 1 << page_shift bytes. The first byte is
 *	at offset virt_addr % (1 << page_shift) of the first page
 * @base: the RFC's fields
 * @page_shift: pages have 2^n bytes. Must be a bit of page_size_cap
 * @depth: list format, PageListDepth
 * @reserved: reserved, zero
 */
struct virtio_rdma_cmd_reg_user_mr_pages {
	struct virtio_rdma_cmd_reg_user_mr base;
	__u8 page_shift;
	__u8 depth;
	__u8 reserved[6];
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_dereg_mr - request of DEREG_MR (RFC: struct cmd_dereg_mr)
 * @mrn: handle
 */
struct virtio_rdma_cmd_dereg_mr {
	__le32 mrn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_alloc_mw - request of ALLOC_MW. Needs MemWindows
 * @pdn: PD
 * @mw_type: MwType
 * @reserved: reserved, zero
 */
struct virtio_rdma_cmd_alloc_mw {
	__le32 pdn;
	__u8 mw_type;
	__u8 reserved[3];
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_alloc_mw - a new memory window, not bound yet
 * @mwn: handle, which is also bits 31-8 of the window's R_Keys
 * @rkey: R_Key. It is not valid before the window is bound
 */
struct virtio_rdma_rsp_alloc_mw {
	__le32 mwn;
	__le32 rkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_dealloc_mw - request of DEALLOC_MW. Needs MemWindows
 * @mwn: handle
 */
struct virtio_rdma_cmd_dealloc_mw {
	__le32 mwn;
} __attribute__((packed));

/*
 * The parts of an MR that REREG_MR changes, numbered as in the kernel's enum
 * ib_mr_rereg_flags (__le32).
 */
/* The memory: virt_addr, length and pages. */
#define VIRTIO_RDMA_REREG_FLAGS_TRANSLATION (1U << 0)
/* pdn. */
#define VIRTIO_RDMA_REREG_FLAGS_PD (1U << 1)
/* access_flags. */
#define VIRTIO_RDMA_REREG_FLAGS_ACCESS (1U << 2)

/**
 * struct virtio_rdma_cmd_rereg_mr - request of REREG_MR. The keys of the MR do not change
 * @mrn: MR
 * @flags: the parts to change. Fields of memory for other parts are ignored
 * @memory: the new memory, PD and access flags
 */
struct virtio_rdma_cmd_rereg_mr {
	__le32 mrn;
	__le32 flags;
	struct virtio_rdma_cmd_reg_user_mr_pages memory;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_revoke_mr - request of REVOKE_MR. Needs Peers
 * @mrn: handle. It remains valid
 */
struct virtio_rdma_cmd_revoke_mr {
	__le32 mrn;
} __attribute__((packed));

/**
 * struct virtio_rdma_global_route - global route of a path (RFC: struct
 *	virtio_rdma_global_route)
 * @dgid: destination GID, in network byte order
 * @flow_label: flow label
 * @sgid_index: index of the source GID
 * @hop_limit: hop limit
 * @traffic_class: traffic class
 */
struct virtio_rdma_global_route {
	__u8 dgid[16];
	__le32 flow_label;
	__u8 sgid_index;
	__u8 hop_limit;
	__u8 traffic_class;
} __attribute__((packed));

/**
 * struct virtio_rdma_ah_attr - path to a peer (RFC: struct virtio_rdma_ah_attr)
 * @grh: global route
 * @sl: service level
 * @static_rate: static rate, encoded as in a path record (IBTA 15.2.5.16); 0 for the port's
 *	rate
 * @port_num: port
 * @ah_flags: flags. On RoCE every path has a GRH
 * @dmac: MAC address of the next hop
 */
struct virtio_rdma_ah_attr {
	struct virtio_rdma_global_route grh;
	__u8 sl;
	__u8 static_rate;
	__u8 port_num;
	__u8 ah_flags;
	__u8 dmac[6];
} __attribute__((packed));

/**
 * struct virtio_rdma_qp_cap - size of a QP's queues (RFC: struct virtio_rdma_qp_cap)
 * @max_send_wr: maximum number of outstanding work requests of the SQ
 * @max_recv_wr: maximum number of outstanding work requests of the RQ
 * @max_send_sge: maximum number of SGEs of a send work request
 * @max_recv_sge: maximum number of SGEs of a receive work request
 * @max_inline_data: largest inline payload in bytes
 */
struct virtio_rdma_qp_cap {
	__le32 max_send_wr;
	__le32 max_recv_wr;
	__le32 max_send_sge;
	__le32 max_recv_sge;
	__le32 max_inline_data;
} __attribute__((packed));

/**
 * struct virtio_rdma_qp_attr - attributes of a QP (RFC: struct virtio_rdma_qp_attr)
 * @qp_state: new state, QpState
 * @cur_qp_state: assumed current state
 * @path_mtu: path MTU, Mtu
 * @path_mig_state: path migration state
 * @qkey: Q_Key
 * @rq_psn: first PSN that the receive queue expects
 * @sq_psn: first PSN of the send queue
 * @dest_qp_num: QPN of the peer
 * @qp_access_flags: remote operations that the QP permits
 * @pkey_index: P_Key index
 * @alt_pkey_index: P_Key index of the alternate path
 * @en_sqd_async_notify: whether draining in SQD raises an event
 * @sq_draining: whether the QP is draining (responses only)
 * @max_rd_atomic: maximum number of RDMA READs and atomic operations outstanding as requester
 * @max_dest_rd_atomic: maximum number of RDMA READs and atomic operations outstanding as
 *	responder
 * @min_rnr_timer: minimum RNR NAK timer, encoded as in IBTA table 45
 * @port_num: port
 * @timeout: local ACK timeout: 4.096 us * 2^n, or 0 for none
 * @retry_cnt: number of transport retries
 * @rnr_retry: number of RNR retries; 7 means no limit
 * @alt_port_num: port of the alternate path
 * @alt_timeout: local ACK timeout of the alternate path, encoded like timeout
 * @rate_limit: rate limit in kb/s; 0 for none
 * @cap: capabilities
 * @ah_attr: primary path
 * @alt_ah_attr: alternate path
 */
struct virtio_rdma_qp_attr {
	__u8 qp_state;
	__u8 cur_qp_state;
	__u8 path_mtu;
	__u8 path_mig_state;
	__le32 qkey;
	__le32 rq_psn;
	__le32 sq_psn;
	__le32 dest_qp_num;
	__le32 qp_access_flags;
	__le16 pkey_index;
	__le16 alt_pkey_index;
	__u8 en_sqd_async_notify;
	__u8 sq_draining;
	__u8 max_rd_atomic;
	__u8 max_dest_rd_atomic;
	__u8 min_rnr_timer;
	__u8 port_num;
	__u8 timeout;
	__u8 retry_cnt;
	__u8 rnr_retry;
	__u8 alt_port_num;
	__u8 alt_timeout;
	__le32 rate_limit;
	struct virtio_rdma_qp_cap cap;
	struct virtio_rdma_ah_attr ah_attr;
	struct virtio_rdma_ah_attr alt_ah_attr;
} __attribute__((packed));

/*
 * Flags of the commands that create a queue with own rings (__le32).
 */
/* The ring belongs to a process: kernel-only opcodes are refused. */
#define VIRTIO_RDMA_CREATE_FLAGS_USER (1U << 0)
/* A UD QP does not receive its own multicast datagrams; needs Multicast. */
#define VIRTIO_RDMA_CREATE_FLAGS_BLOCK_MULTICAST_LOOPBACK (1U << 1)
/* CREATE_QP: the QP takes its receives from SRQ srqn; needs Srq. */
#define VIRTIO_RDMA_CREATE_FLAGS_SRQ (1U << 2)

/**
 * struct virtio_rdma_cmd_create_qp - request of CREATE_QP (RFC: struct cmd_create_qp)
 * @pdn: PD
 * @qp_type: QpType
 * @sq_sig_type: SigType
 * @max_send_wr: maximum number of outstanding work requests of the SQ
 * @max_send_sge: maximum number of SGEs of a send work request
 * @send_cqn: CQ of the SQ
 * @max_recv_wr: maximum number of outstanding work requests of the RQ
 * @max_recv_sge: maximum number of SGEs of a receive work request
 * @recv_cqn: CQ of the RQ
 * @max_inline_data: largest inline payload in bytes
 * @flags: flags if queues are own rings, else zero (the RFC's first reserved word)
 * @srqn: SRQ if flags contains SRQ, else zero (the RFC's second reserved word)
 * @reserved: reserved, zero
 */
struct virtio_rdma_cmd_create_qp {
	__le32 pdn;
	__u8 qp_type;
	__u8 sq_sig_type;
	__le32 max_send_wr;
	__le32 max_send_sge;
	__le32 send_cqn;
	__le32 max_recv_wr;
	__le32 max_recv_sge;
	__le32 recv_cqn;
	__le32 max_inline_data;
	__le32 flags;
	__le32 srqn;
	__u8 reserved[24];
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_create_qp - response of CREATE_QP (RFC: struct rsp_create_qp)
 * @qpn: handle
 */
struct virtio_rdma_rsp_create_qp {
	__le32 qpn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_create_qp_rings - CREATE_QP with own rings: the RFC's structure and
 *	the rings
 * @base: the RFC's fields
 * @sq: the SQ's ring
 * @rq: the RQ's ring; all zero for a QP without RQ
 * @doorbell_page: doorbell page from which the queues may be rung
 * @cookie: the driver's cookie, which the QP's asynchronous events carry
 */
struct virtio_rdma_cmd_create_qp_rings {
	struct virtio_rdma_cmd_create_qp base;
	struct virtio_rdma_ring_addr sq;
	struct virtio_rdma_ring_addr rq;
	__le32 doorbell_page;
	__le64 cookie;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_modify_qp - request of MODIFY_QP (RFC: struct cmd_modify_qp)
 * @qpn: handle
 * @attr_mask: attributes to change
 * @attrs: new values of these attributes
 */
struct virtio_rdma_cmd_modify_qp {
	__le32 qpn;
	__le32 attr_mask;
	struct virtio_rdma_qp_attr attrs;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_query_qp - request of QUERY_QP (RFC: struct cmd_query_qp)
 * @qpn: handle
 * @attr_mask: requested attributes
 */
struct virtio_rdma_cmd_query_qp {
	__le32 qpn;
	__le32 attr_mask;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_query_qp - response of QUERY_QP (RFC: struct rsp_query_qp)
 * @attr: attributes
 */
struct virtio_rdma_rsp_query_qp {
	struct virtio_rdma_qp_attr attr;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_destroy_qp - request of DESTROY_QP (RFC: struct cmd_destroy_qp)
 * @qpn: handle
 */
struct virtio_rdma_cmd_destroy_qp {
	__le32 qpn;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_set_rate_limit - request of SET_RATE_LIMIT. Needs RateLimit
 * @qpn: QP
 * @rate_limit: rate in kb/s (1,000 bits per second), or 0 for no limit
 * @max_burst_size: burst in bytes, or 0 for the device's default
 * @typical_packet_size: length of a typical packet in bytes, or 0 for the path MTU of the
 *	port
 * @reserved: reserved, zero
 */
struct virtio_rdma_cmd_set_rate_limit {
	__le32 qpn;
	__le32 rate_limit;
	__le32 max_burst_size;
	__le16 typical_packet_size;
	__u8 reserved[2];
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_attach_mcast - request of ATTACH_MCAST. Needs Multicast
 * @qpn: QP
 * @mgid: the group's GID, in network byte order
 */
struct virtio_rdma_cmd_attach_mcast {
	__le32 qpn;
	__u8 mgid[16];
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_detach_mcast - request of DETACH_MCAST. Needs Multicast
 * @qpn: QP
 * @mgid: the group's GID, in network byte order
 */
struct virtio_rdma_cmd_detach_mcast {
	__le32 qpn;
	__u8 mgid[16];
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_create_srq - request of CREATE_SRQ
 * @pdn: PD against which the local keys of work requests are checked
 * @max_wr: maximum number of outstanding work requests
 * @max_sge: maximum number of SGEs of a work request
 * @flags: flags: USER
 * @ring: the SRQ's ring
 * @doorbell_page: doorbell page from which the SRQ may be rung
 * @cookie: the driver's cookie, which the SRQ's events carry
 */
struct virtio_rdma_cmd_create_srq {
	__le32 pdn;
	__le32 max_wr;
	__le32 max_sge;
	__le32 flags;
	struct virtio_rdma_ring_addr ring;
	__le32 doorbell_page;
	__le64 cookie;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_create_srq - response of CREATE_SRQ
 * @srqn: handle
 */
struct virtio_rdma_rsp_create_srq {
	__le32 srqn;
} __attribute__((packed));

/*
 * Attributes that MODIFY_SRQ changes (__le32).
 */
/* max_wr and the ring. */
#define VIRTIO_RDMA_SRQ_ATTR_MASK_MAX_WR (1U << 0)
/* limit. */
#define VIRTIO_RDMA_SRQ_ATTR_MASK_LIMIT (1U << 1)

/**
 * struct virtio_rdma_cmd_modify_srq - request of MODIFY_SRQ. Fields outside of the mask are
 *	zero
 * @srqn: handle
 * @attr_mask: attributes to change
 * @max_wr: maximum number of outstanding work requests
 * @limit: the limit event is raised once fewer work requests than this are left; 0 disarms it
 * @ring: the new ring
 */
struct virtio_rdma_cmd_modify_srq {
	__le32 srqn;
	__le32 attr_mask;
	__le32 max_wr;
	__le32 limit;
	struct virtio_rdma_ring_addr ring;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_query_srq - request of QUERY_SRQ
 * @srqn: handle
 */
struct virtio_rdma_cmd_query_srq {
	__le32 srqn;
} __attribute__((packed));

/**
 * struct virtio_rdma_rsp_query_srq - response of QUERY_SRQ
 * @max_wr: maximum number of outstanding work requests
 * @max_sge: maximum number of SGEs of a work request
 * @limit: the armed limit; 0 after its event was raised
 */
struct virtio_rdma_rsp_query_srq {
	__le32 max_wr;
	__le32 max_sge;
	__le32 limit;
} __attribute__((packed));

/**
 * struct virtio_rdma_cmd_destroy_srq - request of DESTROY_SRQ
 * @srqn: handle
 */
struct virtio_rdma_cmd_destroy_srq {
	__le32 srqn;
} __attribute__((packed));

/* Offset in bytes of the inline payload in a send WQE. */
#define VIRTIO_RDMA_INLINE_OFFSET 91

/**
 * struct virtio_rdma_sge - scatter/gather element (RFC: struct sge)
 * @addr: address
 * @length: length in bytes
 * @lkey: local key
 */
struct virtio_rdma_sge {
	__le64 addr;
	__le32 length;
	__le32 lkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_sq_header - start of a send WQE, before its SGEs (RFC: struct
 *	cmd_post_send)
 * @num_sge: number of SGEs that follow
 * @send_flags: flags
 * @opcode: WrOpcode
 * @wr_id: the wr_id of the work request
 * @ex: immediate data in network byte order, or the key to invalidate as le32
 * @wr: the union; see Member
 */
struct virtio_rdma_sq_header {
	__le32 num_sge;
	__le32 send_flags;
	__le32 opcode;
	__le64 wr_id;
	__u8 ex[4];
	__u8 wr[51];
} __attribute__((packed));

/**
 * struct virtio_rdma_rdma - wr.rdma: RDMA READ and WRITE
 * @remote_addr: address in the remote MR
 * @rkey: remote key
 */
struct virtio_rdma_rdma {
	__le64 remote_addr;
	__le32 rkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_atomic - wr.atomic
 * @remote_addr: address in the remote MR, aligned to 8 bytes
 * @compare_add: value to compare with, or to add
 * @swap: value to swap in
 * @rkey: remote key
 */
struct virtio_rdma_atomic {
	__le64 remote_addr;
	__le64 compare_add;
	__le64 swap;
	__le32 rkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_address_vector - address vector of a datagram (RFC: struct
 *	virtio_rdma_av)
 * @port: port
 * @pdn: PD of the address handle
 * @sl_tclass_flowlabel: sl << 28 | traffic_class << 20 | flow_label
 * @dgid: destination GID, in network byte order
 * @gid_index: index of the source GID
 * @static_rate: static rate
 * @hop_limit: hop limit
 * @dmac: MAC address of the next hop
 * @reserved: reserved, zero
 */
struct virtio_rdma_address_vector {
	__le32 port;
	__le32 pdn;
	__le32 sl_tclass_flowlabel;
	__u8 dgid[16];
	__u8 gid_index;
	__u8 static_rate;
	__u8 hop_limit;
	__u8 dmac[6];
	__u8 reserved[6];
} __attribute__((packed));

/**
 * struct virtio_rdma_datagram - wr.ud
 * @remote_qpn: destination QPN
 * @remote_qkey: Q_Key. If its top bit is set, the QP's own Q_Key is used
 * @av: path
 */
struct virtio_rdma_datagram {
	__le32 remote_qpn;
	__le32 remote_qkey;
	struct virtio_rdma_address_vector av;
} __attribute__((packed));

/**
 * struct virtio_rdma_reg - wr.reg
 * @mrn: MR
 * @key: the new key of the MR
 * @access: the new access flags of the MR
 */
struct virtio_rdma_reg {
	__le32 mrn;
	__le32 key;
	__le32 access;
} __attribute__((packed));

/**
 * struct virtio_rdma_reg_pages - wr.reg with struct virtio_rdma_reg_pages: the work request
 *	carries the page list. The list may be reused after the work request completes
 * @base: the RFC's fields
 * @pages: DMA address of the page list: npages le64, each the DMA address of a page
 * @npages: number of pages
 * @iova: address of the first byte, as used in work requests. The first byte is at offset
 *	iova % (1 << page_shift) of the first page
 * @length: length in bytes
 * @page_shift: pages have 2^n bytes. Must be a bit of page_size_cap
 * @reserved: reserved, zero
 */
struct virtio_rdma_reg_pages {
	struct virtio_rdma_reg base;
	__le64 pages;
	__le32 npages;
	__le64 iova;
	__le64 length;
	__u8 page_shift;
	__u8 reserved[4];
} __attribute__((packed));

/**
 * struct virtio_rdma_bind_mw - wr.bind_mw with MemWindows
 * @addr: address of the first byte in the MR
 * @length: length in bytes; 0 unbinds a type 1 window
 * @mw_rkey: the window's current R_Key. For a type 2 window only bits 31-8 are used, since it
 *	is not bound
 * @rkey: the window's new R_Key, in which only bits 7-0 may differ
 * @lkey: L_Key of the MR; ignored if length is 0
 * @access: access flags of the window: what peers may do, and whether its addresses start at
 *	0
 * @reserved: reserved, zero
 */
struct virtio_rdma_bind_mw {
	__le64 addr;
	__le64 length;
	__le32 mw_rkey;
	__le32 rkey;
	__le32 lkey;
	__le32 access;
	__u8 reserved[4];
} __attribute__((packed));

/**
 * struct virtio_rdma_atomic_write - wr.atomic_write with struct virtio_rdma_atomic_write
 * @remote_addr: address in the remote MR, aligned to 8 bytes
 * @data: the data to write, in memory order
 * @rkey: remote key
 */
struct virtio_rdma_atomic_write {
	__le64 remote_addr;
	__u8 data[8];
	__le32 rkey;
} __attribute__((packed));

/**
 * struct virtio_rdma_flush - wr.flush with struct virtio_rdma_flush
 * @remote_addr: address in the remote MR
 * @length: length in bytes; ignored if the whole MR is flushed
 * @rkey: remote key
 * @types: the actions
 * @level: FlushLevel
 * @reserved: reserved, zero
 */
struct virtio_rdma_flush {
	__le64 remote_addr;
	__le32 length;
	__le32 rkey;
	__u8 types;
	__u8 level;
	__u8 reserved[6];
} __attribute__((packed));

/**
 * struct virtio_rdma_rq_header - start of a receive WQE, before its SGEs (RFC: struct
 *	cmd_post_recv)
 * @num_sge: number of SGEs that follow
 * @wr_id: the wr_id of the work request
 */
struct virtio_rdma_rq_header {
	__le32 num_sge;
	__le64 wr_id;
} __attribute__((packed));

/* opcode of a receive completed by a SEND. */
#define VIRTIO_RDMA_OPCODE_RECV 128

/* opcode of a receive completed by an RDMA WRITE with immediate data. */
#define VIRTIO_RDMA_OPCODE_RECV_RDMA_WITH_IMM 129

/* Slot shift of a CQ: each CQE has a slot of 64 bytes. */
#define VIRTIO_RDMA_CQ_SLOT_SHIFT 6

/*
 * Why a work request failed: vendor_err of a CQE with an error (__u8).
 */
/* The work request was flushed. */
#define VIRTIO_RDMA_WC_REASON_FLUSHED 1
/* No operation has this opcode. */
#define VIRTIO_RDMA_WC_REASON_UNKNOWN_OPCODE 2
/* The QP's type, its owner or the negotiated features do not permit the operation. */
#define VIRTIO_RDMA_WC_REASON_OPCODE_NOT_PERMITTED 3
/* The WQE has more SGEs than the QP or SRQ permits. */
#define VIRTIO_RDMA_WC_REASON_TOO_MANY_SGES 4
/* The WQE is longer than its buffer (virtqueue mode). */
#define VIRTIO_RDMA_WC_REASON_SHORT_WQE 5
/* Inline data with more than one SGE, or with an operation that stores data. */
#define VIRTIO_RDMA_WC_REASON_BAD_INLINE 6
/* The fields of a FLUSH are undefined. */
#define VIRTIO_RDMA_WC_REASON_BAD_FLUSH 7
/* max_rd_atomic of the QP is 0. */
#define VIRTIO_RDMA_WC_REASON_NO_READS 8
/* The address vector of a datagram is invalid. */
#define VIRTIO_RDMA_WC_REASON_BAD_ADDRESS 9
/* The inline data is longer than the QP permits. */
#define VIRTIO_RDMA_WC_REASON_INLINE_TOO_LONG 10
/* The message is longer than a message or a datagram may be. */
#define VIRTIO_RDMA_WC_REASON_MESSAGE_TOO_LONG 11
/* The local memory of an atomic operation does not have 8 bytes. */
#define VIRTIO_RDMA_WC_REASON_BAD_ATOMIC_LENGTH 12
/* The message is longer than its receive. */
#define VIRTIO_RDMA_WC_REASON_RECEIVE_TOO_SHORT 13
/* A response to a READ has another length. */
#define VIRTIO_RDMA_WC_REASON_BAD_RESPONSE_LENGTH 14
/* A response does not fit the request. */
#define VIRTIO_RDMA_WC_REASON_UNEXPECTED_RESPONSE 15
/* No MR or window has this key. */
#define VIRTIO_RDMA_WC_REASON_NO_SUCH_KEY 16
/* The MR or window is of another PD. */
#define VIRTIO_RDMA_WC_REASON_OTHER_PD 17
/* The key is not valid: it was revoked or invalidated, or is not registered or bound yet. */
#define VIRTIO_RDMA_WC_REASON_KEY_REVOKED 18
/* The range is not inside the MR or window. */
#define VIRTIO_RDMA_WC_REASON_OUT_OF_BOUNDS 19
/* The MR lacks an access flag. */
#define VIRTIO_RDMA_WC_REASON_ACCESS_NOT_GRANTED 20
/* The window is bound for another QP. */
#define VIRTIO_RDMA_WC_REASON_OTHER_QP 21
/* The VM has no memory at an address of the MR. */
#define VIRTIO_RDMA_WC_REASON_NO_MEMORY 22
/* The MR or window is not for this operation. */
#define VIRTIO_RDMA_WC_REASON_UNSUITABLE_KEY 23
/* The MR is registered or the window bound already. */
#define VIRTIO_RDMA_WC_REASON_KEY_IN_USE 24
/* The new key is of another MR or window. */
#define VIRTIO_RDMA_WC_REASON_KEY_MISMATCH 25
/* The requested access flags are undefined or not possible. */
#define VIRTIO_RDMA_WC_REASON_BAD_ACCESS_FLAGS 26
/* The pages of a registration are invalid. */
#define VIRTIO_RDMA_WC_REASON_BAD_PAGES 27
/* Reserved bytes are not 0. */
#define VIRTIO_RDMA_WC_REASON_RESERVED_NOT_ZERO 28
/* The peer's QP does not admit the operation. */
#define VIRTIO_RDMA_WC_REASON_PEER_INVALID_REQUEST 29
/* The peer refused the R_Key or its range. */
#define VIRTIO_RDMA_WC_REASON_PEER_ACCESS 30
/* The peer failed to execute the request. */
#define VIRTIO_RDMA_WC_REASON_PEER_OPERATION 31
/* The peer did not answer, and no retry is left. */
#define VIRTIO_RDMA_WC_REASON_PEER_SILENT 32
/* The peer had no receive, and no RNR retry is left. */
#define VIRTIO_RDMA_WC_REASON_PEER_NOT_READY 33

/**
 * struct virtio_rdma_cqe - completion queue entry (RFC: struct virtio_rdma_cq_req)
 * @wr_id: the wr_id of the work request
 * @status: status, WcStatus
 * @opcode: WrOpcode of a send work request, else OPCODE_RECV or OPCODE_RECV_RDMA_WITH_IMM
 * @vendor_err: WcReason if the status is an error. For a datagram with WITH_VLAN, the VLAN
 *	id; otherwise 0
 * @byte_len: bytes transferred
 * @ex: immediate data in network byte order, or the invalidated key as le32
 * @qp_num: QPN of the QP whose work request completed
 * @src_qp: QPN of the sender (UD only)
 * @wc_flags: flags
 * @pkey_index: P_Key index
 * @sl: service level, that is, the priority in the VLAN tag. With WITH_NETWORK_HDR_TYPE, the
 *	network header type instead
 * @port_num: port
 */
struct virtio_rdma_cqe {
	__le64 wr_id;
	__u8 status;
	__u8 opcode;
	__le32 vendor_err;
	__le32 byte_len;
	__u8 ex[4];
	__le32 qp_num;
	__le32 src_qp;
	__le32 wc_flags;
	__le16 pkey_index;
	__u8 sl;
	__u8 port_num;
} __attribute__((packed));

#endif /* _UAPI_LINUX_VIRTIO_RDMA_H */
