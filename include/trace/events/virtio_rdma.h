/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the virtio RDMA driver.
 */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM virtio_rdma

#if !defined(_TRACE_VIRTIO_RDMA_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_VIRTIO_RDMA_H

#include <linux/tracepoint.h>

/* The number of an object is -1 if there is none. */

/* The driver gives a command to the device. */
TRACE_EVENT(virtio_rdma_command,
	TP_PROTO(const char *dev, const char *command, s64 number),
	TP_ARGS(dev, command, number),
	TP_STRUCT__entry(
		__string(dev, dev)
		__string(command, command)
		__field(s64, number)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(command);
		__entry->number = number;
	),
	TP_printk("dev=%s command=%s number=%lld", __get_str(dev), __get_str(command),
		  __entry->number)
);

/* The device has answered a command, or no task waits for the answer any more. */
TRACE_EVENT(virtio_rdma_answer,
	TP_PROTO(const char *dev, const char *command, s64 number, const char *result, u64 us),
	TP_ARGS(dev, command, number, result, us),
	TP_STRUCT__entry(
		__string(dev, dev)
		__string(command, command)
		__field(s64, number)
		__string(result, result)
		__field(u64, us)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(command);
		__entry->number = number;
		__assign_str(result);
		__entry->us = us;
	),
	TP_printk("dev=%s command=%s number=%lld result=%s us=%llu", __get_str(dev),
		  __get_str(command), __entry->number, __get_str(result), __entry->us)
);

/*
 * The device reports an event. The value is the cookie of the object, or the number of an unknown
 * kind of event.
 */
TRACE_EVENT(virtio_rdma_event,
	TP_PROTO(const char *dev, const char *kind, const char *object, s64 number, u64 value),
	TP_ARGS(dev, kind, object, number, value),
	TP_STRUCT__entry(
		__string(dev, dev)
		__string(kind, kind)
		__string(object, object)
		__field(s64, number)
		__field(u64, value)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(kind);
		__assign_str(object);
		__entry->number = number;
		__entry->value = value;
	),
	TP_printk("dev=%s kind=%s object=%s number=%lld value=0x%llx", __get_str(dev),
		  __get_str(kind), __get_str(object), __entry->number, __entry->value)
);

#endif /* _TRACE_VIRTIO_RDMA_H */

/* This part must be outside of the guard. */
#include <trace/define_trace.h>
