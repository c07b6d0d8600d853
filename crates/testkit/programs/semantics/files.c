/* Roads to a connection other than send and recv: sendfile, splice, tee, stdio, asynchronous I/O. */
#include "rw_test.h"

#include <aio.h>
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static char buffer[1 << 17];

enum { FILE_SIZE = 100000 };

/* An unlinked file that holds the beginning of stream 1. */
static int stream_file(size_t size)
{
    char path[] = "/tmp/rw_files_XXXXXX";
    int file = (int)MUST(mkstemp(path));
    MUST(unlink(path));
    for (size_t at = 0; at < size; at += sizeof buffer) {
        size_t n = MIN_OF(sizeof buffer, size - at);
        rw_fill(buffer, n, 1, at);
        MUST(write(file, buffer, n));
    }
    MUST(lseek(file, 0, SEEK_SET));
    return file;
}

CASE(sendfile_with_an_offset)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        int file = stream_file(FILE_SIZE);
        off_t from = 0;
        T(sendfile(fd, file, &from, 1000));
        rw_note("offset %ld, position %ld", (long)from, (long)lseek(file, 0, SEEK_CUR));
        from = 1000;
        T(sendfile(fd, file, &from, FILE_SIZE - 1000));
        rw_note("offset %ld, position %ld", (long)from, (long)lseek(file, 0, SEEK_CUR));
        T(sendfile(fd, file, &from, 10));
        from = FILE_SIZE + 5;
        T(sendfile(fd, file, &from, 10));
        from = 10;
        T(sendfile(fd, file, &from, 0));
        from = -1;
        T(sendfile(fd, file, &from, 1));
    }
    B_SIDE rw_recv_stream(fd, 1, FILE_SIZE);
    rw_rest();
    B_SIDE T(recv(fd, buffer, 1, MSG_DONTWAIT));
}

CASE(sendfile_at_the_position)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        int file = stream_file(FILE_SIZE);
        T(sendfile(fd, file, NULL, 30000));
        rw_note("position %ld", (long)lseek(file, 0, SEEK_CUR));
        T(sendfile64(fd, file, NULL, 1 << 30));
        rw_note("position %ld", (long)lseek(file, 0, SEEK_CUR));
        T(sendfile(fd, file, NULL, 10));
    }
    B_SIDE rw_recv_stream(fd, 1, FILE_SIZE);
}

CASE(sendfile_of_much)
{
    enum { LARGE = 5 << 20 };
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        int file = stream_file(LARGE);
        off_t from = 0;
        T(sendfile(fd, file, &from, LARGE));
        T(send(fd, "tail", 4, 0));
    }
    B_SIDE {
        rw_recv_stream(fd, 1, LARGE);
        rw_expect(fd, 4);
    }
}

CASE(sendfile_without_blocking)
{
    enum { LARGE = 40 << 20 };
    rw_nonblocking(fd, true);
    rw_warm(fd, RW_POLL);
    A_SIDE {
        int file = (int)MUST(memfd_create("zeros", 0));
        MUST(ftruncate(file, LARGE));
        off_t from = 0;
        ssize_t n = sendfile(fd, file, &from, LARGE);
        YES(n > 0 && n < LARGE && from == n);
        while (from < LARGE) {
            n = sendfile(fd, file, &from, (size_t)(LARGE - from));
            if (n < 0 && errno != EAGAIN) {
                rw_note("sendfile: %s", rw_errno_name(errno));
                break;
            }
            if (n < 0)
                poll(&(struct pollfd) { fd, POLLOUT, 0 }, 1, 5000);
        }
        T(shutdown(fd, SHUT_WR));
    }
    B_SIDE {
        size_t total = 0, others = 0;
        rw_sleep_ms(30);
        for (;;) {
            ssize_t n = recv(fd, buffer, sizeof buffer, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                break;
            if (n < 0)
                poll(&(struct pollfd) { fd, POLLIN, 0 }, 1, 5000);
            for (ssize_t i = 0; i < n; i++)
                others += buffer[i] != 0;
            total += n > 0 ? (size_t)n : 0;
        }
        rw_note("%zu bytes, %zu wrong", total, others);
    }
}

/* Heads and files in turn, as a web server sends them. */
CASE(sendfile_between_sends)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        int file = stream_file(2000);
        int on = 1, off = 0;
        for (int i = 0; i < 30; i++) {
            off_t from = 0;
            MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
            rw_send_all(fd, "head", 4);
            MUST(sendfile(fd, file, &from, 2000));
            MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
        }
    }
    B_SIDE {
        int wrong = 0;
        for (int i = 0; i < 30; i++) {
            wrong += rw_recv_all(fd, buffer, 4) != 4 || memcmp(buffer, "head", 4) != 0;
            wrong += !rw_take_stream(fd, 1, 2000);
        }
        rw_note("%d wrong", wrong);
    }
}

