import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Random;

/** The same as programs/sandbox.py: java Sandbox PATH MIB HOT. */
class Sandbox {
    public static void main(String[] words) throws Exception {
        byte[][] held = new byte[Integer.parseInt(words[1])][1 << 20];
        // Pages are compressed one by one: that blocks are alike saves nothing, and is quicker to make on an emulated CPU.
        new Random(1).nextBytes(held[0]);
        for (byte[] block : held) System.arraycopy(held[0], 0, block, 0, block.length);
        try (ServerSocketChannel listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
            listener.bind(UnixDomainSocketAddress.of(words[0]));
            System.out.println("ready");
            while (true) {
                try (SocketChannel peer = listener.accept()) {
                    ByteBuffer request = ByteBuffer.allocate(4096);
                    peer.read(request);
                    String id = new String(request.array(), 0, request.position(), StandardCharsets.UTF_8);
                    long total = 0;
                    for (int i = 0; i < Integer.parseInt(words[2]); i++)
                        for (int at = 0; at < held[i].length; at += 4096) total += ++held[i][at];
                    String answer = id.trim().replace("}", ", \"total\": " + total + "}");
                    peer.write(ByteBuffer.wrap(answer.getBytes(StandardCharsets.UTF_8)));
                }
            }
        }
    }
}
