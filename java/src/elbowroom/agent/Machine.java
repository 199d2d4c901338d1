// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import com.sun.management.HotSpotDiagnosticMXBean;
import com.sun.management.OperatingSystemMXBean;
import com.sun.management.VMOption;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryMXBean;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;
import java.lang.management.MemoryUsage;
import java.util.ArrayList;
import java.util.List;

/** The virtual machine we are in, by its public interfaces. */
final class Machine {
    final int version = Runtime.version().feature();
    final Collector collector;
    final long maxHeap = Runtime.getRuntime().maxMemory();
    private long memorySize = Long.MAX_VALUE;
    private final List<GarbageCollectorMXBean> collectors = ManagementFactory.getGarbageCollectorMXBeans();
    private final MemoryMXBean memory = ManagementFactory.getMemoryMXBean();
    private final HotSpotDiagnosticMXBean flags = ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
    private final OperatingSystemMXBean system = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);

    Machine() {
        List<String> names = new ArrayList<>();
        collectors.forEach(bean -> names.add(bean.getName()));
        collector = Collector.of(names);
    }

    /** Why native code keeps its hands off this machine, or {@code null}. */
    String strange() {
        String name = System.getProperty("java.vm.name", "");
        String processor = System.getProperty("os.arch", "");
        String system = System.getProperty("os.name", "");
        if (!name.equals("OpenJDK 64-Bit Server VM") && !name.startsWith("Java HotSpot(TM) 64-Bit Server VM")) {
            return "this virtual machine is not known here: " + name;
        }
        if (!processor.equals("amd64") || !system.equals("Linux")) {
            return "there is no native part for " + system + " on " + processor;
        }
        if (version != 11 && version != 17 && version != 21 && version != 25) {
            return "JDK " + version + " is not one of 11, 17, 21 and 25, which this was tested with";
        }
        return null;
    }

    /** CPUs this machine may use now: cgroup files, read anew every 20 ms at most. */
    int effectiveCpus() {
        return Runtime.getRuntime().availableProcessors();
    }

    /** Memory this machine may use now, in bytes: the cgroup's limit or the host's memory; the last, when that is unreadable. */
    @SuppressWarnings("deprecation") // its successor came with JDK 14
    long effectiveMemory() {
        try {
            long size = system.getTotalPhysicalMemorySize();
            memorySize = size > 0 ? size : memorySize;
        } catch (RuntimeException unreadable) {
            // The machine parses the cgroup's file, and lets what it thinks of it through.
        }
        return memorySize;
    }

    MemoryUsage heap() {
        return memory.getHeapMemoryUsage();
    }

    /** What lived after the last collection, as far as the pools know. */
    long live() {
        long live = 0;
        for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
            MemoryUsage usage = pool.getType() == MemoryType.HEAP ? pool.getCollectionUsage() : null;
            live += usage == null ? 0 : usage.getUsed();
        }
        return live;
    }

    /** Collections so far. */
    long collections() {
        return collectors.stream().mapToLong(bean -> Math.max(0, bean.getCollectionCount())).sum();
    }

    /** Time spent in collections that stop the program, in milliseconds. */
    long collecting() {
        return collectors.stream()
                .filter(bean -> !bean.getName().endsWith("Cycles"))
                .mapToLong(bean -> Math.max(0, bean.getCollectionTime()))
                .sum();
    }

    /** A flag as text, or {@code null} where there is none. */
    String flag(String name) {
        try {
            return flags.getVMOption(name).getValue();
        } catch (RuntimeException unknown) {
            return null;
        }
    }

    /** Whether it was not said what a flag is to be; false where there is none. */
    boolean isDefault(String name) {
        try {
            return flags.getVMOption(name).getOrigin() == VMOption.Origin.DEFAULT;
        } catch (RuntimeException unknown) {
            return false;
        }
    }

    long number(String name, long otherwise) {
        String value = flag(name);
        try {
            return value == null ? otherwise : Long.parseLong(value);
        } catch (NumberFormatException strange) {
            return otherwise;
        }
    }

    /** Writes a manageable flag; false where it cannot be. */
    boolean set(String name, long value) {
        try {
            flags.setVMOption(name, Long.toString(value));
            return true;
        } catch (RuntimeException refused) {
            return false;
        }
    }
}
