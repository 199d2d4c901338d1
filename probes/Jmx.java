import com.sun.tools.attach.VirtualMachine;
import java.util.ArrayList;
import java.util.List;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.openmbean.CompositeData;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * How a program in a JVM is doing, by one of its beans: prints a record a second until the JVM ends.
 *
 * <pre>
 * java Jmx.java PID KEY=ATTRIBUTE@OBJECT... [OBJECTIVE]
 * java Jmx.java 42 'served_total=requestCount@Catalina:type=GlobalRequestProcessor,name="http-nio-8080"' objective=800 |
 *   elbowroom probe send -
 * </pre>
 *
 * An attribute of a composite is ATTRIBUTE.KEY; where OBJECT is a pattern, its beans are added up. Runs as the JVM's user,
 * beside it in the container, and not on the host: a client of JMX reads whatever objects the JVM sends.
 */
public class Jmx {
    record Number(String key, String attribute, ObjectName object) {
        static Number parse(String word) throws Exception {
            int equals = word.indexOf('='), at = word.indexOf('@');
            return new Number(word.substring(0, equals), word.substring(equals + 1, at), new ObjectName(word.substring(at + 1)));
        }

        double read(MBeanServerConnection server) throws Exception {
            double sum = 0;
            var objects = server.queryNames(object, null);
            if (objects.isEmpty()) {
                throw new IllegalArgumentException("no bean " + object);
            }
            int dot = attribute.indexOf('.');
            for (ObjectName each : objects) {
                Object value = server.getAttribute(each, dot < 0 ? attribute : attribute.substring(0, dot));
                if (dot >= 0) {
                    value = ((CompositeData) value).get(attribute.substring(dot + 1));
                }
                sum += ((java.lang.Number) value).doubleValue();
            }
            return sum;
        }
    }

    public static void main(String[] words) throws Exception {
        if (words.length < 2) {
            System.err.println("usage: java Jmx.java PID KEY=ATTRIBUTE@OBJECT... [objective=N] [kind=latency]");
            System.exit(2);
        }
        List<Number> numbers = new ArrayList<>();
        String constants = "";
        for (int i = 1; i < words.length; i++) {
            if (words[i].contains("@")) {
                numbers.add(Number.parse(words[i]));
            } else {
                constants += " " + words[i];
            }
        }
        VirtualMachine machine = VirtualMachine.attach(words[0]);
        String address = machine.startLocalManagementAgent();
        machine.detach();
        try (var connector = JMXConnectorFactory.connect(new JMXServiceURL(address))) {
            MBeanServerConnection server = connector.getMBeanServerConnection();
            // Writing fails once the reader of the records is gone.
            while (!System.out.checkError()) {
                StringBuilder line = new StringBuilder();
                for (Number number : numbers) {
                    line.append(number.key).append('=').append(number.read(server)).append(' ');
                }
                System.out.println(line.toString().trim() + constants);
                Thread.sleep(1000);
            }
        }
    }
}
