package dev.quire.upstream;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A process that a test started: its output goes to a file, it can be signalled, and it never outlives this JVM. */
final class Child {
    private static final Set<ProcessHandle> RUNNING = ConcurrentHashMap.newKeySet();
    private static final long STOP_SECONDS = 40;
    private static Process forks;
    private static BufferedReader forked;

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(ProcessHandle::destroyForcibly)));
    }

    private final ProcessHandle process;
    private final Matcher found;

    private Child(ProcessHandle process, Matcher found) {
        this.process = process;
        this.found = found;
    }

    /** Returns once `ready` is found in the output that this run wrote; IOException with that output when it ends before. */
    static Child start(List<String> command, File log, Pattern ready, int timeoutSeconds)
            throws IOException, InterruptedException {
        long before = log.length();
        Process process = new ProcessBuilder(command).redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(log)).start();
        return ready(process.toHandle(), log, before, ready, timeoutSeconds);
    }

    /** The same of a bookie with that file of settings. */
    static Child startBookie(File settings, File log, Pattern ready, int timeoutSeconds)
            throws IOException, InterruptedException {
        long before = log.length();
        ProcessHandle bookie = ProcessHandle.of(fork(settings, log))
                .orElseThrow(() -> new IOException("the bookie ended at once: " + log));
        return ready(bookie, log, before, ready, timeoutSeconds);
    }

    /** Asks the Python process that forks bookies. */
    private static synchronized long fork(File settings, File log) throws IOException {
        if (forks == null) {
            forks = new ProcessBuilder(Harness.forks()).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            forked = new BufferedReader(new InputStreamReader(forks.getInputStream(), StandardCharsets.UTF_8));
            RUNNING.add(forks.toHandle());
        }
        OutputStream asked = forks.getOutputStream();
        asked.write((settings.getPath() + "\t" + log.getPath() + "\n").getBytes(StandardCharsets.UTF_8));
        asked.flush();
        String answer = forked.readLine();
        if (answer == null) {
            throw new IOException("the process that forks bookies is gone");
        }
        return Long.parseLong(answer);
    }

    private static Child ready(ProcessHandle process, File log, long before, Pattern ready, int timeoutSeconds)
            throws IOException, InterruptedException {
        RUNNING.add(process);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(timeoutSeconds);
        while (true) {
            boolean alive = process.isAlive();
            String written = written(log, before);
            Matcher found = ready.matcher(written);
            if (found.find()) {
                return new Child(process, found);
            }
            if (!alive || System.nanoTime() > deadline) {
                process.destroyForcibly();
                RUNNING.remove(process);
                throw new IOException(log.getName() + ": did not start:\n" + written);
            }
            Thread.sleep(20);
        }
    }

    private static String written(File log, long from) throws IOException {
        if (!log.exists()) {
            return "";
        }
        byte[] all = Files.readAllBytes(log.toPath());
        return new String(all, (int) from, all.length - (int) from, StandardCharsets.UTF_8);
    }

    /** What `ready` matched. */
    MatchResult found() {
        return found;
    }

    boolean isRunning() {
        return process.isAlive();
    }

    /** SIGTERM, and SIGKILL where that is not obeyed in time. */
    void stop() throws InterruptedException {
        signal("CONT"); // a stopped process would not hear the next one
        process.destroy();
        try {
            process.onExit().get(STOP_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException | ExecutionException e) {
            kill();
        }
        RUNNING.remove(process);
    }

    /** SIGKILL. */
    void kill() throws InterruptedException {
        process.destroyForcibly();
        while (process.isAlive()) {
            Thread.sleep(2);
        }
        RUNNING.remove(process);
    }

    /** SIGSTOP: the kernel keeps its connections open, nothing answers. */
    void suspend() {
        signal("STOP");
    }

    /** SIGCONT. */
    void resume() {
        signal("CONT");
    }

    private void signal(String name) {
        if (!process.isAlive()) {
            return;
        }
        try {
            new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).inheritIO().start().waitFor();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
