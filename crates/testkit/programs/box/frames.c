// Raw Ethernet frames of any type, for the suite `box`.
//
//   frames send DEVICE MAC TYPE COUNT             sends COUNT numbered frames
//   frames receive DEVICE TYPE COUNT              takes frames of TYPE (hexadecimal, 0003 is any) until COUNT were there; says how
//                                                 many, how many came after a later one, and how long the longest was
//   frames order DEVICE COUNT                     takes IPv4 frames with TCP until COUNT came with data; says how many, of how many
//                                                 flows, and how many came after a later one of their flow, by the number that
//                                                 the sender's IP gives each frame
//
// On SIGTERM the last two take what is still on its way, and say what they have.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// Longer than any frame, and than any segment that a kernel hands on in one piece.
enum { FRAME_BYTES = 128 * 1024, SENT_BYTES = 100, ROOM_BYTES = 64 * 1024 * 1024, MAX_FLOWS = 64, QUIET_MS = 500 };

static unsigned char frame[FRAME_BYTES];

static void fail(const char *what) {
    fprintf(stderr, "frames: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int open_on(const char *device, int type) {
    int fd = socket(AF_PACKET, SOCK_RAW, htons(type));
    struct sockaddr_ll here = {.sll_family = AF_PACKET, .sll_protocol = htons(type)};
    here.sll_ifindex = (int)if_nametoindex(device);
    if (fd < 0 || here.sll_ifindex == 0 || bind(fd, (struct sockaddr *)&here, sizeof here)) fail(device);
    return fd;
}

static int send_frames(const char *device, const char *mac, int type, long count) {
    int fd = open_on(device, type);
    struct ether_header *header = (struct ether_header *)frame;
    unsigned char *to = header->ether_dhost;
    if (sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", to, to + 1, to + 2, to + 3, to + 4, to + 5) != 6) return 2;
    memcpy(header->ether_shost, "\x02RW\xff\xff\xff", ETH_ALEN);
    header->ether_type = htons(type);
    for (long i = 0; i < count; i++) {
        memcpy(frame + sizeof *header, &i, sizeof i);
        if (send(fd, frame, SENT_BYTES, 0) != SENT_BYTES) fail("send");
    }
    return 0;
}

static volatile sig_atomic_t last_call;

static void on_term(int signal) {
    (void)signal;
    last_call = 1;
}

static int listen_on(const char *device, int type) {
    int fd = open_on(device, type), room = ROOM_BYTES;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room)) fail("room for frames");
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_term}, NULL);
    puts("ready");
    fflush(stdout);
    return fd;
}

// The next frame that came in; 0 when there are no more.
static ssize_t next_frame(int fd) {
    struct pollfd end = {.fd = fd, .events = POLLIN};
    for (;;) {
        // A signal between the look and the wait is seen a moment later.
        int n = poll(&end, 1, last_call ? QUIET_MS : 100);
        if (n < 0 && errno != EINTR) fail("poll");
        if (n == 0 && last_call) return 0;
        if (n <= 0) continue;
        struct sockaddr_ll from;
        socklen_t length = sizeof from;
        ssize_t bytes = recvfrom(fd, frame, sizeof frame, 0, (struct sockaddr *)&from, &length);
        if (bytes < 0 && errno != EINTR) fail("receive");
        if (bytes > 0 && from.sll_pkttype != PACKET_OUTGOING) return bytes;
    }
}

static int receive_frames(const char *device, int type, long count) {
    int fd = listen_on(device, type);
    long received = 0, late = 0, last = -1;
    ssize_t longest = 0, n;
    while (received < count && (n = next_frame(fd)) > 0) {
        received++;
        longest = n > longest ? n : longest;
        long number;
        memcpy(&number, frame + sizeof(struct ether_header), sizeof number);
        if (number < last) late++;
        else last = number;
    }
    printf("received %ld late %ld longest %zd\n", received, late, longest);
    return 0;
}

struct flow {
    unsigned char ends[12]; // addresses and ports, as the frame has them
    uint16_t last;
};

static struct flow *flow_of(struct flow *flows, int *count, const unsigned char *ip, const unsigned char *tcp) {
    unsigned char ends[12];
    memcpy(ends, ip + 12, 8);
    memcpy(ends + 8, tcp, 4);
    for (int i = 0; i < *count; i++)
        if (memcmp(flows[i].ends, ends, sizeof ends) == 0) return flows + i;
    if (*count == MAX_FLOWS) fail("too many flows");
    memcpy(flows[*count].ends, ends, sizeof ends);
    return flows + (*count)++;
}

static int watch_order(const char *device, long count) {
    static struct flow flows[MAX_FLOWS];
    int fd = listen_on(device, ETHERTYPE_IP), flow_count = 0;
    long seen = 0, late = 0;
    ssize_t n;
    while (seen < count && (n = next_frame(fd)) > 0) {
        const unsigned char *ip = frame + sizeof(struct ether_header), *tcp = ip + (ip[0] & 15) * 4;
        // Only full frames: without data, a frame may go out with the number 0.
        if (n < 1000 || ip[9] != IPPROTO_TCP) continue;
        int known = flow_count;
        struct flow *flow = flow_of(flows, &flow_count, ip, tcp);
        uint16_t number = (uint16_t)(ip[4] << 8 | ip[5]);
        // The numbers wrap; more than half of them behind is ahead.
        if (known == flow_count && (int16_t)(uint16_t)(number - flow->last) < 0) late++;
        else flow->last = number;
        seen++;
    }
    printf("seen %ld flows %d late %ld\n", seen, flow_count, late);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 6 && strcmp(argv[1], "send") == 0)
        return send_frames(argv[2], argv[3], (int)strtol(argv[4], NULL, 16), atol(argv[5]));
    if (argc == 5 && strcmp(argv[1], "receive") == 0)
        return receive_frames(argv[2], (int)strtol(argv[3], NULL, 16), atol(argv[4]));
    if (argc == 4 && strcmp(argv[1], "order") == 0) return watch_order(argv[2], atol(argv[3]));
    fprintf(stderr, "usage: frames send DEVICE MAC TYPE COUNT | receive DEVICE TYPE COUNT | order DEVICE COUNT\n");
    return 2;
}
