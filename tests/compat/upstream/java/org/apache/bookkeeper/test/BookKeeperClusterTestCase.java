package org.apache.bookkeeper.test;

import dev.quire.upstream.EtcdInPlaceOfZooKeeper;
import dev.quire.upstream.Harness;
import dev.quire.upstream.ProcessServer;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.MockUncleanShutdownDetection;
import org.apache.bookkeeper.bookie.TestBookieImpl;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.common.allocator.PoolingPolicy;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.conf.TestBKConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;
import org.apache.bookkeeper.tls.SecurityException;
import org.apache.zookeeper.ZooKeeper;
import org.junit.After;
import org.junit.Assert;
import org.junit.Before;
import org.junit.Rule;
import org.junit.rules.TestName;
import org.junit.rules.Timeout;

/**
 * Stands before the class of this name in upstream's test jar: the same names for its tests to call, but the bookies are
 * processes of ours and the metadata is in etcd. A bookie object that a test brings itself (one that fails or delays on
 * purpose) runs in this JVM as it does there, beside ours.
 */
public abstract class BookKeeperClusterTestCase {
    private static final int REGISTERED_SECONDS = 30;
    private static final int NOTICED_MILLIS = 300;
    /** The control experiment: everything as it is, but with Java bookies. What fails then too does not speak of ours. */
    private static final boolean CONTROL = Boolean.getBoolean("quire.control");

    @Rule
    public final TestName runtime = new TestName();

    @Rule
    public final Timeout globalTimeout;

    protected final ZooKeeperCluster zkUtil;
    protected ZooKeeper zkc;
    protected String metadataServiceUri;
    protected final TmpDirs tmpDirs = new TmpDirs();
    protected final List<ServerTester> servers = new LinkedList<>();
    protected int numBookies;
    protected BookKeeperTestClient bkc;
    protected boolean useUUIDasBookieId = true;
    protected final ServerConfiguration baseConf = TestBKConfiguration.newServerConfiguration();
    protected final ClientConfiguration baseClientConf = TestBKConfiguration.newClientConfiguration();

    private final EtcdInPlaceOfZooKeeper etcd = new EtcdInPlaceOfZooKeeper();
    private final List<Throwable> thrown = new ArrayList<>();
    private boolean autoRecovery;

    public BookKeeperClusterTestCase(int numBookies) {
        this(numBookies, 120);
    }

    public BookKeeperClusterTestCase(int numBookies, int testTimeoutSecs) {
        this(numBookies, 1, testTimeoutSecs);
    }

    public BookKeeperClusterTestCase(int numBookies, int numOfZKNodes, int testTimeoutSecs) {
        this.numBookies = numBookies;
        globalTimeout = Timeout.seconds(testTimeoutSecs * Long.getLong("quire.patience", 1));
        zkUtil = etcd;
    }

    // ---- before and after each test

    @Before
    public void setUp() throws Exception {
        setUp("/ledgers");
    }

    protected void setUp(String ledgersRootPath) throws Exception {
        setMetastoreImplClass(baseConf);
        setMetastoreImplClass(baseClientConf);
        startZKCluster();
        metadataServiceUri = getMetadataServiceUri(ledgersRootPath);
        startBKCluster(metadataServiceUri);
    }

    @After
    public void tearDown() throws Exception {
        try {
            stopBKCluster();
        } finally {
            stopZKCluster();
            removeFolders();
        }
        synchronized (thrown) {
            Assert.assertTrue("thrown aside: " + thrown, thrown.isEmpty());
        }
    }

