package dev.quire.clients;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Publishes numbers to topics, or consumes them, until the standard input ends. The same program as ../../../../go,
 * except for `pattern` and `indexed`.
 *
 * <pre>
 * publish URL PAUSE_MS KEYS TOPIC...   A topic number: acknowledged; E text: an error; S count: the end
 * consume URL SUBSCRIPTION TOPIC       R: subscribed; M nanoseconds key number: received, printed before its acknowledgement
 * pattern URL SUBSCRIPTION PATTERN     the same with all topics that match (Java only). It never lists the topics again: it
 *                                      learns of new ones only from the broker
 * indexed URL SUBSCRIPTION TOPIC       R: subscribed; I index milliseconds text: received, with what the broker added or -1 (Java
 *                                      only)
 * </pre>
 *
 * The environment variables AUTH_PLUGIN and AUTH_PARAMETERS name a plugin for authentication and its parameters (Java only).
 */
public final class Load {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final AtomicBoolean ended = new AtomicBoolean();

    private Load() {}

    public static void main(String[] words) throws Exception {
        Thread watch = new Thread(Load::watchInput);
        watch.setDaemon(true);
        watch.start();
        ClientBuilder builder = PulsarClient.builder().serviceUrl(words[1])
                .operationTimeout(60, TimeUnit.SECONDS).keepAliveInterval(5, TimeUnit.SECONDS);
        if (System.getenv("AUTH_PLUGIN") != null) {
            builder.authentication(System.getenv("AUTH_PLUGIN"), System.getenv("AUTH_PARAMETERS"));
        }
        PulsarClient client = builder.build();
        if (words[0].equals("publish")) {
            publish(client, Long.parseLong(words[2]), Integer.parseInt(words[3]), List.of(words).subList(4, words.length));
        } else if (words[0].equals("pattern")) {
            consume(client.newConsumer().topicsPattern(words[3]).patternAutoDiscoveryPeriod(1, TimeUnit.DAYS), words[2],
                    SubscriptionType.Shared);
        } else if (words[0].equals("indexed")) {
            indexed(client, words[2], words[3]);
        } else {
            consume(client.newConsumer().topic(words[3]), words[2], SubscriptionType.Key_Shared);
        }
        client.close();
        System.exit(0);
    }

    private static void watchInput() {
        try {
            while (System.in.read() >= 0) {
                // only its end counts
            }
        } catch (java.io.IOException error) {
            print("E " + error);
        }
        ended.set(true);
    }

    private static void publish(PulsarClient client, long pauseMs, int keys, List<String> topics) throws Exception {
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (String topic : topics) {
            producers.add(client.newProducer().topic(topic).producerName("load-" + producers.size())
                    .sendTimeout(0, TimeUnit.SECONDS).maxPendingMessages(100_000).blockIfQueueFull(true)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).create());
        }
        AtomicLong open = new AtomicLong();
        long count = 0;
        for (; !ended.get(); count++) {
            for (int at = 0; at < producers.size(); at++) {
                int topic = at;
                long number = count;
                open.incrementAndGet();
                producers.get(at).newMessage().key("k" + number % keys).value(Long.toString(number).getBytes())
                        .sendAsync().whenComplete((id, error) -> {
                            print(error == null ? "A " + topic + " " + number : "E " + topic + " " + number + " " + error);
                            open.decrementAndGet();
                        });
            }
            Thread.sleep(pauseMs);
        }
        for (Producer<byte[]> producer : producers) {
            producer.flush();
        }
        while (open.get() > 0) {
            Thread.sleep(10);
        }
        print("S " + count);
    }

    private static void consume(ConsumerBuilder<byte[]> builder, String subscription, SubscriptionType type)
            throws Exception {
        Consumer<byte[]> consumer = builder.subscriptionName(subscription).subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        print("R");
        while (!ended.get()) {
            Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
            if (message != null) {
                Instant now = Instant.now();
                long nanos = now.getEpochSecond() * 1_000_000_000L + now.getNano();
                print("M " + nanos + " " + message.getKey() + " " + new String(message.getValue()));
                consumer.acknowledgeAsync(message);
            }
        }
        consumer.close();
    }

    private static void indexed(PulsarClient client, String subscription, String topic) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        print("R");
        while (!ended.get()) {
            Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
            if (message != null) {
                print("I " + message.getIndex().orElse(-1L) + " " + message.getBrokerPublishTime().orElse(-1L) + " "
                        + new String(message.getValue()));
                consumer.acknowledge(message);
            }
        }
        consumer.close();
    }

    private static synchronized void print(String line) {
        OUT.println(line);
    }
}
