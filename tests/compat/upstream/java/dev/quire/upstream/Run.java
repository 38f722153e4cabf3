package dev.quire.upstream;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.junit.AssumptionViolatedException;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one upstream test class: `Run CLASS [-|+ NAME...]`, without those or with nothing else. A name is a method's, or
 * the end of a parametrised test's, such as `[1]`.
 * Prints a line of JSON for each test that ended: {test, outcome: passed|failed|skipped, seconds, reason}.
 */
public final class Run {
    private Run() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // tests print
        Set<String> named = Set.copyOf(java.util.Arrays.asList(arguments).subList(1, arguments.length));
        boolean only = arguments.length > 1 && arguments[1].equals("+");
        Request request = Request.aClass(Class.forName(arguments[0])).filterWith(new Filter() {
            @Override
            public boolean shouldRun(Description description) {
                if (!description.isTest()) {
                    return description.getChildren().stream().anyMatch(this::shouldRun);
                }
                String name = description.getMethodName();
                String method = name.replaceFirst("\\[.*", "");
                boolean isNamed = named.contains(method) || named.contains(name.substring(method.length()));
                return isNamed == only;
            }

            @Override
            public String describe() {
                return "the tests of the list";
            }
        });
        JUnitCore core = new JUnitCore();
        core.addListener(new Report(out));
        core.run(request);
        out.flush();
        System.exit(0); // threads that tests left behind
    }

    private static final class Report extends RunListener {
        private final PrintStream out;
        private final ObjectMapper json = new ObjectMapper();
        private long started;
        private Failure failure;

        Report(PrintStream out) {
            this.out = out;
        }

        @Override
        public void testStarted(Description description) {
            System.err.println("=== " + description.getDisplayName());
            started = System.nanoTime();
            failure = null;
        }

        @Override
        public void testFailure(Failure failed) throws Exception {
            failure = failure == null || !skipped(failed) ? failed : failure;
            if (!failed.getDescription().isTest()) {
                testFinished(failed.getDescription());
            }
        }

        @Override
        public void testAssumptionFailure(Failure failed) {
            failure = failure == null ? failed : failure;
        }

        @Override
        public void testFinished(Description description) throws Exception {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("test", description.getMethodName());
            line.put("outcome", failure == null ? "passed" : skipped(failure) ? "skipped" : "failed");
            line.put("seconds", (System.nanoTime() - started) / 1e9);
            line.put("reason", failure == null ? "" : reason(failure));
            out.println(json.writeValueAsString(line));
            out.flush();
        }

        private static String reason(Failure failure) {
            Throwable violated = violated(failure.getException());
            return violated != null ? violated.getMessage() : failure.getTrace();
        }

        private static boolean skipped(Failure failure) {
            return violated(failure.getException()) != null;
        }

        /** The given-up reason that lies at the bottom of a failure. */
        private static Throwable violated(Throwable thrown) {
            for (Throwable at = thrown; at != null; at = at.getCause()) {
                if (at instanceof AssumptionViolatedException) {
                    return at;
                }
            }
            return null;
        }
    }
}
