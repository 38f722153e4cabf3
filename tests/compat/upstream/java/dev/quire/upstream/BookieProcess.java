package dev.quire.upstream;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import org.apache.bookkeeper.conf.ServerConfiguration;

/** One `quire bookie start` with the settings that an upstream test gave its Java bookie, under the same keys. */
final class BookieProcess {
    private static final int START_SECONDS = 60;
    private static final int STARTS = 5;
    /** Keys whose values in these tests are below what a bookie of ours takes, and the least that it takes. */
    private static final Map<String, Long> LEAST = Map.of(
            "dbStorage_writeCacheMaxSizeMb", 24L, "journalMaxSizeMB", 32L, "logSizeLimit", 16L << 20);
    private static final Pattern LISTENS = Pattern.compile(
            "bookie (\\S+) listens on .*http://[^/]+:(\\d+)/healthz", Pattern.DOTALL);
    private static final AtomicInteger COUNT = new AtomicInteger();

    private final ServerConfiguration settings;
    private final EtcdInPlaceOfZooKeeper etcd;
    private final HttpClient http = HttpClient.newHttpClient();
    private final File file = new File(Harness.folder(), "bookie" + COUNT.incrementAndGet() + ".conf");
    private int httpPort;
    private volatile Child process;
    private volatile String id;

    BookieProcess(ServerConfiguration settings, EtcdInPlaceOfZooKeeper etcd) {
        this.settings = settings;
        this.etcd = etcd;
    }

    /** Somebody's outgoing connection may have taken the port since it was found free: a few times more, then. */
    void start() throws IOException, InterruptedException {
        for (int left = STARTS; ; left--) {
            write();
            try {
                process = Child.startBookie(file, new File(file.getPath() + ".log"), LISTENS, START_SECONDS);
                break;
            } catch (IOException e) {
                if (left == 0 || !e.getMessage().contains("Address already in use")) {
                    throw e;
                }
            }
            if (id == null) {
                settings.setBookiePort(Harness.freePort());
            } else {
                Thread.sleep(1000);
            }
        }
        id = process.found().group(1);
        httpPort = Integer.parseInt(process.found().group(2));
    }

    /** Drawn by the bookie when it stamped its folders, so known once it has started. */
    String id() {
        return id;
    }

    private void write() throws IOException {
        Map<String, String> lines = new TreeMap<>();
        for (Iterator<String> keys = settings.getKeys(); keys.hasNext();) {
            String key = keys.next();
            String value = String.join(",", settings.getStringArray(key));
            Long least = LEAST.get(key);
            lines.put(key, least != null && Long.parseLong(value) < least ? least.toString() : value);
        }
        lines.computeIfPresent("tlsEnabledProtocols", (key, value) -> value.replace(",TLSv1.1", "")); // ours has no 1.1
        lines.put("metadataServiceUri", etcd.getMetadataServiceUri().replace("metadata-store:etcd:http:", "etcd:"));
        lines.put("listeningAddress", "127.0.0.1");
        lines.putIfAbsent("advertisedAddress", "127.0.0.1");
        lines.put("journalDirectories", String.join(",", settings.getJournalDirNames()));
        lines.put("ledgerDirectories", String.join(",", settings.getLedgerDirNames()));
        lines.remove("indexDirectories");
        lines.put("httpServerEnabled", "true");
        lines.put("httpServerPort", "0");
        lines.put("acknowledgeDataLossRisk", "true"); // some tests turn syncs off
        lines.put("zkTimeout", "120000"); // a stopped process keeps its registration, as a paused Java bookie does
        StringBuilder text = new StringBuilder();
        lines.forEach((key, value) -> text.append(key).append('=').append(value).append('\n'));
        Files.writeString(file.toPath(), text.toString());
    }

    boolean isRunning() {
        return process != null && process.isRunning();
    }

    /** In order: it unregisters itself. */
    void stop() throws InterruptedException {
        if (process != null) {
            process.stop();
        }
    }

    /** SIGKILL; what its lease would do some seconds later happens at once. */
    void kill() throws IOException, InterruptedException {
        if (process != null) {
            process.kill();
            etcd.forgetRegistration(id);
        }
    }

    void suspend() {
        process.suspend();
    }

    void resume() {
        process.resume();
    }

    boolean isReadOnly() {
        return ask(HttpRequest.newBuilder(readOnly()).GET().build()).contains("\"readOnly\": true");
    }

    void setReadOnly(boolean on) {
        ask(HttpRequest.newBuilder(readOnly()).header("Content-Type", "application/json")
                .PUT(HttpRequest.BodyPublishers.ofString("{\"readOnly\": " + on + "}")).build());
    }

    private URI readOnly() {
        return URI.create("http://127.0.0.1:" + httpPort + "/api/v1/bookie/state/readonly");
    }

    private String ask(HttpRequest request) {
        try {
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() != 200) {
                throw new IllegalStateException("the bookie answered " + answer.body());
            }
            return answer.body();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }
}
