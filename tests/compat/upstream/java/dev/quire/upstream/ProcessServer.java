package dev.quire.upstream;

import io.netty.buffer.UnpooledByteBufAllocator;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.UnknownHostException;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.MockUncleanShutdownDetection;
import org.apache.bookkeeper.bookie.StateManager;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.stats.NullStatsLogger;

/**
 * A bookie of ours as upstream tests hold one. What a process can do is done to the process; who asks for the inside of
 * a Java bookie (its ledger storage, its handling of a request) is given up.
 */
public final class ProcessServer extends BookieServer {
    private final BookieProcess process;
    private final ServerConfiguration settings;

    public ProcessServer(ServerConfiguration settings, EtcdInPlaceOfZooKeeper etcd) throws Exception {
        this(settings, new BookieProcess(settings, etcd));
    }

    private ProcessServer(ServerConfiguration settings, BookieProcess process) throws Exception {
        super(unbound(settings), bookie(process), NullStatsLogger.INSTANCE, UnpooledByteBufAllocator.DEFAULT,
                new MockUncleanShutdownDetection());
        this.process = process;
        this.settings = settings;
    }

    /** The constructor above us would listen, and load what a Java bookie needs. */
    private static ServerConfiguration unbound(ServerConfiguration settings) {
        ServerConfiguration unbound = new ServerConfiguration(settings);
        unbound.setDisableServerSocketBind(true);
        unbound.setEnableLocalTransport(false);
        unbound.clearProperty("tlsProviderFactoryClass");
        unbound.clearProperty("bookieAuthProviderFactoryClass");
        return unbound;
    }

    @Override
    public void start() throws InterruptedException, IOException {
        process.start();
        settings.setBookieId(process.id()); // who asks the settings for the id gets the right one
    }

    @Override
    public BookieId getBookieId() throws UnknownHostException {
        return process.id() == null ? super.getBookieId() : BookieId.parse(process.id());
    }

    /** SIGTERM. */
    @Override
    public synchronized void shutdown() {
        try {
            process.stop();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** SIGKILL. */
    public void kill() throws IOException, InterruptedException {
        process.kill();
    }

    @Override
    public void suspendProcessing() {
        process.suspend();
    }

    @Override
    public void resumeProcessing() {
        process.resume();
    }

    @Override
    public boolean isRunning() {
        return process.isRunning();
    }

    @Override
    public boolean isBookieRunning() {
        return process.isRunning();
    }

    private static Bookie bookie(BookieProcess process) {
        StateManager state = proxy(StateManager.class, (name, arguments) -> switch (name) {
            case "isReadOnly" -> process.isReadOnly();
            case "isRunning" -> process.isRunning();
            case "transitionToReadOnlyMode", "transitionToWritableMode" -> {
                process.setReadOnly(name.equals("transitionToReadOnlyMode"));
                yield CompletableFuture.completedFuture(null);
            }
            default -> throw Harness.needs("the state manager of a Java bookie: " + name);
        });
        return proxy(Bookie.class, (name, arguments) -> switch (name) {
            case "getStateManager" -> state;
            case "isReadOnly" -> process.isReadOnly();
            case "isRunning" -> process.isRunning();
            case "shutdown" -> {
                process.stop();
                yield 0;
            }
            default -> throw Harness.needs("the inside of a Java bookie: " + name);
        });
    }

    /** What a call of an interface's method does. */
    private interface Calls {
        Object called(String method, Object[] arguments) throws Exception;
    }

    private static <T> T proxy(Class<T> kind, Calls calls) {
        return kind.cast(Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, (self, method, given) -> {
            if (method.getDeclaringClass() != Object.class) {
                return calls.called(method.getName(), given);
            }
            return switch (method.getName()) {
                case "equals" -> self == given[0];
                case "hashCode" -> System.identityHashCode(self);
                default -> kind.getSimpleName() + " of a bookie process";
            };
        }));
    }
}
