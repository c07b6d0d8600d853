/*
 * Ropeway's sockets between hosts. Link with -lropeway (pkg-config ropeway); ropeway(3) says more.
 *
 * The calls are those of BSD sockets, on handles of their own: a handle is no descriptor, and none of the kernel's calls takes it. Calls may be made
 * from any thread. They return -1 and set errno when they fail; ropeway_error() then has a sentence about why. No call is interrupted by a
 * signal, and none sends one. Handles do not survive a fork: in the child they are EBADF.
 */
#ifndef ROPEWAY_H
#define ROPEWAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of sockets. ROPEWAY_NONBLOCK may be or-ed to them. */
#define ROPEWAY_STREAM   1    /* bytes in order, as SOCK_STREAM */
#define ROPEWAY_MESSAGES 5    /* messages in order, of any length, each whole, as SOCK_SEQPACKET */
#define ROPEWAY_NONBLOCK 04000 /* as SOCK_NONBLOCK */

/*
 * Addresses are sockaddr_in and sockaddr_in6 (a UDP port, which is the port of Ropeway's protocol as well), or this one: an end on an Ethernet.
 */
#define ROPEWAY_AF_ETHER 17
struct sockaddr_ropeway {
	sa_family_t sr_family;      /* ROPEWAY_AF_ETHER */
	uint16_t sr_port;           /* in network byte order */
	unsigned char sr_mac[6];    /* the other end's hardware address; zeros to listen */
	char sr_device[16];         /* this host's network device */
};

/* Options of level SOL_ROPEWAY. */
#define SOL_ROPEWAY          0x5257
#define ROPEWAY_SO_NONBLOCK  1 /* int: calls that would wait fail with EAGAIN */
#define ROPEWAY_SO_NODELAY   2 /* int: small sends leave at once; the same as TCP_NODELAY */
#define ROPEWAY_SO_MAX_MESSAGE 3 /* uint64_t, get: the longest message that can be sent */
#define ROPEWAY_SO_NEXT_MESSAGE 4 /* uint64_t, get: the length of the next message; EAGAIN: none yet; ENODATA: none any more */
#define ROPEWAY_SO_ENDED     5 /* int, get: the peer has closed and everything was read */
#define ROPEWAY_SO_LOCAL_PORT 6 /* int, get: */
#define ROPEWAY_SO_PEER_PORT 7 /* int, get: */

/* A socket of type ROPEWAY_STREAM or ROPEWAY_MESSAGES. */
int ropeway_socket(int type);

/* Takes an address of this host, port 0 for any. It is free again when the socket and all connections that it accepted are closed. */
int ropeway_bind(int s, const struct sockaddr *address, socklen_t length);

/* Listens at the address that was bound; up to backlog connections wait to be accepted, who comes then is refused. */
int ropeway_listen(int s, int backlog);

/* Takes a connection: a new handle. `from` may be NULL. Waits no longer than SO_RCVTIMEO. */
int ropeway_accept(int s, struct sockaddr *from, socklen_t *length);

/*
 * Connects, from the address that was bound if one was. Waits no longer than SO_SNDTIMEO. A non-blocking socket gets EINPROGRESS; its descriptor becomes
 * writable when there is news, and SO_ERROR has it.
 */
int ropeway_connect(int s, const struct sockaddr *to, socklen_t length);

/*
 * Sends bytes of a stream and says how many were taken (all of them, unless the socket does not wait, or not that long), or one whole message.
 * Flags: MSG_DONTWAIT; MSG_NOSIGNAL, MSG_MORE and MSG_EOR change nothing. EPIPE: the peer has closed, or this end.
 */
ssize_t ropeway_send(int s, const void *from, size_t length, int flags);

/*
 * Receives bytes of a stream, or one whole message, and says how many. 0: the peer has closed and everything was read, or an empty message
 * (ROPEWAY_SO_ENDED tells them apart). EMSGSIZE: the message is longer than `length`; it stays (ROPEWAY_SO_NEXT_MESSAGE says how long it is).
 * Flags: MSG_DONTWAIT; MSG_WAITALL and MSG_PEEK for streams.
 */
ssize_t ropeway_recv(int s, void *to, size_t length, int flags);

/* Ends reading (SHUT_RD), sending (SHUT_WR: the peer reads the end) or both (SHUT_RDWR). */
int ropeway_shutdown(int s, int how);

/* Waits until the peer has acknowledged everything sent, limit_ms at most (negative: as long as it takes). */
int ropeway_drain(int s, int limit_ms);

/*
 * Closes. What was sent is still delivered, unless SO_LINGER says otherwise; exit(3) waits for that, up to ROPEWAY_LINGER_MS (5000). If there is unread
 * data, the peer sees a reset. Threads that wait with this socket return.
 */
int ropeway_close(int s);

int ropeway_getsockname(int s, struct sockaddr *name, socklen_t *length);
int ropeway_getpeername(int s, struct sockaddr *name, socklen_t *length);

/* SOL_SOCKET: SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER, SO_ERROR, SO_TYPE, SO_ACCEPTCONN, SO_REUSEADDR. IPPROTO_TCP: TCP_NODELAY. SOL_ROPEWAY: see above. */
int ropeway_getsockopt(int s, int level, int name, void *value, socklen_t *length);
int ropeway_setsockopt(int s, int level, int name, const void *value, socklen_t length);

/*
 * A descriptor for poll, epoll and the like: readable and writable when the socket is. Every call gives the same one; it belongs to the socket and goes with
 * it. Do nothing else with it.
 */
int ropeway_descriptor(int s);

/*
 * A socket that is connected to, or listens at, an address written as text: "host:7000", "[fd00::7]:7000", "eth0/02:00:00:00:00:07:7000"; to listen on
 * a device, a star in place of the hardware address.
 */
int ropeway_dial(const char *address, int type);
int ropeway_serve(const char *address, int type, int backlog);

/* The same texts to and from addresses. struct sockaddr_storage has room for all; 64 bytes have room for every text. */
int ropeway_resolve(const char *text, struct sockaddr *address, socklen_t *length);
int ropeway_format(const struct sockaddr *address, socklen_t length, char *text, size_t room);

/* Why this thread's last call that failed did. It stays until the next one that fails. */
const char *ropeway_error(void);

#ifdef __cplusplus
}
#endif

#endif
