/*
 * The calls of the Cyclops Datagram Protocol, document 0, section 4.6 (docs/sources.md), over Ropeway's protocol. Link with -lropeway.
 *
 * An address is a node's number and a port of it. Which node is where is said by the file that ROPEWAY_NODES names (/etc/ropeway/nodes if it is not set), a
 * line "NODE ADDRESS" for each, with an IP address or, for plain Ethernet, a hardware address; or by ROPEWAY_NODES itself: 1=10.0.0.1,2=10.0.0.2.
 * If it is not set and there is a description of the cluster (ROPEWAY_CLUSTER, or /etc/ropeway/cluster.toml), that says it, and connections to nodes on other networks go
 * through the nodes that it names as gateways.
 *
 * Connections carry datagrams: each cdp_recv gives what one cdp_send sent. They are not limited to one packet; ROPEWAY_CDP_LIMIT=1472 limits them to what the
 * document's packets had room for.
 *
 * Failed calls set errno; ropeway_error() of ropeway.h has a sentence about why. Every call can fail with ENETDOWN (cdp_init was not called in this process), EBADF (no
 * such socket, or another thread closed it during the call), EFAULT (a null pointer) and EINVAL (a length of more than half the address space); others stand with each.
 * Descriptors are numbers of their own, no descriptors of the kernel. All calls may be made from any thread. In a forked child there is nothing: it calls cdp_init again. What
 * ropeway.h says about exit, and about who may, holds here as well, but for unread data, which is thrown away as by cdp_close.
 */
#ifndef CDP_H
#define CDP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cdp_sockaddr {
	int node;
	int port; /* 1 to 65535 */
};

/*
 * Before all others, once: which node this is, and its network interfaces. The first is that of hardware addresses. With `forward` other than 0 the node
 * forwards packets between the networks that these interfaces are on, in a thread of this process, until the process ends: that needs two interfaces at least, and a
 * description of the cluster in which the node is a gateway. 0, or non-zero on failure. ENODEV: no such interface; EHOSTUNREACH: nobody says where this node is;
 * EINVAL: no interface, or the file is not understood, or says that this node does not forward between them; EADDRINUSE: another process of the node forwards;
 * EALREADY: it was called before; and what opening the file fails with. A call that fails changes nothing.
 */
int cdp_init(int node_num, const char *ifv[], int ifi, int forward);

/* A socket with an address: this node, and a port (49152 and up) that no other socket of the node has. -1 on failure. EADDRINUSE: no port is left. */
int cdp_socket(void);

/* Closes it. What was sent is still delivered; what was not read is thrown away. Its port is free again when the connections are closed that it accepted. 0, or non-zero on failure. */
int cdp_close(int s);

/*
 * Gives it another port. The node must be this one (EADDRNOTAVAIL). 0, or non-zero on failure. EADDRINUSE: another socket of this node has the port, in whatever
 * process; EINVAL: it is no port, or the socket listens or is connected.
 */
int cdp_bind(int s, struct cdp_sockaddr *local_addr);

/* Listens; up to `backlog` connections wait to be accepted (less than 0: as many as can be), and who comes then is refused. 0, or non-zero on failure. EINVAL: the socket is in use. */
int cdp_listen(int s, int backlog);

/*
 * A connection that waits, as a socket of its own, and in `addr` (unless it is NULL) where it comes from (node -1: an address that nobody says whose it
 * is). If there is none, it waits for one or, if `nonblocking` is not 0, fails with EAGAIN. -1 on failure. EINVAL: it does not listen.
 */
int cdp_accept(int s, struct cdp_sockaddr *addr, int nonblocking);

/*
 * Waits until the server has taken the connection. 0, or non-zero on failure; then it can be tried again. ECONNREFUSED: nobody listens there, or its queue is full;
 * ETIMEDOUT: nobody answers for 10 s; EHOSTUNREACH: nobody says where the node is, or no way leads there; what else this host or the network says of the way, as ropeway_connect of ropeway.h; EISCONN, EALREADY, EOPNOTSUPP (it listens), EINVAL (no port).
 */
int cdp_connect(int s, const struct cdp_sockaddr *remote_addr);

/*
 * Sends one datagram and returns its length; waits while the peer has no room for it. Negative on failure. EPIPE: the peer has closed; EMSGSIZE: longer than 64 MiB, or
 * than the limit that was asked for; ENOTCONN; ECONNRESET; ETIMEDOUT: the peer has been silent for 10 s while something was not acknowledged.
 */
int cdp_send(int s, const void *buf, size_t len);

/*
 * Receives one datagram and returns its length. If there is none, it waits for one or, if `nonblocking` is not 0, fails with EAGAIN. After the peer has closed, what it
 * sent before is still received (the socket is a zombie), then it fails with ENOTCONN. If `len` is too short it fails with EMSGSIZE, and the datagram
 * stays. Negative on failure. cdp_rcv is the name that the document's list has.
 */
int cdp_recv(int s, void *buf, size_t len, int nonblocking);
int cdp_rcv(int s, void *buf, size_t len, int nonblocking);

#ifdef __cplusplus
}
#endif

#endif