/* From one connection to another through sendfile is refused; from a connection to a file too. */
CASE(sendfile_that_is_refused)
{
    rw_warm(fd, RW_BLOCK);
    int file = stream_file(100), pipes[2];
    off_t from = 0;
    MUST(pipe(pipes));
    A_SIDE T(send(fd, "data", 4, 0));
    rw_rest();
    B_SIDE {
        T(sendfile(fd, fd, NULL, 4));
        T(sendfile(fd, file, (off_t *)8, 4));
        T(sendfile(file, fd, &from, 4));
        T(sendfile(fd, pipes[0], &from, 4));
        T(sendfile(fd, pipes[0], NULL, 4));
        T(sendfile(fd, pipes[1], &from, 4));
        T(sendfile(fd, pipes[1], NULL, 4));
        int directory = (int)MUST(open("/", O_RDONLY));
        T(sendfile(fd, directory, NULL, 4));
        MUST(close(directory));
        T(sendfile(fd, -1, NULL, 4));
        int writing = (int)MUST(open("/dev/null", O_WRONLY));
        T(sendfile(fd, writing, NULL, 4));
        rw_expect(fd, 4);
    }
    rw_exchange(fd);
}

/* As the kernel makes a splice of it, this is what works. */
CASE(sendfile_into_a_pipe)
{
    int pipes[2];
    off_t from = 0;
    rw_warm(fd, RW_BLOCK);
    MUST(pipe(pipes));
    A_SIDE rw_send_stream(fd, 1, 3000);
    rw_rest();
    B_SIDE {
        T(sendfile(pipes[1], fd, NULL, 1000));
        T(sendfile(pipes[1], fd, &from, 10));
        T(sendfile(pipes[1], fd, NULL, 100000));
        long through = T(read(pipes[0], buffer, sizeof buffer));
        YES(rw_matches(buffer, (size_t)through, 1, 0));
        rw_nonblocking(fd, true);
        T(sendfile(pipes[1], fd, NULL, 10));
        rw_nonblocking(fd, false);
        rw_tell();
        T(sendfile(pipes[1], fd, NULL, 100));
        T(sendfile(pipes[1], fd, NULL, 100));
        rw_bytes("through the pipe", buffer, T(read(pipes[0], buffer, sizeof buffer)));
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "waited for", 10, 0));
        rw_sleep_ms(10);
        T(shutdown(fd, SHUT_WR));
    }
}

static ssize_t moved[3];
static int source, sink[2];

static void *move_in_thread(void *unused)
{
    (void)unused;
    off_t from = 0;
    moved[0] = sendfile(fd, source, &from, 10000);
    moved[1] = splice(sink[0], NULL, fd, NULL, 5000, 0);
    moved[2] = splice(fd, NULL, sink[1], NULL, 5000, 0);
    return NULL;
}

/* Threads may have as little stack as the system allows. */
CASE(in_a_thread_with_the_smallest_stack)
{
    rw_warm(fd, RW_BLOCK);
    source = stream_file(10000);
    MUST(pipe(sink));
    rw_fill(buffer, 5000, 1, 10000);
    MUST(write(sink[1], buffer, 5000));
    rw_send_stream(fd, 2, 5000);
    rw_rest();
    rw_in_small_thread((size_t)sysconf(_SC_THREAD_STACK_MIN), move_in_thread);
    rw_note("moved %zd, %zd, %zd", moved[0], moved[1], moved[2]);
    long through = T(read(sink[0], buffer, sizeof buffer));
    YES(rw_matches(buffer, (size_t)through, 2, 0));
    rw_recv_stream(fd, 1, 15000);
}

