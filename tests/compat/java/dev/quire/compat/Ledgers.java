package dev.quire.compat;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.AsyncCallback;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteFlag;

/** What an application does with ledgers. */
final class Ledgers {
    private final Clients clients;
    private final Map<Long, LedgerHandle> handles = new ConcurrentHashMap<>();
    private final AtomicLong lastHandle = new AtomicLong();

    Ledgers(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Operation> operations) {
        operations.put("create", this::create);
        operations.put("open", this::open);
        operations.put("append", this::append);
        operations.put("append_at", this::appendAt);
        operations.put("write_until_error", this::writeUntilError);
        operations.put("read", this::read);
        operations.put("batch_read", this::batchRead);
        operations.put("read_last", this::readLast);
        operations.put("read_lac", this::readLac);
        operations.put("long_poll", this::longPoll);
        operations.put("force", this::force);
        operations.put("state", this::state);
        operations.put("close", this::close);
        operations.put("delete", this::delete);
        operations.put("metadata", this::metadata);
        operations.put("list_ledgers", this::list);
        operations.put("many_ledgers", this::many);
    }

    private LedgerHandle handle(JsonNode arguments) {
        LedgerHandle handle = handles.get(arguments.get("handle").asLong());
        if (handle == null) {
            throw new IllegalArgumentException("no handle " + arguments.get("handle"));
        }
        return handle;
    }

    private Map<String, Object> keep(LedgerHandle handle) {
        long number = lastHandle.incrementAndGet();
        handles.put(number, handle);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("handle", number);
        answer.put("ledger", handle.getId());
        answer.put("lac", handle.getLastAddConfirmed());
        answer.put("length", handle.getLength());
        return answer;
    }

    /** {client, ensemble, write_quorum, ack_quorum, digest, password, deferred_sync, adv, ledger, custom: {key: text}}. */
    private Object create(JsonNode arguments) throws Exception {
        Map<String, byte[]> custom = new TreeMap<>();
        arguments.path("custom").fields().forEachRemaining(
                entry -> custom.put(entry.getKey(), entry.getValue().asText().getBytes(StandardCharsets.UTF_8)));
        CreateBuilder builder = clients.named(arguments).newCreateLedgerOp()
                .withEnsembleSize(arguments.get("ensemble").asInt())
                .withWriteQuorumSize(arguments.get("write_quorum").asInt())
                .withAckQuorumSize(arguments.get("ack_quorum").asInt())
                .withDigestType(DigestType.valueOf(arguments.get("digest").asText()))
                .withPassword(Clients.password(arguments))
                .withCustomMetadata(custom);
        if (arguments.path("deferred_sync").asBoolean()) {
            builder = builder.withWriteFlags(EnumSet.of(WriteFlag.DEFERRED_SYNC));
        }
        if (!arguments.path("adv").asBoolean()) {
            return keep((LedgerHandle) builder.execute().get());
        }
        var adv = builder.makeAdv();
        if (arguments.has("ledger")) {
            adv = adv.withLedgerId(arguments.get("ledger").asLong());
        }
        return keep((LedgerHandle) adv.execute().get());
    }

    /** {client, ledger, digest, password, recovery}. */
    private Object open(JsonNode arguments) throws Exception {
        BookKeeper client = clients.named(arguments);
        long ledger = arguments.get("ledger").asLong();
        BookKeeper.DigestType digest = BookKeeper.DigestType.valueOf(arguments.get("digest").asText());
        byte[] password = Clients.password(arguments);
        return keep(arguments.get("recovery").asBoolean()
                ? client.openLedger(ledger, digest, password)
                : client.openLedgerNoRecovery(ledger, digest, password));
    }

    /** {handle, count, size, window}: adds with `window` outstanding. Ends at the first error, which it names. */
    private Object append(JsonNode arguments) throws Exception {
        LedgerHandle handle = handle(arguments);
        return write(handle, arguments.get("count").asLong(), arguments.get("size").asInt(),
                arguments.path("window").asInt(100), false);
    }

    /** {handle, size, window}: adds until one fails. An `acked` event tells each confirmed id. */
    private Object writeUntilError(JsonNode arguments) throws Exception {
        return write(handle(arguments), Long.MAX_VALUE, arguments.get("size").asInt(),
                arguments.path("window").asInt(100), true);
    }

