package dev.quire.compat;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Stock clients by the names that the test gave them, and the bytes that tests write. */
final class Clients {
    private final Map<String, BookKeeper> byName = new ConcurrentHashMap<>();
    private final Map<String, ClientConfiguration> settingsByName = new ConcurrentHashMap<>();

    void register(Map<String, Driver.Operation> operations) {
        operations.put("open_client", this::open);
        operations.put("close_client", this::close);
    }

    BookKeeper named(JsonNode arguments) {
        BookKeeper client = byName.get(arguments.get("client").asText());
        if (client == null) {
            throw new IllegalArgumentException("no client " + arguments.get("client"));
        }
        return client;
    }

    ClientConfiguration settings(JsonNode arguments) {
        return settingsByName.get(arguments.get("client").asText());
    }

    /** {client, uri, settings: {key: value}}: settings under the names of ClientConfiguration. */
    private Object open(JsonNode arguments) throws Exception {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(arguments.get("uri").asText());
        arguments.path("settings").fields().forEachRemaining(
                setting -> settings.setProperty(setting.getKey(), setting.getValue().asText()));
        settingsByName.put(arguments.get("client").asText(), settings);
        byName.put(arguments.get("client").asText(), new BookKeeper(settings));
        return null;
    }

    private Object close(JsonNode arguments) throws Exception {
        named(arguments).close();
        byName.remove(arguments.get("client").asText());
        return null;
    }

    static byte[] password(JsonNode arguments) {
        return arguments.path("password").asText("").getBytes(StandardCharsets.UTF_8);
    }

    /**
     * What a test writes as entry `entry` of `ledger`: its Python half makes the same. The id in 8 bytes (as far as there
     * is room), then a run of bytes whose start depends on both ids.
     */
    static byte[] payload(long ledger, long entry, int size) {
        byte[] bytes = new byte[size];
        for (int at = 0; at < size; at++) {
            bytes[at] = at < 8 ? (byte) (entry >> (56 - 8 * at)) : (byte) (ledger * 31 + entry * 7 + at);
        }
        return bytes;
    }
}
