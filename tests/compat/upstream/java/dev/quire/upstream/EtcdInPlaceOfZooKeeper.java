package dev.quire.upstream;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.bookkeeper.test.ZooKeeperCluster;
import org.apache.commons.io.FileUtils;
import org.apache.zookeeper.ZooKeeper;
import org.mockito.Mockito;

/** A fresh etcd where the upstream tests expect ZooKeeper. A test that calls ZooKeeper itself is given up. */
public final class EtcdInPlaceOfZooKeeper implements ZooKeeperCluster {
    private static final int START_SECONDS = 30;
    private static final Pattern READY = Pattern.compile("serving .*client");
    private static int count;

    /** Passes for a connection where a client is given one; it finds etcd by its settings. */
    private final ZooKeeper none = Mockito.mock(ZooKeeper.class, call -> switch (call.getMethod().getName()) {
        case "close" -> null;
        case "getState" -> ZooKeeper.States.CONNECTED;
        default -> throw Harness.needs("ZooKeeper: " + call.getMethod().getName());
    });
    private final HttpClient http = HttpClient.newHttpClient();
    private int port;
    private File data;
    private Child etcd;

    @Override
    public void startCluster() throws Exception {
        if (data == null) {
            data = new File(Harness.folder(), "etcd" + count++);
            port = Harness.freePort();
        }
        String client = "http://127.0.0.1:" + port;
        String peer = "http://127.0.0.1:" + Harness.freePort();
        List<String> command = List.of(Harness.etcd(), "--name", "one", "--data-dir", data.getPath(),
                "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", "one=" + peer);
        etcd = Child.start(command, new File(data.getPath() + ".log"), READY, START_SECONDS);
    }

    @Override
    public void stopCluster() throws Exception {
        if (etcd != null) {
            etcd.kill();
        }
    }

    @Override
    public void killCluster() throws Exception {
        stopCluster();
        if (data != null) {
            FileUtils.deleteDirectory(data); // 128 MB each
        }
    }

    @Override
    public void restartCluster() throws Exception {
        stopCluster();
        startCluster();
    }

    @Override
    public void sleepCluster(int time, TimeUnit unit, CountDownLatch asleep) {
        new Thread(() -> {
            etcd.suspend();
            asleep.countDown();
            try {
                unit.sleep(time);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            etcd.resume();
        }).start();
    }

    @Override
    public String getMetadataServiceUri() {
        return "metadata-store:etcd:http://127.0.0.1:" + port;
    }

    @Override
    public String getMetadataServiceUri(String root) {
        return getMetadataServiceUri();
    }

    @Override
    public String getMetadataServiceUri(String root, String type) {
        return getMetadataServiceUri();
    }

    @Override
    public ZooKeeper getZooKeeperClient() {
        return none;
    }

    @Override
    public String getZooKeeperConnectString() {
        throw Harness.needs("ZooKeeper: its address");
    }

    @Override
    public void expireSession(ZooKeeper zk) {
        throw Harness.needs("ZooKeeper: expireSession");
    }

    @Override
    public void createBKEnsemble(String root) {
        // the first bookie lays the cluster out
    }

    /** As when the lease of a killed bookie ends, only at once. */
    void forgetRegistration(String bookieId) throws IOException, InterruptedException {
        if (!etcd.isRunning()) {
            return;
        }
        for (String path : List.of("/ledgers/available/", "/ledgers/available/readonly/")) {
            String key = Base64.getEncoder().encodeToString((path + bookieId).getBytes(StandardCharsets.UTF_8));
            HttpRequest request = HttpRequest.newBuilder(
                    URI.create("http://127.0.0.1:" + port + "/v3/kv/deleterange"))
                    .POST(HttpRequest.BodyPublishers.ofString("{\"key\":\"" + key + "\"}")).build();
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() != 200) {
                throw new IOException("etcd answered " + answer.body());
            }
        }
    }
}
