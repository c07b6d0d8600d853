import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;

/** An echo server on a selector, and a client with blocking sockets: server PORT | client PORT CONNECTIONS ROUNDS. */
public final class NioEcho {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            serve(port);
        } else {
            load(port, Integer.parseInt(args[2]), Integer.parseInt(args[3]));
        }
    }

    private static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Reads what is there and writes what the socket takes; waits for writability only while bytes are left over. */
    private static void echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        boolean leftOver = buffer.hasRemaining();
        buffer.compact();
        key.interestOps(leftOver ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }

    private static void load(int port, int connections, int rounds) throws Exception {
        Thread[] threads = new Thread[connections];
        Throwable[] failure = new Throwable[1];
        for (int i = 0; i < connections; i++) {
            final int number = i;
            threads[i] = new Thread(() -> {
                try {
                    talk(port, number, rounds);
                } catch (Throwable t) {
                    failure[0] = t;
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure[0] != null) {
            failure[0].printStackTrace();
            System.exit(1);
        }
        System.out.println("ok " + connections * rounds + " rounds");
    }

    private static void talk(int port, int number, int rounds) throws IOException {
        Random random = new Random(number);
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setTcpNoDelay(true);
            OutputStream out = socket.getOutputStream();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (int turn = 0; turn < rounds; turn++) {
                byte[] message = new byte[1 + random.nextInt(20000)];
                random.nextBytes(message);
                out.write(message);
                byte[] answer = new byte[message.length];
                in.readFully(answer);
                if (!Arrays.equals(message, answer)) {
                    throw new IOException("connection " + number + " round " + turn + ": the answer differs");
                }
            }
        }
    }
}
