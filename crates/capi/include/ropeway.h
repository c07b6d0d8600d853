/*
 * Ropeway's sockets between hosts. Link with -lropeway (pkg-config ropeway); ropeway(3) says more.
 *
 * The calls are those of BSD sockets, on handles of their own: a handle is a positive int, but no descriptor, and none of the kernel's calls takes it.
 *
 * Errors. Calls return -1 and set errno when they fail; ropeway_error() then has a sentence about why. Every call can fail with EBADF (no such socket in this
 * process: closed, never opened, or opened before a fork; or another thread closed it during the call), EFAULT (a null pointer), EINVAL (a length of more
 * than half the address space), ENOMEM, EMFILE, and ENOTRECOVERABLE (a fault in the library: please report it). What else it can fail with stands with each. A failed call has changed nothing,
 * unless it says so. No call is interrupted by a signal (EINTR does not occur), and none sends one (a broken pipe is EPIPE, not SIGPIPE).
 *
 * Threads. All calls may be made from any thread, on the same socket too: several may send and receive at once, and a message is always whole. Closing a
 * socket ends the calls that wait with it in other threads (EBADF). The library has threads of its own; they block all signals but those that
 * a thread causes itself (SIGSEGV and its like), so none of the program's is delivered to them. Unlike the kernel's, no call may be made in a signal handler, nor left by longjmp:
 * the thread may hold what the call needs. It may be loaded with dlopen; after dlclose it stays in memory, and its
 * sockets open. Threads that call it need a stack of 64 KiB. In no call a thread is
 * cancelled (pthread_cancel): that comes after it, and to wake a thread that waits its socket is closed.
 *
 * fork. Sockets belong to the process that made them. In a forked child all of them are EBADF, also to close; the parent's go on. The child may
 * open new ones, whose numbers are none of its parent's. After exec there is nothing left of them. A child that goes on without exec holds the addresses that its parent had bound, as it does with sockets of the
 * kernel, until it ends: nobody can bind them meanwhile once the parent has let go. The library's descriptors are its own: a program that closes all (closefrom) does so before its first socket.
 *
 * The other end. A process that exits in order ends its connections: their peers read what it sent, and the end. One that is killed says nothing, and neither does a host that
 * fails. Who has sent something then learns of it after 10 s (ETIMEDOUT), who only reads after 300 s of silence. Over UDP without a key a process that is back at its address says that it knows
 * nothing of the connection (ECONNRESET): to who sends, at once; to the end that connected and only reads, when it next asks whether the peer is there, up to 75 s later (keep_alive, 60 s, and a quarter of
 * it). With a key nobody can prove that, and over raw frames nobody gets what is for the former process: there both wait as for one that is gone. ECONNABORTED
 * is for the rare peer that left in order and could not deliver before all that it had sent.
 *
 * exit. exit(3), and the return from main, deliver what was sent: they wait up to ROPEWAY_LINGER_MS for the peers' acknowledgments. _exit and a killed process do not.
 * As by ropeway_close, the peer of a socket with unread data sees a reset, and what it had not received by then is lost. A message that another thread is sending is sent as a whole. Calls in which
 * other threads wait fail as if their sockets were closed (ENOTCONN): a program that goes on until its last moment does not take that for an error.
 *
 * Clusters. With a description of the cluster (ROPEWAY_CLUSTER) a node's name is an address, and connections to it go over all networks that both ends
 * share, or through gateways, of which any may fail.
 *
 * Who may. Within one host nothing is needed. Between hosts both ends need the cluster's key (environment: ROPEWAY_KEY_FILE, made by `ropeway key new`), or the word
 * that hosts and network are trusted (ROPEWAY_TRUSTED=1); the cluster's description may say the same; with neither, bind and connect fail with EPERM.
 */
#ifndef ROPEWAY_H
#define ROPEWAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of sockets. ROPEWAY_NONBLOCK may be or-ed to them. */
#define ROPEWAY_STREAM   1     /* bytes in order, as SOCK_STREAM */
#define ROPEWAY_MESSAGES 5     /* messages in order, of any length, each whole, as SOCK_SEQPACKET */
#define ROPEWAY_NONBLOCK 04000 /* as SOCK_NONBLOCK */

/*
 * Addresses are sockaddr_in and sockaddr_in6 (a UDP port, which is the port of Ropeway's protocol as well), or this one: an end on an Ethernet, which needs
 * CAP_NET_RAW. With ROPEWAY_LINK=packet:DEVICE (or xdp:DEVICE, for AF_XDP) in the environment, IP addresses mean the ends on
 * that Ethernet.
 */
