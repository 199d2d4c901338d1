// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.util.ArrayList;
import java.util.List;

/** What stands behind the {@code =} of {@code -javaagent}: {@code key=value,key=value}. */
final class Options {
    /** Govern the heap. */
    boolean heap = true;
    /** Govern GC threads. */
    boolean threads = true;
    /** Govern the common pool and the scheduler of virtual threads. */
    boolean pools = true;
    /** Use the native library at all. */
    boolean nativeCode = true;
    /** The part of effective memory that is the heap's, in percent; 0 is for us to say. */
    int percent = 0;
    /** Between two looks, in milliseconds. */
    long period = 1000;
    /** Until the bean is registered, in seconds; negative is never. */
    long jmx;
    /** Say decisions on standard error. */
    boolean log = false;
    /** What was not understood: said in the bean, and otherwise ignored. */
    final List<String> ignored = new ArrayList<>();

    private Options(boolean attached) {
        // A bean server made too early settles the program's log manager before the program does.
        jmx = attached ? 0 : 10;
    }

    static Options parse(String text, boolean attached) {
        Options options = new Options(attached);
        for (String word : (text == null ? "" : text).split(",")) {
            if (!word.isEmpty() && !options.take(word)) {
                options.ignored.add(word);
            }
        }
        return options;
    }

    private boolean take(String word) {
        int equals = word.indexOf('=');
        String key = equals < 0 ? word : word.substring(0, equals);
        String value = equals < 0 ? "on" : word.substring(equals + 1);
        boolean isSwitch = value.equals("on") || value.equals("off");
        boolean on = value.equals("on");
        switch (key) {
            case "heap":
                heap = isSwitch ? on : heap;
                percent = isSwitch ? percent : number(value, 5, 95, percent);
                return isSwitch || percent > 0;
            case "threads":
                threads = on;
                return isSwitch;
            case "pools":
                pools = on;
                return isSwitch;
            case "native":
                nativeCode = on;
                return isSwitch;
            case "log":
                log = on;
                return isSwitch;
            case "period-ms":
                period = number(value, 1, 3_600_000, (int) period);
                return number(value, 1, 3_600_000, -1) > 0;
            case "jmx":
                jmx = isSwitch ? (on ? 0 : -1) : number(value, 0, 86_400, (int) jmx);
                return isSwitch || number(value, 0, 86_400, -1) >= 0;
            default:
                return false;
        }
    }

    private static int number(String text, int least, int most, int otherwise) {
        try {
            int number = Integer.parseInt(text);
            return number >= least && number <= most ? number : otherwise;
        } catch (NumberFormatException notOne) {
            return otherwise;
        }
    }
}
