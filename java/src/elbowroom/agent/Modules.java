// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.lang.instrument.Instrumentation;
import java.util.Map;
import java.util.Set;

/** What an agent may open for itself. */
final class Modules {
    private Modules() {}

    /** java.lang, for reflection by this module alone. */
    static void openJavaLang(Instrumentation instrumentation) {
        Set<Module> us = Set.of(Modules.class.getModule());
        Module base = Object.class.getModule();
        instrumentation.redefineModule(base, Set.of(), Map.of(), Map.of("java.lang", us), Set.of(), Map.of());
    }
}
