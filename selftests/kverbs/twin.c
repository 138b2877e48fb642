// SPDX-License-Identifier: GPL-2.0
/*
 * A network device of a certain permanent address, like that of a second function. It has a carrier
 * and drops all packets.
 */

#include <linux/etherdevice.h>
#include <linux/hex.h>
#include <linux/module.h>
#include <linux/platform_device.h>

static char *mac;
module_param(mac, charp, 0444);
MODULE_PARM_DESC(mac, "the permanent address");

static struct platform_device *parent;
static struct net_device *twin;

static netdev_tx_t twin_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops twin_ops = {
	.ndo_start_xmit = twin_xmit,
};

static int __init twin_init(void)
{
	u8 address[ETH_ALEN];
	int ret = -ENOMEM;

	if (!mac || !mac_pton(mac, address))
		return -EINVAL;
	parent = platform_device_register_simple("twin", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	twin = alloc_netdev(0, "twin%d", NET_NAME_ENUM, ether_setup);
	if (!twin)
		goto unregister;
	twin->netdev_ops = &twin_ops;
	eth_hw_addr_set(twin, address);
	SET_NETDEV_DEV(twin, &parent->dev);
	ret = register_netdev(twin);
	if (!ret)
		return 0;
	free_netdev(twin);
unregister:
	platform_device_unregister(parent);
	return ret;
}

static void __exit twin_exit(void)
{
	unregister_netdev(twin);
	free_netdev(twin);
	platform_device_unregister(parent);
}

module_init(twin_init);
module_exit(twin_exit);

MODULE_AUTHOR("The virtio-rdma authors");
MODULE_DESCRIPTION("A second network device with the address of another one");
MODULE_LICENSE("GPL");
