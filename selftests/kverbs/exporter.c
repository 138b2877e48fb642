// SPDX-License-Identifier: GPL-2.0
/*
 * An exporter of DMA buffers that moves or revokes its memory, for tests of importers.
 *
 * Each open file of /dev/test_exporter is one buffer. A write to the file is a command:
 *
 * - export SIZE: makes the buffer. A read returns the number of its file descriptor.
 * - move: moves the contents to other pages and fills the old pages with a pattern.
 * - die: revokes the pages for good, as if the exporter's device was removed, and fills the pages
 *   with the pattern.
 *
 * A read also returns the number of bytes in old pages that were written after the importers had
 * released the pages.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define PATTERN 0xa5
#define MAX_PAGES 1024

/* Pages, filled with zeroes at first. */
struct memory {
	unsigned int count;
	struct page *pages[];
};

/* A buffer; its file of /dev/test_exporter and the DMA buffer hold a reference each. */
struct buffer {
	struct kref refs;
	struct dma_buf *dmabuf;
	int fd;
	/* The pages with the contents, or NULL after the command "die"; and the previous pages.
	 * Protected by the reservation lock. */
	struct memory *now;
	struct memory *old;
	unsigned int mapped;
};

static void memory_free(struct memory *memory)
{
	unsigned int i;

	if (!memory)
		return;
	for (i = 0; i < memory->count; i++)
		if (memory->pages[i])
			__free_page(memory->pages[i]);
	kvfree(memory);
}

static struct memory *memory_alloc(unsigned int count)
{
	struct memory *memory;
	unsigned int i;

	memory = kvzalloc(struct_size(memory, pages, count), GFP_KERNEL);
	if (!memory)
		return NULL;
	memory->count = count;
	for (i = 0; i < count; i++) {
		memory->pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!memory->pages[i]) {
			memory_free(memory);
			return NULL;
		}
	}
	return memory;
}

static void memory_spoil(struct memory *memory)
{
	unsigned int i;

	for (i = 0; i < memory->count; i++)
		memset(page_address(memory->pages[i]), PATTERN, PAGE_SIZE);
}

static size_t memory_touched(const struct memory *memory)
{
	size_t touched = 0;
	unsigned int i, at;

	for (i = 0; i < memory->count; i++) {
		const u8 *bytes = page_address(memory->pages[i]);

		for (at = 0; at < PAGE_SIZE; at++)
			touched += READ_ONCE(bytes[at]) != PATTERN;
	}
	return touched;
}

static void buffer_free(struct kref *refs)
{
	struct buffer *buffer = container_of(refs, struct buffer, refs);

	memory_free(buffer->now);
	memory_free(buffer->old);
	kfree(buffer);
}

static int exporter_pin(struct dma_buf_attachment *attach)
{
	return dma_buf_attach_revocable(attach) ? 0 : -EOPNOTSUPP;
}

static void exporter_unpin(struct dma_buf_attachment *attach)
{
}

static struct sg_table *exporter_map(struct dma_buf_attachment *attach,
				     enum dma_data_direction direction)
{
	struct buffer *buffer = attach->dmabuf->priv;
	struct memory *memory = buffer->now;
	struct sg_table *table;
	int ret;

	if (!memory)
		return ERR_PTR(-ENODEV);
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table_from_pages(table, memory->pages, memory->count, 0,
					(size_t)memory->count << PAGE_SHIFT,
					GFP_KERNEL);
	if (ret)
		goto free;
	ret = dma_map_sgtable(attach->dev, table, direction, 0);
	if (ret)
		goto free_table;
	buffer->mapped++;
	return table;

free_table:
	sg_free_table(table);
free:
	kfree(table);
	return ERR_PTR(ret);
}

static void exporter_unmap(struct dma_buf_attachment *attach, struct sg_table *table,
			   enum dma_data_direction direction)
{
	struct buffer *buffer = attach->dmabuf->priv;

	dma_unmap_sgtable(attach->dev, table, direction, 0);
	sg_free_table(table);
	kfree(table);
	buffer->mapped--;
}

static void exporter_release(struct dma_buf *dmabuf)
{
	struct buffer *buffer = dmabuf->priv;

	kref_put(&buffer->refs, buffer_free);
}

static const struct dma_buf_ops exporter_ops = {
	.pin = exporter_pin,
	.unpin = exporter_unpin,
	.map_dma_buf = exporter_map,
	.unmap_dma_buf = exporter_unmap,
	.release = exporter_release,
};

