// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/**
 * A manageable flag that its user may set too, at any time. What is found there and was not there when we looked last is theirs:
 * it is what counts from then on, and what they get back.
 */
final class Flag {
    private final Machine machine;
    private final String name;
    /** What is there as far as we know: theirs, or what we wrote over it. No manageable flag is negative. */
    private long last = -1;
    private long theirs = -1;

    Flag(Machine machine, String name) {
        this.machine = machine;
        this.name = name;
    }

    /** What the user wants. */
    long theirs() {
        // What cannot be read is no wish of a user.
        long now = machine.number(name, last);
        if (now != last) {
            last = now;
            theirs = now;
        }
        return theirs;
    }

    /** True when it is so afterwards. */
    boolean set(long value) {
        theirs();
        if (value != last && machine.set(name, value)) {
            last = value;
        }
        return value == last;
    }

    boolean giveBack() {
        return set(theirs());
    }
}