    /** A file that a killed process was still making may appear meanwhile. */
    private void removeFolders() throws Exception {
        for (int left = 20; ; left--) {
            try {
                tmpDirs.cleanup();
                return;
            } catch (IOException e) {
                if (left == 0) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    protected void captureThrowable(Runnable work) {
        try {
            work.run();
        } catch (Throwable error) {
            synchronized (thrown) {
                thrown.add(error);
            }
        }
    }

    /** Upstream keeps metadata in memory by this in some tests; ours is always in etcd. */
    public void setMetastoreImplClass(AbstractConfiguration conf) {
    }

    protected String getMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    protected String newMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    protected String newMetadataServiceUri(String ledgersRootPath, String type) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath, type);
    }

    protected void startZKCluster() throws Exception {
        zkUtil.startCluster();
        zkc = zkUtil.getZooKeeperClient();
    }

    protected void stopZKCluster() throws Exception {
        zkUtil.killCluster();
    }

    protected void startBKCluster(String uri) throws Exception {
        baseConf.setMetadataServiceUri(uri);
        baseClientConf.setMetadataServiceUri(uri);
        baseClientConf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
        if (numBookies > 0) {
            bkc = null; // of a cluster before this one
            openClient();
        }
        List<CompletableFuture<ServerTester>> starting = new ArrayList<>();
        for (int at = 0; at < numBookies; at++) {
            ServerConfiguration conf = newServerConfiguration();
            starting.add(CompletableFuture.supplyAsync(() -> {
                try {
                    return startBookie(conf);
                } catch (Exception e) {
                    throw new CompletionException(e);
                }
            }, command -> new Thread(command).start()));
        }
        for (CompletableFuture<ServerTester> each : starting) {
            servers.add(each.join());
        }
    }

    private synchronized void openClient() throws Exception {
        if (bkc == null) {
            bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider()) {
                @Override
                public ZooKeeper getZkHandle() {
                    return zkUtil.getZooKeeperClient(); // a second client may be given it; etcd is in its settings
                }
            };
        }
    }

    protected void stopBKCluster() throws Exception {
        if (bkc != null) {
            bkc.close();
        }
        stopReplicationService();
        for (ServerTester tester : servers) {
            tester.kill();
        }
        servers.clear();
    }

    // ---- settings

    protected ServerConfiguration newServerConfiguration() throws Exception {
        File folder = tmpDirs.createNew("bookie", "test");
        return newServerConfiguration(Harness.freePort(), folder, new File[] {folder});
    }

    protected ServerConfiguration newServerConfiguration(int port, File journalDir, File[] ledgerDirs) {
        ServerConfiguration conf = new ServerConfiguration(baseConf);
        String[] names = new String[ledgerDirs.length];
        for (int at = 0; at < names.length; at++) {
            names[at] = ledgerDirs[at].getPath();
        }
        conf.setBookiePort(port).setJournalDirName(journalDir.getPath()).setLedgerDirNames(names);
        conf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
        return conf;
    }

    protected ClientConfiguration newClientConfiguration() {
        return new ClientConfiguration(baseClientConf);
    }

    // ---- which bookies there are

    public BookieId getBookie(int index) throws Exception {
        return addressByIndex(index);
    }

    protected BookieId addressByIndex(int index) throws Exception {
        return servers.get(index).getServer().getBookieId();
    }

    protected List<BookieId> bookieAddresses() throws Exception {
        List<BookieId> found = new ArrayList<>();
        for (ServerTester tester : servers) {
            found.add(tester.getServer().getBookieId());
        }
        return found;
    }

    protected List<File> bookieLedgerDirs() throws Exception {
        List<File> found = new ArrayList<>();
        for (ServerTester tester : servers) {
            found.addAll(List.of(tester.getConfiguration().getLedgerDirs()));
        }
        return found;
    }

    protected List<File> bookieJournalDirs() throws Exception {
        List<File> found = new ArrayList<>();
        for (ServerTester tester : servers) {
            found.addAll(List.of(tester.getConfiguration().getJournalDirs()));
        }
        return found;
    }

    protected BookieServer serverByIndex(int index) throws Exception {
        return servers.get(index).getServer();
    }

    protected ServerConfiguration confByIndex(int index) throws Exception {
        return servers.get(index).getConfiguration();
    }

    protected int indexOfServer(BookieServer server) throws Exception {
        for (int at = 0; at < servers.size(); at++) {
            if (servers.get(at).getServer() == server) {
                return at;
            }
        }
        return -1;
    }

    protected int lastBookieIndex() {
        return servers.size() - 1;
    }

    protected int bookieCount() {
        return servers.size();
    }

    public ServerConfiguration getBkConf(BookieId id) throws Exception {
        return known(id).getConfiguration();
    }

    private ServerTester byId(BookieId id) throws Exception {
        for (ServerTester tester : servers) {
            if (tester.getServer().getBookieId().equals(id)) {
                return tester;
            }
        }
        return null;
    }