CASE(splice_out_of_a_pipe)
{
    int pipes[2];
    rw_warm(fd, RW_BLOCK);
    MUST(pipe(pipes));
    A_SIDE {
        rw_fill(buffer, 50000, 1, 0);
        MUST(write(pipes[1], buffer, 30000));
        T(splice(pipes[0], NULL, fd, NULL, 10000, 0));
        T(splice(pipes[0], NULL, fd, NULL, 50000, SPLICE_F_MORE));
        T(splice(pipes[0], NULL, fd, NULL, 100, SPLICE_F_NONBLOCK));
        MUST(write(pipes[1], buffer + 30000, 20000));
        MUST(close(pipes[1]));
        T(splice(pipes[0], NULL, fd, NULL, 50000, SPLICE_F_MOVE));
        T(splice(pipes[0], NULL, fd, NULL, 100, 0));
        T(send(fd, "tail", 4, 0));
    }
    B_SIDE {
        rw_recv_stream(fd, 1, 50000);
        rw_expect(fd, 4);
    }
}

CASE(splice_into_a_pipe)
{
    int pipes[2];
    rw_warm(fd, RW_BLOCK);
    MUST(pipe(pipes));
    A_SIDE {
        rw_fill(buffer, 3000, 1, 0);
        rw_send_all(fd, buffer, 3000);
    }
    rw_rest();
    B_SIDE {
        T(splice(fd, NULL, pipes[1], NULL, 1000, 0));
        rw_bytes("through the pipe", buffer, T(read(pipes[0], buffer, sizeof buffer)));
        T(recv(fd, buffer, 500, 0));
        T(splice(fd, NULL, pipes[1], NULL, 100000, SPLICE_F_NONBLOCK));
        rw_bytes("through the pipe", buffer, T(read(pipes[0], buffer, sizeof buffer)));
        /* SPLICE_F_NONBLOCK speaks of the pipe only. */
        rw_nonblocking(fd, true);
        T(splice(fd, NULL, pipes[1], NULL, 10, 0));
        rw_nonblocking(fd, false);
        T(splice(fd, NULL, fd, NULL, 10, 0));
        loff_t offset = 0;
        T(splice(fd, &offset, pipes[1], NULL, 10, 0));
        rw_tell();
        T(splice(fd, NULL, pipes[1], NULL, 100, 0));
        T(splice(fd, NULL, pipes[1], NULL, 100, 0));
        T(read(pipes[0], buffer, sizeof buffer));
    }
    A_SIDE {
        rw_hear();
        rw_wait_asleep(rw_pid_of(false));
        T(send(fd, "waited for", 10, 0));
        rw_sleep_ms(10);
        T(shutdown(fd, SHUT_WR));
    }
}

/* Ends of a pipe that are not open for what is asked of them, and flags that mean nothing. */
CASE(splice_that_is_refused)
{
    enum { NO_FLAG = 0x100 };
    int pipes[2];
    rw_warm(fd, RW_BLOCK);
    MUST(pipe(pipes));
    A_SIDE rw_say(fd, "some bytes");
    rw_rest();
    B_SIDE {
        MUST(write(pipes[1], "others", 6));
        T(splice(fd, NULL, pipes[0], NULL, 10, 0));
        T(splice(pipes[1], NULL, fd, NULL, 10, 0));
        T(sendfile(pipes[0], fd, NULL, 10));
        T(splice(fd, NULL, pipes[1], NULL, 10, NO_FLAG));
        T(splice(pipes[0], NULL, fd, NULL, 10, NO_FLAG));
        rw_expect(fd, 10);
        rw_bytes("in the pipe", buffer, T(read(pipes[0], buffer, 100)));
    }
    rw_exchange(fd);
}

