// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.util.List;

/** {@code elbowroom:type=Room}: what this virtual machine sees, what it was made to do, and why. */
public interface RoomMXBean {
    /** CPUs the machine may use now. */
    int getEffectiveCpus();

    /** Memory the machine may use now, in bytes. */
    long getEffectiveMemory();

    /** The bound on the committed heap that is in force, in bytes; 0 is none. */
    long getVirtualMax();

    /** Where the heap is in section 4.2 of the paper: UNBOUND, FITS, RELEASE, COLLECT or LIFTED. */
    String getHeapScenario();

    /** What bounds the heap: VirtualMax, SoftMaxHeapSize, MaxHeapFreeRatio or none. */
    String getHeapKnob();

    /** Collections that were asked for to make the heap fit. */
    long getCollections();

    /** How often the bound was lifted because the program could not live under it. */
    long getLifts();

    /** GC threads there are, as of the last decision. */
    long getGcThreadsTotal();

    /** GC threads HotSpot wanted at the last decision. */
    long getGcThreadsWanted();

    /** GC threads it was given. */
    long getGcThreadsGiven();

    /** Decisions on GC threads so far. */
    long getGcThreadDecisions();

    /** Those of them that gave fewer than HotSpot wanted. */
    long getGcThreadsCapped();

    /** All of it in sentences, and why what is not governed is not. */
    List<String> getExplanation();
}
