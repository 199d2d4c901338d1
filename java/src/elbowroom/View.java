// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

/**
 * The view page: what this container can really use now, in a page of memory that an agent keeps current (shim/view.h is its
 * description). A number takes two loads from memory, and no reader waits.
 *
 * <p>Where no agent shows a view, numbers are 0; the page is looked for again at most once a second. Safe for any number of
 * threads.
 */
public final class View {
    /** Where the page is, unless the environment variable ELBOWROOM_VIEW says otherwise. */
    public static final String PATH = "/sys/devices/system/cpu/elbowroom";

    private static final long MAGIC = 0x656c626f77726d00L; // "elbowrm" and a zero, first byte first
    private static final int VERSION = 1;
    private static final int SIZE = 4096;
    private static final int GENERATION = 16;
    private static final int CHANGES = 20;
    private static final int VIEWS = 64;
    private static final int VIEW_SIZE = 256;
    private static final int MEMORY = 16;
    private static final int MEMORY_MOST = 24;
    private static final int MEMORY_USED = 32;
    private static final int MEMORY_INACTIVE_FILE = 40;
    private static final long LOOK_EVERY_NANOS = 1_000_000_000L;
    private static final long WAIT_MILLIS = 20;

    private static final VarHandle INT =
            MethodHandles.byteBufferViewVarHandle(int[].class, ByteOrder.nativeOrder());
    private static final VarHandle LONG =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());

    /** What is mapped, or null, and when that was found out. */
    private static final class Look {
        final ByteBuffer page;
        final long at = System.nanoTime();

        Look(ByteBuffer page) {
            this.page = page;
        }
    }

    private final Path path;
    private volatile Look look;

    /** The view of this container. */
    public View() {
        this(Path.of(System.getenv().getOrDefault("ELBOWROOM_VIEW", PATH)));
    }

    /** The view of a page at another place. */
    public View(Path path) {
        this.path = path;
        look = new Look(map());
    }

    /** Effective CPU in whole CPUs; 0 where no agent shows a view. */
    public int cpus() {
        ByteBuffer page = page();
        return page == null ? 0 : cpus(page);
    }

    /** Effective memory in bytes; 0 where no agent shows a view. */
    public long memory() {
        return number(MEMORY);
    }

    /** The most that can become: the hard limit, or the machine's memory, in bytes; 0 where no agent shows a view. */
    public long memoryMost() {
        return number(MEMORY_MOST);
    }

    /** Memory charged to the container when last looked at, in bytes; 0 where that is not known. */
    public long memoryUsed() {
        return number(MEMORY_USED);
    }

    /** The part of {@link #memoryUsed} that the kernel takes back first, in bytes. */
    public long memoryInactiveFile() {
        return number(MEMORY_INACTIVE_FILE);
    }

    /**
     * Counts the changes of what the container may use; -1 where no agent shows a view. What {@link #waitForChange} is told.
     */
    public int changes() {
        ByteBuffer page = page();
        return page == null ? -1 : (int) INT.getAcquire(page, CHANGES);
    }

    /**
     * Waits until there is another view than the one of which {@link #changes} said {@code seen}, or the agent went away or came
     * back. Java has no way to wait for memory of others: it looks fifty times a second.
     *
     * @return whether that happened within {@code most}
     */
    public boolean waitForChange(int seen, Duration most) throws InterruptedException {
        long end = System.nanoTime() + most.toNanos();
        while (changes() == seen) {
            long left = (end - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                return false;
            }
            Thread.sleep(Math.min(left, WAIT_MILLIS));
        }
        return true;
    }

    /** The page where an agent keeps it, else null. */
    private ByteBuffer page() {
        Look now = look;
        if (now.page != null && cpus(now.page) != 0) {
            return now.page;
        }
        if (System.nanoTime() - now.at < LOOK_EVERY_NANOS) {
            return null;
        }
        ByteBuffer page = map();
        look = new Look(page);
        return page != null && cpus(page) != 0 ? page : null;
    }

    private long number(int offset) {
        ByteBuffer page = page();
        return page == null ? 0 : (long) LONG.getAcquire(page, view(page) + offset);
    }

    private static int view(ByteBuffer page) {
        return VIEWS + VIEW_SIZE * ((int) INT.getAcquire(page, GENERATION) & 1);
    }

    private static int cpus(ByteBuffer page) {
        return (int) INT.getAcquire(page, view(page));
    }

    /** Null where there is no page: an empty file is a view without one. */
    private ByteBuffer map() {
        try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
            if (file.size() != SIZE) {
                return null;
            }
            ByteBuffer page = file.map(FileChannel.MapMode.READ_ONLY, 0, SIZE);
            boolean ours = page.order(ByteOrder.BIG_ENDIAN).getLong(0) == MAGIC
                    && page.order(ByteOrder.nativeOrder()).getInt(8) == VERSION;
            return ours ? page : null;
        } catch (IOException absent) {
            return null;
        }
    }
}