/* What a splice has moved comes first, and the error behind it is told by the next call. */
CASE(splice_before_a_reset)
{
    int pipes[2];
    rw_warm(fd, RW_BLOCK);
    MUST(pipe(pipes));
    B_SIDE T(send(fd, "never read", 10, 0));
    rw_rest();
    A_SIDE {
        T(send(fd, "hello", 5, 0));
        T(close(fd));
    }
    rw_rest();
    B_SIDE {
        T(splice(fd, NULL, pipes[1], NULL, 100, 0));
        T(recv(fd, buffer, 10, 0));
        T(recv(fd, buffer, 10, 0));
    }
}

/* A relay: from one connection through a pipe into another, with a copy kept by tee. */
CASE(relay_by_splice)
{
    int other = rw_another(), pipes[2], copies[2];
    rw_nodelay(other);
    rw_warm(fd, RW_BLOCK);
    rw_warm(other, RW_BLOCK);
    MUST(pipe(pipes));
    MUST(pipe(copies));
    A_SIDE {
        rw_send_stream(fd, 1, 300000);
        T(shutdown(fd, SHUT_WR));
        T(recv(fd, buffer, 1, 0));
    }
    B_SIDE {
        long through = 0, n, copied = 0;
        while ((n = splice(fd, NULL, pipes[1], NULL, 20000, 0)) > 0) {
            if (through == 0)
                copied = tee(pipes[0], copies[1], 100, 0);
            through += n;
            while (n > 0)
                n -= MUST(splice(pipes[0], NULL, other, NULL, (size_t)n, SPLICE_F_MORE));
        }
        rw_note("%ld through, %ld copied, then %ld", through, copied, n);
        rw_bytes("copy", buffer, T(read(copies[0], buffer, 200)));
        T(shutdown(fd, SHUT_WR));
    }
    A_SIDE rw_recv_stream(other, 1, 300000);
}

CASE(stdio)
{
    rw_warm(fd, RW_BLOCK);
    char line[100];
    A_SIDE {
        FILE *stream = fdopen(fd, "r+");
        setvbuf(stream, NULL, _IOLBF, 4096);
        for (int i = 0; i < 3; i++) {
            rw_bytes("line", line, fgets(line, sizeof line, stream) ? (long)strlen(line) : -1);
            fprintf(stream, "answer %d\n", i);
            fflush(stream);
        }
        T(dprintf(fd, "number %d of %s\n", 4, "all"));
        fputs("last words", stream);
        T(fclose(stream));
        T(close(fd));
    }
    B_SIDE {
        for (int i = 0; i < 3; i++) {
            snprintf(line, sizeof line, "question %d\n", i);
            rw_send_all(fd, line, strlen(line));
            rw_expect(fd, 9);
        }
        rw_expect(fd, 16);
        rw_expect(fd, 10);
        T(recv(fd, line, 1, 0));
    }
}

/* One stream for each direction over a duplicate, blocks rather than lines, and raw calls in between. */
CASE(stdio_in_blocks)
{
    rw_warm(fd, RW_BLOCK);
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(dup(fd), "w");
    A_SIDE {
        rw_fill(buffer, 60000, 1, 0);
        T(fwrite(buffer, 1, 60000, out));
        T(fflush(out));
        T(send(fd, "!", 1, 0));
        T(getc(in));
        T(fread(buffer, 1, 5000, in));
        YES(rw_matches(buffer, 5000, 2, 0));
    }
    B_SIDE {
        T(fread(buffer, 100, 600, in));
        YES(rw_matches(buffer, 60000, 1, 0));
        T(getc(in));
        T(dprintf(fd, "?"));
        rw_fill(buffer, 5000, 2, 0);
        T(fwrite(buffer, 5000, 1, out));
        T(fclose(out));
    }
    rw_rest();
    T(shutdown(fd, SHUT_WR));
    T(getc(in));
    T(feof(in));
    T(fclose(in));
}

