// Somebody on the same Ethernet who sends whatever he likes under the names of others, for the suite `wire`.
//
//   forger record DEVICE COUNT FILE              writes the next COUNT frames that pass the device
//   forger attack DEVICE SEED COUNT CARRIER KEYED TARGET-MAC TARGET-IP TARGET-PORT OTHER-MAC OTHER-IP OTHER-PORT FILE
//
// The second sends COUNT frames to TARGET, most of them in the name of OTHER, who talks to it: noise, packets of every type with fields that could be
// right, resets, SYNs of hosts that do not exist, what was recorded once more, reports of routers; and of all of these some cut off, longer than they say
// or shorter. CARRIER is `udp` or `packet`. KEYED is 1 where packets are sealed: then those recorded are sent with other fields as well, which is more than
// anybody withstands who has no key. What is random follows from SEED. It says how many it sent of each kind.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <netpacket/packet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ROPEWAY_ETHER_TYPE = 0x88B5,
    MTU = 1500,
    LONGEST = 4000, // of a packet: in two fragments and more
    BASE_HEADER = 24,
    MOST_RECORDED = 4096,
    BURST = 64,
    PAUSE_US = 500,
    SNAP = 2048,
};

enum kind { NOISE, PLAUSIBLE, SHORT, RESET, SYN, REPLAY, ALTERED, REPORT, KINDS };

static const char *const names[KINDS] = {"noise", "plausible", "short", "reset", "syn", "replay", "altered", "report"};

struct end {
    unsigned char mac[ETH_ALEN];
    struct in_addr ip;
    uint16_t port;
};

struct recorded {
    uint32_t bytes;
    unsigned char frame[SNAP];
};

static int fd, over_udp, is_keyed;
static uint64_t state;
static struct end target, other;
static struct recorded *recorded;
static unsigned recorded_count;

static void fail(const char *what) {
    fprintf(stderr, "forger: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t word(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1D;
}

static uint64_t below(uint64_t bound) { return (word() >> 16) % bound; }

static void noise(unsigned char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(word() >> 32);
}

static void put16(unsigned char *at, uint16_t value) {
    value = htons(value);
    memcpy(at, &value, sizeof value);
}

static void put32(unsigned char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, sizeof value);
}

static uint16_t checksum(const void *bytes, size_t count) {
    uint32_t sum = 0;
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) sum += i % 2 ? at[i] : at[i] << 8;
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    return htons((uint16_t)~sum);
}

static void open_device(const char *device, int type) {
    fd = socket(AF_PACKET, SOCK_RAW, htons(type));
    struct sockaddr_ll here = {.sll_family = AF_PACKET, .sll_protocol = htons(type)};
    here.sll_ifindex = (int)if_nametoindex(device);
    if (fd < 0 || here.sll_ifindex == 0 || bind(fd, (struct sockaddr *)&here, sizeof here)) fail(device);
}

static int record(const char *device, unsigned long most, const char *path) {
    open_device(device, ETH_P_ALL);
    FILE *file = fopen(path, "w");
    if (!file) fail(path);
    puts("ready");
    fflush(stdout);
    unsigned long count = 0;
    for (; count < most && count < MOST_RECORDED; count++) {
        static struct recorded one;
        ssize_t bytes = recv(fd, one.frame, sizeof one.frame, 0);
        if (bytes <= 0) fail("record");
        one.bytes = (uint32_t)bytes;
        if (fwrite(&one, sizeof one, 1, file) != 1) fail(path);
    }
    if (fclose(file)) fail(path);
    printf("recorded %lu\n", count);
    return 0;
}

static void load(const char *path) {
    FILE *file = fopen(path, "r");
    recorded = calloc(MOST_RECORDED, sizeof *recorded);
    if (!file || !recorded) fail(path);
    recorded_count = (unsigned)fread(recorded, sizeof *recorded, MOST_RECORDED, file);
    fclose(file);
}

static void send_frame(const unsigned char *frame, size_t bytes) {
    // What a device has no room for is nothing lost.
    if (send(fd, frame, bytes, 0) < 0 && errno != ENOBUFS && errno != EMSGSIZE) fail("send");
}