    private ServerTester known(BookieId id) throws IOException {
        try {
            ServerTester tester = byId(id);
            if (tester != null) {
                return tester;
            }
        } catch (Exception e) {
            throw new IOException(e);
        }
        throw new IOException("no bookie " + id);
    }

    public boolean isCreatedFromIp(BookieId id) {
        return bkc.getBookieAddressResolver().resolve(id).getSocketAddress().toString().startsWith("/");
    }

    /** Empty: the figures of a process are at its own /metrics. */
    public TestStatsProvider getStatsProvider(BookieId id) throws java.net.UnknownHostException {
        return new TestStatsProvider();
    }

    public TestStatsProvider getStatsProvider(int index) throws Exception {
        return new TestStatsProvider();
    }

    public void resetBookieOpLoggers() {
    }

    // ---- what happens to them

    protected void stopAllBookies() throws Exception {
        stopAllBookies(true);
    }

    protected void stopAllBookies(boolean shutdownClient) throws Exception {
        stopReplicationService();
        for (ServerTester tester : servers) {
            tester.shutdown();
        }
        servers.clear();
        if (shutdownClient && bkc != null) {
            bkc.close();
            bkc = null;
        }
    }

    public ServerConfiguration killBookie(BookieId id) throws Exception {
        ServerTester tester = byId(id);
        if (tester == null) {
            return null;
        }
        servers.remove(tester);
        tester.kill();
        return tester.getConfiguration();
    }

    public ServerConfiguration killBookie(int index) throws Exception {
        ServerTester tester = servers.remove(index);
        tester.kill();
        return tester.getConfiguration();
    }

    public ServerConfiguration killBookieAndWaitForZK(int index) throws Exception {
        return killBookie(index); // which ends the registration
    }

    public void setBookieToReadOnly(BookieId id) throws Exception {
        known(id).getServer().getBookie().getStateManager().transitionToReadOnlyMode().get();
    }

    public CountDownLatch sleepBookie(BookieId id, int seconds) throws Exception {
        CountDownLatch asleep = new CountDownLatch(1);
        sleep(known(id).getServer(), asleep, () -> TimeUnit.SECONDS.sleep(seconds));
        return asleep;
    }

    public void sleepBookie(BookieId id, CountDownLatch until) throws InterruptedException, IOException {
        CountDownLatch asleep = new CountDownLatch(1);
        sleepBookie(id, until, asleep);
        asleep.await();
    }

    public void sleepBookie(BookieId id, CountDownLatch until, CountDownLatch asleep)
            throws InterruptedException, IOException {
        sleep(known(id).getServer(), asleep == null ? new CountDownLatch(1) : asleep, until::await);
    }

    /** Something to wait for. */
    private interface Wait {
        void await() throws InterruptedException;
    }

    private static void sleep(BookieServer server, CountDownLatch asleep, Wait wait) {
        new Thread(() -> {
            server.suspendProcessing();
            asleep.countDown();
            try {
                wait.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            server.resumeProcessing();
        }).start();
    }

    public void restartBookie(BookieId id) throws Exception {
        ServerTester tester = known(id);
        servers.remove(tester);
        tester.kill();
        startAndAddBookie(tester.getConfiguration());
    }

    public void restartBookies() throws Exception {
        restartBookies(conf -> conf);
    }

    public void restartBookies(Function<ServerConfiguration, ServerConfiguration> change) throws Exception {
        List<ServerTester> stopped = new ArrayList<>(servers);
        stopReplicationService();
        for (ServerTester tester : stopped) {
            tester.shutdown();
        }
        servers.clear();
        for (ServerTester tester : stopped) {
            startAndAddBookie(change.apply(tester.getConfiguration()));
        }
    }

    public int startNewBookie() throws Exception {
        return startNewBookieAndReturnAddress().getPort();
    }

    public BookieSocketAddress startNewBookieAndReturnAddress() throws Exception {
        return startAndAddBookie(newServerConfiguration()).getServer().getLocalAddress();
    }

    public BookieId startNewBookieAndReturnBookieId() throws Exception {
        return startAndAddBookie(newServerConfiguration()).getServer().getBookieId();
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf) throws Exception {
        ServerTester tester = startBookie(conf);
        servers.add(tester);
        return tester;
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
        ServerTester tester = startBookie(conf, bookie);
        servers.add(tester);
        return tester;
    }

    protected ServerTester startBookie(ServerConfiguration conf) throws Exception {
        return started(new ServerTester(conf));
    }

    protected ServerTester startBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
        return started(new ServerTester(conf, bookie));
    }

