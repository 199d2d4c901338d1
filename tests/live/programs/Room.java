import com.sun.management.HotSpotDiagnosticMXBean;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import javax.management.ObjectName;

/**
 * Prints, once for every line of its input, what this virtual machine sees and makes of it. These are processors, physical
 * memory, the bound on its heap, and GC threads of a collection. The agent for HotSpot is asked where it is loaded.
 */
public final class Room {
    public static void main(String[] arguments) throws Exception {
        var system = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
        var flags = ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
        var input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            var runtime = Runtime.getRuntime();
            System.gc();
            long bound = attribute("VirtualMax");
            long heap = bound > 0 ? Math.min(bound, runtime.maxMemory()) : runtime.maxMemory();
            long given = attribute("GcThreadsGiven");
            long threads = given > 0 ? given : Long.parseLong(flags.getVMOption("ParallelGCThreads").getValue());
            System.out.println(runtime.availableProcessors() + " " + system.getTotalMemorySize() + " " + heap + " "
                    + threads);
        }
    }

    /** An attribute of the agent's bean; 0 without one. */
    private static long attribute(String name) {
        try {
            var bean = new ObjectName("elbowroom:type=Room");
            return ((Number) ManagementFactory.getPlatformMBeanServer().getAttribute(bean, name)).longValue();
        } catch (Exception absent) {
            return 0;
        }
    }
}