    private static Object write(LedgerHandle handle, long count, int size, int window, boolean tell) throws Exception {
        Semaphore slots = new Semaphore(window);
        AtomicInteger failed = new AtomicInteger();
        AtomicLong confirmed = new AtomicLong(handle.getLastAddPushed());
        AtomicLong disorder = new AtomicLong();
        AsyncCallback.AddCallback ended = (code, written, entry, context) -> {
            if (code != 0) {
                failed.compareAndSet(0, code);
            } else {
                if (entry != (Long) context || entry != confirmed.get() + 1) {
                    disorder.incrementAndGet();
                }
                confirmed.set(entry);
                if (tell) {
                    Driver.event(Map.of("event", "acked", "ledger", handle.getId(), "entry", entry));
                }
            }
            slots.release();
        };
        long first = handle.getLastAddPushed() + 1;
        for (long entry = first; entry - first < count && failed.get() == 0; entry++) {
            slots.acquire();
            handle.asyncAddEntry(Clients.payload(handle.getId(), entry, size), ended, entry);
        }
        slots.acquire(window);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("first", first);
        answer.put("last", confirmed.get());
        answer.put("error", Driver.name(failed.get()));
        answer.put("out_of_order", disorder.get());
        answer.put("lac", handle.getLastAddConfirmed());
        return answer;
    }

    /** {handle, entries: [ids], size}: adds under chosen ids, all at once, to a ledger made with `adv`. */
    private Object appendAt(JsonNode arguments) throws Exception {
        LedgerHandle handle = handle(arguments);
        int size = arguments.get("size").asInt();
        int count = arguments.get("entries").size();
        Semaphore slots = new Semaphore(0);
        AtomicInteger failed = new AtomicInteger();
        for (JsonNode entry : arguments.get("entries")) {
            long id = entry.asLong();
            handle.asyncAddEntry(id, Clients.payload(handle.getId(), id, size), (code, written, added, context) -> {
                failed.compareAndSet(0, code);
                slots.release();
            }, null);
        }
        slots.acquire(count);
        return Map.of("error", Driver.name(failed.get()), "lac", handle.getLastAddConfirmed());
    }

    /** {handle, first, last, unconfirmed}: [[id, length, size, SHA-256]]. */
    private Object read(JsonNode arguments) throws Exception {
        LedgerHandle handle = handle(arguments);
        long first = arguments.get("first").asLong();
        long last = arguments.get("last").asLong();
        boolean unconfirmed = arguments.path("unconfirmed").asBoolean();
        List<Object> found = new ArrayList<>();
        for (long from = first; from <= last; from += 500) {
            long to = Math.min(last, from + 499);
            try (LedgerEntries entries = unconfirmed
                    ? handle.readUnconfirmedAsync(from, to).get() : handle.readAsync(from, to).get()) {
                for (var entry : entries) {
                    found.add(describe(entry.getEntryId(), entry.getLength(), entry.getEntryBytes()));
                }
            }
        }
        return found;
    }

    /** {handle, first, count, bytes}: one batch read. */
    private Object batchRead(JsonNode arguments) throws Exception {
        Enumeration<LedgerEntry> entries = handle(arguments).batchReadEntries(
                arguments.get("first").asLong(), arguments.get("count").asInt(), arguments.get("bytes").asLong());
        List<Object> found = new ArrayList<>();
        while (entries.hasMoreElements()) {
            LedgerEntry entry = entries.nextElement();
            found.add(describe(entry.getEntryId(), entry.getLength(), entry.getEntry()));
        }
        return found;
    }

    private Object readLast(JsonNode arguments) throws Exception {
        LedgerEntry entry = handle(arguments).readLastEntry();
        return describe(entry.getEntryId(), entry.getLength(), entry.getEntry());
    }

    /** {handle, how}: `read`, `try` or `explicit`. */
    private Object readLac(JsonNode arguments) throws Exception {
        LedgerHandle handle = handle(arguments);
        return switch (arguments.get("how").asText()) {
            case "read" -> handle.readLastConfirmed();
            case "try" -> handle.tryReadLastConfirmed();
            case "explicit" -> handle.readExplicitLastConfirmed();
            default -> throw new IllegalArgumentException("how " + arguments.get("how"));
        };
    }