    private ServerTester started(ServerTester tester) throws Exception {
        openClient();
        try {
            tester.getServer().start();
        } catch (IOException e) {
            throw tester.getConfiguration().getTLSProviderFactoryClass() == null ? e : new SecurityException(e.getMessage());
        }
        BookieId id = tester.getServer().getBookieId(); // a process of ours has one only now
        Future<?> registered = tester.getConfiguration().isForceReadOnlyBookie()
                ? bkc.waitForReadOnlyBookie(id) : bkc.waitForWritableBookie(id);
        registered.get(REGISTERED_SECONDS, TimeUnit.SECONDS);
        Thread.sleep(NOTICED_MILLIS); // that was asked of the store: the client hears of it a little later
        if (isAutoRecoveryEnabled()) {
            tester.startAutoRecovery();
        }
        return tester;
    }

    // ---- auto-recovery, which stays upstream's own

    public void setAutoRecoveryEnabled(boolean on) {
        autoRecovery = on;
    }

    public boolean isAutoRecoveryEnabled() {
        return autoRecovery;
    }

    public void startReplicationService() throws Exception {
        for (ServerTester tester : servers) {
            tester.startAutoRecovery();
        }
    }

    public void stopReplicationService() throws Exception {
        for (ServerTester tester : servers) {
            tester.stopAutoRecovery();
        }
    }

    public Auditor getAuditor(int timeout, TimeUnit unit) throws Exception {
        long deadline = System.nanoTime() + unit.toNanos(timeout);
        while (System.nanoTime() < deadline) {
            for (ServerTester tester : servers) {
                Auditor auditor = tester.getAuditor();
                ReplicationWorker worker = tester.getReplicationWorker();
                if (auditor != null && auditor.isRunning() && worker != null && worker.isRunning()) {
                    return auditor;
                }
            }
            Thread.sleep(100);
        }
        throw new Exception("no auditor came up");
    }

    /** One bookie and what belongs to it. */
    public class ServerTester {
        private final ServerConfiguration conf;
        private final BookieServer server;
        private final TestStatsProvider stats = new TestStatsProvider();
        private AutoRecoveryMain recovery;

        public ServerTester(ServerConfiguration conf) throws Exception {
            this.conf = conf;
            server = CONTROL ? server(new TestBookieImpl(conf)) : new ProcessServer(conf, etcd);
        }

        public ServerTester(ServerConfiguration conf, Bookie bookie) throws Exception {
            this.conf = conf;
            server = server(bookie);
        }

        private BookieServer server(Bookie bookie) throws Exception {
            return new BookieServer(conf, bookie, stats.getStatsLogger(""), UnpooledByteBufAllocator.DEFAULT,
                    new MockUncleanShutdownDetection());
        }

        public void startAutoRecovery() throws Exception {
            recovery = new AutoRecoveryMain(conf);
            recovery.start();
        }

        public void stopAutoRecovery() {
            if (recovery != null) {
                recovery.shutdown();
            }
        }

        public Auditor getAuditor() {
            return recovery == null ? null : recovery.getAuditor();
        }

        public ReplicationWorker getReplicationWorker() {
            return recovery == null ? null : recovery.getReplicationWorker();
        }

        public ServerConfiguration getConfiguration() {
            return conf;
        }

        public BookieServer getServer() {
            return server;
        }

        public TestStatsProvider getStatsProvider() {
            return stats;
        }

        public BookieSocketAddress getAddress() {
            try {
                return server.getLocalAddress();
            } catch (java.net.UnknownHostException e) {
                throw new IllegalStateException(e);
            }
        }

        /** In order. */
        public void shutdown() throws Exception {
            server.shutdown();
            stopAutoRecovery();
        }

        /** As hard as the bookie's kind allows. */
        void kill() throws Exception {
            if (server instanceof ProcessServer process) {
                process.kill();
                stopAutoRecovery();
            } else {
                shutdown();
            }
        }
    }
}