#define ROPEWAY_AF_ETHER 17
struct sockaddr_ropeway {
	sa_family_t sr_family;    /* ROPEWAY_AF_ETHER */
	uint16_t sr_port;         /* in network byte order */
	unsigned char sr_mac[6];  /* the other end's hardware address; zeros to listen */
	char sr_device[16];       /* this host's network device, with a null byte behind it if there is room */
};

/*
 * And this one: a node of the cluster whose description ROPEWAY_CLUSTER names (/etc/ropeway/cluster.toml if it is not set and exists; docs/configuration.md).
 * Connections go over the networks and through the gateways that it says. Peers behind gateways have such an address, too.
 */
#define ROPEWAY_AF_NODE 0x5257
struct sockaddr_ropeway_node {
	sa_family_t sn_family; /* ROPEWAY_AF_NODE */
	uint16_t sn_port;      /* in network byte order */
	uint32_t sn_node;      /* the node's number, in host byte order */
};

/* Options of level SOL_ROPEWAY. */
#define SOL_ROPEWAY             0x5257
#define ROPEWAY_SO_NONBLOCK     1 /* int, 0: calls that would wait fail with EAGAIN */
#define ROPEWAY_SO_NODELAY      2 /* int, 0: small sends leave at once, instead of waiting up to 20 us for others; the same as TCP_NODELAY */
#define ROPEWAY_SO_MAX_MESSAGE  3 /* uint64_t, get, bytes: the longest message that can be sent (64 MiB, unless the peer takes less); 0: it is being connected; ENOTCONN */
#define ROPEWAY_SO_NEXT_MESSAGE 4 /* uint64_t, get, bytes: the next message's length. EAGAIN: none has come yet; ENODATA: none will */
#define ROPEWAY_SO_ENDED        5 /* int, get: whether the peer has closed and everything was read */
#define ROPEWAY_SO_LOCAL_PORT   6 /* int, get: the port of the protocol at this end, in host byte order; */
#define ROPEWAY_SO_PEER_PORT    7 /* int, get: and at the other. With the addresses they name a connection: over UDP those of a process share a UDP port */
#define ROPEWAY_SO_EXPIRED      8 /* uint64_t, get: messages that ropeway_send_within dropped */

/* A socket of type ROPEWAY_STREAM or ROPEWAY_MESSAGES. It waits (unless ROPEWAY_NONBLOCK), without limit. EPROTOTYPE: no such type. */
int ropeway_socket(int type);

/*
 * Takes an address of this host, port 0 for any. It is free again when the socket and all connections that it accepted are closed. A client need not.
 * One of IPv6, :: too, is for IPv6 alone (as with IPV6_V6ONLY): who listens over both has two sockets, which may have the same port.
 * EADDRINUSE; EADDRNOTAVAIL: not of this host; EINVAL: the socket has an address, `length` does not fit the family, or the device's MTU
 * leaves less than 256 bytes for a packet; EAFNOSUPPORT; EPERM: no key (above), or no CAP_NET_RAW; ENODEV; EBUSY: another process has the device that ROPEWAY_LINK=xdp:DEVICE names.
 */
int ropeway_bind(int s, const struct sockaddr *address, socklen_t length);

/*
 * Listens at the address that was bound; up to `backlog` connections wait to be accepted, and who comes then is refused. 0 means 1, less than that as many as can be
 * (65535). A socket that listens already takes over the new number. EDESTADDRREQ: not bound; EINVAL: it is connected.
 */
int ropeway_listen(int s, int backlog);

/*
 * Takes a connection: a new handle, with the listener's options, but blocking. `from` may be NULL; else *length is its room, and becomes the address's length.
 * Waits no longer than SO_RCVTIMEO. EAGAIN: none waits; EINVAL: it does not listen.
 */
int ropeway_accept(int s, struct sockaddr *from, socklen_t *length);