static void ethernet(unsigned char *frame, const unsigned char *from, int type) {
    memcpy(frame, target.mac, ETH_ALEN);
    memcpy(frame + ETH_ALEN, from, ETH_ALEN);
    put16(frame + 2 * ETH_ALEN, (uint16_t)type);
}

static size_t internet(unsigned char *at, struct in_addr from, int protocol, size_t payload, uint16_t id, uint16_t offset) {
    struct iphdr *ip = (struct iphdr *)at;
    *ip = (struct iphdr){.version = 4, .ihl = 5, .ttl = 64};
    ip->tot_len = htons((uint16_t)(sizeof *ip + payload));
    ip->id = htons(id);
    ip->frag_off = htons(offset);
    ip->protocol = (uint8_t)protocol;
    ip->saddr = from.s_addr;
    ip->daddr = target.ip.s_addr;
    ip->check = checksum(ip, sizeof *ip);
    return sizeof *ip;
}

// Sends a packet of the protocol in somebody's name.
static void send_packet(const struct end *from, const unsigned char *packet, size_t bytes) {
    unsigned char frame[ETH_HLEN + MTU];
    if (!over_udp) {
        ethernet(frame, from->mac, ROPEWAY_ETHER_TYPE);
        if (bytes > MTU) bytes = MTU;
        memcpy(frame + ETH_HLEN, packet, bytes);
        return send_frame(frame, ETH_HLEN + bytes);
    }
    static unsigned char datagram[sizeof(struct udphdr) + LONGEST];
    struct udphdr *udp = (struct udphdr *)datagram;
    size_t length = sizeof *udp + bytes;
    // Now and then it says another length than it has.
    size_t said = below(16) ? length : below(2 * length);
    *udp = (struct udphdr){.uh_sport = htons(from->port), .uh_dport = htons(target.port), .uh_ulen = htons((uint16_t)said)};
    memcpy(datagram + sizeof *udp, packet, bytes);
    uint16_t id = (uint16_t)word();
    const size_t most = (MTU - sizeof(struct iphdr)) / 8 * 8;
    for (size_t at = 0; at < length; at += most) {
        size_t part = length - at < most ? length - at : most;
        uint16_t offset = (uint16_t)(at / 8 | (at + part < length ? IP_MF : 0));
        ethernet(frame, from->mac, ETHERTYPE_IP);
        size_t head = internet(frame + ETH_HLEN, from->ip, IPPROTO_UDP, part, id, offset);
        memcpy(frame + ETH_HLEN + head, datagram + at, part);
        send_frame(frame, ETH_HLEN + head + part);
    }
}

// Where the packet begins in a recorded frame; 0: it is none.
static size_t packet_at(const struct recorded *one) {
    const struct ether_header *header = (const struct ether_header *)one->frame;
    if (ntohs(header->ether_type) == ROPEWAY_ETHER_TYPE && !over_udp) return ETH_HLEN;
    const struct iphdr *ip = (const struct iphdr *)(one->frame + ETH_HLEN);
    int is_udp = ntohs(header->ether_type) == ETHERTYPE_IP && ip->protocol == IPPROTO_UDP;
    return over_udp && is_udp ? ETH_HLEN + sizeof *ip + sizeof(struct udphdr) : 0;
}

static const struct recorded *any_recorded(void) {
    for (int tries = 0; tries < 16 && recorded_count; tries++) {
        const struct recorded *one = recorded + below(recorded_count);
        size_t at = packet_at(one);
        if (at && one->bytes >= at + BASE_HEADER) return one;
    }
    return NULL;
}

// An id that the target, or the other, may have given out: one that was seen, or one of the first.
static uint32_t plausible_id(void) {
    const struct recorded *one = below(2) ? any_recorded() : NULL;
    uint32_t id;
    if (!one) return (uint32_t)(below(4) << 4 | below(16));
    memcpy(&id, one->frame + packet_at(one) + 4, sizeof id);
    return ntohl(id);
}

// Who it is said to come from: mostly the other, at the right port or at any; or somebody else, or the target itself.
static struct end somebody(void) {
    struct end from = other;
    if (from.port == 0 || below(4) == 0) from.port = (uint16_t)word();
    switch (below(8)) {
    case 0: return target;
    case 1:
        noise(from.mac, ETH_ALEN);
        from.mac[0] = 2;
        // Half of them on the segment, where nobody answers for them.
        from.ip.s_addr = below(2) ? (target.ip.s_addr & htonl(0xFFFFFF00)) | htonl((uint32_t)below(256)) : (uint32_t)word();
    }
    return from;
}

