import elbowroom.View;
import java.io.BufferedReader;
import java.io.InputStreamReader;

/** Says what the view page shows, once for every line of its input: effective CPU, effective memory. */
public final class Page {
    public static void main(String[] arguments) throws Exception {
        var view = new View();
        var input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            System.out.println(view.cpus() + " " + view.memory());
        }
    }
}
