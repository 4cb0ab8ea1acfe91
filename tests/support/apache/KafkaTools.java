import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import org.apache.kafka.common.utils.Exit;

/** Runs the main methods of Kafka's command-line tools in this JVM, one at a time. */
public class KafkaTools {
    static class Ended extends Error {
        Ended(int code) {
            super("exit " + code);
        }
    }

    /** The first wish to exit counts: some tools catch what it throws, and wish again. */
    static class End implements Exit.Procedure {
        final ByteArrayOutputStream said;
        final Hooks hooks;
        boolean isWished = false;
        int code = 0;
        int length = 0;

        End(ByteArrayOutputStream said, Hooks hooks) {
            this.said = said;
            this.hooks = hooks;
        }

        public synchronized void execute(int code, String message) {
            if (!isWished) {
                isWished = true;
                this.code = code;
                hooks.run();
                length = said.size();
            }
            throw new Ended(code);
        }
    }

    /** What a tool wants done when its process ends, which here goes on. */
    static class Hooks implements Exit.ShutdownHookAdder {
        final ArrayList hooks = new ArrayList();

        public void addShutdownHook(String name, Runnable hook) {
            hooks.add(hook);
        }

        void run() {
            for (int i = 0; i < hooks.size(); i++) {
                ((Runnable) hooks.get(i)).run();
            }
        }
    }

    /** What the tool printed on both streams; the first line is its exit code. */
    public static synchronized String run(String name, String[] arguments, byte[] input)
            throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        InputStream in = System.in;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(said, true, "UTF-8");
        System.setOut(stream);
        System.setErr(stream);
        System.setIn(new ByteArrayInputStream(input));
        Hooks hooks = new Hooks();
        End end = new End(said, hooks);
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder(hooks);
        int code = 0;
        try {
            Class.forName(name)
                .getMethod("main", new Class[] {String[].class})
                .invoke(null, new Object[] {arguments});
        } catch (java.lang.reflect.InvocationTargetException error) {
            error.getCause().printStackTrace(stream);
            code = 1;
        } finally {
            if (!end.isWished) {
                hooks.run();
            }
            Exit.resetShutdownHookAdder();
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            System.setOut(out);
            System.setErr(err);
            System.setIn(in);
        }
        if (end.isWished) {
            return end.code + "\n" + new String(said.toByteArray(), 0, end.length, "UTF-8");
        }
        return code + "\n" + said.toString("UTF-8");
    }
}
