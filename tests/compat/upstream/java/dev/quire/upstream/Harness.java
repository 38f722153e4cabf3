package dev.quire.upstream;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.AssumptionViolatedException;

/** What the Python half tells this JVM by system properties, and the one way to give a test up. */
public final class Harness {
    private static final Set<Integer> GIVEN = ConcurrentHashMap.newKeySet();

    private Harness() {
    }

    /** The command of the process that forks bookies. */
    static List<String> forks() {
        return List.of(System.getProperty("quire.forks").split("\n"));
    }

    static String etcd() {
        return System.getProperty("quire.etcd");
    }

    /** Where etcd's data, the settings and the logs of bookies go. */
    static File folder() {
        return new File(System.getProperty("quire.folder"));
    }

    /** Ends the test as one that cannot run against processes: JUnit's violated assumption, with the reason. */
    static AssumptionViolatedException needs(String what) {
        return new AssumptionViolatedException("needs " + what);
    }

    /** A free port that was not given out before: bookies that start together must not get the same one. */
    public static int freePort() throws IOException {
        while (true) {
            try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
                if (GIVEN.add(socket.getLocalPort())) {
                    return socket.getLocalPort();
                }
            }
        }
    }
}
