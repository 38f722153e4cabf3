package dev.quire.compat;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.util.ReferenceCounted;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.ClientParts;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ReadEntryCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ReadEntryCallbackCtx;
import org.apache.bookkeeper.proto.DataFormats.LedgerMetadataFormat.DigestType;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.apache.bookkeeper.util.ByteBufList;

/**
 * Single requests to single bookies through the stock client's connections: {client, bookie, ledger, ...}. Result codes
 * are reported in `code`, never thrown.
 */
final class Bookies {
    private static final long ANSWER_TIMEOUT_S = 60;
    private final Clients clients;

    Bookies(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Operation> operations) {
        operations.put("bookie_add", this::add);
        operations.put("bookie_read", this::read);
        operations.put("bookie_batch_read", this::batchRead);
        operations.put("bookie_long_poll", this::longPoll);
        operations.put("bookie_write_lac", this::writeLac);
        operations.put("bookie_read_lac", this::readLac);
        operations.put("bookie_force", this::force);
        operations.put("bookie_info", this::info);
        operations.put("bookie_entries", this::entries);
    }

    private BookieClient client(JsonNode arguments) {
        return ClientParts.bookieClient(clients.named(arguments));
    }

    private static BookieId bookie(JsonNode arguments) {
        return BookieId.parse(arguments.get("bookie").asText());
    }

    private static long ledger(JsonNode arguments) {
        return arguments.get("ledger").asLong();
    }

    private static byte[] key(JsonNode arguments) throws Exception {
        return DigestManager.generateMasterKey(Clients.password(arguments));
    }

    private static DigestManager digests(JsonNode arguments, boolean v2) throws Exception {
        DigestType type = DigestType.valueOf(arguments.get("digest").asText());
        return DigestManager.instantiate(ledger(arguments), Clients.password(arguments), type,
                UnpooledByteBufAllocator.DEFAULT, v2);
    }