/*
 * Connects, from the address that was bound if one was. Waits no longer than SO_SNDTIMEO, and 10 s if that is not set. A non-blocking socket gets EINPROGRESS: its
 * descriptor becomes writable when it is connected or has failed, and SO_ERROR says which. ECONNREFUSED: nobody listens there, or not for sockets of this
 * type, or its queue is full; ETIMEDOUT: nobody answers. Over raw frames (ROPEWAY_LINK=packet:DEVICE or xdp:DEVICE, sockaddr_ropeway) that is also what a port is that no process of the other host has on its device: nobody can
 * know that nobody else has it, so nobody refuses; and, once, a listener that was killed and is back, to who had connections with the former one. ECONNRESET: the two ends do not have the same key, or only one of them has any
 * (`ropeway key check`); at once where this end has none, after the time limit where it has one. EHOSTUNREACH, ENETUNREACH: no way there; EPERM: a firewall's rule; EACCES: a route that prohibits it, or a broadcast address; EINVAL: a route that
 * throws packets away, or port 0; EMSGSIZE: packets as long as ours do not pass (ROPEWAY_PACKET_BYTES); EALREADY: it is being connected; EISCONN; EOPNOTSUPP: it listens, or
 * the address is one of IPv6 that means something else on every device (fe80::); and as bind. What this host itself says of the destination a non-blocking socket is told at once; with ROPEWAY_LINK=packet:DEVICE or
 * xdp:DEVICE that is EHOSTUNREACH also where it is not known yet, nor within 10 ms, who has the IP address there: that one is asked meanwhile, so that trying again finds it. (Others wait for it 1.5 s, or SO_SNDTIMEO if that is shorter.) After a failure it can be tried again
 * with the same socket, unless that was after EINPROGRESS.
 */
int ropeway_connect(int s, const struct sockaddr *to, socklen_t length);

/*
 * The same to an address written as text, as for ropeway_dial below: the first of a name's addresses that works. Errors of both; of a non-blocking socket the
 * first address is the only one that is tried: of a name with addresses of both families mostly one of IPv6, where who listens at 0.0.0.0 is not.
 */
int ropeway_connect_to(int s, const char *address);

/*
 * Sends bytes of a stream and says how many were taken (all of them, unless the socket does not wait, or not that long), or sends one whole message.
 * Flags: MSG_DONTWAIT; MSG_NOSIGNAL, MSG_MORE and MSG_EOR change nothing; others are EOPNOTSUPP. EAGAIN: no room, in time SO_SNDTIMEO; EPIPE: the peer has
 * closed, or this end has ended sending; EMSGSIZE: longer than ROPEWAY_SO_MAX_MESSAGE; ENOTCONN; ECONNRESET; ETIMEDOUT: the peer has been silent for 10 s
 * while something was not acknowledged.
 */
ssize_t ropeway_send(int s, const void *from, size_t length, int flags);

/*
 * Sends a message that is worth sending for `life_us` microseconds only: if it is not under way by then (the receiver has granted nothing, or does not read), it is
 * dropped as a whole and counted (ROPEWAY_SO_EXPIRED). As ropeway_send; EAGAIN also: no room within its life; ENOPROTOOPT: a stream, of which nothing can be left out.
 */
ssize_t ropeway_send_within(int s, const void *from, size_t length, int flags, unsigned life_us);

/* Drops the messages that are not under way, and says how many; what has begun is delivered. ENOTCONN; ENOPROTOOPT: a stream. */
ssize_t ropeway_cancel(int s);

/*
 * Receives bytes of a stream, or one whole message, and says how many. 0: the peer has closed and everything was read, or an empty message
 * (ROPEWAY_SO_ENDED tells them apart), or `length` is 0 and it is a stream. EMSGSIZE: the message is longer than `length`; it stays
 * (ROPEWAY_SO_NEXT_MESSAGE says how long it is). EAGAIN: nothing there, in time SO_RCVTIMEO; ENOTCONN; ECONNRESET; ECONNABORTED; ETIMEDOUT as for send.
 * Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_WAITALL (until `length` bytes of a stream are there, its end, or SO_RCVTIMEO since the call is over); MSG_PEEK for streams, which with
 * MSG_WAITALL waits for no more than comes before something is read: as much as the receive buffer is long, or less while receive memory is short, also by what others leave unread; others are EOPNOTSUPP.
 */
ssize_t ropeway_recv(int s, void *to, size_t length, int flags);

/*
 * The same from and into `count` buffers, one after the other, as if they lay in one: bytes of a stream, of which short buffers share packets also with
 * TCP_NODELAY, or one whole message. Those to receive into must not overlap. EINVAL: more than 1024 buffers, or all together longer than half the address space.
 */
ssize_t ropeway_sendv(int s, const struct iovec *from, int count, int flags);
ssize_t ropeway_recvv(int s, const struct iovec *to, int count, int flags);

/*
 * Ends reading (SHUT_RD), sending (SHUT_WR: the peer reads the end) or both (SHUT_RDWR). ENOTCONN: there is no connection, or it has failed; EINVAL: no such `how`. For a socket that
 * listens there is ropeway_close alone.
 */
int ropeway_shutdown(int s, int how);

