import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;

/** Says what this virtual machine sees, once for every line of its input: processors, physical memory, largest heap. */
public final class Sees {
    public static void main(String[] arguments) throws Exception {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        var input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            var runtime = Runtime.getRuntime();
            System.out.println(
                    runtime.availableProcessors() + " " + system.getTotalMemorySize() + " " + runtime.maxMemory());
        }
    }
}
