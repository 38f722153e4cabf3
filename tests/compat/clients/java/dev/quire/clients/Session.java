package dev.quire.clients;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Does what the lines of its standard input say, one after the other, with one client; the argument is the service URL.
 * Words of a line, and of the answer to it, are separated by tabs. An answer begins with "ok", or is
 * "error CLASS MESSAGE".
 *
 * <pre>
 * publish TOPIC single|batch KEY=VALUE...      the ids; an empty VALUE is null, an empty KEY is none
 * read TOPIC whole|compacted                   all messages from the first one on
 * subscribe TOPIC SUBSCRIPTION TYPE whole|compacted [PROPERTY=VALUE...]
 * receive TOPIC SUBSCRIPTION COUNT MILLIS      up to COUNT messages, waiting MILLIS at most for each; acknowledged one by one
 * close TOPIC SUBSCRIPTION                     closes the consumer; the subscription stays
 * table TOPIC                                  KEY=VALUE of a table view, which stays open
 * </pre>
 *
 * An id is "ledger:entry"; a message is "ledger:entry KEY=VALUE".
 */
public final class Session {
    private final PulsarClient client;
    private final Map<String, Consumer<byte[]>> consumers = new HashMap<>();
    private final Map<String, TableView<byte[]>> tables = new HashMap<>();

    private Session(String url) throws Exception {
        client = PulsarClient.builder().serviceUrl(url).operationTimeout(60, TimeUnit.SECONDS).build();
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Session session = new Session(words[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(session.answer(List.of(line.split("\t"))));
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(List<String> words) {
        try {
            List<String> found = new ArrayList<>(List.of("ok"));
            found.addAll(run(words.get(0), words.get(1), words.subList(2, words.size())));
            return String.join("\t", found);
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            String text = String.valueOf(cause.getMessage()).replaceAll("\\s+", " ");
            return "error\t" + cause.getClass().getSimpleName() + "\t" + text;
        }
    }

    private List<String> run(String command, String topic, List<String> more) throws Exception {
        switch (command) {
            case "publish":
                return publish(topic, more.get(0).equals("batch"), more.subList(1, more.size()));
            case "read":
                return read(topic, more.get(0).equals("compacted"));
            case "subscribe":
                subscribe(topic, more);
                return List.of();
            case "receive":
                return receive(topic + " " + more.get(0), Integer.parseInt(more.get(1)), Integer.parseInt(more.get(2)));
            case "close":
                consumers.remove(topic + " " + more.get(0)).close();
                return List.of();
            case "table":
                return table(topic);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private List<String> publish(String topic, boolean batch, List<String> messages) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer(Schema.BYTES).topic(topic).sendTimeout(30, TimeUnit.SECONDS)
                .enableBatching(batch).batchingMaxMessages(messages.size() + 1).batchingMaxPublishDelay(1, TimeUnit.HOURS);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = builder.create()) {
            for (String message : messages) {
                String[] pair = message.split("=", 2);
                TypedMessageBuilder<byte[]> made = producer.newMessage();
                if (!pair[0].isEmpty()) {
                    made.key(pair[0]);
                }
                sent.add(made.value(pair[1].isEmpty() ? null : pair[1].getBytes(StandardCharsets.UTF_8)).sendAsync());
            }
            producer.flushAsync(); // the answers are looked at one by one
            List<String> ids = new ArrayList<>();
            for (CompletableFuture<MessageId> one : sent) {
                ids.add(place(one.get()));
            }
            return ids;
        }
    }

    private List<String> read(String topic, boolean compacted) throws Exception {
        List<String> found = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest)
                .readCompacted(compacted).create()) {
            while (reader.hasMessageAvailable()) {
                found.add(shown(reader.readNext(30, TimeUnit.SECONDS)));
            }
        }
        return found;
    }

    private void subscribe(String topic, List<String> words) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (String property : words.subList(3, words.size())) {
            String[] pair = property.split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        consumers.put(topic + " " + words.get(0), client.newConsumer().topic(topic).subscriptionName(words.get(0))
                .subscriptionType(SubscriptionType.valueOf(words.get(1))).readCompacted(words.get(2).equals("compacted"))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscriptionProperties(properties)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).isAckReceiptEnabled(true).subscribe());
    }

    private List<String> receive(String name, int count, int millis) throws Exception {
        Consumer<byte[]> consumer = consumers.get(name);
        List<String> found = new ArrayList<>();
        while (found.size() < count) {
            Message<byte[]> message = consumer.receive(millis, TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            found.add(shown(message));
            consumer.acknowledge(message);
        }
        return found;
    }

    private List<String> table(String topic) throws Exception {
        TableView<byte[]> view = tables.get(topic);
        if (view == null) {
            view = client.newTableView(Schema.BYTES).topic(topic).create();
            tables.put(topic, view);
        }
        List<String> found = new ArrayList<>();
        for (Map.Entry<String, byte[]> each : new TreeMap<>(copy(view)).entrySet()) {
            found.add(each.getKey() + "=" + text(each.getValue()));
        }
        return found;
    }

    private static Map<String, byte[]> copy(TableView<byte[]> view) {
        Map<String, byte[]> found = new HashMap<>();
        view.forEach(found::put);
        return found;
    }

    private static String shown(Message<byte[]> message) {
        String key = message.hasKey() ? message.getKey() : "";
        return place(message.getMessageId()) + " " + key + "=" + text(message.getData());
    }

    private static String text(byte[] value) {
        return value == null ? "" : new String(value, StandardCharsets.UTF_8);
    }

    private static String place(MessageId id) {
        return String.join(":", Arrays.asList(id.toString().split(":")).subList(0, 2));
    }
}
