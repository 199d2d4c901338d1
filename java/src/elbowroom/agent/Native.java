// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.io.IOException;
import java.io.InputStream;
import java.lang.instrument.Instrumentation;
import java.lang.reflect.Method;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;

/** The native half: native/agent.c. Its answers are {@code null} when all is well, or a sentence. */
final class Native {
    private Native() {}

    private static final String RESOURCE = "/elbowroom/agent/x86-64.so";
    private static final String BESIDE = "libelbowroom-java.so";

    /** What the library counts; in the order of agent.c. */
    static final class State {
        private final long[] words = new long[12];

        long prepared() {
            return words[0];
        }

        long placed() {
            return words[1];
        }

        long total() {
            return words[2];
        }

        long active() {
            return words[3];
        }

        long given() {
            return words[4];
        }

        long effectiveCpu() {
            return words[5];
        }

        long decisions() {
            return words[6];
        }

        long capped() {
            return words[7];
        }

        long liftedTo() {
            return words[8];
        }

        long refused() {
            return words[9];
        }

        long lifted() {
            return words[10];
        }

        long forbidden() {
            return words[11];
        }
    }

    /** Loads the library of this jar: from beside the jar, where it is, or by way of a private file, which is gone afterwards. */
    static String load(Instrumentation instrumentation) {
        allow(instrumentation);
        Path file = null;
        try (InputStream resource = Native.class.getResourceAsStream(RESOURCE)) {
            if (resource == null) {
                return "this jar has no native library";
            }
            byte[] library = resource.readAllBytes();
            if (isLoadedFrom(beside(), library)) {
                return null;
            }
            var ownerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"));
            file = Files.createTempFile("elbowroom-", ".so", ownerOnly);
            Files.write(file, library);
            System.load(file.toString());
            return null;
        } catch (IOException | RuntimeException | UnsatisfiedLinkError error) {
            return "the native library cannot be loaded: " + error.getMessage();
        } finally {
            delete(file);
        }
    }

    /** Where the program that gave us to a container without a directory for temporary files put the library, or {@code null}. */
    private static Path beside() {
        try {
            return Path.of(Native.class.getProtectionDomain().getCodeSource().getLocation().toURI()).resolveSibling(BESIDE);
        } catch (URISyntaxException | RuntimeException unknown) {
            return null;
        }
    }

    /** False where another library is there, or none, or where it may not be loaded from. */
    static boolean isLoadedFrom(Path file, byte[] library) {
        try {
            if (file == null || !Arrays.equals(Files.readAllBytes(file), library)) {
                return false;
            }
            System.load(file.toString());
            return true;
        } catch (IOException | RuntimeException | UnsatisfiedLinkError refused) {
            return false;
        }
    }

    /**
     * From JDK 24 on a library that is loaded by a program without --enable-native-access is a warning of four lines. A user
     * who loads an agent into the virtual machine has already given it more rights than that.
     */
    private static void allow(Instrumentation instrumentation) {
        try {
            if (Runtime.version().feature() >= 24) {
                Modules.openJavaLang(instrumentation);
                Method all = Module.class.getDeclaredMethod("implAddEnableNativeAccessToAllUnnamed");
                all.setAccessible(true);
                all.invoke(null);
            }
        } catch (ReflectiveOperationException | RuntimeException refused) {
            // Then there is the warning.
        }
    }

    private static void delete(Path file) {
        try {
            if (file != null) {
                Files.deleteIfExists(file);
            }
        } catch (IOException | RuntimeException error) {
            // It is a private file of 30 kB in a directory for temporary files.
        }
    }

    static State state() {
        State state = new State();
        state(state.words);
        return state;
    }

    /** Says which virtual machine and collector this is; from here on collections are seen. */
    static native String machine(int version, int collector, int leastThreads);

    /** Governs GC threads. `collected`: there has been a collection, counted after {@link #machine}. */
    static native String threads(boolean collected);

    /** Makes {@link #setVirtualMax} possible. */
    static native String heap();

    /** However often the bound was lifted. */
    static final long ANY_LIFTS = -1;

    /**
     * VirtualMax, and what it is lifted to before an OutOfMemoryError, in bytes; 0 is none. Nothing happens where it was lifted more
     * than `lifts` times.
     */
    static native void setVirtualMax(long bytes, long lifted, long lifts);

    private static native void state(long[] into);

    /** The value of a flag of `size` bytes, or -1. */
    static native int flag(String name, int size);

    static native boolean setFlag(String name, int size, int value);
}
