/*
 * Takes the place of a side, or of its child, by exec and goes on with the connection it finds on a descriptor.
 *
 *   helper DESCRIPTOR STEP...      steps: r<n> receive n bytes, w<text> send, t<n> take n bytes of stream 1, s<n> send n of stream 2, m meet the other side, e expect the end, c close, z rest
 *
 * Built twice, linked dynamically (the preload comes along) and statically (it does not).
 */
#include "rw_test.h"

int main(int argc, char **argv)
{
    static char buffer[1 << 16];
    rw_adopt();
    if (argc < 2) {
        fprintf(stderr, "usage: helper DESCRIPTOR STEP...\n");
        return 2;
    }
    fd = atoi(argv[1]);
    for (int i = 2; i < argc; i++) {
        const char *text = argv[i] + 1;
        switch (argv[i][0]) {
        case 'r': {
            size_t length = (size_t)atol(text);
            errno = 0;
            size_t got = rw_recv_all(fd, buffer, length);
            rw_bytes("helper received", buffer, (long)got);
            if (got < length)
                rw_note("helper: %s", errno ? rw_errno_name(errno) : "the end");
            break;
        }
        case 'w': rw_note("helper sent: %zu", rw_send_all(fd, text, strlen(text))); break;
        case 't': rw_recv_stream(fd, 1, (size_t)atol(text)); break;
        case 's': rw_send_stream(fd, 2, (size_t)atol(text)); break;
        case 'm': rw_meet(); break;
        case 'z': rw_rest(); break;
        case 'e': rw_note("helper at the end: %ld %s", (long)recv(fd, buffer, 1, 0), rw_errno_name(errno)); break;
        case 'c': T(close(fd)); break;
        default: rw_note("FATAL helper: no step %s", argv[i]); return 2;
        }
    }
    return 0;
}
