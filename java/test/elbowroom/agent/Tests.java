// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import elbowroom.View;
import elbowroom.agent.HeapPolicy.Look;
import elbowroom.agent.HeapPolicy.Scenario;
import elbowroom.agent.HeapPolicy.Step;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ForkJoinPool;

/** Tests of what is pure: every method of this class without parameters is one. */
final class Tests {
    private static final long MIB = 1 << 20;

    private Tests() {}

    public static void main(String[] arguments) throws IllegalAccessException {
        int passed = 0;
        int failed = 0;
        for (Method test : Tests.class.getDeclaredMethods()) {
            if (test.isSynthetic() || test.getParameterCount() > 0) {
                continue;
            }
            try {
                test.invoke(null);
                passed++;
            } catch (InvocationTargetException failure) {
                failed++;
                System.out.println("FAILED: " + test.getName() + ": " + failure.getCause());
            }
        }
        System.out.println("java: " + passed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    private static void is(Object got, Object wanted, String what) {
        if (!got.equals(wanted)) {
            throw new AssertionError(what + " is " + got + ", not " + wanted);
        }
    }

    // ---- the view page ----

    /** Writes a page as shim/view.h has it, and shows one view after the other in it. */
    private static final class Page implements AutoCloseable {
        final Path path = Files.createTempFile("elbowroom-test-", "");
        final ByteBuffer bytes;
        int generation;

        Page() throws IOException {
            Files.write(path, new byte[4096]);
            try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                bytes = file.map(FileChannel.MapMode.READ_WRITE, 0, 4096).order(ByteOrder.nativeOrder());
            }
            for (int at = 0; at < 7; at++) {
                bytes.put(at, (byte) "elbowrm".charAt(at));
            }
            bytes.putInt(8, 1).putInt(12, 256);
        }

        void show(int cpus, long memory) {
            int at = 64 + 256 * (++generation & 1);
            bytes.putInt(at, cpus).putLong(at + 16, memory);
            bytes.putLong(at + 24, memory + 1).putLong(at + 32, memory + 2).putLong(at + 40, memory + 3);
            bytes.putInt(16, generation).putInt(20, generation);
        }

        @Override
        public void close() throws IOException {
            Files.deleteIfExists(path);
        }
    }

    static void a_view_is_what_the_page_shows_last() throws Exception {
        try (Page page = new Page()) {
            page.show(3, 1 << 30);
            View view = new View(page.path);
            for (int cpus : new int[] {3, 1, 1024}) {
                page.show(cpus, cpus * MIB);
                is(view.cpus(), cpus, "cpus");
                is(view.memory(), cpus * MIB, "memory");
                is(view.memoryMost(), cpus * MIB + 1, "the most memory");
                is(view.memoryUsed(), cpus * MIB + 2, "memory used");
                is(view.memoryInactiveFile(), cpus * MIB + 3, "inactive file pages");
            }
        }
    }

    static void who_waits_is_told_of_a_change_and_of_nothing_else() throws Exception {
        try (Page page = new Page()) {
            page.show(2, MIB);
            View view = new View(page.path);
            int seen = view.changes();
            is(view.waitForChange(seen, Duration.ofMillis(60)), false, "a change");
            Thread later = new Thread(() -> page.show(1, MIB));
            later.start();
            is(view.waitForChange(seen, Duration.ofSeconds(60)), true, "a change");
            later.join();
            is(view.cpus(), 1, "cpus");
        }
    }

    static void without_a_page_there_is_nothing_and_a_later_one_is_found() throws Exception {
        try (Page page = new Page()) {
            page.show(0, 0);
            View view = new View(page.path);
            is(view.cpus() + view.memory() + view.changes(), -1L, "a page without an agent");
            page.show(4, MIB);
            is(view.waitForChange(-1, Duration.ofSeconds(60)), true, "the next agent");
            is(view.cpus(), 4, "cpus");
            Files.write(page.path, new byte[0]);
            is(new View(page.path).cpus(), 0, "an empty file");
            Files.write(page.path, new byte[4096]);
            is(new View(page.path).cpus(), 0, "a file of another kind");
        }
        is(new View(Path.of("/no/such/page")).cpus(), 0, "no file");
    }

    /** Both numbers of a view are of that view, however fast it changes. */
    static void no_number_is_torn() throws Exception {
        try (Page page = new Page()) {
            page.show(1, 0x0101010101010101L);
            View view = new View(page.path);
            Thread writer = new Thread(() -> {
                for (int n = 0; n < 300_000; n++) {
                    page.show(1 + n % 100, 0x0101010101010101L * (1 + n % 100));
                }
            });
            writer.start();
            while (writer.isAlive()) {
                int cpus = view.cpus();
                long memory = view.memory();
                is(cpus >= 1 && cpus <= 100, true, "cpus " + cpus);
                is(memory, 0x0101010101010101L * (memory & 0xff), "memory");
            }
        }
    }

    // ---- the heap of section 4.2 ----

    /** A heap of at most 1000 MiB: `target`, `used`, `committed` in MiB, at `now` seconds. */
    private static Look look(double now, long target, long used, long committed) {
        Look look = new Look();
        look.now = (long) (now * 1000);
        look.target = target * MIB;
        look.ceiling = 800 * MIB;
        look.maxHeap = 1000 * MIB;
        look.used = used * MIB;
        look.committed = committed * MIB;
        return look;
    }

    private static void step(HeapPolicy policy, Look look, Scenario scenario, long bound, boolean collect) {
        Step step = policy.step(look);
        is(step.scenario, scenario, "scenario");
        is(step.bound / MIB, bound, "bound");
        is(step.collect, collect, "collect");
    }

    static void aHeapWithAllTheRoomItWasBornWithIsNotBound() {
        step(new HeapPolicy(), look(0, 1000, 900, 950), Scenario.UNBOUND, 0, false);
    }

    static void firstScenarioWhatIsCommittedFits() {
        step(new HeapPolicy(), look(0, 500, 100, 400), Scenario.FITS, 500, false);
    }

    static void secondScenarioWhatIsNotUsedIsReleased() {
        step(new HeapPolicy(), look(0, 300, 100, 400), Scenario.RELEASE, 300, true);
    }

    static void thirdScenarioGarbageIsCollectedFirst() {
        step(new HeapPolicy(), look(0, 300, 350, 400), Scenario.COLLECT, 300, true);
    }

    static void collectionsAreRepeatedUntilItFits() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, look(0, 300, 380, 400), Scenario.COLLECT, 300, true);
        step(policy, look(0.5, 300, 340, 360), Scenario.COLLECT, 300, false);
        step(policy, look(1, 300, 340, 360), Scenario.COLLECT, 300, true);
        step(policy, look(2, 300, 280, 320), Scenario.RELEASE, 300, true);
        step(policy, look(3, 300, 280, 300), Scenario.FITS, 300, false);
    }

    static void collectionsThatDoNotHelpBackOff() {
        HeapPolicy policy = new HeapPolicy();
        int collections = 0;
        for (int second = 0; second < 1000; second++) {
            collections += policy.step(look(second, 300, 390, 400)).collect ? 1 : 0;
        }
        // After 0, 1, 3, 7, 15, 31 and 63 s, then every 64 s.
        is(collections, 7 + (1000 - 63) / 64, "collections in 1000 s");
    }

    /** Times, in seconds, of collections of a heap that fits after each and is too large again `after` seconds later. */
    private static List<Integer> collectionsOfAHeapThatGrowsAgain(int after, int seconds) {
        HeapPolicy policy = new HeapPolicy();
        List<Integer> collections = new ArrayList<>();
        int last = -after;
        for (int second = 0; second < seconds; second++) {
            // Larger and smaller by turns: less than it was is not less than it gets.
            long large = 400 - 50 * (collections.size() % 2);
            boolean fits = second < last + after;
            if (policy.step(look(second, 300, fits ? 100 : large, fits ? 200 : large)).collect) {
                collections.add(second);
                last = second;
            }
        }
        return collections;
    }

    static void collectionsOfAHeapThatSoonGrowsAgainBackOff() {
        is(collectionsOfAHeapThatGrowsAgain(2, 200), List.of(0, 2, 4, 6, 10, 18, 34, 66, 130, 194), "after 2 s");
        is(collectionsOfAHeapThatGrowsAgain(10, 200), List.of(0, 10, 20, 30, 40, 50, 66, 98, 162), "after 10 s");
    }

    static void collectionsOfAHeapThatIsTooLargeAgainAtTheNextLookBackOff() {
        HeapPolicy policy = new HeapPolicy();
        int collections = 0;
        for (int second = 0; second < 1000; second++) {
            // A collection helps, and half a second later it is as large and as full as it happens to be.
            long by = 40 * (second * 7 % 5);
            collections += policy.step(look(second, 300, 350 + by / 2, 360 + by)).collect ? 1 : 0;
        }
        is(collections < 30, true, collections + " collections, few of them,");
    }

    static void aHeapThatFittedForTheLongestPauseIsCollectedAtOnce() {
        is(collectionsOfAHeapThatGrowsAgain(70, 300), List.of(0, 70, 140, 210, 280), "after 70 s");
        HeapPolicy policy = new HeapPolicy();
        for (int second = 0; second < 128; second++) {
            policy.step(look(second, 300, 390, 400));
        }
        for (int second = 128; second < 193; second++) {
            step(policy, look(second, 300, 100, 200), Scenario.FITS, 300, false);
        }
        step(policy, look(193, 300, 390, 400), Scenario.COLLECT, 300, true);
        step(policy, look(194, 300, 340, 360), Scenario.COLLECT, 300, true);
    }

    static void aNewTargetIsTriedAtOnce() {
        HeapPolicy policy = new HeapPolicy();
        for (int second = 0; second < 100; second++) {
            policy.step(look(second, 300, 390, 400));
        }
        step(policy, look(100, 290, 390, 400), Scenario.COLLECT, 290, true);
    }

    static void growthIsAllowedAtOnce() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, look(0, 300, 350, 400), Scenario.COLLECT, 300, true);
        step(policy, look(0.1, 600, 350, 400), Scenario.FITS, 600, false);
        step(policy, look(0.2, 1000, 350, 400), Scenario.UNBOUND, 0, false);
    }

    static void whatLivesIsNeverBoundOut() {
        Look look = look(0, 300, 420, 500);
        look.live = 400 * MIB;
        step(new HeapPolicy(), look, Scenario.COLLECT, 450, true);
    }

    static void whatLivesFitsAsWellAsItCan() {
        Look look = look(0, 300, 295, 325);
        look.live = 290 * MIB;
        step(new HeapPolicy(), look, Scenario.FITS, 326, false);
    }

    static void aTargetThatGrowsIsNoReasonToForgetHowLittleCollectionsHelp() {
        HeapPolicy policy = new HeapPolicy();
        int collections = 0;
        for (int second = 0; second < 64; second++) {
            collections += policy.step(look(second, 300 + second, 390, 400)).collect ? 1 : 0;
        }
        // After 0, 1, 3, 7, 15, 31 and 63 s.
        is(collections, 7, "collections");
    }

    static void whatOnceLivedBoundsNothing() {
        Look look = look(0, 300, 100, 250);
        look.live = 900 * MIB;
        step(new HeapPolicy(), look, Scenario.FITS, 300, false);
    }

    /** `look` with this many milliseconds of collections since the start. */
    private static Look collecting(Look look, long milliseconds) {
        look.collecting = milliseconds;
        return look;
    }

    static void theBoundIsLiftedForAProgramThatOnlyCollects() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, collecting(look(0, 300, 290, 300), 1000), Scenario.FITS, 300, false);
        step(policy, collecting(look(4, 300, 290, 300), 4900), Scenario.FITS, 300, false);
        step(policy, collecting(look(5, 300, 290, 300), 5800), Scenario.LIFTED, 800, false);
        step(policy, collecting(look(34, 300, 400, 500), 34_000), Scenario.LIFTED, 800, false);
        step(policy, collecting(look(35, 300, 400, 500), 34_000), Scenario.COLLECT, 300, true);
    }

    static void whereTheHardLimitIsReachedCollectingLiftsNothing() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, collecting(look(0, 800, 790, 800), 0), Scenario.FITS, 800, false);
        step(policy, collecting(look(5, 800, 790, 800), 5000), Scenario.FITS, 800, false);
        step(policy, collecting(look(10, 800, 790, 800), 10_000), Scenario.FITS, 800, false);
    }

    static void aSmallerHeapThanTheHardLimitLeavesIsLiftedAway() {
        HeapPolicy policy = new HeapPolicy();
        Look look = look(0, 300, 290, 300);
        look.ceiling = look.maxHeap;
        step(policy, look, Scenario.FITS, 300, false);
        look.now = 5000;
        step(policy, collecting(look, 5000), Scenario.LIFTED, 0, false);
    }

    static void whatChangesALittleIsNoOtherTarget() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, collecting(look(0, 300, 290, 300), 0), Scenario.FITS, 300, false);
        for (int second = 1; second < 5; second++) {
            step(policy, collecting(look(second, 300 - second, 290, 300), 1000 * second), Scenario.FITS, 300 - second, false);
        }
        step(policy, collecting(look(5, 295, 290, 300), 5000), Scenario.LIFTED, 800, false);
    }

    static void aBusyMomentIsNoReason() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, collecting(look(0, 300, 290, 300), 0), Scenario.FITS, 300, false);
        step(policy, collecting(look(1, 300, 290, 300), 990), Scenario.FITS, 300, false);
        step(policy, collecting(look(5, 300, 290, 300), 2000), Scenario.FITS, 300, false);
    }

    static void collectionsBeforeTheBoundAreNotHeldAgainstIt() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, collecting(look(0, 1000, 290, 300), 0), Scenario.UNBOUND, 0, false);
        step(policy, collecting(look(60, 300, 290, 300), 50_000), Scenario.FITS, 300, false);
        step(policy, collecting(look(65, 300, 290, 300), 50_500), Scenario.FITS, 300, false);
    }

    static void aBoundThatTheMachineLiftedStaysLiftedForAWhile() {
        HeapPolicy policy = new HeapPolicy();
        step(policy, look(0, 300, 290, 300), Scenario.FITS, 300, false);
        Look lifted = look(1, 300, 290, 310);
        lifted.lifted = 1;
        lifted.liftedTo = 800 * MIB;
        step(policy, lifted, Scenario.LIFTED, 800, false);
        lifted.now = 2_000;
        lifted.lifted = 2;
        lifted.liftedTo = 0;
        step(policy, lifted, Scenario.LIFTED, 0, false);
        lifted.now = 40_000;
        step(policy, lifted, Scenario.RELEASE, 300, true);
    }

    // ---- VirtualMax from effective memory ----

    static void theHeapIsThreeQuartersOfTheHardLimit() {
        is(HeapTarget.percent(100 * MIB, 400 * MIB), 75, "a default heap's part");
        is(HeapTarget.part(400 * MIB, 75, 1000 * MIB) / MIB, 300L, "of 400 MiB");
        is(HeapTarget.of(400 * MIB, 400 * MIB, 0, 75, 1000 * MIB) / MIB, 300L, "whatever is left");
    }

    static void belowTheHardLimitTheHeapTakesWhatTheViewLeaves() {
        is(HeapTarget.of(400 * MIB, 800 * MIB, 50 * MIB, 75, 1000 * MIB) / MIB, 330L, "nineteen twentieths, less 50 MiB");
        is(HeapTarget.of(400 * MIB, 800 * MIB, 200 * MIB, 75, 1000 * MIB) / MIB, 300L, "never less than its part");
        is(HeapTarget.of(400 * MIB, 440 * MIB, 0, 75, 1000 * MIB) / MIB, 329L, "nor more than its part of the hard limit");
    }

    static void aProgramStartsAsItWasConfigured() {
        is(HeapTarget.percent(360 * MIB, 400 * MIB), 90, "the part of a heap of nine tenths");
        is(HeapTarget.part(400 * MIB, 90, 360 * MIB), 360 * MIB, "its bound while nothing changes");
        is(HeapTarget.percent(399 * MIB, 400 * MIB), 95, "no part is more");
    }

    static void aHeapThatIsLargerThanMemoryIsElastic() {
        is(HeapTarget.percent(800 * MIB, 400 * MIB), 75, "its part");
    }

    static void noHeapIsBoundToNothing() {
        is(HeapTarget.part(MIB, 75, 1000 * MIB) / MIB, 16L, "the least bound");
        is(HeapTarget.part(MIB, 75, 8 * MIB) / MIB, 8L, "the bound of a tiny heap");
    }

    static void memoryWithoutALimitBoundsNothing() {
        is(HeapTarget.of(Long.MAX_VALUE, Long.MAX_VALUE, 0, 75, 1000 * MIB), 1000 * MIB, "the bound");
    }

    // ---- what is needed beside the heap ----

    private static void beside(Beside beside, double now, long charged, long committed, long wanted) {
        is(beside.look((long) (now * 1000), charged * MIB, committed * MIB) / MIB, wanted, "beside the heap at " + now);
    }

    static void besideTheHeapIsWhatIsChargedLessWhatIsCommitted() {
        Beside beside = new Beside();
        beside(beside, 0, 100, 70, 30);
        beside(beside, 1, 120, 100, 30); // it has not touched all that it committed
        beside(beside, 2, 145, 100, 45);
    }

    static void aHeapThatShrinksLeavesNothingBeside() {
        Beside beside = new Beside();
        beside(beside, 0, 230, 200, 30);
        beside(beside, 1, 230, 50, 30); // charged before it shrank
        beside(beside, 4, 80, 50, 30);
    }

    static void whatWasBesideTheHeapIsForgotten() {
        Beside beside = new Beside();
        beside(beside, 0, 200, 100, 100);
        beside(beside, 31, 130, 100, 100);
        beside(beside, 62, 130, 100, 30);
    }

    static void nothingIsBesideWhereNobodyKnows() {
        beside(new Beside(), 0, 0, 100, 0);
    }

    // ---- flags that the user may set too; those of the machine that runs this ----

    private static void flag(Machine machine, String name, long wanted) {
        is(machine.number(name, -1), wanted, name);
    }

    static void aSoftMaxThatTheUserSetsWhileItIsBoundCountsAndComesBack() {
        Machine machine = new Machine();
        String name = "SoftMaxHeapSize";
        if (machine.flag(name) == null) {
            return; // JDK 11
        }
        Knob knob = new Knob.SoftMax(machine);
        long before = machine.number(name, -1);
        knob.bound(16 * MIB, 0, 0);
        flag(machine, name, 16 * MIB);
        machine.set(name, 8 * MIB);
        knob.bound(16 * MIB, 0, 0);
        flag(machine, name, 8 * MIB);
        knob.bound(4 * MIB, 0, 0);
        flag(machine, name, 4 * MIB);
        machine.set(name, 12 * MIB);
        knob.bound(4 * MIB, 0, 0);
        flag(machine, name, 4 * MIB);
        knob.release();
        flag(machine, name, 12 * MIB);
        machine.set(name, 10 * MIB);
        knob.bound(16 * MIB, 0, 0);
        flag(machine, name, 10 * MIB);
        machine.set(name, before);
        knob.release();
        flag(machine, name, before);
    }

    static void ratiosThatTheUserSetsComeBackAfterACollection() {
        Machine machine = new Machine();
        Knob knob = new Knob.FreeRatio(machine, false);
        long least = machine.number("MinHeapFreeRatio", -1);
        long most = machine.number("MaxHeapFreeRatio", -1);
        machine.set("MinHeapFreeRatio", 20);
        machine.set("MaxHeapFreeRatio", 50);
        knob.collect(64 * MIB, 32 * MIB);
        flag(machine, "MinHeapFreeRatio", 20);
        flag(machine, "MaxHeapFreeRatio", 50);
        machine.set("MaxHeapFreeRatio", most);
        machine.set("MinHeapFreeRatio", least);
        knob.collect(64 * MIB, 32 * MIB);
        flag(machine, "MinHeapFreeRatio", least);
        flag(machine, "MaxHeapFreeRatio", most);
    }

    static void whatTheUserSetsDuringACollectionIsNotTakenBack() {
        Machine machine = new Machine();
        long before = machine.number("MaxHeapFreeRatio", -1);
        Flag flag = new Flag(machine, "MaxHeapFreeRatio");
        is(flag.set(60), true, "set");
        machine.set("MaxHeapFreeRatio", 80);
        is(flag.giveBack(), true, "given back");
        flag(machine, "MaxHeapFreeRatio", 80);
        machine.set("MaxHeapFreeRatio", before);
    }

    static void whatTheMachineRefusesIsTriedAgain() {
        Machine machine = new Machine();
        long least = machine.number("MinHeapFreeRatio", -1);
        long most = machine.number("MaxHeapFreeRatio", -1);
        Flag flag = new Flag(machine, "MinHeapFreeRatio");
        flag.set(5);
        machine.set("MaxHeapFreeRatio", least - 1);
        is(flag.giveBack(), false, "given back above the most");
        machine.set("MaxHeapFreeRatio", most);
        is(flag.giveBack(), true, "given back");
        flag(machine, "MinHeapFreeRatio", least);
    }

    // ---- the rest ----

    static void theLibraryIsLoadedFromBesideTheJarWhereItIsTheOneInTheJar() throws IOException {
        byte[] library;
        try (InputStream resource = Native.class.getResourceAsStream("/elbowroom/agent/x86-64.so")) {
            library = resource.readAllBytes();
        }
        Path file = Files.createTempFile("elbowroom-test-", ".so");
        try {
            Files.write(file, new byte[] {1});
            is(Native.isLoadedFrom(file, library), false, "loaded from another library");
            Files.write(file, library);
            is(Native.isLoadedFrom(file, library), true, "loaded from the library");
        } finally {
            Files.delete(file);
        }
        is(Native.isLoadedFrom(file, library), false, "loaded from a file that is gone");
        is(Native.isLoadedFrom(null, library), false, "loaded from nowhere");
    }

    static void theRatioLeavesWhatTheBoundLeaves() {
        is(Knob.FreeRatio.ratio(400 * MIB, 300 * MIB), 25L, "300 of 400");
        is(Knob.FreeRatio.ratio(400 * MIB, 500 * MIB), 11L, "500 of 400");
        is(Knob.FreeRatio.ratio(400 * MIB, 399 * MIB), 11L, "399 of 400");
        is(Knob.FreeRatio.oldPart(150 * MIB, 2), 100 * MIB, "the old part of 150");
    }

    /** A pool of a program, which sets it too. */
    private static final class Width implements Pools.Width {
        int width;

        Width(int width) {
            this.width = width;
        }

        @Override
        public int get() {
            return width;
        }

        @Override
        public void set(int parallelism) {
            width = parallelism;
        }

        @Override
        public int made() {
            return 9;
        }
    }

    static void aPoolFollowsFromTheWidthThatHotSpotMadeIt() throws ReflectiveOperationException {
        // Made before effective CPU changed, between that and our look, or by our look.
        for (int made : new int[] {7, 3, 9}) {
            Width width = new Width(made);
            Pools.Pool pool = new Pools.Pool(width);
            is(pool.toString(), "untouched", "the word");
            pool.follow(7, 3);
            pool.follow(3, 5);
            is(width.width + " " + pool, "5 5", "the width");
            pool.release();
            is(width.width, made, "the width afterwards");
        }
    }

    static void aPoolThatTheProgramSetIsTheProgramsForGood() throws ReflectiveOperationException {
        Width width = new Width(32);
        Pools.Pool pool = new Pools.Pool(width);
        pool.follow(7, 3);
        pool.follow(3, 32);
        pool.follow(32, 5);
        is(width.width + " " + pool, "32 settled by the program", "set before the first look");
        Width later = new Width(7);
        pool = new Pools.Pool(later);
        pool.follow(7, 3);
        later.width = 12;
        pool.follow(3, 5);
        is(later.width + " " + pool, "12 settled by the program", "set after one");
        pool.release();
        is(later.width, 12, "the width afterwards");
    }

    static void aPoolThatCannotBeChangedIsNobodys() throws ReflectiveOperationException {
        Pools pools = new Pools(null, 1);
        pools.follow(1000);
        is(pools.common().startsWith("fixed"), Runtime.version().feature() < 19, "fixed");
        pools.release();
    }

    static void aPoolThatIsNotThereIsNobodys() throws ReflectiveOperationException {
        Width width = new Width(0);
        Pools.Pool pool = new Pools.Pool(width);
        pool.follow(7, 3);
        pool.release();
        is(width.width + " " + pool, "0 absent", "the width");
    }

    static void theCommonPoolIsLeftAsItsProgramSetIt() throws ReflectiveOperationException {
        if (Runtime.version().feature() < 19) {
            System.out.println("skipped: theCommonPoolIsLeftAsItsProgramSetIt needs ForkJoinPool.setParallelism, of JDK 19");
            return;
        }
        Method set = ForkJoinPool.class.getMethod("setParallelism", int.class);
        int before = ForkJoinPool.commonPool().getParallelism();
        Pools pools = new Pools(null, before + 1);
        set.invoke(ForkJoinPool.commonPool(), before + 30);
        pools.follow(before + 5);
        pools.release();
        is(ForkJoinPool.commonPool().getParallelism(), before + 30, "parallelism");
        is(pools.common(), "settled by the program", "the word");
        set.invoke(ForkJoinPool.commonPool(), before);
    }

    static void poolsAreGivenBackAsParallelAsTheyWere() throws ReflectiveOperationException {
        int before = ForkJoinPool.commonPool().getParallelism();
        Pools pools = new Pools(null, before + 1);
        pools.follow(before + 5);
        pools.follow(before + 3);
        boolean fixed = Runtime.version().feature() < 19;
        is(ForkJoinPool.commonPool().getParallelism(), fixed ? before : before + 2, "parallelism");
        pools.release();
        is(ForkJoinPool.commonPool().getParallelism(), before, "parallelism afterwards");
    }

    static void collectorsAreToldByTheirBeans() {
        is(Collector.of(List.of("PS MarkSweep", "PS Scavenge")), Collector.PARALLEL, "PS");
        is(Collector.of(List.of("G1 Young Generation", "G1 Old Generation")), Collector.G1, "G1");
        is(Collector.of(List.of("Copy", "MarkSweepCompact")), Collector.SERIAL, "Copy");
        is(Collector.of(List.of("ZGC Minor Cycles", "ZGC Minor Pauses")), Collector.Z, "ZGC");
        is(Collector.of(List.of("Shenandoah Pauses", "Shenandoah Cycles")), Collector.SHENANDOAH, "Shenandoah");
        is(Collector.of(List.of("scavenge")), Collector.OTHER, "another");
    }

    static void parallelGcKeepsTwoThreadsUnlessItDrainsItsStacks() {
        is(Collector.PARALLEL.leastThreads(64), 2, "by default");
        is(Collector.PARALLEL.leastThreads(-1), 2, "when it is unknown");
        is(Collector.PARALLEL.leastThreads(0), 1, "with GCDrainStackTargetSize=0");
        is(Collector.G1.leastThreads(64), 1, "G1");
    }

    static void aMachineThatStartedSmallSaysHowItCouldGrow() {
        for (int[] enough : new int[][] {{1, 1}, {8, 8}, {13, 16}, {13, 2}}) {
            is(Room.explainFewThreads(enough[0], enough[1]), List.of(), enough[0] + " threads of " + enough[1] + " CPUs");
        }
        is(
                Room.explainFewThreads(1, 16),
                List.of("HotSpot has 1 GC thread since its start, and makes no more: for 16 CPUs start it with -XX:ParallelGCThreads=13."),
                "1 thread of 16 CPUs");
    }

    static void optionsAreReadAndTheRestIsSaid() {
        Options options = Options.parse("heap=60,threads=off,pools,period-ms=5,jmx=0,log,heap=200,what=1,jmx=-3", false);
        is(options.percent, 60, "heap=60");
        is(options.heap, true, "the heap");
        is(options.threads, false, "threads=off");
        is(options.pools, true, "pools");
        is(options.period, 5L, "period-ms");
        is(options.jmx, 0L, "jmx");
        is(options.log, true, "log");
        is(options.ignored, List.of("what=1", "jmx=-3"), "not understood");
    }

    static void noOptionsAreTheDefaults() {
        for (String none : new String[] {null, "", ","}) {
            Options options = Options.parse(none, false);
            is(options.heap && options.threads && options.pools && options.nativeCode && !options.log, true, "defaults");
            is(options.jmx, 10L, "jmx");
            is(options.ignored, List.of(), "not understood");
        }
        is(Options.parse("", true).jmx, 0L, "jmx of one that was attached");
    }
}
