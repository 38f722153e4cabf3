package dev.quire.compat;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerFragment;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;
import org.apache.commons.configuration2.CompositeConfiguration;

/** What an operator uses: the upstream shell, the ledger checker, and copying a lost bookie's entries. */
final class Tools {
    private static final long CHECK_TIMEOUT_S = 60;
    private final Clients clients;

    Tools(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Operation> operations) {
        operations.put("shell", this::shell);
        operations.put("bookies", this::bookies);
        operations.put("bookie_infos", this::infos);
        operations.put("check_ledger", this::check);
        operations.put("replicate", this::replicate);
    }

    /** {uri, words, settings}: runs `bookkeeper shell WORDS`; its exit code and what it printed. One at a time. */
    private synchronized Object shell(JsonNode arguments) throws Exception {
        ServerConfiguration settings = new ServerConfiguration();
        settings.setMetadataServiceUri(arguments.get("uri").asText());
        arguments.path("settings").fields().forEachRemaining(
                setting -> settings.setProperty(setting.getKey(), setting.getValue().asText()));
        CompositeConfiguration all = new CompositeConfiguration();
        all.addConfiguration(settings);
        List<String> words = new ArrayList<>();
        arguments.get("words").forEach(word -> words.add(word.asText()));
        BookieShell shell = new BookieShell(LedgerIdFormatter.LONG_LEDGERID_FORMATTER, EntryFormatter.STRING_FORMATTER);
        shell.setConf(all);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            int exit = shell.run(words.toArray(new String[0]));
            return Map.of("exit", exit, "printed", printed.toString(StandardCharsets.UTF_8));
        } finally {
            System.setOut(before);
        }
    }

    /** {client}: ids of the writable, the read-only and all known bookies. */
    private Object bookies(JsonNode arguments) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(clients.named(arguments))) {
            return Map.of(
                    "writable", admin.getAvailableBookies().stream().map(BookieId::toString).sorted().toList(),
                    "read_only", admin.getReadOnlyBookies().stream().map(BookieId::toString).sorted().toList(),
                    "all", admin.getAllBookies().stream().map(BookieId::toString).sorted().toList());
        }
    }

    private Object infos(JsonNode arguments) throws Exception {
        Map<String, Object> found = new java.util.TreeMap<>();
        clients.named(arguments).getBookieInfo().forEach((bookie, info) -> found.put(
                bookie.toString(), List.of(info.getTotalDiskSpace(), info.getFreeDiskSpace())));
        return found;
    }

    /** {client, ledger, digest, password}: fragments of which a copy is missing, each as its bookies' ids. */
    private Object check(JsonNode arguments) throws Exception {
        BookKeeper client = clients.named(arguments);
        LedgerHandle handle = client.openLedgerNoRecovery(arguments.get("ledger").asLong(),
                BookKeeper.DigestType.valueOf(arguments.get("digest").asText()), Clients.password(arguments));
        CompletableFuture<Set<LedgerFragment>> bad = new CompletableFuture<>();
        new LedgerChecker(client).checkLedger(handle, (code, fragments) -> {
            if (code != 0) {
                bad.completeExceptionally(new IllegalStateException(Driver.name(code)));
            } else {
                bad.complete(fragments);
            }
        }, 100);
        List<Object> found = new ArrayList<>();
        for (LedgerFragment fragment : bad.get(CHECK_TIMEOUT_S, TimeUnit.SECONDS)) {
            found.add(fragment.getAddresses().stream().map(BookieId::toString).sorted().toList());
        }
        handle.close();
        return found;
    }

    /** {client, ledger, lost}: copies what bookie `lost` held of the ledger to others, and names those instead. */
    private Object replicate(JsonNode arguments) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(clients.named(arguments), clients.settings(arguments))) {
            admin.recoverBookieData(arguments.get("ledger").asLong(),
                    Set.of(BookieId.parse(arguments.get("lost").asText())), false, false);
        }
        return null;
    }
}
