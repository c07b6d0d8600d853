// Round trips of ICMP echo, for the suite `box`, where `ping` may not be installed: the other end's kernel answers, so only this end's times count.
//
//   rtt ADDRESS COUNT INTERVAL_US     sends COUNT requests, each when its answer or a second is over, and so long after the last; says how many
//                                     answers there were, and the least, the median, the 99th percentile and the most of their times in ns
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 100000, WORDS = 28 };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint16_t checksum(const uint16_t *words, int count) {
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) sum += words[i];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    static uint64_t times[MOST];
    struct sockaddr_in to = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    struct timeval second = {.tv_sec = 1};
    if (argc != 4 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return 2;
    int count = atoi(argv[2]), found = 0;
    if (fd < 0 || count < 1 || count > MOST) return 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    for (int i = 0; i < count; i++) {
        union {
            struct icmphdr header;
            uint16_t words[WORDS];
        } request = {.header = {.type = ICMP_ECHO}};
        request.header.un.echo.id = (uint16_t)getpid();
        request.header.un.echo.sequence = (uint16_t)i;
        request.header.checksum = checksum(request.words, WORDS);
        uint64_t start = now_ns();
        if (sendto(fd, &request, sizeof request, 0, (struct sockaddr *)&to, sizeof to) < 0) perror("rtt: sendto");
        for (;;) {
            char packet[2048];
            ssize_t n = recv(fd, packet, sizeof packet, 0);
            uint64_t end = now_ns();
            if (n < 0) break;
            const struct icmphdr *answer = (const struct icmphdr *)(packet + ((struct iphdr *)packet)->ihl * 4);
            if (answer->type != ICMP_ECHOREPLY || answer->un.echo.id != request.header.un.echo.id) continue;
            if (answer->un.echo.sequence != request.header.un.echo.sequence) continue;
            times[found++] = end - start;
            break;
        }
        usleep((useconds_t)atoi(argv[3]));
    }
    qsort(times, (size_t)found, sizeof *times, compare);
    if (found == 0) return 1;
    printf("%d %lu %lu %lu %lu\n", found, times[0], times[found / 2], times[found * 99 / 100], times[found - 1]);
    return 0;
}