static int buffer_export(struct buffer *buffer, unsigned long size)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *dmabuf;
	int fd;

	if (buffer->dmabuf)
		return -EBUSY;
	if (!size || size > (unsigned long)MAX_PAGES << PAGE_SHIFT)
		return -EINVAL;
	buffer->now = memory_alloc(DIV_ROUND_UP(size, PAGE_SIZE));
	if (!buffer->now)
		return -ENOMEM;
	info.ops = &exporter_ops;
	info.size = (size_t)buffer->now->count << PAGE_SHIFT;
	info.flags = O_RDWR;
	info.priv = buffer;
	kref_get(&buffer->refs);
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		kref_put(&buffer->refs, buffer_free);
		return PTR_ERR(dmabuf);
	}
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0) {
		dma_buf_put(dmabuf);
		return fd;
	}
	/* The open file of /dev/test_exporter has its own reference to the DMA buffer, so that
	 * commands find the DMA buffer after its descriptor was closed. */
	get_dma_buf(dmabuf);
	buffer->dmabuf = dmabuf;
	buffer->fd = fd;
	return 0;
}

/* Takes the pages from all importers. The buffer keeps the pages, to detect later writes. */
static int buffer_take_back(struct buffer *buffer, struct memory *next)
{
	unsigned int i;

	dma_resv_lock(buffer->dmabuf->resv, NULL);
	if (!buffer->now) {
		dma_resv_unlock(buffer->dmabuf->resv);
		return -ENODEV;
	}
	dma_buf_invalidate_mappings(buffer->dmabuf);
	dma_resv_wait_timeout(buffer->dmabuf->resv, DMA_RESV_USAGE_BOOKKEEP, false,
			      MAX_SCHEDULE_TIMEOUT);
	WARN_ON(buffer->mapped);
	if (next)
		for (i = 0; i < next->count; i++)
			copy_highpage(next->pages[i], buffer->now->pages[i]);
	memory_free(buffer->old);
	buffer->old = buffer->now;
	buffer->now = next;
	memory_spoil(buffer->old);
	dma_resv_unlock(buffer->dmabuf->resv);
	return 0;
}

static int buffer_move(struct buffer *buffer)
{
	struct memory *next = memory_alloc(buffer->dmabuf->size >> PAGE_SHIFT);
	int ret;

	if (!next)
		return -ENOMEM;
	ret = buffer_take_back(buffer, next);
	if (ret)
		memory_free(next);
	return ret;
}

static int exporter_open(struct inode *inode, struct file *file)
{
	struct buffer *buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);

	if (!buffer)
		return -ENOMEM;
	kref_init(&buffer->refs);
	buffer->fd = -1;
	file->private_data = buffer;
	return 0;
}

static int exporter_close(struct inode *inode, struct file *file)
{
	struct buffer *buffer = file->private_data;

	if (buffer->dmabuf)
		dma_buf_put(buffer->dmabuf);
	kref_put(&buffer->refs, buffer_free);
	return 0;
}

static ssize_t exporter_write(struct file *file, const char __user *from, size_t count,
			      loff_t *offset)
{
	struct buffer *buffer = file->private_data;
	unsigned long size;
	char text[32];
	int ret;

	if (count >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, count))
		return -EFAULT;
	text[count] = 0;
	if (sscanf(text, "export %lu", &size) == 1)
		ret = buffer_export(buffer, size);
	else if (!buffer->dmabuf)
		ret = -EINVAL;
	else if (!strcmp(text, "move"))
		ret = buffer_move(buffer);
	else if (!strcmp(text, "die"))
		ret = buffer_take_back(buffer, NULL);
	else
		ret = -EINVAL;
	return ret ?: count;
}

static ssize_t exporter_read(struct file *file, char __user *to, size_t count, loff_t *offset)
{
	struct buffer *buffer = file->private_data;
	size_t touched = 0;
	char text[48];
	int length;

	if (buffer->dmabuf) {
		dma_resv_lock(buffer->dmabuf->resv, NULL);
		touched = buffer->old ? memory_touched(buffer->old) : 0;
		dma_resv_unlock(buffer->dmabuf->resv);
	}
	length = scnprintf(text, sizeof(text), "%d %zu\n", buffer->fd, touched);
	if (count < length)
		return -EINVAL;
	return copy_to_user(to, text, length) ? -EFAULT : length;
}

static const struct file_operations exporter_fops = {
	.owner = THIS_MODULE,
	.open = exporter_open,
	.release = exporter_close,
	.write = exporter_write,
	.read = exporter_read,
};

static struct miscdevice exporter = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "test_exporter",
	.fops = &exporter_fops,
	.mode = 0600,
};

module_misc_device(exporter);

MODULE_AUTHOR("The virtio-rdma authors");
MODULE_DESCRIPTION("DMA buffers that move and go away");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