static size_t make_header(unsigned char *packet, unsigned type, uint32_t id, size_t payload) {
    noise(packet, BASE_HEADER);
    packet[0] = (unsigned char)(1 << 4 | type);
    put16(packet + 2, (uint16_t)payload);
    put32(packet + 4, id);
    return BASE_HEADER;
}

static size_t make_plausible(unsigned char *packet) {
    unsigned type = (unsigned)below(16);
    size_t channel = type >= 7 && type <= 10 ? 4 : 0, payload = below(2) ? below(1448) : below(40);
    uint32_t id = type == 1 || type == 3 ? 0xFFFu << 20 | (uint32_t)target.port << 4 : plausible_id();
    size_t at = make_header(packet, type, id, payload);
    noise(packet + at, channel + payload);
    if (channel) put16(packet + at, (uint16_t)below(4));
    return at + channel + payload;
}

static size_t make_short(unsigned char *packet) {
    size_t payload = below(1457);
    make_header(packet, 0, plausible_id(), payload);
    put16(packet + 12, (uint16_t)below(4));
    noise(packet + 16, payload);
    return 16 + payload;
}

static size_t make_reset(unsigned char *packet) {
    size_t at = make_header(packet, 14, plausible_id(), 18);
    memset(packet + 8, 0, 16);
    noise(packet + at, 16);
    put16(packet + at + 16, (uint16_t)below(13));
    return at + 18;
}

static size_t make_syn(unsigned char *packet) {
    size_t size = below(4) ? 1400 : 256 + below(1217);
    memset(packet, 0, size);
    packet[0] = 0x11;
    put16(packet + 2, (uint16_t)(size - BASE_HEADER));
    put32(packet + 4, 0xFFFu << 20 | (uint32_t)target.port << 4);
    unsigned char *at = packet + BASE_HEADER;
    put32(at, plausible_id());
    noise(at + 4, 16);
    put16(at + 20, target.port);
    put16(at + 22, (uint16_t)word());
    put16(at + 24, (uint16_t)size);
    at[26] = at[27] = 1;
    put32(at + 28, below(8) ? (uint32_t)is_keyed : !is_keyed);
    return size;
}

// A router's report of a packet that the target may have sent to the other.
static void send_report(void) {
    static const uint8_t kinds[] = {ICMP_DEST_UNREACH, ICMP_DEST_UNREACH, ICMP_DEST_UNREACH, ICMP_TIME_EXCEEDED, ICMP_SOURCE_QUENCH, ICMP_PARAMETERPROB};
    unsigned char frame[ETH_HLEN + MTU] = {0};
    struct end from = somebody();
    size_t quoted = sizeof(struct iphdr) + sizeof(struct udphdr) + below(64), bytes = sizeof(struct icmphdr) + quoted;
    ethernet(frame, from.mac, ETHERTYPE_IP);
    unsigned char *at = frame + ETH_HLEN + internet(frame + ETH_HLEN, from.ip, IPPROTO_ICMP, bytes, (uint16_t)word(), 0);
    struct icmphdr *icmp = (struct icmphdr *)at;
    icmp->type = kinds[below(sizeof kinds)];
    icmp->code = (uint8_t)below(16);
    // Half of them want shorter packets.
    if (below(2)) *icmp = (struct icmphdr){.type = ICMP_DEST_UNREACH, .code = ICMP_FRAG_NEEDED};
    icmp->un.frag.mtu = htons((uint16_t)(below(2) ? 68 + below(1432) : word()));
    struct iphdr *ip = (struct iphdr *)(at + sizeof *icmp);
    struct udphdr *udp = (struct udphdr *)(ip + 1);
    internet((unsigned char *)ip, target.ip, IPPROTO_UDP, MTU - sizeof *ip, (uint16_t)word(), IP_DF);
    ip->daddr = other.ip.s_addr;
    ip->check = 0;
    ip->check = checksum(ip, sizeof *ip);
    *udp = (struct udphdr){.uh_sport = htons(target.port), .uh_dport = htons(from.port), .uh_ulen = htons(MTU - sizeof *ip)};
    unsigned char *rest = (unsigned char *)(udp + 1);
    make_header(rest, (unsigned)below(16), plausible_id(), 18);
    icmp->checksum = checksum(icmp, bytes);
    send_frame(frame, (size_t)(at - frame) + bytes);
}

