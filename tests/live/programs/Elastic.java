import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.ForkJoinPool;
import java.util.logging.LogManager;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/** Does what it is told, one word a line, and answers each with a line. */
public final class Elastic {
    private static final List<byte[]> held = new ArrayList<>();

    /** A program's own. */
    public static final class Manager extends LogManager {}

    public static void main(String[] arguments) throws Exception {
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            System.out.println(answer(words[0], words.length > 1 ? words[1] : null));
        }
    }

    private static String answer(String word, String argument) throws Exception {
        switch (word) {
            case "hold": // MiB that live
                held.clear();
                for (int i = 0; i < 16 * Integer.parseInt(argument); i++) {
                    held.add(new byte[1 << 16]);
                }
                return "held";
            case "array": // one, of this many MiB
                held.clear();
                held.add(new byte[Integer.parseInt(argument) << 20]);
                return "held";
            case "churn": // MiB of garbage
                int sum = 0;
                for (int i = 0; i < 16 * Integer.parseInt(argument); i++) {
                    sum += new byte[1 << 16].length >> 16;
                }
                return Integer.toString(sum);
            case "renew": // MiB of small objects, of which 90 MiB live at a time
                byte[][] ring = new byte[90 << 13][];
                for (int i = 0; i < Integer.parseInt(argument) << 13; i++) {
                    ring[i % ring.length] = new byte[112];
                }
                return Integer.toString(ring.length);
            case "committed":
                return Long.toString(Runtime.getRuntime().totalMemory());
            case "logs": // the class of the log manager, which the program settles as late as this
                System.setProperty("java.util.logging.manager", Manager.class.getName());
                return LogManager.getLogManager().getClass().getSimpleName();
            case "pool":
                return Integer.toString(ForkJoinPool.commonPool().getParallelism());
            case "room":
                return room(argument);
            default:
                return "what?";
        }
    }

    private static String room(String attribute) throws Exception {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        ObjectName room = new ObjectName("elbowroom:type=Room");
        if (!server.isRegistered(room)) {
            return "";
        }
        Object value = server.getAttribute(room, attribute);
        return value instanceof String[] ? String.join(" | ", (String[]) value) : value.toString();
    }
}