static void await(struct aiocb *request)
{
    const struct aiocb *list[1] = { request };
    while (aio_error(request) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    rw_note("aio: %s, %ld", aio_error(request) ? rw_errno_name(aio_error(request)) : "done", (long)aio_return(request));
}

CASE(asynchronous)
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        struct aiocb request = { .aio_fildes = fd, .aio_buf = "by aio", .aio_nbytes = 6 };
        T(aio_write(&request));
        await(&request);
        struct aiocb first = { .aio_fildes = fd, .aio_buf = "list", .aio_nbytes = 4, .aio_lio_opcode = LIO_WRITE };
        struct aiocb *list[1] = { &first };
        T(lio_listio(LIO_WAIT, list, 1, NULL));
        rw_note("list: %ld", (long)aio_return(&first));
    }
    B_SIDE {
        rw_expect(fd, 10);
        struct aiocb request = { .aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 100 };
        T(aio_read(&request));
        rw_tell();
        await(&request);
        rw_bytes("got", buffer, 6);
    }
    A_SIDE {
        rw_hear();
        rw_sleep_ms(10);
        T(send(fd, "answer", 6, 0));
    }
    rw_exchange(fd);
}

/* A request to the kernel, by a function of libaio's name and form. */
static void ask_kernel(int (*submit)(aio_context_t, long, struct iocb **), int command, void *bytes, size_t length)
{
    aio_context_t context = 0;
    struct iocb request = { .aio_fildes = (unsigned)fd, .aio_lio_opcode = (unsigned short)command };
    struct iocb *list[1] = { &request };
    struct io_event event;
    request.aio_buf = (unsigned long)bytes;
    request.aio_nbytes = length;
    MUST(syscall(SYS_io_setup, 1, &context));
    T(submit(context, 1, list));
    T(syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
    rw_note("kernel's aio: %lld", (long long)event.res);
    MUST(syscall(SYS_io_destroy, context));
}

static int submit_by_number(aio_context_t context, long count, struct iocb **list)
{
    return (int)syscall(SYS_io_submit, context, count, list);
}

/* The program has no libaio: bare, its function is the system call, made past the C library. */
static int submit_past_everything(aio_context_t context, long count, struct iocb **list)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_io_submit), "D"(context), "S"(count), "d"(list) : "rcx", "r11", "memory");
    return (int)result;
}

static void between_sends(int (*submit)(aio_context_t, long, struct iocb **))
{
    rw_warm(fd, RW_BLOCK);
    A_SIDE {
        T(send(fd, "one ", 4, 0));
        ask_kernel(submit, IOCB_CMD_PWRITE, "by aio", 6);
        T(send(fd, " two", 4, 0));
    }
    B_SIDE {
        rw_expect(fd, 14);
        T(send(fd, "answer", 6, 0));
    }
    rw_rest();
    A_SIDE {
        ask_kernel(submit, IOCB_CMD_POLL, (void *)POLLIN, 0);
        ask_kernel(submit, IOCB_CMD_PREAD, buffer, 6);
        rw_bytes("got", buffer, 6);
    }
    rw_exchange(fd);
}

CASE(asynchronous_by_the_kernel)
{
    between_sends(submit_by_number);
}

CASE(asynchronous_by_the_kernel_through_its_library)
{
    void *submit = dlsym(RTLD_DEFAULT, "io_submit");
    between_sends(submit ? (int (*)(aio_context_t, long, struct iocb **))submit : submit_past_everything);
}

RW_MAIN(ENTRY(sendfile_with_an_offset), ENTRY(sendfile_at_the_position), ENTRY(sendfile_of_much), ENTRY(sendfile_without_blocking),
    ENTRY(sendfile_between_sends), ENTRY(sendfile_that_is_refused), ENTRY(sendfile_into_a_pipe),
    ENTRY(in_a_thread_with_the_smallest_stack), ENTRY(splice_out_of_a_pipe), ENTRY(splice_into_a_pipe),
    ENTRY(splice_that_is_refused),
    ENTRY(splice_before_a_reset), ENTRY(relay_by_splice), ENTRY(stdio), ENTRY(stdio_in_blocks), ENTRY(asynchronous),
    ENTRY(asynchronous_by_the_kernel), ENTRY(asynchronous_by_the_kernel_through_its_library))