// One of those that were recorded, for the target: as it was, or under another name.
static int send_recorded(int alters) {
    const struct recorded *one = any_recorded();
    if (!one) return 0;
    unsigned char frame[SNAP];
    memcpy(frame, one->frame, one->bytes);
    size_t bytes = one->bytes, at = packet_at(one);
    if (alters) {
        switch (below(4)) {
        case 0: frame[at + below(bytes - at)] ^= (unsigned char)(1 << below(8)); break;
        case 1: put32(frame + at + 8, (uint32_t)word()); break;
        // The next numbers, and the next transmission counters.
        case 2: frame[at + 11] += (unsigned char)(1 + below(64)); break;
        default: frame[at + 31 < bytes ? at + 31 : at + 11] += (unsigned char)(1 + below(64));
        }
    }
    if (memcmp(frame, target.mac, ETH_ALEN) == 0 && below(2)) {
        send_frame(frame, bytes);
        return 1;
    }
    // Thrown back to whoever sent it, too.
    struct end from = somebody();
    send_packet(&from, frame + at, bytes - at);
    return 1;
}

static int send_one(enum kind kind) {
    static unsigned char packet[LONGEST];
    struct end from = somebody();
    size_t bytes = 0;
    switch (kind) {
    case NOISE:
        bytes = below(4) ? below(1473) : below(LONGEST);
        noise(packet, bytes);
        break;
    case PLAUSIBLE: bytes = make_plausible(packet); break;
    case SHORT: bytes = make_short(packet); break;
    case RESET: bytes = make_reset(packet); break;
    case SYN: bytes = make_syn(packet); break;
    case REPLAY: return send_recorded(0);
    case ALTERED: return is_keyed ? send_recorded(1) : 0;
    case REPORT:
        if (!over_udp) return 0;
        send_report();
        return 1;
    default: return 0;
    }
    // Some are cut off, and some have more behind them than they say.
    if (below(8) == 0) bytes = below(bytes + 1);
    if (below(8) == 0) {
        size_t more = below(64);
        noise(packet + bytes, bytes + more < sizeof packet ? more : 0);
        bytes += bytes + more < sizeof packet ? more : 0;
    }
    send_packet(&from, packet, bytes);
    return 1;
}

static void read_end(struct end *end, char **arguments) {
    unsigned char *m = end->mac;
    int count = sscanf(arguments[0], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5);
    if (count != 6 || inet_pton(AF_INET, arguments[1], &end->ip) != 1) fail(arguments[0]);
    end->port = (uint16_t)atoi(arguments[2]);
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "record") == 0) return record(argv[2], strtoul(argv[3], NULL, 10), argv[4]);
    if (argc != 14 || strcmp(argv[1], "attack")) {
        fprintf(stderr, "usage: forger record DEVICE COUNT FILE | attack DEVICE SEED COUNT CARRIER KEYED TARGET.. OTHER.. FILE\n");
        return 2;
    }
    state = strtoull(argv[3], NULL, 10) * 0x9E3779B97F4A7C15 | 1;
    long count = atol(argv[4]), sent[KINDS] = {0};
    over_udp = strcmp(argv[5], "udp") == 0;
    is_keyed = atoi(argv[6]);
    read_end(&target, argv + 7);
    read_end(&other, argv + 10);
    load(argv[13]);
    // It only sends.
    open_device(argv[2], 0);
    for (long i = 0; i < count; i++) {
        enum kind kind = (enum kind)below(KINDS);
        // Without a key a short header of the right association is as good as its number: one of 512 in 2^32. These are too few to hit one.
        if (kind == SHORT && !is_keyed && below(8)) kind = SYN;
        sent[kind] += send_one(kind);
        if (i % BURST == BURST - 1) usleep(PAUSE_US);
    }
    for (int kind = 0; kind < KINDS; kind++) printf("%s %ld\n", names[kind], sent[kind]);
    return 0;
}
