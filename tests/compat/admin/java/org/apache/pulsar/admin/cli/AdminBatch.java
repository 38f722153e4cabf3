package org.apache.pulsar.admin.cli;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import picocli.CommandLine;

/**
 * Runs the commands of stock pulsar-admin in one process: a process for each would take hours.
 *
 * <p>Arguments: web service URL, broker service URL. Each line of standard input is a command, its words separated by
 * tabs; each line of standard output is "exit code TAB base64 of stdout TAB base64 of stderr". Words that begin with
 * "@" are commands of this program: "@list" prints every command of pulsar-admin, "@produce TOPIC COUNT" publishes
 * texts, "@consume TOPIC SUBSCRIPTION" opens a consumer that stays.
 */
public final class AdminBatch {
    private static final int SECONDS_MAX = 40;

    private final Properties properties = new Properties();
    private final ExecutorService runner = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });
    private PulsarClient client;

    private AdminBatch(String web, String broker) {
        properties.setProperty("webServiceUrl", web);
        properties.setProperty("brokerServiceUrl", broker);
    }

    public static void main(String[] args) throws Exception {
        PulsarAdminTool.setAllowSystemExit(false);
        PrintStream answers = System.out;
        AdminBatch batch = new AdminBatch(args[0], args[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(batch.answer(line.split("\t")));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] words) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Future<Integer> done = runner.submit(() -> run(words));
        int code;
        try {
            code = done.get(SECONDS_MAX, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            done.cancel(true);
            code = 124;
        } catch (Exception failed) {
            failed.getCause().printStackTrace(System.err);
            code = 125;
        }
        return code + "\t" + encoded(out) + "\t" + encoded(err);
    }

    private static String encoded(ByteArrayOutputStream stream) {
        return Base64.getEncoder().encodeToString(stream.toByteArray());
    }

    private int run(String[] words) throws Exception {
        switch (words[0]) {
            case "@list":
                print(new PulsarAdminTool(properties).commander, "");
                return 0;
            case "@produce":
                produce(words[1], Integer.parseInt(words[2]));
                return 0;
            case "@consume":
                client().newConsumer().topic(words[1]).subscriptionName(words[2])
                        .subscriptionType(SubscriptionType.Shared).receiverQueueSize(1).subscribe();
                return 0;
            default:
                PulsarAdminTool tool = new PulsarAdminTool(properties);
                boolean fine = tool.run(words);
                tool.commander.getOut().flush();
                return fine ? 0 : 1;
        }
    }

    private static void print(CommandLine command, String path) {
        for (CommandLine sub : new java.util.LinkedHashSet<>(command.getSubcommands().values())) {
            String name = (path + " " + sub.getCommandName()).trim();
            if (sub.getSubcommands().isEmpty()) {
                System.out.println(name + "\t" + usage(sub));
            } else {
                print(sub, name);
            }
        }
    }

    /** Returns the arguments of a command: required options with "!", positional ones in brackets. */
    private static String usage(CommandLine command) {
        StringBuilder found = new StringBuilder();
        command.getCommandSpec().options().forEach(option -> {
            if (!option.usageHelp()) {
                found.append(option.required() ? " !" : " ").append(option.longestName())
                        .append(option.arity().max() > 0 ? "=" + option.typeInfo().getType().getSimpleName() : "");
            }
        });
        command.getCommandSpec().positionalParameters().forEach(one -> found.append(" [" + one.paramLabel() + "]"));
        return found.toString().trim();
    }

    private PulsarClient client() throws Exception {
        if (client == null) {
            client = PulsarClient.builder().serviceUrl(properties.getProperty("brokerServiceUrl")).build();
        }
        return client;
    }

    private void produce(String topic, int count) throws Exception {
        try (Producer<byte[]> producer = client().newProducer(Schema.BYTES).topic(topic).enableBatching(false)
                .sendTimeout(10, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < count; number++) {
                producer.newMessage().key("k" + number % 3).value(("message " + number).getBytes()).send();
            }
        }
    }
}