    /** {handle, entry, timeout_ms, parallel}: waits for the LAC to reach `entry`; the entry comes along. */
    private Object longPoll(JsonNode arguments) throws Exception {
        try (LastConfirmedAndEntry found = handle(arguments).readLastAddConfirmedAndEntryAsync(
                arguments.get("entry").asLong(), arguments.get("timeout_ms").asLong(),
                arguments.path("parallel").asBoolean()).get()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("lac", found.getLastAddConfirmed());
            answer.put("entry", found.hasEntry()
                    ? describe(found.getEntry().getEntryId(), found.getEntry().getLength(), found.getEntry().getEntryBytes())
                    : null);
            return answer;
        }
    }

    private Object force(JsonNode arguments) throws Exception {
        handle(arguments).force().get();
        return handle(arguments).getLastAddConfirmed();
    }

    private Object state(JsonNode arguments) {
        LedgerHandle handle = handle(arguments);
        return Map.of("ledger", handle.getId(), "lac", handle.getLastAddConfirmed(), "length", handle.getLength(),
                "pushed", handle.getLastAddPushed(), "closed", handle.isClosed());
    }

    private Object close(JsonNode arguments) throws Exception {
        handle(arguments).close();
        handles.remove(arguments.get("handle").asLong());
        return null;
    }

    private Object delete(JsonNode arguments) throws Exception {
        clients.named(arguments).deleteLedger(arguments.get("ledger").asLong());
        return null;
    }

    private Object metadata(JsonNode arguments) throws Exception {
        LedgerMetadata metadata = clients.named(arguments).getLedgerMetadata(arguments.get("ledger").asLong()).get();
        Map<String, Object> segments = new LinkedHashMap<>();
        metadata.getAllEnsembles().forEach(
                (first, ensemble) -> segments.put(first.toString(), ensemble.stream().map(Object::toString).toList()));
        Map<String, Object> custom = new TreeMap<>();
        metadata.getCustomMetadata().forEach(
                (key, value) -> custom.put(key, new String(value, StandardCharsets.UTF_8)));
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("state", metadata.getState().toString());
        answer.put("ensemble", metadata.getEnsembleSize());
        answer.put("write_quorum", metadata.getWriteQuorumSize());
        answer.put("ack_quorum", metadata.getAckQuorumSize());
        answer.put("digest", metadata.getDigestType().toString());
        answer.put("last", metadata.isClosed() ? metadata.getLastEntryId() : null);
        answer.put("length", metadata.getLength());
        answer.put("segments", segments);
        answer.put("custom", custom);
        return answer;
    }

    private Object list(JsonNode arguments) throws Exception {
        List<Long> found = new ArrayList<>();
        clients.named(arguments).newListLedgersOp().execute().get().toIterable().forEach(found::add);
        return found;
    }

    /** {client, ledgers, entries, size, ...as create}: writes all of them at once, an entry of each in turn; their ids. */
    private Object many(JsonNode arguments) throws Exception {
        int count = arguments.get("ledgers").asInt();
        int entries = arguments.get("entries").asInt();
        int size = arguments.get("size").asInt();
        List<LedgerHandle> opened = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            opened.add(clients.named(arguments).createLedger(arguments.get("ensemble").asInt(),
                    arguments.get("write_quorum").asInt(), arguments.get("ack_quorum").asInt(),
                    BookKeeper.DigestType.valueOf(arguments.get("digest").asText()), Clients.password(arguments)));
        }
        Semaphore ended = new Semaphore(0);
        AtomicInteger failed = new AtomicInteger();
        for (long entry = 0; entry < entries; entry++) {
            for (LedgerHandle handle : opened) {
                handle.asyncAddEntry(Clients.payload(handle.getId(), entry, size), (code, written, added, context) -> {
                    failed.compareAndSet(0, code);
                    ended.release();
                }, null);
            }
        }
        ended.acquire(count * entries);
        for (LedgerHandle handle : opened) {
            handle.close();
        }
        return Map.of("error", Driver.name(failed.get()), "ledgers", opened.stream().map(LedgerHandle::getId).toList());
    }

    private static List<Object> describe(long entry, long length, byte[] payload) throws Exception {
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(payload);
        return List.of(entry, length, payload.length, HexFormat.of().formatHex(hash));
    }
}
