// SPDX-License-Identifier: GPL-2.0

#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>

__rust_helper struct net_device *rust_helper_netdev_notifier_info_to_dev(void *info)
{
	return netdev_notifier_info_to_dev(info);
}

__rust_helper void rust_helper_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

__rust_helper void rust_helper_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

__rust_helper struct device *rust_helper_netdev_parent(const struct net_device *dev)
{
	return dev->dev.parent;
}

__rust_helper const u8 *rust_helper_netdev_perm_addr(const struct net_device *dev)
{
	return dev->perm_addr;
}

__rust_helper u8 rust_helper_netdev_addr_byte(const struct net_device *dev, unsigned int at)
{
	return READ_ONCE(dev->dev_addr[at]);
}

__rust_helper int rust_helper_netdev_ifindex(const struct net_device *dev)
{
	return dev->ifindex;
}

__rust_helper unsigned int rust_helper_netdev_mtu(const struct net_device *dev)
{
	return READ_ONCE(dev->mtu);
}

__rust_helper bool rust_helper_netdev_is_ethernet(const struct net_device *dev)
{
	return dev->type == ARPHRD_ETHER && dev->addr_len == ETH_ALEN;
}

__rust_helper bool rust_helper_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}

__rust_helper bool rust_helper_netif_is_lag_port(const struct net_device *dev)
{
	return netif_is_lag_port(dev);
}

__rust_helper bool rust_helper_netif_carrier_ok(const struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

__rust_helper bool rust_helper_netdev_is_registered(const struct net_device *dev)
{
	return READ_ONCE(dev->reg_state) == NETREG_REGISTERED;
}

/*
 * Calls a function, which may sleep, for the devices of all namespaces. The caller holds the RTNL,
 * so no device comes or goes meanwhile.
 */
__rust_helper void rust_helper_netdev_for_each(void (*call)(struct net_device *dev, void *context),
					       void *context)
{
	struct net_device *dev;
	struct net *net;

	down_read(&net_rwsem);
	for_each_net(net)
		for_each_netdev(net, dev)
			call(dev, context);
	up_read(&net_rwsem);
}
