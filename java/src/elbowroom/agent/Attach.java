// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import com.sun.tools.attach.VirtualMachine;
import java.nio.file.Path;

/** {@code java -jar elbowroom-agent.jar PID [OPTIONS]}. */
public final class Attach {
    private Attach() {}

    public static void main(String[] arguments) {
        if (arguments.length < 1 || arguments.length > 2) {
            System.err.println("usage: java -jar elbowroom-agent.jar PID [key=value,...]");
            System.exit(2);
        }
        try {
            String jar = Path.of(Attach.class.getProtectionDomain().getCodeSource().getLocation().toURI()).toString();
            VirtualMachine machine = VirtualMachine.attach(arguments[0]);
            try {
                machine.loadAgent(jar, arguments.length == 2 ? arguments[1] : "");
            } finally {
                machine.detach();
            }
        } catch (Exception | NoClassDefFoundError refused) {
            System.err.println("elbowroom: cannot attach to " + arguments[0] + ": " + refused);
            System.exit(2);
        }
    }
}
