// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.lang.instrument.Instrumentation;

/**
 * The way in, and the only class that is compiled for JDK 8. A virtual machine that cannot read an agent's class ends the
 * program; one that is too old for the other classes must only be left alone.
 */
public final class Boot {
    private Boot() {}

    public static void premain(String options, Instrumentation instrumentation) {
        start(options, instrumentation, false);
    }

    public static void agentmain(String options, Instrumentation instrumentation) {
        start(options, instrumentation, true);
    }

    /** Attaches to a virtual machine that runs already. */
    public static void main(String[] arguments) throws Exception {
        if (isTooOld()) {
            System.err.println("elbowroom: this Java is older than 11: use another to attach with");
            System.exit(2);
        }
        Class.forName("elbowroom.agent.Attach").getMethod("main", String[].class).invoke(null, (Object) arguments);
    }

    private static void start(String options, Instrumentation instrumentation, boolean attached) {
        if (isTooOld()) {
            return;
        }
        try {
            Class.forName("elbowroom.agent.Agent")
                    .getMethod("start", String.class, Instrumentation.class, boolean.class)
                    .invoke(null, options, instrumentation, attached);
        } catch (Throwable any) {
            // An exception from here would end the program that this is only a guest of.
        }
    }

    private static boolean isTooOld() {
        String version = System.getProperty("java.specification.version", "1.");
        return version.startsWith("1.") || version.equals("9") || version.equals("10");
    }
}