/* Waits until the peer has acknowledged everything sent, `limit_ms` milliseconds at most (negative: as long as it takes). ETIMEDOUT; ENOTCONN; ECONNRESET; ECONNABORTED; EPIPE: the
 * peer has closed, and what it had not taken by then was thrown away. */
int ropeway_drain(int s, int limit_ms);

/*
 * Closes. What was sent is still delivered, behind the program's back; with SO_LINGER, close waits for that as many seconds, but not while
 * the connection is being opened and nothing was sent, and with 0 seconds it is a reset. If
 * there is unread data, the peer sees a reset too, as with TCP. Calls that other threads are in with the socket end, those that receive with EBADF whatever has come; a message of which a part has been taken is still sent as a whole, and its call succeeds.
 * The address of a listener can be had again at once in this process.
 */
int ropeway_close(int s);

/*
 * This end's address, and the other's: as much as *length has room for; *length becomes the address's length. Connections of one process share an address over UDP, so those that a peer
 * has opened have one, too: ROPEWAY_SO_PEER_PORT and ROPEWAY_SO_LOCAL_PORT tell them apart. EINVAL: none yet; ENOTCONN: nobody has taken the connection, not yet or for good.
 */
int ropeway_getsockname(int s, struct sockaddr *name, socklen_t *length);
int ropeway_getpeername(int s, struct sockaddr *name, socklen_t *length);

/*
 * SOL_SOCKET: SO_RCVTIMEO and SO_SNDTIMEO (struct timeval, zeros: no limit, the default), SO_LINGER (struct linger, default off), SO_REUSEADDR (int, changes
 * nothing: addresses are free at once), SO_KEEPALIVE (int, 1 and nothing else: idle peers are always asked whether they are there, see ROPEWAY_TUNE's keep_alive);
 * get only: SO_ERROR (int, why the connection failed, 0 after an end in order; EPIPE if the peer has closed before it had all that was sent; it is not cleared), SO_TYPE, SO_ACCEPTCONN. IPPROTO_TCP: TCP_NODELAY (int, 0). SOL_ROPEWAY: see
 * above. They may be set at any time; accepted sockets begin with those of the listener. *length becomes the number of bytes that were written. ENOPROTOOPT: no such option, or not for this type;
 * EINVAL: the value is too short; EDOM: no time limit; EOPNOTSUPP: SO_KEEPALIVE off.
 */
int ropeway_getsockopt(int s, int level, int name, void *value, socklen_t *length);
int ropeway_setsockopt(int s, int level, int name, const void *value, socklen_t length);

/*
 * A descriptor for poll, select, epoll and the like, level- and edge-triggered: readable and writable when the socket is, readable when a listener has a connection.
 * Every call gives the same one; it belongs to the socket and goes with it. Do nothing else with it: no read, no write, no close. A runtime that owns and closes its descriptors (Go's, libuv) gets a dup of it,
 * which says nothing any more once the socket is closed: take it out of the runtime before ropeway_close. Readiness is a hint: after
 * it a non-blocking call may still give EAGAIN; then it is writable again when what was refused fits. An end, and what made it fail, is shown as readable and writable: POLLHUP, POLLRDHUP and
 * POLLERR do not occur. ENOTCONN: the socket neither listens nor connects yet; EMFILE.
 */
int ropeway_descriptor(int s);

/*
 * A socket that is connected to, or listens at, an address written as text: "host:7000", "[fd00::7]:7000", "eth0/02:00:00:00:00:07:7000"; to listen on
 * a device, "eth0/" and a star in place of the hardware address; a node of the cluster by its name, which goes before those of hosts, or its number, as
 * "node3:7000" and "@3:7000". ":7000" is "0.0.0.0:7000": every IPv4 address of this host to listen at, and this host to connect to. Of a name's
 * addresses the first that works. Errors of all the calls they stand for; ENOENT, EINVAL: the text.
 */
int ropeway_dial(const char *address, int type);
int ropeway_serve(const char *address, int type, int backlog);

/*
 * The same texts to and from addresses. struct sockaddr_storage has room for all; 64 bytes have room for every text. ENOSPC: `room` is too short.
 */
int ropeway_resolve(const char *text, struct sockaddr *address, socklen_t *length);
int ropeway_format(const struct sockaddr *address, socklen_t length, char *text, size_t room);

/* Why this thread's last call that failed did, "" if none has. Valid until the next one that fails, or the thread's end. Never NULL, not to be freed. */
const char *ropeway_error(void);

#ifdef __cplusplus
}
#endif

#endif