    private static Object wait(CompletableFuture<Map<String, Object>> answer) throws Exception {
        return answer.get(ANSWER_TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static Map<String, Object> code(int code) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("code", Driver.name(code));
        return answer;
    }

    private static int flags(JsonNode arguments) {
        return (arguments.path("recovery").asBoolean() ? BookieProtocol.FLAG_RECOVERY_ADD : 0)
                | (arguments.path("fence").asBoolean() ? BookieProtocol.FLAG_DO_FENCING : 0)
                | (arguments.path("high_priority").asBoolean() ? BookieProtocol.FLAG_HIGH_PRIORITY : 0);
    }

    private static String hex(ByteBuf bytes) {
        return bytes == null ? null : ByteBufUtil.hexDump(bytes);
    }

    /** {..., entry, lac, size, digest, password, v2, recovery, high_priority, deferred_sync}. */
    private Object add(JsonNode arguments) throws Exception {
        long entry = arguments.get("entry").asLong();
        int size = arguments.get("size").asInt();
        int flags = flags(arguments);
        ReferenceCounted packaged = digests(arguments, arguments.get("v2").asBoolean()).computeDigestAndPackageForSending(
                entry, arguments.get("lac").asLong(), arguments.path("length").asLong(size * (entry + 1)),
                Unpooled.wrappedBuffer(Clients.payload(ledger(arguments), entry, size)), key(arguments), flags);
        EnumSet<WriteFlag> writeFlags =
                arguments.path("deferred_sync").asBoolean() ? EnumSet.of(WriteFlag.DEFERRED_SYNC) : WriteFlag.NONE;
        CompletableFuture<Map<String, Object>> ended = new CompletableFuture<>();
        client(arguments).addEntry(bookie(arguments), ledger(arguments), key(arguments), entry, packaged,
                (code, ledger, added, from, context) -> ended.complete(code(code)), null, flags, false, writeFlags);
        return wait(ended);
    }

    private static final class Lac implements ReadEntryCallbackCtx {
        private volatile long lac = -1;

        @Override
        public void setLastAddConfirmed(long value) {
            lac = value;
        }

        @Override
        public long getLastAddConfirmed() {
            return lac;
        }
    }

    private static ReadEntryCallback ended(CompletableFuture<Map<String, Object>> future, Lac lac) {
        return (code, ledger, entry, bytes, context) -> {
            Map<String, Object> answer = code(code);
            answer.put("entry", entry);
            answer.put("bytes", hex(bytes));
            answer.put("lac", lac.getLastAddConfirmed());
            future.complete(answer);
        };
    }

    /** {..., entry, fence, high_priority, password}. */
    private Object read(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        Lac lac = new Lac();
        byte[] key = arguments.path("fence").asBoolean() ? key(arguments) : null;
        client(arguments).readEntry(bookie(arguments), ledger(arguments), arguments.get("entry").asLong(),
                ended(future, lac), lac, flags(arguments), key);
        return wait(future);
    }

    /** {..., entry, count, max_bytes}. */
    private Object batchRead(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        client(arguments).batchReadEntries(bookie(arguments), ledger(arguments), arguments.get("entry").asLong(),
                arguments.get("count").asInt(), arguments.get("max_bytes").asLong(),
                (code, ledger, first, list, context) -> future.complete(batch(code, list)), null, flags(arguments));
        return wait(future);
    }

    private static Map<String, Object> batch(int code, ByteBufList list) {
        List<String> found = new ArrayList<>();
        for (int at = 0; list != null && at < list.size(); at++) {
            found.add(hex(list.getBuffer(at)));
        }
        Map<String, Object> answer = code(code);
        answer.put("entries", found);
        return answer;
    }

    /** {..., entry, previous_lac, timeout_ms, piggyback}. */
    private Object longPoll(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        Lac lac = new Lac();
        client(arguments).readEntryWaitForLACUpdate(bookie(arguments), ledger(arguments),
                arguments.get("entry").asLong(), arguments.get("previous_lac").asLong(),
                arguments.get("timeout_ms").asLong(), arguments.get("piggyback").asBoolean(), ended(future, lac), lac);
        return wait(future);
    }

    /** {..., lac, digest, password}. */
    private Object writeLac(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        long lac = arguments.get("lac").asLong();
        ByteBufList packet = digests(arguments, false).computeDigestAndPackageForSendingLac(lac);
        client(arguments).writeLac(bookie(arguments), ledger(arguments), key(arguments), lac, packet,
                (code, ledger, from, context) -> future.complete(code(code)), null);
        return wait(future);
    }

    private Object readLac(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        client(arguments).readLac(bookie(arguments), ledger(arguments), (code, ledger, explicit, last, context) -> {
            Map<String, Object> answer = code(code);
            answer.put("explicit", hex(explicit));
            answer.put("last", hex(last));
            future.complete(answer);
        }, null);
        return wait(future);
    }

    private Object force(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        client(arguments).forceLedger(bookie(arguments), ledger(arguments),
                (code, ledger, from, context) -> future.complete(code(code)), null);
        return wait(future);
    }

    /** {client, bookie, requested}: bits 1 total, 2 free. */
    private Object info(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> future = new CompletableFuture<>();
        client(arguments).getBookieInfo(bookie(arguments), arguments.get("requested").asLong(), (code, info, context) -> {
            Map<String, Object> answer = code(code);
            answer.put("total", info == null ? null : info.getTotalDiskSpace());
            answer.put("free", info == null ? null : info.getFreeDiskSpace());
            future.complete(answer);
        }, null);
        return wait(future);
    }

    /** {..., upto}: which of the ids 0..upto the bookie says it has, and how many in all. */
    private Object entries(JsonNode arguments) throws Exception {
        AvailabilityOfEntriesOfLedger found = client(arguments)
                .getListOfEntriesOfLedger(bookie(arguments), ledger(arguments)).get(ANSWER_TIMEOUT_S, TimeUnit.SECONDS);
        List<Long> ids = new ArrayList<>();
        for (long entry = 0; entry <= arguments.get("upto").asLong(); entry++) {
            if (found.isEntryAvailable(entry)) {
                ids.add(entry);
            }
        }
        return Map.of("ids", ids, "total", found.getTotalNumOfAvailableEntries());
    }
}
